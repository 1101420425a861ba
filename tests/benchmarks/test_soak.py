"""Memory over time: what is read, what a leak looks like, and what the table says of it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks import machine, soak
from benchmarks.machine import ROOT
from benchmarks.peers import launch
from benchmarks.worker import Worker

needs_proc = pytest.mark.skipif(not machine.PROC.exists(), reason="memory is read from /proc")


class FakeRun:
    """Trains in no time; leaks `mb_per_minute` in its second actor, once it is warm."""

    def __init__(self, mb_per_minute: float) -> None:
        self.now, self.leak = 100.0, mb_per_minute
        self.asked: list[str] = []

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        self.asked.append(command)
        if command == "train_for":
            self.now += arguments["seconds"] + 0.1
            return {"env_steps": 2048, "driver": 1, "runners": [2, 3]}
        return {"versions": {"fake": "1"}, "devices": 1}

    def read(self, reply: Mapping[str, Any]) -> soak.MemoryUsage:
        minutes = (self.now - 100.0) / 60
        fast = 50.0 * min(minutes, 1.0)  # what warming up takes
        return {"driver": (300.0, 200.0), "actor 2": (100.0 + fast + self.leak * minutes, 50.0)}

    def __enter__(self) -> "FakeRun":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def watched(run: FakeRun) -> dict[str, Any]:
    trace = soak.watch(
        cast(Worker, run),
        warmup_s=60.0,
        length_s=300.0,
        interval_s=5.0,
        read=run.read,
        clock=lambda: run.now,
    )
    return soak.summarize(trace, 60.0)


@pytest.mark.parametrize("leak", [0.0, 1.5])
def test_the_slope_is_that_of_the_time_after_warming_up(leak: float) -> None:
    result = watched(FakeRun(leak))
    slopes = result["slopes"]
    assert slopes["resident"]["actor 2"]["slope"] == pytest.approx(leak, abs=1e-9)
    assert slopes["resident"]["driver"]["slope"] == pytest.approx(0.0, abs=1e-9)
    assert slopes["private"]["actor 2"]["slope"] == pytest.approx(0.0, abs=1e-9)
    assert result["seconds"][result["first"] - 1] < 60.0 <= result["seconds"][result["first"]]
    assert result["env_steps"] == 2048 * len(result["seconds"])
    assert 360.0 <= result["seconds"][-1] < 366.0


def test_slow_iterations_are_watched_until_there_are_enough_for_a_slope() -> None:
    run = FakeRun(1.0)
    trace = soak.watch(
        cast(Worker, run),
        warmup_s=60.0,
        length_s=100.0,
        interval_s=30.0,
        read=run.read,
        clock=lambda: run.now,
    )
    result = soak.summarize(trace, 60.0)
    assert len(result["seconds"]) - result["first"] == 20
    assert result["slopes"]["resident"]["actor 2"]["slope"] == pytest.approx(1.0)


def test_a_run_writes_json_and_the_table_it_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = {launch.LOCAL: FakeRun(0.5), launch.REMOTE: FakeRun(1.5)}
    monkeypatch.setattr(launch, "start", lambda name, env: runs[name])
    watch = soak.watch

    def simulated(worker: Any, **times: float) -> soak.Trace:
        return watch(worker, **times, read=worker.read, clock=lambda: worker.now)

    monkeypatch.setattr(soak, "watch", simulated)
    assert soak.main(["--minutes", "5", "--warmup", "1", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "| +0.500 | +0.500 - +0.500 | +0.000 | under 1: yes |" in printed
    assert "| +1.500 | +1.500 - +1.500 | +0.000 | under 1: no |" in printed
    assert (tmp_path / "soak.md").read_text().strip() == printed.strip()
    results = json.loads((tmp_path / "soak.json").read_text())
    assert set(results["runs"]) == set(runs)
    assert all(run.asked[:2] == ["info", "setup"] for run in runs.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--runs", "sb3"], "not one of jaxrl-local, jaxrl-2x4"),
        (["--minutes", "1", "--interval", "5"], "at least 20 readings"),
        (["--interval", "0"], "at least 20 readings"),
    ],
)
def test_a_wrong_option_ends_with_2(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        soak.main(options)
    assert error.value.code == 2
    assert message in capsys.readouterr().err


def fake_process(proc: Path, pid: int, parent: int, resident_kb: int) -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "stat").write_text(f"{pid} (ray::a) b (c) S {parent} 1 1 0\n")
    (folder / "status").write_text(
        f"Name:\tray::a\nVmRSS:\t {resident_kb} kB\nRssAnon:\t {resident_kb // 2} kB\n"
    )


def test_memory_is_summed_over_what_a_process_started(tmp_path: Path) -> None:
    for pid, parent in ((10, 1), (11, 10), (12, 11), (13, 10), (20, 1), (21, 20)):
        fake_process(tmp_path, pid, parent, 1000 * pid)
    assert machine.list_descendants(10, tmp_path) == [11, 12, 13]
    assert machine.list_descendants(21, tmp_path) == []
    assert machine.read_memory_mb(11, tmp_path) == pytest.approx((11.264, 5.632))
    assert machine.sum_memory_mb([11, 12, 99], tmp_path) == pytest.approx((23.552, 11.776))
    with pytest.raises(ProcessLookupError, match="99"):
        machine.read_memory_mb(99, tmp_path)


@needs_proc
def test_a_process_that_takes_memory_is_seen_to() -> None:
    code = "import sys; block = bytearray(30_000_000); print(flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        assert process.pid in machine.list_descendants(os.getpid())
        resident, private = machine.read_memory_mb(process.pid)
        assert resident >= private > 30.0
        reply = {"driver": os.getpid(), "runners": [process.pid]}
        usage = soak.read_usage(reply)
        assert set(usage) == {"driver", "actor 1", "driver and actors", "Ray's own processes"}
        assert usage["driver and actors"][0] > usage["driver"][0] + 30.0
        process.communicate()
    assert set(soak.read_usage({"driver": os.getpid(), "runners": [os.getpid()]})) == {"driver"}


@needs_proc
def test_an_idle_peer_is_stopped_and_goes_on_when_asked() -> None:
    command = [sys.executable, str(Path(__file__).with_name("fake_peer.py"))]
    env = {"PYTHONPATH": str(ROOT)}
    with Worker("fake", command, env=env, stop_when_idle=True) as worker:
        for number in range(2):
            pid = worker.ask("start_child")["child"]
            assert worker.ask("echo", number=number) == {"got": {"number": number}}
            assert is_soon(pid, "T")
    assert is_soon(pid, None, "Z")


def is_soon(pid: int, *states: str | None) -> bool:
    """Wait for a process to be in one of the states, letters as in /proc; None is gone."""
    end = time.monotonic() + 10.0
    while time.monotonic() < end:
        if state_of(pid) in states:
            return True
        time.sleep(0.01)
    return False


def state_of(pid: int) -> str | None:
    try:
        stat = (machine.PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return stat.rpartition(")")[2].split()[0]
