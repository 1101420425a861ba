"""Exclusive use of a run: by one thread at a time, and not after it was stopped.

A run's state is replaced by each call that changes it, and its memory is donated to the next. Two
concurrent threads would each train on memory that the other has donated.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Generator
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from jaxrl.errors import InUseError, StoppedError

P = ParamSpec("P")
R = TypeVar("R")


class ExclusiveLock:
    """Reentrant lock that raises instead of waiting, for one thread at a time.

    Args:
        name: Name of the object in messages.
    """

    def __init__(self, name: str) -> None:
        self.is_stopped = False
        self._name = name
        self._lock = threading.RLock()
        self._calls: list[str] = []

    @contextlib.contextmanager
    def hold(self, call: str) -> Generator[None]:
        """Hold the lock in this thread.

        Args:
            call: Name of the call, such as "train()".

        Raises:
            InUseError: If another thread holds it.
        """
        if not self._lock.acquire(blocking=False):
            running = next(iter(self._calls), "another call")
            raise InUseError(
                f"{call} was called while {running} of the same {self._name} runs in another "
                f"thread: one thread at a time may use it, so call {call} when that has returned."
            )
        self._calls.append(call)
        try:
            yield
        finally:
            self._calls.pop()
            self._lock.release()

    def raise_if_stopped(self, call: str) -> None:
        """Raise if the run was stopped, since its folder and its runners have been released.

        Raises:
            StoppedError: If it was stopped.
        """
        if self.is_stopped:
            raise StoppedError(
                f"{call} was called after stop(): the {self._name} was stopped; save it before, "
                "and continue with from_checkpoint()."
            )


class _HasLock(Protocol):
    """Object with a lock, whose methods one thread at a time may call."""

    _use: ExclusiveLock


S = TypeVar("S", bound=_HasLock)


def _use_of(run: _HasLock) -> ExclusiveLock:
    return run._use  # pyright: ignore[reportPrivateUsage]


def single_threaded(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Restrict a method to one thread at a time; it may call other such methods."""
    call = f"{method.__name__}()"

    @functools.wraps(method)
    def guarded(self: S, *args: P.args, **kwargs: P.kwargs) -> R:
        with _use_of(self).hold(call):
            return method(self, *args, **kwargs)

    return guarded


def until_stopped(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Restrict a method to one thread at a time, and to the time before `stop()`."""
    call = f"{method.__name__}()"

    @functools.wraps(method)
    def guarded(self: S, *args: P.args, **kwargs: P.kwargs) -> R:
        lock = _use_of(self)
        lock.raise_if_stopped(call)
        with lock.hold(call):
            return method(self, *args, **kwargs)

    return guarded
