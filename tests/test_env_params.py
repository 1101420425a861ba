"""The environment's parameters, changed while it trains."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import Algorithm
from jaxrl.assembly.env import change_env_params
from jaxrl.envs import MadeEnv
from jaxrl.errors import (
    EnvError,
    UnknownNameError,
)
from jaxrl.runs.checkpoint import read_leaves, read_metadata
from tests.endless import Endless
from tests.helpers import assert_equal, small


@pytest.fixture(scope="module")
def curriculum(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Algorithm]:
    """Two devices, and no second compilation of anything."""
    config = small().learners(num_devices=2).evaluation(evaluation_duration=8)
    config.debugging(max_retraces=0, results_dir=str(tmp_path_factory.mktemp("results")))
    with config.build() as algorithm:
        yield algorithm


def test_env_params_change_without_compiling(curriculum: Algorithm, tmp_path: Path) -> None:
    curriculum.train()
    length = curriculum.evaluate()["env_runners"]["episode_len_mean"]
    before = curriculum.train()["env_runners"]["episode_len_mean"]
    curriculum.set_env_params(force_mag=2000, gravity=np.float64(9.0))
    assert float(curriculum.env_params.force_mag) == 2000.0
    results = [curriculum.train() for _ in range(3)]
    assert results[-1]["compile"]["train"]["num_compilations"] == 1
    assert results[-1]["env_runners"]["episode_len_min"] <= 3 < before
    assert curriculum.evaluate()["env_runners"]["episode_len_mean"] <= 4 < length
    saved = Path(curriculum.save(tmp_path))
    assert read_leaves(saved, read_metadata(saved))["env_params.force_mag"] == 2000.0
    easier = dataclasses.replace(curriculum.env_params, force_mag=np.float32(10))
    curriculum.set_env_params(easier)
    assert curriculum.evaluate()["env_runners"]["episode_len_mean"] > 4
    curriculum.restore(saved)
    assert float(curriculum.env_params.force_mag) == 2000.0


@pytest.mark.parametrize(
    ("params", "fields", "error", "message"),
    [
        (None, {"gravty": 1.0}, UnknownNameError, r"set_env_params\(\).*Did you mean 'gravity'"),
        (None, {"gravity": "down"}, EnvError, "'gravity' must be float32 of shape"),
        (None, {"gravity": [1.0, 2.0]}, EnvError, "'gravity' must be float32 of shape"),
        (None, {"x_threshold": 3.0}, EnvError, "observation space of CartPole-v1"),
        ({"gravity": 1.0}, {}, EnvError, "must have the structure"),
    ],
)
def test_other_env_params_are_refused(
    params: Any, fields: Any, error: Any, message: str, curriculum: Algorithm
) -> None:
    before = curriculum.env_params
    with pytest.raises(error, match=message):
        curriculum.set_env_params(params, **fields)
    assert_equal(before, curriculum.env_params)


def test_evaluation_with_an_environment_of_its_own_keeps_it() -> None:
    config = small().evaluation(evaluation_config={"env_config": {"gravity": 9.8}})
    with config.build() as algorithm:
        before = algorithm.evaluate()
        algorithm.set_env_params(force_mag=2000.0)
        assert algorithm.evaluate() == before


def test_env_params_without_a_type_of_their_own_keep_it_that_way() -> None:
    now = jax.jit(lambda params: params)({"a": 1.0, "b": jnp.zeros(2)})
    made = MadeEnv(env=Endless(), params={"a": 1.0, "b": np.zeros(2)}, id="Endless")
    new = change_env_params(made, now, None, {"a": 2, "b": [3.0, 4.0]})
    assert (float(new["a"]), new["b"].tolist()) == (2.0, [3.0, 4.0])
    for name in now:
        assert new[name].aval == now[name].aval
        assert new[name].sharding == now[name].sharding
