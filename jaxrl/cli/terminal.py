"""The terminal: lines and tables that fit, commands to type, low-level output, and signals.

rich redirects what Python prints. Libraries in C++ (Ray, XLA) and environment processes write to
the file descriptors directly, which would shift a live display and leave pieces of it behind: they
are printed as lines above it. Ctrl-C, SIGTERM and SIGHUP end a command at any moment.
"""

import contextlib
import fcntl
import os
import secrets
import select
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Self

import typer

from jaxrl.core.wrapping import wrap_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

FILE_WIDTH = 160
"""Width of tables in a file or pipe, in characters."""
GRACE_S = 10.0
"""Seconds for a command to clean up after a KeyboardInterrupt, which may also have been lost."""
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


def open_console() -> "Console":
    """Return a console for tables, wide enough for long names if the output is not a terminal."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=FILE_WIDTH)


def format_table(table: "Table", console: "Console | None" = None) -> list[str]:
    """Return the lines of a table, without spaces at their ends."""
    console = console or open_console()
    with console.capture() as printed:
        console.print(table)
    return [line.rstrip() for line in printed.get().splitlines()]


def format_command(*words: str | Path) -> str:
    """Return a command line of `jaxrl` with these words that works in the current folder.

    If its virtual environment is not active, the shell does not find `jaxrl` by name alone.
    """
    return f"{_format_program()} {shlex.join(str(word) for word in words)}"


def _format_program() -> str:
    """Return the shortest form of this process's program name that a shell finds."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return f"{_shorten(Path(sys.executable))} -m jaxrl"
    return _shorten(called) if called.name == "jaxrl" else "jaxrl"


def _shorten(program: Path) -> str:
    """Return a program's name if the shell finds it, else its path from the current folder."""
    on_path = shutil.which(program.name)
    # Symlinks are not resolved: the pythons of all virtual environments point to one file.
    if on_path is not None and os.path.abspath(on_path) == os.path.abspath(program):
        return program.name
    path, cwd = Path(os.path.abspath(program)), Path.cwd()
    if not path.is_relative_to(cwd):
        return shlex.quote(str(path))
    return shlex.quote(os.path.join(*([os.curdir] * (path.parent == cwd)), path.relative_to(cwd)))


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
        is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        watched = [n for n in self.signals if n != signal.SIGHUP or not is_ignored]
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
            restore_output()
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


def _detach_terminal() -> None:
    """Discard further output, since writing to a closed terminal would raise."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2, *_copies.values()):
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(stream).st_mode):
                os.dup2(null, stream)
    os.close(null)
