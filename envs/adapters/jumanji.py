"""Environments of Jumanji, `jumanji:Snake-v1` (Bonnet et al. 2024); `env_config` has its arguments."""

import copy
import importlib
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from jaxrl.core.types import Key, PyTree
from jaxrl.envs.adapters.suite_env import Ends, Suite, SuiteEnv, read_dm_step, remove_layers

_LAYERS = {
    "AutoResetWrapper": "reset_mode",
    "VmapWrapper": "num_envs_per_env_runner",
    "VmapAutoResetWrapper": "num_envs_per_env_runner",
}


def list_ids() -> list[str]:
    """List the ids that Jumanji registers."""
    return sorted(importlib.import_module("jumanji").registered_environments())


def find_refused() -> dict[str, str]:
    """Return the reason for each id that is never made."""
    reason = (
        "it downloads its levels when it is made; a creator of Sokoban with another generator, such as "
        "SimpleSolveGenerator(), is taken"
    )
    return {"Sokoban-v0": reason}


def make(name: str, /, **arguments: object) -> SuiteEnv:
    """Make an environment."""
    return adapt(importlib.import_module("jumanji").make(name, **arguments))


def adapt(env: Any) -> SuiteEnv:
    """Return an environment of Jumanji, whose attribute `time_limit` becomes the time limit."""
    given = remove_layers(env, "_env", _LAYERS)
    env, limit = given, getattr(given.unwrapped, "time_limit", None)
    if limit is not None:
        env = copy.deepcopy(given)
        env.unwrapped.time_limit = 2**31 - 1

    def reset(key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
        state, step = env.reset(key)
        return state, step.observation

    def step(key: Key, state: PyTree, action: PyTree, params: PyTree) -> tuple[PyTree, Ends]:
        after, step = env.step(state, action)
        return after, read_dm_step(step)

    suite = Suite(
        objects=(given,),
        reset=reset,
        step=step,
        action_space=_to_space(env.action_spec),
        limit=limit,
    )
    return SuiteEnv(f"jumanji:{type(env.unwrapped).__name__}", suite)


def _to_space(spec: Any) -> gymnasium.Space[Any]:
    """Return the action space of a spec of discrete or bounded actions."""
    number = getattr(spec, "num_values", None)
    if number is not None:
        sizes = np.asarray(number, np.int64)
        return spaces.MultiDiscrete(sizes) if sizes.ndim else spaces.Discrete(int(sizes))
    low = np.broadcast_to(np.asarray(spec.minimum, np.float32), spec.shape)
    high = np.broadcast_to(np.asarray(spec.maximum, np.float32), spec.shape)
    return spaces.Box(low, high, dtype=np.float32)
