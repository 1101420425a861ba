"""Small configs, comparisons, and variables of fresh processes that many tests share."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import AlgorithmConfig, algorithms
from jaxrl.config.settings.replay import OffPolicyTraining
from jaxrl.connectors import ActionConnector, ObservationConnector
from jaxrl.connectors.actions import default_action_connectors, fit_action_pipeline
from jaxrl.connectors.observations import (
    default_observation_connectors,
    fit_observation_pipeline,
)
from jaxrl.connectors.pipelines import ActionPipeline, ObservationPipeline
from jaxrl.envs.adapters.table import ADAPTERS, split_id
from jaxrl.runs.checkpoint import fetch_leaves

_TESTED_ELSEWHERE = (
    *("A3C", "APEX", "APEX_DDPG", "DDPPO", "R2D2", "REDQ", "RNNSAC", "SimpleQ"),
    *("ARS", "ES", "BanditLinTS", "BanditLinUCB"),
    *("MADDPG", "MAPPO", "MATD3", "QMIX", "VDN", "SlateQ", "DreamerV3"),
    *("AWAC", "BC", "CQL", "CRR", "DT", "IQL", "MARWIL", "RandomAgent"),
)
"""Presets, populations, bandits, slates, a world model, algorithms of several agents and of recorded data, and the one that learns nothing."""
ALGORITHMS: dict[str, type[AlgorithmConfig]] = {
    name: getattr(algorithms, entry.config.partition(":")[2])
    for name, entry in algorithms.ALGORITHMS.items()
    if name not in _TESTED_ELSEWHERE
}
"""Algorithms of the contract tests: all others that are registered."""
ENVS: dict[str, str] = dict.fromkeys(("SAC", "CrossQ", "TQC", "TD3", "DDPG"), "Pendulum-v1")
"""Environments of algorithms that are not for CartPole."""
REPLAYS = tuple(
    name
    for name, config in ALGORITHMS.items()
    if isinstance(config.training_settings, OffPolicyTraining)
)
"""Those that learn from a replay buffer."""
RATES = dict.fromkeys(ENVS, "critic_lr")
"""Names of the learning rate other than `lr`."""
REPRESENTATIVES = ("APPO", "DDPG", "DQN", "PPO", "PQN", "SAC")
"""One of each kind: they cover all that the others do, but for losses, whose contracts are slow tests."""
RELATIVES = tuple(sorted(set(ALGORITHMS) - set(REPRESENTATIVES)))
"""All others."""


def need_package(env: object) -> None:
    """Skip a test whose environment is of a package that is not installed."""
    found = split_id(env) if isinstance(env, str) else None
    if found is not None and not ADAPTERS[found[0]].is_installed():
        pytest.skip(f"{ADAPTERS[found[0]].title} is not installed")


def slow_but(*chosen: Any, of: Iterable[Any]) -> list[Any]:
    """A parameter for each value, and those that are not chosen in the slow set."""
    return [
        pytest.param(value, marks=[] if value in chosen else [pytest.mark.slow]) for value in of
    ]


_KEPT = ("PATH", "LD_LIBRARY_PATH", "JAX_PLATFORMS", "TMPDIR", "LANG")
"""Variables of this process that a fresh one is given."""


def fresh_environs(home: Path) -> dict[str, str]:
    """The variables of a process that nobody has told anything, but flags that compile sooner."""
    flags = os.environ.get("XLA_FLAGS", "").split()
    quickly = " ".join(flag for flag in flags if "device_count" not in flag)
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return kept | {"HOME": str(home)} | ({"XLA_FLAGS": quickly} if quickly else {})


def every_algorithm(*, slow: tuple[str, ...] = RELATIVES) -> list[Any]:
    """A parameter for each algorithm."""
    return [
        pytest.param(algo, marks=[pytest.mark.slow] if algo in slow else [])
        for algo in sorted(ALGORITHMS)
    ]


def small(algo: str = "PPO", env: Any = None, **training: Any) -> Any:
    """16 environments x 8 steps, tiny networks, quiet loggers; learning from the first batch on."""
    config: Any = ALGORITHMS[algo]().environment(env or ENVS.get(algo, "CartPole-v1"))
    config.env_runners(num_envs_per_env_runner=16)
    if algo in REPLAYS:
        config.env_runners(rollout_fragment_length=8)
        config.training(
            num_steps_sampled_before_learning_starts=128, replay_buffer_config={"capacity": 1024}
        )
    config.training(train_batch_size=128, **training)
    if algo == "PPO" and "minibatch_size" not in training:
        config.training(minibatch_size=32)
    if algo == "PPO" and "num_epochs" not in training:
        config.training(num_epochs=2)
    if algo == "MuZero":
        config.training(minibatch_size=32, num_epochs=1, num_simulations=4)
    if algo == "APPO" and "circular_buffer_num_batches" not in training:
        config.training(circular_buffer_num_batches=1)  # learns from the first batch on
    critics = {"critic_fcnet_hiddens": [8]} if algo == "CrossQ" else {}
    config.rl_module(model_config={"fcnet_hiddens": [8], **critics})
    return config.debugging(loggers=["json"]).learners(num_devices=1)


def assert_equal(a: Any, b: Any) -> None:
    """Every leaf equal, bit for bit."""
    left, right = fetch_leaves(a), fetch_leaves(b)
    assert left.keys() == right.keys()
    for name, leaf in left.items():
        assert leaf.dtype == right[name].dtype, name
        assert leaf.tobytes() == right[name].tobytes(), name


def assert_close(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Every leaf close."""
    left, right = fetch_leaves(a), fetch_leaves(b)
    assert left.keys() == right.keys()
    for name, leaf in left.items():
        np.testing.assert_allclose(leaf, right[name], rtol=rtol, atol=atol, err_msg=name)


MEASURED = ("time", "date", "system", "compil", "per_second", "pid")


def without_times(result: dict[str, Any]) -> dict[str, Any]:
    """A result without what is measured."""
    return {
        name: without_times(value) if isinstance(value, dict) else value
        for name, value in result.items()
        if not any(word in name for word in MEASURED)
    }


def differs(a: Any, b: Any) -> bool:
    """Return whether any leaf differs."""
    return any(
        not np.array_equal(x, y)
        for x, y in zip(
            jax.tree.leaves(fetch_leaves(a)), jax.tree.leaves(fetch_leaves(b)), strict=True
        )
    )


def observation_pipeline(
    space: gymnasium.Space[Any],
    observation_filter: str = "NoFilter",
    extra: tuple[ObservationConnector, ...] = (),
    action_mask_key: str | None = "action_mask",
    action_space: gymnasium.Space[Any] | None = None,
    flatten: bool = False,
) -> ObservationPipeline:
    """The default pipeline after the user's connectors, for actions that are 0 or 1."""
    defaults = default_observation_connectors(
        observation_filter, action_mask_key, flatten_observations=flatten
    )
    actions = spaces.Discrete(2) if action_space is None else action_space
    return fit_observation_pipeline((*extra, *defaults), space, actions)


def action_pipeline(
    space: gymnasium.Space[Any],
    *,
    normalize_actions: bool = True,
    clip_actions: bool = False,
    extra: tuple[ActionConnector, ...] = (),
) -> ActionPipeline:
    """The default pipeline after the user's connectors."""
    defaults = default_action_connectors(
        space, normalize_actions=normalize_actions, clip_actions=clip_actions
    )
    return fit_action_pipeline((*extra, *defaults), space)
