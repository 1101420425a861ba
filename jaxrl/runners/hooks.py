"""Callback interface of env runners."""

import weakref
from collections.abc import Sequence
from typing import Protocol


class RunnerHooks(Protocol):
    """Interface for calling user callbacks, implemented by `jaxrl.callbacks.CallbackList`."""

    def has_listeners(self, hook: str) -> bool:
        """Return whether a hook has listeners."""
        ...

    def call(self, hook: str, **kwargs: object) -> None:
        """Call the listeners of a hook."""
        ...


class NoHooks:
    """Hooks without listeners."""

    def has_listeners(self, hook: str) -> bool:
        """Return False."""
        del hook
        return False

    def call(self, hook: str, **kwargs: object) -> None:
        """Do nothing."""
        del hook, kwargs


GROUP_HOOKS = ("on_env_runners_recreated",)
"""Hooks called by runner groups that receive the Algorithm."""
DISPATCH_HOOKS = ("on_episode_end", "on_sample_end")
"""Hooks that receive the Algorithm when called after a dispatch of the compiled program."""


class AlgorithmHooks:
    """User callbacks, some of which receive the Algorithm as an argument.

    Args:
        hooks: Callbacks of the user.
        algorithm: Algorithm to pass. Only a weak reference is kept, to avoid a cycle between it
            and the runner group.
        getting_it: Names of the hooks that receive the Algorithm.
    """

    def __init__(
        self,
        hooks: RunnerHooks,
        algorithm: object,
        hooks_with_algorithm: Sequence[str] = GROUP_HOOKS,
    ) -> None:
        self._hooks, self._algorithm = hooks, weakref.ref(algorithm)
        self._hooks_with_algorithm = hooks_with_algorithm

    def has_listeners(self, hook: str) -> bool:
        """Return whether a hook has listeners."""
        return self._hooks.has_listeners(hook)

    def call(self, hook: str, **kwargs: object) -> None:
        """Call the listeners of a hook."""
        if hook in self._hooks_with_algorithm:
            kwargs["algorithm"] = self._algorithm()
        self._hooks.call(hook, **kwargs)
