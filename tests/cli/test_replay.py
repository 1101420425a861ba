"""`jaxrl replay`: a run trained again from its record, equal to the bit or with a reason."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxrl import Algorithm, IMPALAConfig
from jaxrl.assembly.device_trial import open_device_trials
from jaxrl.loggers import RunFolder
from jaxrl.runs.host_state import keep_recorded_choices
from tests.cli.command import edit, jaxrl
from tests.helpers import small


def train(config: Any, folder: Path, iterations: int = 3) -> Path:
    """The run folder of a config that was trained, with a checkpoint at its end."""
    config.debugging(results_dir=str(folder.parent), run_name=folder.name)
    with config.build() as algo:
        algo.fit({"training_iteration": iterations})
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three iterations with an evaluation; tests copy it."""
    config = small(gamma=0.9).evaluation(evaluation_interval=2, evaluation_duration=2)
    return train(config, tmp_path_factory.mktemp("results") / "one")


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "two"))


def edit_session(run: Path, number: int, change: Callable[[Any], object]) -> None:
    edit(run / "manifest.json", lambda document: change(document["sessions"][number]))


def test_a_replay_is_equal_and_leaves_nothing(trained: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in trained.parent.rglob("*")}
    code, out, err = jaxrl("replay", trained)
    assert (code, err) == (0, ""), out
    assert out.startswith("equal: ")
    assert " values of 3 iterations and " in out
    assert "arrays of checkpoint_000003" in out
    assert {path: path.stat().st_mtime_ns for path in trained.parent.rglob("*")} == before


def test_out_keeps_the_run_and_iterations_shorten_it(trained: Path, tmp_path: Path) -> None:
    code, out, _ = jaxrl("replay", trained, "--out", tmp_path / "again", "--iterations", 2)
    assert code == 0, out
    assert " values of 2 iterations\n" in out  # there is no checkpoint of the second
    assert f"run folder  {tmp_path / 'again'}" in out
    assert (tmp_path / "again" / "checkpoints" / "checkpoint_000002").is_dir()
    lines = (tmp_path / "again" / "result.json").read_text().splitlines()
    assert [json.loads(line)["training_iteration"] for line in lines] == [1, 2]
    assert jaxrl("diff", trained, tmp_path / "again")[0] == 1
    code, _, err = jaxrl("replay", trained, "--out", tmp_path / "again")
    assert code == 2
    assert "--out" in err
    assert "exists" in err


def test_another_result_is_found_with_what_may_explain_it(copy: Path) -> None:
    lines = (copy / "result.json").read_text().splitlines()
    row = json.loads(lines[1])
    row["learners"]["default_policy"]["entropy"] += 2**-45
    (copy / "result.json").write_text("\n".join([lines[0], json.dumps(row), lines[2], ""]))
    code, out, _ = jaxrl("replay", copy)
    assert code == 1
    assert out.startswith("different: iteration 2\n")
    assert len([line for line in out.splitlines() if "learners/default_policy" in line]) == 1
    assert "the manifests are equal" in out or "with changes to files" in out

    def change(session: Any) -> None:
        session["versions"]["jax"] = "0.9.1"
        session["git"] = {"commit": "abc", "dirty": True, "diff_sha256": "def"}

    edit_session(copy, 0, change)
    edit(copy / "params.json", lambda d: d["settings"].update(lr=0.5))
    code, out, _ = jaxrl("replay", copy)
    assert code == 1
    assert out.startswith("different: iteration 1\n")
    for words in ("params.json was changed", "with changes to files", "jax version", "0.9.1"):
        assert words in out.partition("which may be because:")[2]


