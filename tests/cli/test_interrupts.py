"""Signals against a process whose main thread is deep in C, as it is while XLA compiles."""

import signal
import subprocess
import sys
import threading
import time

import pytest

from jaxrl.cli.terminal import Interrupts, RaiseOnInterrupt

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


def start(iterations: int) -> subprocess.Popen[str]:
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
    process = start(iterations=1)
    process.send_signal(number)
    out, _ = process.communicate(timeout=30)
    assert sorted(out.splitlines()) == sorted([number.name, "in order"])  # two threads say them
    assert process.returncode == code


def test_the_second_signal_ends_a_process_that_is_busy_in_c() -> None:
    process = start(iterations=2_000_000_000)  # a quarter of an hour
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
