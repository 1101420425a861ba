"""What runners need of the user's callbacks."""

import weakref
from typing import Any, Protocol


class RunnerHooks(Protocol):
    """What the user wants to be told of; `jaxrl.callbacks.CallbackList` is one."""

    def wants(self, hook: str) -> bool:
        """Whether anything listens to a hook."""
        ...

    def call(self, hook: str, **kwargs: Any) -> None:
        """Call what listens to a hook."""
        ...


class NoHooks:
    """Nothing listens."""

    def wants(self, hook: str) -> bool:
        """Never."""
        del hook
        return False

    def call(self, hook: str, **kwargs: Any) -> None:
        """Calls nothing."""
        del hook, kwargs


class GroupHooks:
    """The user's callbacks for groups of runners; the one about the group gets its Algorithm.

    Args:
        hooks: The user's.
        algorithm: Held weakly: a group shall not keep the run that it belongs to.
    """

    def __init__(self, hooks: RunnerHooks, algorithm: object) -> None:
        self._hooks, self._algorithm = hooks, weakref.ref(algorithm)

    def wants(self, hook: str) -> bool:
        """Whether anything listens to a hook."""
        return self._hooks.wants(hook)

    def call(self, hook: str, **kwargs: Any) -> None:
        """Call what listens to a hook."""
        if hook == "on_env_runners_recreated":
            kwargs["algorithm"] = self._algorithm()
        self._hooks.call(hook, **kwargs)
