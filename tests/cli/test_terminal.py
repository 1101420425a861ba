"""The terminal: output below Python, signals while the process is in C, commands that can be typed."""

import fcntl
import io
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from jaxrl.cli import terminal
from jaxrl.cli.terminal import Interrupts, RaiseOnInterrupt, format_command

PROGRAM = """
import os, signal, subprocess, sys, time
from rich.console import Console
from jaxrl.cli import terminal
from jaxrl.loggers.display import open_display

console = Console()
with terminal.redirect_output(console), open_display("PPO on X", {}, console=console) as display:
    display.set_phase("building")
    time.sleep(0.6)  # the panel is there
    os.write(2, b"a line below Python\\n")
    os.write(1, b"and ")
    subprocess.run(["sh", "-c", "echo one of another process"])
    time.sleep(0.6)
    display.print_message("a note")
    print("width", console.width)
    exec(sys.argv[1])
    os.write(2, b"the last line")
print("the end")
os.write(2, b"of it\\n")
"""
CURSOR = "\x1b[?25h"
ERASED = "\x1b[2K"
SIZES = ("COLUMNS", "LINES")
"""rich believes these before it asks the terminal."""


def run(then: str = "", **streams: Any) -> tuple[str, subprocess.CompletedProcess[bytes]]:
    """Return the output of a program with a panel to its terminal of 70 columns, and the program."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 70, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in SIZES}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, then],
        **{"stdin": slave, "stdout": slave, "stderr": slave, **streams},
        env={**environment, "TERM": "xterm-256color"},
    )
    os.close(slave)
    data = b""
    while chunk := _chunk(master):
        data += chunk
    os.close(master)
    out, err = process.communicate(timeout=60)
    return data.decode(), subprocess.CompletedProcess(process.args, process.returncode, out, err)


def _chunk(master: int) -> bytes:
    try:
        return os.read(master, 2**16)
    except OSError:  # nobody has the other end any more
        return b""


def line_with(words: str, sent: str) -> str:
    """The line as it stands on the terminal: what was erased before it is left out."""
    (line,) = (line for line in sent.split("\r\n") if words in line)
    return line.rpartition(ERASED)[2].removeprefix(CURSOR)


@pytest.fixture(scope="module")
def aborted() -> str:
    """Return the output of a process that ends at once, after the terminal was given back."""
    sent, done = run("terminal.restore_output(); os.write(2, b'\\naborted\\n'); os._exit(3)")
    assert done.returncode == 3
    return sent


@pytest.mark.parametrize(
    "words", ["a line below Python", "and one of another process", "a note", "width 70"]
)
def test_what_is_written_below_python_has_a_line_above_the_panel(words: str, aborted: str) -> None:
    assert line_with(words, aborted) == words
    assert aborted.endswith("\r\naborted\r\n")


def test_the_last_words_of_a_process_that_is_killed_are_not_lost() -> None:
    sent, done = run("os.write(2, b'out of memory\\n'); os.kill(os.getpid(), signal.SIGKILL)")
    assert done.returncode == -9
    assert "out of memory\r\n" in sent
    assert "the end" not in sent


def test_a_stream_that_leads_elsewhere_is_left_alone() -> None:
    sent, done = run(stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
    assert done.stderr.decode() == "a line below Python\nthe last lineof it\n"
    assert line_with("and one of another process", sent) == "and one of another process"
    assert line_with("width", sent) == "width 70"  # though standard input is no terminal
    assert sent.endswith("the end\r\n")


def test_without_a_terminal_nothing_is_held() -> None:
    console = Console(file=io.StringIO(), force_terminal=True)
    before = [os.fstat(number) for number in (0, 1, 2)]
    with terminal.redirect_output(console):
        assert [os.fstat(number) for number in (0, 1, 2)] == before


# --- signals ---

BUSY_IN_C = """
import hashlib, sys, time
from jaxrl.cli.terminal import Interrupts, RaiseOnInterrupt

def say(words):  # from two threads: a line is one write
    print(words + "\\n", end="", flush=True)

with Interrupts(on_first=say, before_abort=lambda: say("aborting")) as interrupts:
    say("ready")
    hashlib.pbkdf2_hmac("sha256", b"x", b"y", int(sys.argv[1]))
    while not interrupts.requested:
        time.sleep(0.01)
    say("in order")
