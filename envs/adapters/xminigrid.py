"""Environments of XLand-MiniGrid, `xminigrid:MiniGrid-Empty-8x8` (Nikulin et al. 2024).

`env_config` has the fields of its `EnvParams`.
"""

import importlib
from typing import Any

import numpy as np
from gymnasium import spaces

from jaxrl.core.types import Key, PyTree
from jaxrl.envs.adapters.suite_env import Ends, Suite, SuiteEnv, read_dm_step, remove_layers
from jaxrl.errors import EnvError

_LAYERS = {"GymAutoResetWrapper": "reset_mode", "DmEnvAutoResetWrapper": "reset_mode"}


def list_ids() -> list[str]:
    """List the ids that XLand-MiniGrid registers."""
    return list(importlib.import_module("xminigrid").registered_environments())


def make(name: str, /, **arguments: object) -> SuiteEnv:
    """Make an environment."""
    return adapt(*importlib.import_module("xminigrid").make(name, **arguments))


def adapt(env: Any, env_params: Any = None) -> SuiteEnv:
    """Return an environment of XLand-MiniGrid with its parameters.

    The time limit stays its own, because rewards depend on it.

    Raises:
        EnvError: If the parameters are missing: the size of an id's grid is among them.
    """
    if env_params is None:
        raise EnvError(
            f"{type(env).__name__} lacks its parameters: give the pair that xminigrid.make returns, "
            "as (env, env_params), or the id, as in 'xminigrid:MiniGrid-Empty-8x8'."
        )
    env = remove_layers(env, "_env", _LAYERS)

    def reset(key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
        step = env.reset(env_params, key)
        return step, step.observation

    def step(key: Key, state: PyTree, action: PyTree, params: PyTree) -> tuple[PyTree, Ends]:
        after = env.step(env_params, state, action)
        return after, read_dm_step(after)

    def render(state: PyTree, params: PyTree) -> np.ndarray:
        return env.render(env_params.replace(render_mode="rgb_array"), state)

    suite = Suite(
        objects=(env, env_params),
        reset=reset,
        step=step,
        action_space=spaces.Discrete(int(env.num_actions(env_params))),
        limit=env_params.max_steps,
        render=render,
    )
    return SuiteEnv(f"xminigrid:{type(env).__name__}", suite)
