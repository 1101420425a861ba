"""Saved checkpoints that tests damage and forge, and what is loaded from them."""

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl import PPOConfig
from jaxrl.config.serialize import deserialize_config, serialize_config
from jaxrl.envs import make
from jaxrl.errors import CheckpointError
from jaxrl.runs.checkpoint import (
    MANIFEST,
    METADATA,
    CheckpointWriter,
    fill,
    find_first_difference,
    read_leaves,
    read_metadata,
    write_manifest,
)
from jaxrl.runs.host_state import (
    RunMetadata,
    check_metadata,
    make_checkpoint_metadata,
    resolve_trust,
)
from jaxrl.runs.manifest import Session

ENV_STEPS = "num_env_steps_sampled_lifetime"
COUNTS: dict[str, Any] = {
    "num_sub_env_restarts": 1,
    "num_env_runner_restarts": 0,
    "env_steps": [64, 64],
    "ledger": {
        "received": 9,
        "trained": 6,
        "queued": 1,
        "discarded": {"stale": 2},
        "maybe_lost": 3,
    },
    "logged": {
        "a/mean": {"reduce": "mean", "window": None, "data": [4.5, 3]},
        "a/last": {"reduce": "max", "window": 3, "data": [1.0, 2.0]},
        "ema": {"reduce": "ema", "window": None, "ema_coeff": 0.1, "data": [1.0, 0.9, 0.1]},
        "all": {"reduce": "percentiles", "window": None, "percentiles": [0, 50], "data": [1.0]},
        "item": {"reduce": "item", "window": None, "data": [["of", "any", None]]},
        "sum": {"reduce": "lifetime_sum", "window": None, "data": [7.0]},
    },
    "weights_version": 2,
}
"""Counts of runners on the host, and values that callbacks log."""
STATE = {
    "weights": np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32),
    "count": np.asarray(7, np.int32),
    "done": np.asarray([True, False]),
    "key": jax.random.key(3),
}


def metadata(iteration: int) -> dict[str, Any]:
    """Return the content of a run's checkpoint beside its leaves."""
    config = PPOConfig().environment("CartPole-v1", env_config={"gravity": 9.0})
    config.training(lr=[[0, 1e-3], [1000, 0.0]], gamma=0.9)
    host = RunMetadata(
        iteration=iteration,
        time_total_s=1.5,
        last_result={"training_iteration": iteration, ENV_STEPS: 128, "num": {"x": 33.16}},
        runner_counts=copy.deepcopy(COUNTS),
        logged=copy.deepcopy(COUNTS["logged"]),
    )
    session = Session(config, jax.devices()[:1]).describe()
    return make_checkpoint_metadata(config, host, 128 * iteration, session, make("CartPole-v1"))


def loaded(path: Path, trust: Any = None) -> Any:
    """Load what a run would go on with, without building it; comparisons are of JSON and bytes."""
    document = read_metadata(path)
    check_metadata(document, path)
    config = deserialize_config(document["config"], trust=resolve_trust(path, trust))
    config.validate()
    host = RunMetadata.from_metadata(document)
    leaves = read_leaves(path, document)
    problem = find_first_difference(STATE, leaves)
    if problem is not None:
        raise CheckpointError(problem)
    state = fill(STATE, leaves)
    arrays = {n: np.asarray(x).tobytes() for n, x in state.items() if n != "key"}
    key = jax.random.key_data(state["key"]).tolist()
    return arrays, key, host, json.dumps(serialize_config(config), sort_keys=True)


def save_two(folder: Path) -> list[Path]:
    """Save an older and a newer checkpoint."""
    with_other = {**STATE, "count": np.asarray(8, np.int32), "weights": STATE["weights"] + 1}
    writer = CheckpointWriter(folder)
    return [writer.save(3, with_other, metadata(3)), writer.save(4, STATE, metadata(4))]


def forged(folder: Path, base: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """A checkpoint with other metadata, under digests that match, as a stranger would write it."""
    path = folder / base.name
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(base, path)
    document = copy.deepcopy(json.loads((path / METADATA).read_text()))
    change(document)
    (path / METADATA).write_text(json.dumps(document))
    (path / MANIFEST).unlink()
    with pytest.MonkeyPatch.context() as stranger:
        stranger.setenv("XDG_STATE_HOME", str(folder / "of a stranger"))
        stranger.setattr("os.fsync", lambda _: None)  # only for speed
        write_manifest(path, None)
    return path
