"""Craftax and Craftax-Classic, `craftax:Craftax-Symbolic-v1` (Matthews et al. 2024).

`env_config` has the fields of Craftax's `EnvParams`, which may change without a recompile, and
`static_env_params`, the fields of its `StaticEnvParams` that do not have their defaults.
"""

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from jaxrl.core.types import Key, PyTree
from jaxrl.envs.adapters.suite_env import Ends, Suite, TimedSuiteEnv

ENV_IDS = (
    *("Craftax-Symbolic-v1", "Craftax-Classic-Symbolic-v1"),
    *("Craftax-Pixels-v1", "Craftax-Classic-Pixels-v1"),
)


def list_ids() -> list[str]:
    """List the ids."""
    return list(ENV_IDS)


def make(name: str, /, static_env_params: Mapping[str, object] | None = None) -> "CraftaxEnv":
    """Make one of the games."""
    env = importlib.import_module("craftax.craftax_env").make_craftax_env_from_name(name, False)
    if static_env_params is not None:
        env = type(env)(env.default_static_params().replace(**static_env_params))
    return adapt(env)


def adapt(env: Any) -> "CraftaxEnv":
    """Return an instance of either class of a game, with or without auto-reset."""
    return CraftaxEnv(env)


class CraftaxEnv(TimedSuiteEnv):
    """A game of Craftax, with `params.max_timesteps` as its time limit, which truncates."""

    limit_name = "max_timesteps"

    def __init__(self, env: Any) -> None:
        params = env.default_params

        def reset(key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
            obs, state = env.reset_env(key, params)
            return state, obs

        def step(key: Key, state: PyTree, action: PyTree, params: PyTree) -> tuple[PyTree, Ends]:
            endless = params.replace(max_timesteps=np.int32(2**31 - 1))
            obs, after, reward, done, _ = env.step_env(key, state, action, endless)
            return after, (obs, reward, done, after.timestep >= params.max_timesteps)

        action_space = spaces.Discrete(int(env.action_space(params).n))
        suite = Suite(
            objects=(env,), reset=reset, step=step, action_space=action_space, params=params
        )
        super().__init__(f"craftax:{type(env).__name__}", suite)