sys.exit(interrupts.exit_code)
"""


def start_busy(iterations: int) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", BUSY_IN_C, str(iterations)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
    ids=["ctrl-c", "sigterm", "hang-up"],
)
def test_the_first_signal_lets_the_run_end_in_order(number: signal.Signals, code: int) -> None:
    process = start_busy(iterations=1)
    process.send_signal(number)
    out, _ = process.communicate(timeout=30)
    assert sorted(out.splitlines()) == sorted([number.name, "in order"])  # two threads say them
    assert process.returncode == code


def test_the_second_signal_ends_a_process_that_is_busy_in_c() -> None:
    process = start_busy(iterations=2_000_000_000)  # a quarter of an hour
    assert process.stdout is not None
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "SIGINT\n"  # answered while the main thread is busy
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert out == "aborting\n"
    assert process.returncode == 130
    assert time.monotonic() - started < 10


def test_everything_is_put_back() -> None:
    before = [signal.getsignal(number) for number in Interrupts.signals]
    threads = threading.active_count()
    with Interrupts(on_first=lambda name: None, before_abort=lambda: None) as interrupts:
        assert signal.getsignal(signal.SIGINT) != before[0]
        assert interrupts.exit_code == 0
        assert not interrupts.requested
    assert [signal.getsignal(number) for number in Interrupts.signals] == before
    assert threading.active_count() == threads
    assert signal.set_wakeup_fd(-1) == -1


BUSY = """
import hashlib, sys
from jaxrl.cli import terminal
terminal.GRACE_S = 0.2

class Deaf:
    def __del__(self):
        print("ready", flush=True)
        hashlib.pbkdf2_hmac("sha256", b"x", b"y", 1_000_000)  # what is raised after it is lost

with terminal.{how}():
    deaf = Deaf()
    del deaf
    hashlib.pbkdf2_hmac("sha256", b"x", b"y", 2_000_000_000)  # a quarter of an hour
"""


@pytest.mark.parametrize("how", ["ExitOnInterrupt", "RaiseOnInterrupt"])
def test_ctrl_c_ends_a_command_that_is_in_c_or_loses_it(how: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", BUSY.format(how=how)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.endswith("interrupted\n")
    if how == "ExitOnInterrupt":
        assert err == "interrupted\n"


def test_a_command_is_told_of_ctrl_c_by_an_exception() -> None:
    with pytest.raises(KeyboardInterrupt), RaiseOnInterrupt():
        signal.raise_signal(signal.SIGINT)


def test_a_hang_up_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts(on_first=lambda name: None, before_abort=lambda: None) as interrupts:
            signal.raise_signal(signal.SIGHUP)
            time.sleep(0.1)
            assert not interrupts.requested
    finally:
        signal.signal(signal.SIGHUP, before)


# --- commands ---


def make_program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a virtual environment that is not active; another jaxrl is on the path."""
    monkeypatch.setenv("PATH", str(make_program(tmp_path / "other" / "jaxrl").parent))
    folder = tmp_path / "a project"
    called = make_program(folder / ".venv" / "bin" / "jaxrl")
    monkeypatch.setattr(sys, "argv", [str(called)])
    monkeypatch.setattr(sys, "executable", str(make_program(called.with_name("python"))))
    monkeypatch.chdir(folder)
    return folder


def test_a_program_off_the_path_is_named_by_its_file(
    venv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert format_command("resume", Path("a b")) == ".venv/bin/jaxrl resume 'a b'"
    monkeypatch.chdir(venv.parent)
    assert format_command("resume", "x") == "'a project/.venv/bin/jaxrl' resume x"
    monkeypatch.chdir("/")
    assert format_command("resume", "x").endswith("a project/.venv/bin/jaxrl' resume x")
    monkeypatch.chdir(venv / ".venv" / "bin")
    assert format_command("resume", "x") == "./jaxrl resume x"


def test_a_program_on_the_path_has_its_name(venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(venv / ".venv" / "bin"))
    assert format_command("list", "envs") == "jaxrl list envs"
    monkeypatch.setattr(sys, "argv", [str(venv / "jaxrl" / "__main__.py")])
    assert format_command("list", "envs") == "python -m jaxrl list envs"


def test_a_module_is_called_by_its_python(venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(venv / "jaxrl" / "__main__.py")])
    assert format_command("list", "envs") == ".venv/bin/python -m jaxrl list envs"


def test_in_a_program_of_the_users_it_is_the_command(
    venv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py"])
    assert format_command("evaluate", "x") == "jaxrl evaluate x"
