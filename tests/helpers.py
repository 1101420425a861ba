"""Small configs and comparisons that many tests share."""

from typing import Any

import jax
import numpy as np

from jaxrl.algorithms.ppo import A2CConfig, PGConfig, PPOConfig
from jaxrl.checkpoint import host_leaves
from jaxrl.config.base import AlgorithmConfig

ALGORITHMS: dict[str, type[AlgorithmConfig]] = {
    "PPO": PPOConfig,
    "A2C": A2CConfig,
    "PG": PGConfig,
}


def small(algo: str = "PPO", env: Any = "CartPole-v1", **training: Any) -> Any:
    """16 environments x 8 steps, tiny networks, quiet loggers."""
    config: Any = ALGORITHMS[algo]().environment(env)
    config.env_runners(num_envs_per_env_runner=16).training(train_batch_size=128, **training)
    if algo == "PPO" and "minibatch_size" not in training:
        config.training(minibatch_size=32)
    if algo == "PPO" and "num_epochs" not in training:
        config.training(num_epochs=2)
    config.rl_module(model_config={"fcnet_hiddens": [8]})
    return config.debugging(loggers=["json"]).learners(num_devices=1)


def assert_equal(a: Any, b: Any) -> None:
    """Every leaf equal, bit for bit."""
    left, right = host_leaves(a), host_leaves(b)
    assert left.keys() == right.keys()
    for name, leaf in left.items():
        assert leaf.dtype == right[name].dtype, name
        assert leaf.tobytes() == right[name].tobytes(), name


def assert_close(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Every leaf close."""
    left, right = host_leaves(a), host_leaves(b)
    assert left.keys() == right.keys()
    for name, leaf in left.items():
        np.testing.assert_allclose(leaf, right[name], rtol=rtol, atol=atol, err_msg=name)


def differs(a: Any, b: Any) -> bool:
    """Whether any leaf differs."""
    return any(
        not np.array_equal(x, y)
        for x, y in zip(
            jax.tree.leaves(host_leaves(a)), jax.tree.leaves(host_leaves(b)), strict=True
        )
    )
