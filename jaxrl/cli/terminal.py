"""The terminal while a console draws over itself: what else is written to it goes above the drawing.

rich redirects what Python prints. Libraries in C++ (Ray, XLA) and processes of environments write to
the file descriptors, below Python: the panel would move, and leave a piece of itself behind.
"""

import contextlib
import fcntl
import os
import secrets
import select
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_LAST_WORDS = "trap '' INT TERM HUP QUIT; read -r _; exec cat <&2"
"""Passes on what is written once this process has let go, be it that it crashed."""
_PATIENCE_S = 1.0
_REST_S = 0.05
_PIPE_BYTES = 2**20

_copies: dict[int, int] = {}
"""Those of the file descriptors 1 and 2 that are held, and copies that lead to the terminal."""


def streams() -> tuple[int, ...]:
    """The file descriptors that may lead to the terminal."""
    return (0, 1, 2, *_copies.values())


def give_back() -> None:
    """Let what is written from now on reach the terminal directly, as before a process ends at once."""
    for held, copy in _copies.items():
        os.dup2(copy, held)


@contextlib.contextmanager
def held(console: "Console") -> Generator[None]:
    """Print by the console whatever is written to its terminal; without a terminal do nothing."""
    file = console.file
    descriptors = [] if _copies or console.is_dumb_terminal else _of_terminal(file)
    if not descriptors:
        yield
        return
    from rich.console import ConsoleDimensions

    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    _copies.update({descriptor: os.dup(descriptor) for descriptor in descriptors})
    if not os.isatty(0):  # rich asks the first three descriptors, of which now none is a terminal
        console.size = ConsoleDimensions(*os.get_terminal_size(file.fileno()))
    copy = _copies[file.fileno()]
    console.file = os.fdopen(copy, "w", encoding=console.encoding, errors="replace", closefd=False)
    written = _Written(console, copy)
    for descriptor in descriptors:
        os.dup2(written.end, descriptor)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        give_back()
        written.close()
        console.file.close()
        console.file = file
        while _copies:
            os.close(_copies.popitem()[1])


def _of_terminal(file: object) -> list[int]:
    """Which of the descriptors 1 and 2 lead to the terminal that a file writes to; none for others."""
    try:
        here = os.fstat(file.fileno())  # pyright: ignore[reportAttributeAccessIssue]
    except (AttributeError, OSError):  # what is no file of the system's has no descriptor
        return []
    if not os.isatty(file.fileno()) or file.fileno() not in (1, 2):  # pyright: ignore
        return []
    return [fd for fd in (1, 2) if _device(os.fstat(fd)) == _device(here)]


def _device(status: os.stat_result) -> int | None:
    return status.st_rdev if stat.S_ISCHR(status.st_mode) else None


class _Written:
    """A pipe whose lines are printed by a console.

    Args:
        console: Prints them.
        copy: Leads to the terminal; takes what is written after the end.
    """

    def __init__(self, console: "Console", copy: int) -> None:
        self._console = console
        self._reading, self.end = os.pipe()
        if sys.platform == "linux":  # whoever fills it waits, maybe with what this thread needs
            with contextlib.suppress(OSError):  # more than one user may have
                fcntl.fcntl(self.end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._end_mark = secrets.token_bytes(16).hex().encode()
        asleep, self._awake = os.pipe()
        # Nobody else could pass on the last words of a library that ends the process.
        self._successor = subprocess.Popen(
            ["sh", "-c", _LAST_WORDS], stdin=asleep, stdout=copy, stderr=self._reading
        )
        os.close(asleep)
        self._thread = threading.Thread(target=self._print, name="jaxrl-terminal", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Print what is left; what other processes go on writing reaches the terminal directly."""
        os.write(self.end, self._end_mark)
        os.close(self.end)
        self._thread.join()
        os.close(self._reading)
        os.close(self._awake)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._successor.wait(_PATIENCE_S)

    def _print(self) -> None:
        rest = b""
        while True:
            select.select([self._reading], [], [])
            # Whoever wrote before a crash is gone by then, this thread with it, and nothing was read.
            time.sleep(_REST_S)
            before, mark, after = (rest + os.read(self._reading, 2**16)).partition(self._end_mark)
            if mark:
                self._show((before + after).splitlines())
                return
            *lines, rest = before.split(b"\n")
            self._show(lines)

    def _show(self, lines: Sequence[bytes]) -> None:
        from rich.text import Text

        for line in lines:
            words = Text.from_ansi(line.decode(errors="replace"))
            with contextlib.suppress(OSError, ValueError):  # a terminal that is gone
                self._console.print(words, highlight=False)
