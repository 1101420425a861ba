"""Tasks of Brax, `brax:ant` (https://github.com/google/brax); `env_config` has its arguments."""

import importlib
import inspect
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.core.types import Key, PyTree
from jaxrl.envs.adapters.suite_env import Ends, Suite, SuiteEnv, remove_layers
from jaxrl.errors import EnvError

LAYERS = {
    "VmapWrapper": "num_envs_per_env_runner",
    "BraxAutoResetWrapper": "reset_mode",
    "AutoResetWrapper": "reset_mode",
    "EpisodeWrapper": "max_episode_steps",
}
EPISODE_LENGTH = 1000
"""Time limit of `brax.envs.create`."""


def list_ids() -> list[str]:
    """List the tasks that Brax registers."""
    return list(_open()._envs)


def find_refused() -> dict[str, str]:
    """Return the reason for each task that Brax cannot step with the installed jax."""
    if "a_min" in inspect.signature(jnp.clip).parameters:
        return {}
    if "a_min" not in inspect.getsource(importlib.import_module("brax.fluid")):
        return {}
    reason = (
        f"Brax {version('brax')} computes a fluid by jnp.clip(a_min=...), which jax {jax.__version__} "
        "does not take; playground:SwimmerSwimmer6 is a swimmer simulated by MJX"
    )
    return {"swimmer": reason}


def make(name: str, /, **arguments: object) -> SuiteEnv:
    """Make a task; `backend` is Brax's physics pipeline."""
    return adapt(_open().get_environment(name, **arguments))


def adapt(env: Any) -> SuiteEnv:
    """Return an environment of Brax, with or without its wrappers for training."""
    layer, limit = env, EPISODE_LENGTH
    while type(layer).__name__ in LAYERS:
        if getattr(layer, "action_repeat", 1) != 1:
            raise EnvError(
                f"{type(env).__name__} repeats each action {layer.action_repeat} times in the wrapper "
                "that also ends episodes; give the environment without it, or a wrapper of your own."
            )
        limit = vars(layer).get("episode_length", limit)
        layer = layer.env
    return wrap_physics("brax", remove_layers(layer, "env", LAYERS), limit)


def wrap_physics(prefix: str, env: Any, limit: int) -> SuiteEnv:
    """Return an environment of rigid bodies, whose state holds observation, reward and end."""

    def reset(key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
        state = env.reset(key)
        return state, state.obs

    def step(key: Key, state: PyTree, action: PyTree, params: PyTree) -> tuple[PyTree, Ends]:
        after = env.step(state, action)
        return after, (after.obs, after.reward, after.done > 0.5, False)

    action_space = spaces.Box(-1.0, 1.0, (int(env.action_size),), np.float32)
    suite = Suite(objects=(env,), reset=reset, step=step, action_space=action_space, limit=limit)
    return SuiteEnv(f"{prefix}:{type(env.unwrapped).__name__}", suite)


def check_mujoco() -> None:
    """Raise if the installed MuJoCo is newer than the suites.

    Raises:
        EnvError: If it is MuJoCo 4, whose models Brax and Playground do not read.
    """
    if int((found := version("mujoco")).split(".")[0]) >= 4:
        raise EnvError(f"MuJoCo {found} is installed, which is too new: pip install 'mujoco<4'.")


def _open() -> Any:
    package = importlib.import_module("brax.envs")
    check_mujoco()
    return package
