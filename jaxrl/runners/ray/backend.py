"""Interface to the actors of a group, implemented by Ray and by a simulation in tests."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

from jaxrl.errors import JaxrlError
from jaxrl.runners.fragment import Weights
from jaxrl.runners.ray.kept_params import KeptParams


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExceptionInfo:
    """Exception in an actor as plain data, since exceptions may not be picklable.

    The exception's class is kept only if the user has to correct the error, so that a retry is
    useless: an environment that violates the contract, or a module that does not fit.
    """

    message: str
    traceback: str
    user_error_class: type[JaxrlError] | None = None


class RunnerDiedError(RuntimeError):
    """The process of an actor, or its reply, was lost."""


class Backend(Protocol):
    """Backend that runs actors, each executing its calls in order, and returns futures."""

    def now(self) -> float:
        """Return the seconds of a monotonic clock."""
        ...

    def start(self, worker_index: int, incarnation: int, env_steps: int) -> tuple[Any, Any]:
        """Start an actor.

        Args:
            worker_index: Index of the actor, from 1 on.
            incarnation: Number of earlier actors with this index.
            env_steps: Maximum number of steps that its environments have taken in earlier actors.

        Returns:
            Handle of the actor, and the future of its start, which holds None or an exception.
        """
        ...

    def call(self, handle: Any, method: str, *args: object) -> object:
        """Call a method of an actor; return the future of its result or exception."""
        ...

    def put(self, value: Weights | KeptParams) -> object:
        """Store weights or parameters once for all actors; return a reference to pass to `call`."""
        ...

    def wait(self, futures: Sequence[Any], timeout_s: float) -> list[Any]:
        """Wait for the first future to be ready, or for the timeout; return all that are ready."""
        ...

    def get(self, future: Any) -> Any:
        """Return the value of a future that is ready.

        Raises:
            RunnerDiedError: If the actor died before it replied.
        """
        ...

    def kill(self, handle: Any) -> None:
        """Kill an actor, which may be dead already."""
        ...

    def close(self) -> None:
        """Release the resources shared by all actors; safe to call more than once."""
        ...
