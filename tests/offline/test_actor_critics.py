"""Actor-critic algorithms on recorded data, in Discrete and Box action spaces."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import Algorithm, AWACConfig, CQLConfig, CRRConfig, DQNConfig, IQLConfig
from jaxrl.algorithms.dqn import DQNLearner
from jaxrl.errors import ConfigError
from tests.recorded_data import ACTION_SPACE, make_parts, write_data

BOX = spaces.Box(-2.0, 2.0, (1,), np.float32)


@pytest.mark.representatives("CQLConfig-Box", "IQLConfig-Discrete")
@pytest.mark.parametrize("action_space", [ACTION_SPACE, BOX], ids=["Discrete", "Box"])
@pytest.mark.parametrize("config_class", [CQLConfig, IQLConfig, AWACConfig, CRRConfig])
def test_trains_from_recorded_data(tmp_path: Path, config_class: Any, action_space: Any) -> None:
    data = write_data(tmp_path / "data", make_parts(action_space=action_space), action_space)
    config = config_class().offline_data(input_=data, num_updates_per_iteration=5)
    config.training(train_batch_size=16).rl_module(model_config={"fcnet_hiddens": [8]})
    with config.build() as algorithm:
        for _ in range(2):
            learned = algorithm.train()["learners"]["default_policy"]
        assert np.isfinite(learned["total_loss"])
        assert learned["num_updates_lifetime"] == 10
        path = algorithm.save(tmp_path / "checkpoint")
        want = algorithm.train()["learners"]["default_policy"]["total_loss"]
    with Algorithm.from_checkpoint(path) as resumed:
        assert resumed.train()["learners"]["default_policy"]["total_loss"] == want


@pytest.mark.slow
@pytest.mark.parametrize("config_class", [IQLConfig, AWACConfig])
def test_learns_from_sequences_with_memory(tmp_path: Path, config_class: Any) -> None:
    data = write_data(tmp_path / "data", make_parts(action_space=BOX), BOX)
    config = config_class().offline_data(input_=data, num_updates_per_iteration=2)
    config.training(train_batch_size=16)
    config.rl_module(
        model_config={
            "fcnet_hiddens": [8],
            "use_lstm": True,
            "lstm_cell_size": 8,
            "max_seq_len": 4,
        }
    )
    with config.build() as algorithm:
        learned = algorithm.train()["learners"]["default_policy"]
    assert np.isfinite(learned["total_loss"])


@pytest.mark.parametrize("config_class", [CQLConfig, IQLConfig, CRRConfig])
def test_needs_recorded_data(config_class: Any) -> None:
    name = config_class.algo_name
    with pytest.raises(ConfigError, match=f"{name} learns from recorded data: name a folder"):
        config_class().environment("Pendulum-v1").build()


class OwnLearner(DQNLearner):
    """Learner of a user."""


@pytest.mark.parametrize("sampling", [pytest.param("uniform", marks=pytest.mark.slow), "epochs"])
def test_a_learner_of_ones_own_is_checked_and_learns(tmp_path: Path, sampling: Any) -> None:
    config = DQNConfig().learners(learner_class=OwnLearner).training(train_batch_size=16)
    config.offline_data(input_=write_data(tmp_path / "data"), num_updates_per_iteration=4)
    config.offline_data(dataset_sampling=sampling).rl_module(model_config={"fcnet_hiddens": [8]})
    with config.build() as algorithm:
        learned = algorithm.train()["learners"]["default_policy"]
    assert np.isfinite(learned["total_loss"])


@pytest.mark.slow
def test_awac_trains_in_an_environment_too() -> None:
    config = AWACConfig().environment("Pendulum-v1")
    config.training(train_batch_size=16, num_steps_sampled_before_learning_starts=32)
    config.rl_module(model_config={"fcnet_hiddens": [8]})
    config.reporting(min_sample_timesteps_per_iteration=64)
    with config.build() as algorithm:
        learned = algorithm.train()["learners"]["default_policy"]
    assert np.isfinite(learned["total_loss"])
    assert learned["num_updates_lifetime"] > 0