def test_another_state_is_found_without_any_results(copy: Path, tmp_path: Path) -> None:
    (copy / "result.json").unlink()
    code, out, _ = jaxrl("replay", copy)
    assert (code, out.split(" arrays")[0].split()[0]) == (0, "equal:")
    other = train(small(gamma=0.9, lr=1e-3), tmp_path / "other")
    shutil.rmtree(copy / "checkpoints")
    shutil.copytree(other / "checkpoints", copy / "checkpoints")
    code, out, _ = jaxrl("replay", copy)
    assert code == 1
    assert out.startswith("different: checkpoint_000003\n")
    assert "float32[" in out
    assert "numbers differ" in out
    assert " others" in out
    code, _, err = jaxrl("replay", copy, "--iterations", 2)
    assert code == 2
    assert "--iterations 3" in err


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["PPO", "DQN"])
def test_a_run_resumed_bit_exactly_is_replayed_in_one_piece(algo: str, tmp_path: Path) -> None:
    run = train(small(algo, gamma=0.9), tmp_path / "run", 2)
    with Algorithm.from_checkpoint(run, run_folder=RunFolder.open(run)) as algorithm:
        algorithm.fit({"training_iteration": 4})
    code, out, err = jaxrl("replay", run)
    assert code == 0, out + err
    assert "values of 4 iterations" in out
    assert "arrays of checkpoint_000004" in out


def test_what_a_resume_changed_is_refused_and_what_was_before_is_not(tmp_path: Path) -> None:
    run = train(small(gamma=0.9), tmp_path / "run", 2)
    with Algorithm.from_checkpoint(run, run_folder=RunFolder.open(run), lr=1e-3) as algorithm:
        algorithm.train()
    code, out, err = jaxrl("replay", run)
    assert (code, out) == (2, "")
    assert "was resumed after iteration 2" in err
    assert "the config is another" in err
    assert "--iterations 2" in err
    assert jaxrl("replay", run, "--iterations", 2)[0] == 0
    edit_session(run, 1, lambda session: session["versions"].update(jaxlib="0.1"))
    assert "because jaxlib version is" in jaxrl("replay", run)[2]


@pytest.mark.slow
def test_a_resume_without_the_replay_buffer_is_refused(tmp_path: Path) -> None:
    config = small("DQN", gamma=0.9, store_buffer_in_checkpoints=False)
    run = train(config, tmp_path / "run", 2)
    assert jaxrl("replay", run)[0] == 0
    with Algorithm.from_checkpoint(run, run_folder=RunFolder.open(run)) as algorithm:
        algorithm.fit({"training_iteration": 3})
    code, _, err = jaxrl("replay", run)
    assert code == 2
    assert "checkpoints do not hold its replay buffer" in err


@pytest.mark.slow
def test_environments_on_the_host_are_replayed_but_not_their_resume(tmp_path: Path) -> None:
    run = train(small(env="gymnasium:CartPole-v1", gamma=0.9), tmp_path / "run", 2)
    code, out, err = jaxrl("replay", run)
    assert code == 0, out + err
    with Algorithm.from_checkpoint(run, run_folder=RunFolder.open(run)) as algorithm:
        algorithm.fit({"training_iteration": 3})
    code, _, err = jaxrl("replay", run)
    assert code == 2
    assert "environments on the host begin new episodes" in err
    assert jaxrl("replay", run, "--iterations", 2)[0] == 0


RANDOM = """
import gymnasium, numpy as np

class Random(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        obs = np.random.default_rng().uniform(-1, 1, 2).astype(np.float32)
        return obs, float(obs[0]), self.steps == 10, False, {}
"""


def test_an_environment_that_does_not_repeat_itself_is_the_reason_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "random_task.py").write_text(RANDOM)
    monkeypatch.syspath_prepend(tmp_path)
    run = train(small(env="random_task:Random", gamma=0.9), tmp_path / "run", 1)
    code, out, _ = jaxrl("replay", run)
    assert code == 1
    assert "repeat only if they are deterministic" in out


def lane(tmp_path: Path) -> Path:
    with (
        small(gamma=0.9)
        .debugging(results_dir=str(tmp_path), run_name="sweep")
        .sweep(seeds=2)
        .build() as sweep
    ):
        sweep.train()
        sweep.save()
    return tmp_path / "sweep" / "lane_000"


