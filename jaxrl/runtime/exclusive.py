"""Who uses a run: one thread at a time, and nobody trains it when it was stopped.

A run's state is replaced by each call that changes it, and its memory given to the next. Two threads
at once would each train on what the other has given away.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Generator
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from jaxrl.errors import InUseError, StoppedError

P = ParamSpec("P")
R = TypeVar("R")


class Exclusive:
    """What one thread at a time may use, and go on using from within what it called.

    Args:
        name: What is used, as messages name it.
    """

    def __init__(self, name: str) -> None:
        self.is_stopped = False
        self._name = name
        self._lock = threading.RLock()
        self._calls: list[str] = []

    @contextlib.contextmanager
    def held(self, call: str) -> Generator[None]:
        """This thread uses it; others are refused meanwhile.

        Args:
            call: What it is used for, as "train()".

        Raises:
            InUseError: Another thread does.
        """
        if not self._lock.acquire(blocking=False):
            under_way = next(iter(self._calls), "another call")
            raise InUseError(
                f"{call} was called while {under_way} of the same {self._name} runs in another "
                f"thread: one thread at a time may use it, so call {call} when that has returned."
            )
        self._calls.append(call)
        try:
            yield
        finally:
            self._calls.pop()
            self._lock.release()

    def refuse_stopped(self, call: str) -> None:
        """Refuse what a run cannot do any more once its folder and its runners were let go.

        Raises:
            StoppedError: It was stopped.
        """
        if self.is_stopped:
            raise StoppedError(
                f"{call} was called after stop(): the {self._name} was stopped; save it before, "
                "and go on with from_checkpoint()."
            )


class _Used(Protocol):
    """Something with methods that one thread at a time may call."""

    _use: Exclusive


S = TypeVar("S", bound=_Used)


def _use_of(run: _Used) -> Exclusive:
    return run._use  # pyright: ignore[reportPrivateUsage]


def one_thread(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Let one thread at a time call a method, which may call others of its kind."""
    call = f"{method.__name__}()"

    @functools.wraps(method)
    def guarded(self: S, *args: P.args, **kwargs: P.kwargs) -> R:
        with _use_of(self).held(call):
            return method(self, *args, **kwargs)

    return guarded


def until_stopped(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Let one thread at a time call a method, and none after `stop()`."""
    call, alone = f"{method.__name__}()", one_thread(method)

    @functools.wraps(method)
    def guarded(self: S, *args: P.args, **kwargs: P.kwargs) -> R:
        _use_of(self).refuse_stopped(call)
        return alone(self, *args, **kwargs)

    return guarded
