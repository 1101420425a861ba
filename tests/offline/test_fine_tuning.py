"""From recorded data to an environment: weights that other algorithms take over."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import (
    APPOConfig,
    AWACConfig,
    BCConfig,
    CQLConfig,
    DQNConfig,
    IQLConfig,
    PPOConfig,
    SACConfig,
    TD3Config,
)
from tests.helpers import slow_but
from tests.recorded_data import OBS_SPACE, write_data

BOX = spaces.Box(-2.0, 2.0, (1,), np.float32)
SMALL = {"fcnet_hiddens": [8]}
PAIRS = {
    "BC to PPO": (BCConfig, PPOConfig, 0),
    "CQL to SAC": (CQLConfig, SACConfig, 0),
    "IQL to SAC": (IQLConfig, SACConfig, 4),
    "IQL to AWAC": (IQLConfig, AWACConfig, 4),
}
"""Configs, and the number of parameters that only one of the two has."""


def build_online(config_class: Any, action_space: Any, **settings: Any) -> Any:
    config = config_class().environment(observation_space=OBS_SPACE, action_space=action_space)
    config.env_runners(placement="external").external(external_port=0)
    if config_class is PPOConfig:
        config.training(train_batch_size=64, minibatch_size=32)
    config.rl_module(model_config=SMALL).debugging(loggers=[], seed=7)
    return config.update_from_dict(settings).build()


@pytest.mark.representatives("BC to PPO")
@pytest.mark.parametrize("name", PAIRS)
def test_the_policy_goes_on_as_it_was(tmp_path: Path, name: str) -> None:
    offline, online, num_problems = PAIRS[name]
    action_space = BOX if online is not PPOConfig else spaces.Discrete(3)
    data = write_data(tmp_path / "data", action_space=action_space)
    config = offline().offline_data(input_=data, num_updates_per_iteration=20)
    config.training(train_batch_size=16).rl_module(model_config=SMALL).debugging(loggers=[])
    obs = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    with config.build() as learned, build_online(online, action_space) as tuned:
        learned.train()
        problems = tuned.set_weights(learned.get_weights(), strict=False)
        inputs = [
            run.get_module().forward_train(run.state.learner.sgd.params, {"obs": obs})
            for run in (learned, tuned)
        ]
        names = "action_dist_inputs"
        np.testing.assert_allclose(inputs[0][names], inputs[1][names], rtol=1e-6)
        assert len(problems) == num_problems, problems


def test_a_filter_is_taken_from_a_checkpoint(tmp_path: Path) -> None:
    data, action_space = write_data(tmp_path / "data"), spaces.Discrete(3)
    config = BCConfig().offline_data(input_=data).training(train_batch_size=16)
    config.update_from_dict({"observation_filter": "MeanStdFilter"})
    config.rl_module(model_config=SMALL).debugging(loggers=[])
    obs = np.asarray([0.5, -2.0], np.float32)
    with (
        config.build() as learned,
        build_online(PPOConfig, action_space, observation_filter="MeanStdFilter") as tuned,
    ):
        path = learned.save(tmp_path / "checkpoint")
        tuned.set_weights(learned.get_weights())
        tuned.restore(path, component="connectors")
        both = [
            run.compute_single_action(obs, explore=False, full_fetch=True)[-1]
            for run in (learned, tuned)
        ]
    name = "action_dist_inputs"
    np.testing.assert_allclose(both[0][name], both[1][name], rtol=1e-6)


@pytest.mark.parametrize(
    "config_class",
    slow_but(DQNConfig, TD3Config, of=[DQNConfig, SACConfig, TD3Config, APPOConfig, IQLConfig]),
)
def test_the_target_network_is_a_copy_of_the_weights(tmp_path: Path, config_class: Any) -> None:
    action_space = spaces.Discrete(3) if config_class in (DQNConfig, APPOConfig) else BOX
    if config_class is IQLConfig:
        data = write_data(tmp_path / "data", action_space=action_space)
        config = config_class().offline_data(input_=data).training(train_batch_size=16)
        algorithm = config.rl_module(model_config=SMALL).debugging(loggers=[]).build()
    else:
        algorithm = build_online(config_class, action_space)
    with algorithm:
        before = jax.device_get(algorithm.state.learner)
        doubled = jax.tree.map(lambda x: 2.0 * x, algorithm.get_weights())
        assert algorithm.set_weights(doubled) == []
        after = jax.device_get(algorithm.state.learner)
    old, new = (getattr(x.target, "params", x.target) for x in (before, after))
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(2.0 * x, y), old, new)
