"""The state of one copy of a host environment as arrays of fixed shapes, where it can be had.

An environment, or a wrapper around it, can if it has both `get_state()`, which returns a pytree of
arrays, and `set_state(state)`. The steps that its time limit has counted and the state of its own
random generator, which later resets draw from, go along.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import TimeLimit


def layers(env: gymnasium.Env[Any, Any]) -> list[gymnasium.Env[Any, Any]]:
    """The wrappers from the outermost on, and what they wrap."""
    found = [env]
    while isinstance(found[-1], gymnasium.Wrapper):
        found.append(found[-1].env)
    return found


def time_limit(env: gymnasium.Env[Any, Any]) -> int | None:
    """After how many steps gymnasium's TimeLimit around an environment truncates."""
    layer = _time_limit_layer(env)
    return None if layer is None else int(layer._max_episode_steps)


def with_time_limit(env: gymnasium.Env[Any, Any], limit: int) -> gymnasium.Env[Any, Any]:
    """The environment with another time limit."""
    layer = _time_limit_layer(env)
    if layer is None:
        return TimeLimit(env, limit)
    layer._max_episode_steps = limit
    return env


def _time_limit_layer(env: gymnasium.Env[Any, Any]) -> Any:
    """The outermost one, whose numbers gymnasium keeps to itself."""
    limits = [layer for layer in layers(env) if isinstance(layer, TimeLimit)]
    return limits[0] if limits else None


def copy_state(env: gymnasium.Env[Any, Any]) -> dict[str, Any] | None:
    """The state as arrays, None where the environment has no way to give it."""
    holder = _holder(env)
    if holder is None:
        return None
    limit = _time_limit_layer(env)
    elapsed = limit._elapsed_steps if limit is not None else 0
    return {
        "env": holder.get_state(),
        "elapsed": np.asarray(elapsed or 0, np.int32),
        "random": _generator_words(env),
    }


def restore_copy(env: gymnasium.Env[Any, Any], state: dict[str, Any]) -> None:
    """Put an environment that was reset into a state."""
    holder = _holder(env)
    assert holder is not None
    holder.set_state(state["env"])
    limit = _time_limit_layer(env)
    if limit is not None:
        limit._elapsed_steps = int(state["elapsed"])
    _set_generator(env, state["random"])


def _holder(env: gymnasium.Env[Any, Any]) -> Any:
    """The outermost layer that has both methods itself."""
    for layer in layers(env):
        own = {name for cls in type(layer).__mro__ for name in vars(cls)} | set(vars(layer))
        if {"get_state", "set_state"} <= own:
            return layer
    return None


def _generator(env: gymnasium.Env[Any, Any]) -> np.random.PCG64 | None:
    core: Any = env.unwrapped
    generator = core._np_random  # the public name would make one where there is none
    bits = generator.bit_generator if isinstance(generator, np.random.Generator) else None
    return bits if isinstance(bits, np.random.PCG64) else None


def _generator_words(env: gymnasium.Env[Any, Any]) -> np.ndarray:
    """PCG64's two 128-bit numbers and its buffered half, as uint64; zeros for no generator."""
    bits = _generator(env)
    if bits is None:
        return np.zeros(6, np.uint64)
    state: Any = bits.state
    low = 2**64 - 1
    numbers = state["state"]["state"], state["state"]["inc"]
    words = [word for number in numbers for word in (number >> 64, number & low)]
    return np.asarray([*words, state["has_uint32"], state["uinteger"]], np.uint64)


def _set_generator(env: gymnasium.Env[Any, Any], words: Any) -> None:
    numbers = [int(word) for word in words]
    bits = _generator(env)
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
