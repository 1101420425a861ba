"""Recorded data that each fail for one kind of mistake, against every algorithm with critics."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import AWACConfig, CQLConfig, DQNConfig, IQLConfig, TD3Config
from jaxrl.modules.policy_and_critics import CRITIC
from tests.recorded_data import make_part, write_data

GAMMA = 0.9
TWO, BOX = spaces.Discrete(2), spaces.Box(-1.0, 1.0, (1,), np.float32)
FAST = {"actor_lr": 3e-3, "critic_lr": 1e-2, "tau": 0.1, "td_error_loss_fn": "mse"}
CASES: dict[str, tuple[Any, spaces.Space[Any], dict[str, Any]]] = {
    "DQN": (DQNConfig, TWO, {"lr": 1e-2, "tau": 0.1, "target_network_update_freq": 0}),
    "CQL, Discrete": (CQLConfig, TWO, {**FAST, "min_q_weight": 0.0}),
    "CQL, Box": (CQLConfig, BOX, {**FAST, "min_q_weight": 0.0}),
    "IQL, Discrete": (IQLConfig, TWO, {**FAST, "value_lr": 1e-2}),
    "IQL, Box": (IQLConfig, BOX, {**FAST, "value_lr": 1e-2}),
    "AWAC": (AWACConfig, BOX, FAST),
    "TD3+BC": (TD3Config, BOX, {**FAST, "bc_coeff": 2.5, "policy_delay": 1}),
}


def learn_values(name: str, data: str, obs: np.ndarray) -> np.ndarray:
    """Return the first critic's values of action 0 at observations, after 1,000 updates."""
    config_class, action_space, training = CASES[name]
    config = config_class().offline_data(input_=data, num_updates_per_iteration=1000)
    config.training(train_batch_size=32, gamma=GAMMA, **training)
    config.rl_module(model_config={"fcnet_hiddens": [16]}).debugging(loggers=[], seed=0)
    with config.build() as algorithm:
        algorithm.train()
        params, module = algorithm.state.learner.sgd.params, algorithm.get_module()
    if config_class is DQNConfig:
        return np.asarray(module.forward_train(params, {"obs": obs})["action_dist_inputs"])[:, 0]
    shape = (len(obs),) if action_space is TWO else (len(obs), 1)
    action = np.zeros(shape, np.int32 if action_space is TWO else np.float32)
    return np.asarray(module.compute_taken_q_values(params[CRITIC], obs, action))[0]


@pytest.mark.representatives("IQL, Box", "DQN")
@pytest.mark.parametrize("name", CASES)
def test_only_a_termination_ends_the_return(tmp_path: Path, name: str) -> None:
    """Every step has the reward 1 and is an episode of its own, by one of three ends.

    The observation tells the end, and the one after it is the same: 1 after a termination, and
    1 / (1 - gamma) after a truncation and where the recording was cut.
    """
    ends = ({"terminated": True}, {"truncated": True}, {})
    parts = []
    for number in range(60):
        kind = number % 3
        part = make_part(number, 1, action_space=CASES[name][1], **ends[kind])
        obs = np.tile(np.eye(3, dtype=np.float32)[kind, :2] * 2.0 - 1.0, (2, 1))
        parts.append(dataclasses.replace(part, obs=obs, reward=np.ones(1, np.float32)))
    data = write_data(tmp_path / "data", parts, CASES[name][1])
    seen = np.stack([parts[kind].obs[0] for kind in range(3)])
    values = learn_values(name, data, seen)
    np.testing.assert_allclose(values, [1.0, 10.0, 10.0], rtol=0.1)


@pytest.mark.representatives("CQL, Box")
@pytest.mark.parametrize("name", CASES)
def test_the_successor_is_the_final_observation(tmp_path: Path, name: str) -> None:
    """Episodes of one step are truncated at a marker, whose own episodes have the reward 5.

    The row after the truncated one in the data starts another episode, at an observation that is
    worth nothing.
    """
    start, marker, other = np.float32([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
    kinds = ((start, marker, 0.0, False), (other, other, 0.0, True), (marker, marker, 5.0, True))
    parts = []
    for number in range(60):
        first, last, reward, is_end = kinds[number % 3]
        part = make_part(number, 1, action_space=CASES[name][1], terminated=is_end)
        part = dataclasses.replace(part, truncated=not is_end, is_cut=False)
        rewards = np.full(1, reward, np.float32)
        parts.append(dataclasses.replace(part, obs=np.stack([first, last]), reward=rewards))
    data = write_data(tmp_path / "data", parts, CASES[name][1])
    values = learn_values(name, data, np.stack([start, other, marker]))
    np.testing.assert_allclose(values, [GAMMA * 5.0, 0.0, 5.0], atol=0.5)
