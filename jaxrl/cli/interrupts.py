"""Handling of Ctrl-C, SIGTERM and SIGHUP, which end a command at any moment."""

import contextlib
import os
import signal
import socket
import stat
import threading
from collections.abc import Callable
from types import TracebackType
from typing import ClassVar, Self

from jaxrl.cli import terminal

GRACE_S = 10.0
"""Seconds for a command to clean up after a KeyboardInterrupt, which may also have been lost."""


class SignalWatch:
    """Context manager that receives signals in a thread of its own.

    A Python signal handler runs only when the main thread is back in Python, and XLA may compile
    for minutes; an exception raised by it inside a callback of the garbage collector is lost.
    Signals are therefore read from the interpreter's wake-up pipe by a thread.
    """

    signals: ClassVar[tuple[signal.Signals, ...]] = (signal.SIGINT,)

    def handle(self, number: int) -> None:
        """Handle a signal; called in the watching thread."""
        raise NotImplementedError

    def interrupt(self, number: int, frame: object) -> None:
        """Do nothing in the main thread; the watching thread handles the signal."""

    def __enter__(self) -> Self:
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._thread = threading.Thread(target=self._watch, name="jaxrl-interrupts", daemon=True)
        self._thread.start()
        # The interpreter writes to the pipe only for signals with a Python handler. An ignored
        # SIGHUP stays ignored, as nohup requires.
        watched = [n for n in self.signals if n != signal.SIGHUP or not _is_ignored(n)]
        self._previous = {number: signal.signal(number, self.interrupt) for number in watched}
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
                    self.handle(number)


class ExitOnInterrupt(SignalWatch):
    """Watch that ends the process at the first Ctrl-C, while it has nothing to save."""

    def handle(self, number: int) -> None:
        with contextlib.suppress(OSError):
            terminal.restore_output()
            os.write(2, b"interrupted\n")
        os._exit(128 + number)


class RaiseOnInterrupt(ExitOnInterrupt):
    """Watch that raises KeyboardInterrupt at Ctrl-C and, after a grace period, ends the process."""

    def __init__(self) -> None:
        self._timers: list[threading.Timer] = []

    def interrupt(self, number: int, frame: object) -> None:
        raise KeyboardInterrupt

    def handle(self, number: int) -> None:
        timer = threading.Timer(GRACE_S, super().handle, (number,))
        timer.daemon = True
        timer.start()
        self._timers.append(timer)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        for timer in self._timers:
            timer.cancel()


class Interrupts(SignalWatch):
    """Watch whose first signal requests an orderly stop and whose second ends the process.

    Args:
        on_first: Callback for the name of the first signal, called in the watching thread.
        before_abort: Callback that restores the terminal, called in that thread before a second
            signal ends the process.
    """

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self, on_first: Callable[[str], None], before_abort: Callable[[], None]) -> None:
        self.received: int | None = None
        self._on_first, self._before_abort = on_first, before_abort

    @property
    def requested(self) -> bool:
        """Return whether a stop was requested."""
        return self.received is not None

    @property
    def exit_code(self) -> int:
        """Exit code: 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP, else 0."""
        return 0 if self.received is None else 128 + self.received

    def handle(self, number: int) -> None:
        if number == signal.SIGHUP:
            _detach_terminal()
        if self.received is None:
            self.received = number
            with contextlib.suppress(OSError, ValueError):  # the terminal or pipe is gone
                self._on_first(signal.Signals(number).name)
        elif number != signal.SIGHUP:  # sent along with others when a session ends
            with contextlib.suppress(OSError, ValueError):
                self._before_abort()
            os._exit(128 + number)


def _is_ignored(number: signal.Signals) -> bool:
    return signal.getsignal(number) is signal.SIG_IGN


def _detach_terminal() -> None:
    """Discard further output, since writing to a closed terminal would raise."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in terminal.get_descriptors():
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(stream).st_mode):
                os.dup2(null, stream)
    os.close(null)
