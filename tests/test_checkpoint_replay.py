"""Checkpoints of runs with replay: exact with a full buffer, and going on without one."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl import Algorithm
from jaxrl.buffers.replay import ReplayState
from jaxrl.errors import CheckpointError
from jaxrl.runs.checkpoint import read_metadata
from tests.helpers import assert_equal
from tests.replays import CAPACITY, NUM_ENVS, PRIORITIZED, replaying

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.allow_key_reuse

RESUME = (
    "import sys, numpy as np\n"
    "from jaxrl.algorithm import Algorithm\n"
    "algorithm = Algorithm.from_checkpoint(sys.argv[1])\n"
    "algorithm.train()\n"
    "np.savez(sys.argv[2], **algorithm.get_state()['train_state'])\n"
    "algorithm.stop()\n"
)


def buffer_leaves(leaves: Any) -> list[str]:
    return [name for name in leaves if name.startswith("buffer.")]


def is_full(algorithm: Algorithm) -> bool:
    buffer = algorithm.state.buffer
    assert isinstance(buffer, ReplayState)
    return bool(buffer.rows.is_full) and int(buffer.rows.current_index) > 0


def resumed_here(path: str) -> dict[str, np.ndarray]:
    with Algorithm.from_checkpoint(path) as algorithm:
        algorithm.train()
        return algorithm.get_state()["train_state"]


def resumed_elsewhere(path: str) -> dict[str, np.ndarray]:
    file = Path(path).parent / "resumed.npz"
    done = subprocess.run(
        [sys.executable, "-c", RESUME, path, str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return dict(np.load(file))


@pytest.mark.representatives("prioritized")
@pytest.mark.parametrize(
    ("placement", "buffer", "resumed"),
    [
        pytest.param("in_graph", {}, resumed_here, marks=pytest.mark.slow),
        ("in_graph", PRIORITIZED, resumed_here),
        pytest.param("in_graph", PRIORITIZED, resumed_elsewhere, marks=pytest.mark.slow),
        pytest.param("host", {}, resumed_here, marks=pytest.mark.slow),
        pytest.param("host", PRIORITIZED, resumed_here, marks=pytest.mark.slow),
        ("host", {**PRIORITIZED, "storage": "host"}, resumed_here),
    ],
    ids=[
        *("uniform", "prioritized", "prioritized-new-process"),
        *("host-uniform", "host-prioritized", "host-memory"),
    ],
)
def test_resuming_with_a_full_buffer_is_byte_exact(
    placement: str, buffer: dict[str, Any], resumed: Any, tmp_path: Path
) -> None:
    config = replaying(buffer=buffer, n_step=(1, 3)).env_runners(placement=placement)
    with config.build() as algorithm:
        algorithm.train()
        assert is_full(algorithm)
        path = algorithm.save(tmp_path)
        algorithm.train()
        want = algorithm.get_state()["train_state"]
    got = resumed(path)
    assert len(buffer_leaves(want)) > 8
    assert_equal(want, got)


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """An Algorithm whose checkpoints have no buffer, one of them, and the state then."""
    folder = tmp_path_factory.mktemp("without")
    config = replaying(buffer=PRIORITIZED, store_buffer_in_checkpoints=False)
    with config.debugging(results_dir=str(folder)).build() as algorithm:
        algorithm.train()
        path = algorithm.save(folder)
        yield algorithm, path, algorithm.get_state()["train_state"]


def test_a_buffer_that_is_not_stored_is_filled_anew_before_there_is_learning(without: Any) -> None:
    algorithm, path, saved = without
    assert not buffer_leaves(saved)
    assert not [n for n in read_metadata(Path(path))["leaves"] if n.startswith("buffer")]
    algorithm.restore(path)
    assert_equal(saved, algorithm.get_state()["train_state"])
    with Algorithm.from_checkpoint(path) as fresh:
        assert_equal(fresh.state, algorithm.state)
        updates = int(fresh.state.progress.updates)
        algorithm._batches_to_run = 1
        for _ in range(3):  # 24 of the 32 transitions
            algorithm.training_step()
        assert int(algorithm.state.progress.updates) == updates
        assert int(algorithm.state.buffer.rows.current_index) * NUM_ENVS == 24
        algorithm.training_step()
        assert int(algorithm.state.progress.updates) == updates + 2
        fresh.train()
        algorithm.restore(path)
        algorithm.train()
        assert_equal(fresh.state, algorithm.state)


def test_a_checkpoint_without_a_buffer_is_taken_by_a_run_that_stores_it(
    without: Any, caplog: pytest.LogCaptureFixture
) -> None:
    algorithm, path, _ = without
    with Algorithm.from_checkpoint(path, store_buffer_in_checkpoints=True) as storing:
        assert "learning resumes once 32 transitions" in caplog.text
        storing.train()
        state = storing.get_state()
        assert buffer_leaves(state["train_state"])
        some = {n: x for n, x in state["train_state"].items() if n != "buffer.rows.is_full"}
        with pytest.raises(CheckpointError, match=r"buffer\.rows\.is_full is missing"):
            storing.set_state({**state, "train_state": some})
        algorithm.set_state(state)  # what is there is taken
        assert_equal(algorithm.state.buffer, storing.state.buffer)


def test_parts_are_restored_whether_there_is_a_buffer_or_not(without: Any) -> None:
    algorithm, path, saved = without
    algorithm.restore(path)
    weights = algorithm.get_weights()
    algorithm.train()
    before = algorithm.state.buffer.rows.experience.obs
    algorithm.restore(path, component="rl_module")
    assert algorithm.state.buffer.rows.experience.obs is before
    algorithm.restore(path, component="learner")
    assert_equal(algorithm.get_weights(), weights)
    assert algorithm.state.buffer.rows.experience.obs is before
    got = algorithm.get_state()["train_state"]
    learned = [name for name in saved if name.startswith("learner.")]
    assert_equal({n: got[n] for n in learned}, {n: saved[n] for n in learned})


@pytest.mark.slow
def test_a_buffer_that_was_not_stored_lies_on_all_devices_again(tmp_path: Path) -> None:
    config = replaying(store_buffer_in_checkpoints=False).learners(num_devices=4, num_shards=4)
    with config.build() as algorithm:
        algorithm.train()
        places = algorithm.state.buffer.rows.experience.obs.sharding
        algorithm.restore(algorithm.save(tmp_path))
        assert algorithm.state.buffer.rows.experience.obs.sharding == places
        assert len(places.device_set) == 4
        algorithm.train()
        assert is_full(algorithm)


@pytest.mark.parametrize(
    ("setting", "limit", "held"),
    [(True, 0, True), (False, 2**30, False), ("auto", 2**30, True), ("auto", 100, False)],
)
def test_explain_tells_whether_checkpoints_hold_it(
    setting: Any, limit: int, held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jaxrl.assembly.assemble.MAX_SAVED_BUFFER_BYTES", limit)
    with replaying(store_buffer_in_checkpoints=setting).build() as algorithm:
        text = algorithm.explain()
        assert bool(buffer_leaves(algorithm.get_state()["train_state"])) == held
    # Two observations of 4 floats, an action, a reward, 4 flags.
    assert f"Replay buffer: {CAPACITY} transitions of 44 bytes, 0.00 MiB" in text
    assert ("checkpoints store it" if held else "checkpoints do not store it") in text
    assert f"(store_buffer_in_checkpoints={setting!r})" in text
