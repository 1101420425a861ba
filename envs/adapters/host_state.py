"""State of one copy of a host environment as arrays of fixed shapes, if available.

It is available if the environment, or a wrapper around it, has both `get_state()`, which returns a
pytree of arrays, and `set_state(state)`. The state includes the step count of its time limit and
its random generator, which later resets draw from.
"""

from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.wrappers import TimeLimit

from jaxrl.envs.multi.host_env import is_multi_agent_env

if TYPE_CHECKING:
    from jaxrl.core.types import PyTree


def unwrap_layers(env: gymnasium.Env[Any, Any]) -> list[gymnasium.Env[Any, Any]]:
    """Return the wrappers from the outermost inwards, and the environment inside."""
    found = [env]
    while isinstance(found[-1], gymnasium.Wrapper):
        found.append(found[-1].env)
    return found


def get_time_limit(env: gymnasium.Env[Any, Any]) -> int | None:
    """Return the limit of gymnasium's TimeLimit around an environment, None without one."""
    layer = _find_time_limit(env)
    return None if layer is None else int(layer._max_episode_steps)


def with_time_limit(env: gymnasium.Env[Any, Any], limit: int) -> gymnasium.Env[Any, Any]:
    """Return the environment with another time limit; one of several agents as it is."""
    layer = _find_time_limit(env)
    if any(is_multi_agent_env(inner) for inner in unwrap_layers(env)):
        return env
    if layer is None:
        return TimeLimit(env, limit)
    layer._max_episode_steps = limit
    return env


def _find_time_limit(env: gymnasium.Env[Any, Any]) -> Any:
    """Return the outermost TimeLimit, whose counters gymnasium keeps private."""
    limits = [layer for layer in unwrap_layers(env) if isinstance(layer, TimeLimit)]
    return limits[0] if limits else None


def has_env_state(env: gymnasium.Env[Any, Any]) -> bool:
    """Return whether the state can be saved and restored."""
    return _find_stateful_layer(env) is not None


def get_env_state(env: gymnasium.Env[Any, Any]) -> "dict[str, PyTree] | None":
    """Return the state as arrays, None if unavailable."""
    holder = _find_stateful_layer(env)
    if holder is None:
        return None
    limit = _find_time_limit(env)
    elapsed = limit._elapsed_steps if limit is not None else 0
    return {
        "env": holder.get_state(),
        "elapsed": np.asarray(elapsed or 0, np.int32),
        "random": _get_generator_words(env),
    }


def set_env_state(env: gymnasium.Env[Any, Any], state: "dict[str, PyTree]") -> None:
    """Restore the state of an environment that has been reset."""
    holder = _find_stateful_layer(env)
    assert holder is not None
    holder.set_state(state["env"])
    limit = _find_time_limit(env)
    if limit is not None:
        limit._elapsed_steps = int(state["elapsed"])
    _set_generator_words(env, state["random"])


def _find_stateful_layer(env: gymnasium.Env[Any, Any]) -> Any:
    """Return the outermost layer that defines both methods."""
    for layer in unwrap_layers(env):
        own = {name for cls in type(layer).__mro__ for name in vars(cls)} | set(vars(layer))
        if {"get_state", "set_state"} <= own:
            return layer
    return None


def _get_bit_generator(env: gymnasium.Env[Any, Any]) -> np.random.PCG64 | None:
    core: Any = getattr(env, "unwrapped", env)
    generator = getattr(core, "_np_random", None)  # the public name would create one
    bits = generator.bit_generator if isinstance(generator, np.random.Generator) else None
    return bits if isinstance(bits, np.random.PCG64) else None


def _get_generator_words(env: gymnasium.Env[Any, Any]) -> np.ndarray:
    """Return PCG64's two 128-bit numbers and buffered half as uint64, zeros without one."""
    bits = _get_bit_generator(env)
    if bits is None:
        return np.zeros(6, np.uint64)
    state = bits.state
    low = 2**64 - 1
    numbers = state["state"]["state"], state["state"]["inc"]
    words = [word for number in numbers for word in (number >> 64, number & low)]
    return np.asarray([*words, state["has_uint32"], state["uinteger"]], np.uint64)


def _set_generator_words(env: gymnasium.Env[Any, Any], words: np.ndarray) -> None:
    numbers = [int(word) for word in words]
    bits = _get_bit_generator(env)
    if bits is None or not any(numbers):
        return
    bits.state = {
        "bit_generator": "PCG64",
        "state": {
            "state": (numbers[0] << 64) | numbers[1],
            "inc": (numbers[2] << 64) | numbers[3],
        },
        "has_uint32": numbers[4],
        "uinteger": numbers[5],
    }
