"""Imported policies compute what the libraries that trained them compute.

The fixtures are written by these libraries, see `write_fixtures.py`.
"""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.core.types import ObsSequence
from jaxrl.interop import convert_weights
from jaxrl.modules.actor_critic import ActorCriticModule
from jaxrl.modules.policy_and_critics import DeterministicPolicyModule, StochasticPolicyModule
from jaxrl.modules.q_network import QModule

FIXTURES = Path(__file__).parent / "fixtures"
VECTOR = spaces.Box(-np.inf, np.inf, (4,), np.float32)
PENDULUM = spaces.Box(-np.inf, np.inf, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (12, 10, 2), np.uint8)
UNIT = spaces.Box(-1.0, 1.0, (1,), np.float32)
SMALL = {"fcnet_hiddens": [8, 7]}
RELU = {**SMALL, "fcnet_activation": "relu"}
VALID = [[4, 3, 2, "valid"], [5, 2, 1, "valid"]]

CASES: dict[str, tuple[Any, ...]] = {
    "sb3-ppo": (ActorCriticModule, VECTOR, spaces.Discrete(2), SMALL),
    "sb3-ppo-cnn": (
        ActorCriticModule,
        IMAGE,
        spaces.Discrete(3),
        {
            "conv_filters": VALID,
            "fcnet_hiddens": [6],
            "fcnet_activation": "relu",
            "vf_share_layers": True,
        },
    ),
    "sb3-ppo-flat-image": (
        ActorCriticModule,
        IMAGE,
        spaces.Discrete(3),
        {"conv_filters": [], "fcnet_hiddens": [6]},
    ),
    "sb3-recurrent-ppo": (
        ActorCriticModule,
        VECTOR,
        spaces.Discrete(2),
        {
            "fcnet_hiddens": [],
            "use_lstm": True,
            "lstm_cell_size": 6,
            "head_fcnet_hiddens": [5],
            "head_fcnet_activation": "tanh",
        },
    ),
    "sb3-dqn": (QModule, VECTOR, spaces.Discrete(2), RELU),
    "sb3-sac": (StochasticPolicyModule, PENDULUM, UNIT, RELU),
    "sb3-td3": (DeterministicPolicyModule, PENDULUM, UNIT, RELU),
    "sb3-tqc": (StochasticPolicyModule, PENDULUM, UNIT, RELU, {"num_quantiles": 5}),
    "rllib-ppo": (ActorCriticModule, VECTOR, spaces.Discrete(2), SMALL),
    "rllib-ppo-log-std": (
        ActorCriticModule,
        VECTOR,
        UNIT,
        {**SMALL, "free_log_std": True, "vf_share_layers": True},
    ),
    "rllib-ppo-cnn": (
        ActorCriticModule,
        IMAGE,
        spaces.Discrete(3),
        {
            "conv_filters": [[4, 3, 2], [5, 2, 1, "valid"]],
            "fcnet_hiddens": [],
            "head_fcnet_hiddens": [6],
            "vf_share_layers": True,
        },
    ),
    "rllib-ppo-lstm": (
        ActorCriticModule,
        VECTOR,
        spaces.Discrete(2),
        {**SMALL, "use_lstm": True, "lstm_cell_size": 6},
    ),
    "rllib-dqn": (
        QModule,
        VECTOR,
        spaces.Discrete(2),
        {**RELU, "head_fcnet_hiddens": [6]},
        {"dueling": True},
    ),
}


def make_module(name: str) -> Any:
    module_class, obs_space, action_space, model, *config = CASES[name]
    return module_class(
        observation_space=obs_space,
        action_space=action_space,
        model_config=model,
        algorithm_config=config[0] if config else None,
    )


def load_expected(name: str) -> dict[str, np.ndarray]:
    with np.load(FIXTURES / f"{name}-expected.npz") as arrays:
        return {key: arrays[key] for key in arrays.files}


def init(module: Any) -> Any:
    """Parameters of which only the shapes matter."""
    shapes = jax.eval_shape(module.init, jax.random.key(0))
    return jax.tree.map(lambda leaf: np.full(leaf.shape, np.nan, leaf.dtype), shapes)


@pytest.mark.parametrize("name", CASES)
def test_outputs_equal_those_of_the_library(name: str) -> None:
    module, expected = make_module(name), load_expected(name)
    params = convert_weights(FIXTURES / f"{name}.npz", name.partition("-")[0], module, init(module))
    assert not any(np.isnan(leaf).any() for leaf in jax.tree.leaves(params))
    obs: Any = expected["obs"]
    if module.is_stateful:
        is_first = np.arange(len(obs))[None] == 0
        obs = ObsSequence(obs=obs[None], carry=module.initial_carry(1), is_first=is_first)
    out = module.forward_train(params, {"obs": obs})
    inputs = np.asarray(out["action_dist_inputs"]).reshape(64, -1)
    np.testing.assert_allclose(inputs, expected["inputs"], atol=1e-5)
    assert np.ptp(inputs, axis=0).max() > 1e-3, "the outputs must depend on the observation"
    if "values" in expected:
        np.testing.assert_allclose(
            np.asarray(out["vf_preds"]).reshape(-1), expected["values"], atol=1e-5
        )
    if "q" in expected:
        q = module.compute_q_values(params["critic"], obs, expected["actions"])
        np.testing.assert_allclose(np.moveaxis(np.asarray(q), 0, 1), expected["q"], atol=1e-5)


def test_a_safetensors_file_gives_the_same() -> None:
    module = make_module("sb3-ppo")
    params = [
        convert_weights(FIXTURES / f"sb3-ppo.{suffix}", "sb3", module, init(module))
        for suffix in ("npz", "safetensors")
    ]
    assert jax.tree.all(jax.tree.map(np.array_equal, *params))
