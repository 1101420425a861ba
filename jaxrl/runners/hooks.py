"""What runners need of the user's callbacks."""

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
