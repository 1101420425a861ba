"""A chain of resumes, each killed at a random moment: the newest checkpoint loads, rows have no gaps."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxrl import Algorithm
from jaxrl.loggers.sinks import read_results
from jaxrl.runs.checkpoint import list_checkpoints

pytestmark = pytest.mark.slow

SETTINGS = {
    "num_envs_per_env_runner": 4,
    "train_batch_size": 128,
    "minibatch_size": 64,
    "num_epochs": 1,
    "model_config": {"fcnet_hiddens": [8]},
    "checkpoint_frequency": 2,
    "evaluation_interval": 3,
    "evaluation_duration": 2,
}
KILLS = 12


def start(*arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "jaxrl.cli", *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)


def rows(run: Path) -> list[int]:
    if not (run / "result.json").is_file():
        return []
    return [row["training_iteration"] for row in read_results(run / "result.json")]


def newest(run: Path) -> int:
    saved = list_checkpoints(run / "checkpoints")
    return int(saved[-1].name.rpartition("_")[2]) if saved else 0


@pytest.mark.parametrize("env", ["CartPole-v1", "gymnasium:CartPole-v1"])
def test_a_chain_of_killed_resumes_loses_nothing_that_was_saved(tmp_path: Path, env: str) -> None:
    draw, run, before = random.Random(0), tmp_path / "run", 0
    train = ["train", "--algo", "PPO", "--env", env, "--config", json.dumps(SETTINGS)]
    train += ["--results-dir", str(tmp_path), "--name", "run"]
    endless = ["--stop", '{"training_iteration": 1000000}']
    for kill in range(KILLS):
        process = start(*(["resume", str(run)] if newest(run) else train), *endless)
        limit = time.monotonic() + 300.0
        while newest(run) <= before and process.poll() is None and time.monotonic() < limit:
            time.sleep(0.05)  # until it has got further than the one before
        time.sleep(draw.uniform(0.0, 1.0))
        assert process.poll() is None, f"ended by itself after {kill} kills"
        process.send_signal(signal.SIGKILL)
        process.wait()
        now, written = newest(run), rows(run)
        print(f"kill {kill}: newest checkpoint {now} (was {before}), {len(written)} rows")
        assert now > before
        assert written == list(range(1, len(written) + 1))
        assert len(written) >= now
        with Algorithm.from_checkpoint(run) as algo:
            assert algo.iteration == now
        before = now
