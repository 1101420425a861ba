"""What a group needs of whatever runs its actors; Ray in earnest, a simulation in tests."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

from jaxrl.errors import JaxrlError
from jaxrl.runners.fragment import Weights


@dataclasses.dataclass(frozen=True, kw_only=True)
class Raised:
    """An exception in an actor as plain data: it may not be one that can be pickled.

    `refused` is its class where the error is the user's to correct, so that trying again is of no
    use: an environment that breaks the contract, a module that does not fit.
    """

    sentence: str
    traceback: str
    refused: type[JaxrlError] | None = None


class RunnerDiedError(RuntimeError):
    """The process of an actor is gone, or its answer is."""


class Backend(Protocol):
    """Actors, each of which does one thing after another, and futures of what they do."""

    def now(self) -> float:
        """Seconds on a clock that never goes back."""
        ...

    def start(self, worker_index: int, incarnation: int, env_steps: int) -> tuple[Any, Any]:
        """A new actor, and the future of its start: None, or `Raised`.

        Args:
            worker_index: Its place, from 1 on.
            incarnation: How many actors have filled the place before.
            env_steps: Steps that its environments may have taken in them.
        """
        ...

    def call(self, handle: Any, method: str, *args: Any) -> Any:
        """The future of what a method of the actor returns, or `Raised`."""
        ...

    def put(self, weights: Weights) -> Any:
        """Weights where every actor can read them, written once; an argument of `call`."""
        ...

    def wait(self, futures: Sequence[Any], timeout_s: float) -> list[Any]:
        """Those that are ready; waits for the first of them."""
        ...

    def get(self, future: Any) -> Any:
        """What a future that is ready holds.

        Raises:
            RunnerDiedError: The actor died before it answered.
        """
        ...

    def kill(self, handle: Any) -> None:
        """End an actor at once; it may be dead already."""
        ...

    def close(self) -> None:
        """Let go of what all actors share; may be called twice."""
        ...
