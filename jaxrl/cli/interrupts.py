"""Ctrl-C and SIGTERM: the first asks the run to stop in order, the second ends it at once."""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Watches for signals while a run goes on.

    A Python signal handler runs only when the main thread is back in Python, and XLA may compile
    for minutes. The signals are therefore read from the interpreter's wake-up pipe by a thread.

    Args:
        on_first: Called in that thread with the first signal's name.
        before_abort: Called in that thread before a second signal ends the process, to put the
            terminal in order.
    """

    def __init__(self, on_first: Callable[[str], None], before_abort: Callable[[], None]) -> None:
        self.received: int | None = None
        self._on_first, self._before_abort = on_first, before_abort

    @property
    def requested(self) -> bool:
        """Whether the run was asked to stop."""
        return self.received is not None

    @property
    def exit_code(self) -> int:
        """130 after Ctrl-C, 143 after SIGTERM, else 0."""
        return 0 if self.received is None else 128 + self.received

    def __enter__(self) -> Self:
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._thread = threading.Thread(target=self._watch, name="jaxrl-interrupts", daemon=True)
        self._thread.start()
        # Without a Python handler the interpreter writes nothing to the pipe.
        self._previous = {number: signal.signal(number, _heard) for number in _SIGNALS}
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
                if number in _SIGNALS:
                    self._take(number)

    def _take(self, number: int) -> None:
        if self.received is None:
            self.received = number
            self._on_first(signal.Signals(number).name)
            return
        with contextlib.suppress(OSError, ValueError):  # a terminal that is gone
            self._before_abort()
        os._exit(128 + number)


def _heard(number: int, frame: object) -> None:
    """Does nothing in the main thread; the watching thread has the signal already."""
