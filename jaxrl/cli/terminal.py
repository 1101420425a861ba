"""Output to a terminal: lines that fit, and low-level output as lines above a live display.

rich redirects what Python prints. Libraries in C++ (Ray, XLA) and environment processes write to
the file descriptors directly, which would shift the panel and leave parts of it behind.
"""

import contextlib
import fcntl
import os
import secrets
import select
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

import typer

from jaxrl.core.wrapping import wrap_line

if TYPE_CHECKING:
    from rich.console import Console

_DRAIN_SCRIPT = "trap '' INT TERM HUP QUIT; read -r _; exec cat <&2"
"""Shell script that forwards what is written after this process closed the pipe or crashed."""
_DRAIN_TIMEOUT_S = 1.0
_READ_DELAY_S = 0.05
_PIPE_BYTES = 2**20

_copies: dict[int, int] = {}
"""Copies that lead to the terminal, keyed by redirected file descriptor (1 or 2)."""


def echo(line: str, *, err: bool = False) -> None:
    """Print a line, which a terminal shows without a break within a word."""
    stream = sys.stderr if err else sys.stdout
    if stream.isatty():
        line = "\n".join(wrap_line(line, shutil.get_terminal_size().columns))
    typer.echo(line, err=err)


def get_descriptors() -> tuple[int, ...]:
    """Return the file descriptors that may lead to the terminal."""
    return (0, 1, 2, *_copies.values())


def restore_output() -> None:
    """Make further output reach the terminal directly, as needed before an immediate exit."""
    for descriptor, copy in _copies.items():
        os.dup2(copy, descriptor)


@contextlib.contextmanager
def redirect_output(console: "Console") -> Generator[None]:
    """Print all output to a console's terminal through the console, if there is a terminal."""
    file = console.file
    descriptors = [] if _copies or console.is_dumb_terminal else _find_descriptors(file)
    if not descriptors:
        yield
        return
    from rich.console import ConsoleDimensions

    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    _copies.update({descriptor: os.dup(descriptor) for descriptor in descriptors})
    if not os.isatty(0):  # rich queries descriptors 0 to 2, none of which is a terminal now
        console.size = ConsoleDimensions(*os.get_terminal_size(file.fileno()))
    copy = _copies[file.fileno()]
    console.file = os.fdopen(copy, "w", encoding=console.encoding, errors="replace", closefd=False)
    pipe = _OutputPipe(console, copy)
    for descriptor in descriptors:
        os.dup2(pipe.write_end, descriptor)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        restore_output()
        pipe.close()
        console.file.close()
        console.file = file
        while _copies:
            os.close(_copies.popitem()[1])


def _find_descriptors(file: object) -> list[int]:
    """Return those of descriptors 1 and 2 that lead to the terminal that `file` writes to."""
    try:
        status = os.fstat(file.fileno())  # pyright: ignore[reportAttributeAccessIssue]
    except (AttributeError, OSError):  # not a file of the operating system
        return []
    if not os.isatty(file.fileno()) or file.fileno() not in (1, 2):  # pyright: ignore
        return []
    return [fd for fd in (1, 2) if _get_device(os.fstat(fd)) == _get_device(status)]


def _get_device(status: os.stat_result) -> int | None:
    return status.st_rdev if stat.S_ISCHR(status.st_mode) else None


class _OutputPipe:
    """Pipe whose lines are printed by a console.

    Args:
        console: Console that prints the lines.
        copy: Descriptor of the terminal, which receives output written after the end.
    """

    def __init__(self, console: "Console", copy: int) -> None:
        self._console = console
        self._read_end, self.write_end = os.pipe()
        if sys.platform == "linux":  # a writer to a full pipe blocks, maybe holding a needed lock
            with contextlib.suppress(OSError):  # over the user's limit for pipes
                fcntl.fcntl(self.write_end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._end_marker = secrets.token_bytes(16).hex().encode()
        drain_input, self._release = os.pipe()
        # Forwards the last output of a library that ends this process.
        self._drain_process = subprocess.Popen(
            ["sh", "-c", _DRAIN_SCRIPT], stdin=drain_input, stdout=copy, stderr=self._read_end
        )
        os.close(drain_input)
        self._thread = threading.Thread(
            target=self._print_until_end, name="jaxrl-terminal", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Print what is left; later output of other processes reaches the terminal directly."""
        os.write(self.write_end, self._end_marker)
        os.close(self.write_end)
        self._thread.join()
        os.close(self._read_end)
        os.close(self._release)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._drain_process.wait(_DRAIN_TIMEOUT_S)

    def _print_until_end(self) -> None:
        remainder = b""
        while True:
            select.select([self._read_end], [], [])
            # After a crash, this thread ends before it reads, and the drain process reads instead.
            time.sleep(_READ_DELAY_S)
            data = remainder + os.read(self._read_end, 2**16)
            before, marker, after = data.partition(self._end_marker)
            if marker:
                self._print_lines((before + after).splitlines())
                return
            *lines, remainder = before.split(b"\n")
            self._print_lines(lines)

    def _print_lines(self, lines: Sequence[bytes]) -> None:
        from rich.text import Text

        for line in lines:
            text = Text.from_ansi(line.decode(errors="replace"))
            with contextlib.suppress(OSError, ValueError):  # the terminal is gone
                self._console.print(text, highlight=False)
