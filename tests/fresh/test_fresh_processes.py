"""Runs that end in one process and go on in another, each begun as a user begins one.

Other tests force eight devices upon every process, so that none of them can see what a process that
is told nothing has. Here no variable says how many devices there are, the home folder is empty and
the current one is another.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxrl.loggers import text
from jaxrl.runs.checkpoint import find_checkpoint, read_leaves, read_metadata
from jaxrl.runtime.cores import count_usable_cores
from jaxrl.runtime.devices import MAX_CPU_DEVICES
from tests.helpers import fresh_environs, slow_but

PROGRAM = Path(__file__).with_name("program.py")
SLOW = pytest.mark.slow
Started = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Started:
    """Runs a command in a process that nobody has told anything; fails if that does."""
    home, cwd = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("cwd")

    def start(*command: object) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, *map(str, command)],
            cwd=cwd,
            env=fresh_environs(home),
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
        assert done.returncode == 0, done.stderr
        assert "not bit-identical" not in done.stderr
        assert "JAX had started" not in done.stderr
        return done

    return start


def printed(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The last line of an output."""
    return json.loads(done.stdout.splitlines()[-1])


class Trained:
    """Runs that were trained in one process: their folders, and what came of them."""

    def __init__(self, started: Started, folder: Path, *kinds: str) -> None:
        self.folder = folder
        self.home = Path(started("-c", "import os; print(os.environ['HOME'])").stdout.strip())
        self.outcomes = printed(started(PROGRAM, "train", folder, *kinds))


@pytest.fixture(scope="module")
def trained(started: Started, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(started, tmp_path_factory.mktemp("runs"), "ppo")


@pytest.fixture(scope="module")
def trained_sweep(started: Started, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(started, tmp_path_factory.mktemp("sweeps"), "sweep")


@pytest.fixture(scope="module")
def others(started: Started, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(started, tmp_path_factory.mktemp("others"), "dqn", "lstm", "host", "tried")


def is_as_trained(got: dict[str, Any], want: dict[str, Any]) -> None:
    """Devices, iteration and bytes are the same, and what training runs was read from the cache."""
    same = ("devices", "iteration", "digest")
    assert {name: got[name] for name in same} == {name: want[name] for name in same}
    hits = got["cache_hits"]
    assert hits["init"]
    assert hits["train" if "train" in hits else "learn"]


@pytest.mark.parametrize("kind", slow_but("ppo", of=["ppo", "sweep"]))
def test_the_cores_are_the_devices_of_what_goes_on_elsewhere(
    kind: str, request: pytest.FixtureRequest, started: Started
) -> None:
    trained: Trained = request.getfixturevalue("trained" if kind == "ppo" else "trained_sweep")
    want = trained.outcomes[kind]
    if "cuda" not in os.environ.get("JAX_PLATFORMS", "cpu"):
        most = min(MAX_CPU_DEVICES, count_usable_cores())
        assert want["devices"] == max(n for n in (1, 2, 4, 8) if n <= most)
    is_as_trained(printed(started(PROGRAM, "restore", trained.folder / kind)), want)


@SLOW
@pytest.mark.parametrize("kind", ["dqn", "lstm", "host", "tried"])
def test_other_kinds_go_on_elsewhere(kind: str, others: Trained, started: Started) -> None:
    got = printed(started(PROGRAM, "restore", others.folder / kind))
    is_as_trained(got, others.outcomes[kind])


@SLOW
def test_a_trial_goes_on_elsewhere(trained: Trained, started: Started) -> None:
    pytest.importorskip("ray.tune")
    got = printed(started(PROGRAM, "restore-trainable", trained.folder / "ppo"))
    is_as_trained(got, trained.outcomes["ppo"])


def test_the_command_evaluates_what_was_trained(trained: Trained, started: Started) -> None:
    done = started("-m", "jaxrl.cli", "evaluate", trained.folder / "ppo", "-v")
    evaluated = trained.outcomes["ppo"]["evaluated"]["env_runners"]
    assert f"{text.format_number(evaluated['episode_return_mean'])} on average" in done.stdout
    devices = re.search(r"(\d+) cpu devices?: ", done.stderr)
    assert devices is None or int(devices[1]) == trained.outcomes["ppo"]["devices"]


def digest_of(*runs: Path) -> str:
    """As `program.outcome` has it, of the newest checkpoints of a run, or of lanes."""
    digest = hashlib.sha256()
    for run in runs:
        checkpoint = find_checkpoint(run)
        for name, leaf in sorted(read_leaves(checkpoint, read_metadata(checkpoint)).items()):
            digest.update(f"{name} {leaf.dtype} {leaf.shape}".encode() + leaf.tobytes())
    return digest.hexdigest()


def test_the_command_resumes_what_was_trained(
    trained: Trained, started: Started, tmp_path: Path
) -> None:
    run = shutil.copytree(trained.folder / "ppo", tmp_path / "ppo")
    want = trained.outcomes["ppo"]
    stop = json.dumps({"training_iteration": 2})
    started("-m", "jaxrl.cli", "resume", run, "--stop", stop)
    assert read_metadata(find_checkpoint(run))["num_devices"] == want["devices"]
    assert digest_of(run) == want["digest"]
    row = json.loads((run / "result.json").read_text().splitlines()[-1])
    assert row["training_iteration"] == 2
    assert row["compile"]["train"]["cache_hit"]


@SLOW
def test_the_command_resumes_a_sweep(
    trained_sweep: Trained, started: Started, tmp_path: Path
) -> None:
    run = shutil.copytree(trained_sweep.folder / "sweep", tmp_path / "sweep")
    want = trained_sweep.outcomes["sweep"]
    started("-m", "jaxrl.cli", "resume", run, "--stop", json.dumps({"training_iteration": 2}))
    assert digest_of(*sorted(run.glob("lane_*"))) == want["digest"]


@pytest.mark.slow
def test_a_compile_report_is_of_the_devices_and_the_cache_of_the_run(
    trained: Trained, started: Started
) -> None:
    want = trained.outcomes["ppo"]
    done = started("-m", "jaxrl.cli", "compile-report", trained.folder / "ppo", "--json")
    report = json.loads(done.stdout)
    assert int(report["devices"].split(" x ")[0]) == want["devices"]
    hits = {name: figures["cache_hit"] for name, figures in report["programs"].items()}
    names = ("init", "train", "evaluate", "actor")
    assert hits == dict.fromkeys(names, True)  # as the run has compiled them
    assert Path(report["cache"]["folder"]).is_relative_to(trained.home)
    assert report["cache"]["entries"] > 0
