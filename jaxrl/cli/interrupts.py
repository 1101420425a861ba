"""Ctrl-C, SIGTERM and the end of the terminal: they end a command, at whatever moment they come."""

import contextlib
import os
import signal
import socket
import stat
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, ClassVar, Self

from jaxrl.cli import terminal

GRACE_S = 10.0
"""How long a command has to clean up after a KeyboardInterrupt, which may also have been lost."""


class SignalWatch:
    """Hears signals while it is entered.

    A Python signal handler runs only when the main thread is back in Python, and XLA may compile
    for minutes; what it raises is lost in a callback of the garbage collector. The signals are
    therefore read from the interpreter's wake-up pipe by a thread.
    """

    signals: ClassVar[tuple[signal.Signals, ...]] = (signal.SIGINT,)

    def hear(self, number: int) -> None:
        """Answer a signal; called in the watching thread."""
        raise NotImplementedError

    def interrupt(self, number: int, frame: object) -> None:
        """Do nothing in the main thread; the watching thread has the signal already."""

    def __enter__(self) -> Self:
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._thread = threading.Thread(target=self._watch, name="jaxrl-interrupts", daemon=True)
        self._thread.start()
        # Without a Python handler the interpreter writes nothing to the pipe. A hang-up that is
        # ignored stays so: that is what nohup is for.
        heard = [n for n in self.signals if n != signal.SIGHUP or not _is_ignored(n)]
        self._previous = {number: signal.signal(number, self.interrupt) for number in heard}
        self._previous_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        signal.set_wakeup_fd(self._previous_fd)
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._writer.close()  # ends the thread's reading
        self._thread.join()
        self._reader.close()

    def _watch(self) -> None:
        while numbers := self._reader.recv(64):
            for number in numbers:
                if number in self._previous:
                    self.hear(number)


class AtOnce(SignalWatch):
    """Ends the process at the first Ctrl-C, while it has nothing to lose: it imports and reads."""

    def hear(self, number: int) -> None:
        with contextlib.suppress(OSError):
            terminal.give_back()
            os.write(2, b"interrupted\n")
        os._exit(128 + number)


class Raised(AtOnce):
    """Raises KeyboardInterrupt at Ctrl-C, and ends the process if that is not passed on in time."""

    def __init__(self) -> None:
        self._last: list[threading.Timer] = []

    def interrupt(self, number: int, frame: object) -> None:
        raise KeyboardInterrupt

    def hear(self, number: int) -> None:
        last = threading.Timer(GRACE_S, super().hear, (number,))
        last.daemon = True
        last.start()
        self._last.append(last)

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        for last in self._last:
            last.cancel()


class Interrupts(SignalWatch):
    """The first signal asks a run to stop in order, the second ends the process at once.

    Args:
        on_first: Called in the watching thread with the first signal's name.
        before_abort: Called in that thread before a second signal ends the process, to put the
            terminal in order.
    """

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self, on_first: Callable[[str], None], before_abort: Callable[[], None]) -> None:
        self.received: int | None = None
        self._on_first, self._before_abort = on_first, before_abort

    @property
    def requested(self) -> bool:
        """Whether the run was asked to stop."""
        return self.received is not None

    @property
    def exit_code(self) -> int:
        """130 after Ctrl-C, 143 after SIGTERM, 129 after a hang-up, else 0."""
        return 0 if self.received is None else 128 + self.received

    def hear(self, number: int) -> None:
        if number == signal.SIGHUP:
            _leave_terminal()
        if self.received is None:
            self.received = number
            with contextlib.suppress(OSError, ValueError):  # a terminal or pipe that is gone
                self._on_first(signal.Signals(number).name)
        elif number != signal.SIGHUP:  # which comes beside others when a session ends
            with contextlib.suppress(OSError, ValueError):
                self._before_abort()
            os._exit(128 + number)


def _is_ignored(number: signal.Signals) -> bool:
    return signal.getsignal(number) is signal.SIG_IGN


def _leave_terminal() -> None:
    """Let what is printed from now on go nowhere: the terminal that is gone would raise."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in terminal.streams():
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(stream).st_mode):
                os.dup2(nowhere, stream)
    os.close(nowhere)
