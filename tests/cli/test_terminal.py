"""Output that bypasses Python while the panel is drawn on the terminal."""

import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios
from typing import Any

import pytest
from rich.console import Console

from jaxrl.cli import terminal

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
def sent() -> str:
    sent, done = run()
    assert done.returncode == 0, sent
    return sent


@pytest.mark.parametrize(
    "words",
    ["a line below Python", "and one of another process", "a note", "width 70", "the last line"],
)
def test_what_is_written_below_python_has_a_line_above_the_panel(words: str, sent: str) -> None:
    assert line_with(words, sent) == words


def test_the_terminal_is_given_back(sent: str) -> None:
    assert sent.endswith("the end\r\nof it\r\n")


def test_the_last_words_of_a_process_that_is_killed_are_not_lost() -> None:
    sent, done = run("os.write(2, b'out of memory\\n'); os.kill(os.getpid(), signal.SIGKILL)")
    assert done.returncode == -9
    assert "out of memory\r\n" in sent
    assert "the end" not in sent


def test_giving_back_before_the_process_ends_at_once() -> None:
    sent, done = run("terminal.restore_output(); os.write(2, b'\\naborted\\n'); os._exit(3)")
    assert done.returncode == 3
    assert sent.endswith("\r\naborted\r\n")


def test_a_stream_that_leads_elsewhere_is_left_alone() -> None:
    sent, done = run(stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
    assert done.stderr.decode() == "a line below Python\nthe last lineof it\n"
    assert line_with("and one of another process", sent) == "and one of another process"
    assert line_with("width", sent) == "width 70"  # though standard input is no terminal


def test_without_a_terminal_nothing_is_held() -> None:
    console = Console(file=io.StringIO(), force_terminal=True)
    before = [os.fstat(number) for number in (0, 1, 2)]
    with terminal.redirect_output(console):
        assert [os.fstat(number) for number in (0, 1, 2)] == before