@pytest.mark.slow
@pytest.mark.allow_key_reuse  # taken for that of vmapped runs
def test_sweeps_and_their_lanes_are_refused(tmp_path: Path) -> None:
    run = lane(tmp_path)
    code, _, err = jaxrl("replay", run)
    assert code == 2
    assert "lane_000 is a lane of a sweep" in err
    assert "is a sweep of several runs: replay single runs." in jaxrl("replay", run.parent)[2]
    (run.parent / "sweep.json").unlink()  # killed before it was saved
    for path in (run, run.parent):
        code, _, err = jaxrl("replay", path)
        assert code == 2
        assert err.count("\n") == 1


def test_runs_in_which_the_clock_decides_are_refused(copy: Path) -> None:
    edit(copy / "params.json", lambda d: d["settings"].update(min_time_s_per_iteration=1.0))
    assert "lets the clock decide" in jaxrl("replay", copy)[2]
    config = IMPALAConfig().environment("gymnasium:CartPole-v1").env_runners(num_env_runners=2)
    edit(copy / "params.json", lambda d: d.update(algo="IMPALA", settings=dict(config.items())))
    code, _, err = jaxrl("replay", copy)
    assert code == 2
    assert "the 2 runners of IMPALA sample while it learns" in err


def test_other_refusals_are_one_sentence(copy: Path, tmp_path: Path) -> None:
    for change, words in (
        (lambda s: s.update(not_saved=["env"]), "because its env had no import path"),
        (lambda s: s.update(iteration=5), "begins after iteration 5, from a checkpoint"),
    ):
        run = Path(shutil.copytree(copy, tmp_path / words.split()[0]))
        edit_session(run, 0, change)
        code, _, err = jaxrl("replay", run)
        assert code == 2
        assert words in err
        assert err.count("\n") == 1
    assert "is more than the 3" in jaxrl("replay", copy, "--iterations", 4)[2]
    shutil.rmtree(copy / "checkpoints")
    (copy / "result.json").write_text("")
    assert "neither results nor checkpoints" in jaxrl("replay", copy)[2]


def test_a_run_of_another_user_needs_trust_for_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "task_to_trust.py").write_text(
        "from jaxrl.envs.classic.cartpole import CartPole as Mine"
    )
    monkeypatch.syspath_prepend(tmp_path)
    run = train(small(env="task_to_trust:Mine", gamma=0.9), tmp_path / "run", 1)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    monkeypatch.delitem(sys.modules, "task_to_trust")
    code, _, err = jaxrl("replay", run)
    assert code == 2
    assert "--trust task_to_trust" in err
    assert jaxrl("replay", run, "--trust", "task_to_trust")[0] == 0


def test_nothing_is_measured_for_a_record() -> None:
    config = small()
    assert open_device_trials(config)._store is not None
    keep_recorded_choices(config, 3)
    assert open_device_trials(config)._store is None
    assert config.preferred_devices == (3, "as the run had before")
    assert config.copy().is_recorded


@pytest.mark.slow
def test_a_new_process_takes_the_devices_of_the_record(tmp_path: Path) -> None:
    """Four devices, whatever the machine has, and half of them by a setting that was measured."""
    config = small(gamma=0.9).learners(num_devices="auto")
    config.preferred_devices = (4, "for the test")
    run = train(config, tmp_path / "run")
    (session,) = json.loads((run / "manifest.json").read_text())["sessions"]
    assert session["devices"]["count"] == 4
    assert session["devices"]["available"] == jax.local_device_count()
    flags = os.environ["XLA_FLAGS"].split()
    few = " ".join(flag for flag in flags if "device_count" not in flag)
    done = subprocess.run(
        [sys.executable, "-m", "jaxrl", "replay", str(run)],
        cwd=tmp_path,
        env={**os.environ, "XLA_FLAGS": few, "JAX_PLATFORMS": ""},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("equal: ")
