"""Random keys and seeds of host environments, which depend only on seed, index and count."""

import jax
import numpy as np
from jaxtyping import Int, Integer, UInt32

from jaxrl.core.keys import make_key, split_run_key
from jaxrl.core.seeds import make_seed_sequence
from jaxrl.core.types import Device, Keys
from jaxrl.envs.vector import derive_env_keys


def make_env_keys(seed: int, env_index: Int[np.ndarray, " B"], device: Device) -> Keys:
    """Return the base keys of the environments, the same as in the compiled loop."""
    env_key = split_run_key(make_key(seed)).env
    keys = jax.jit(derive_env_keys)(env_key, np.asarray(env_index, np.int32))[1]
    return jax.device_put(keys, device)


def make_episode_seeds(
    seed: int, env_index: Int[np.ndarray, " B"], count: UInt32[np.ndarray, " B"] | None = None
) -> list[int]:
    """Return 31-bit seeds for new episodes, which differ for every count of transitions."""
    parts: list[Integer[np.ndarray, " B"]] = [env_index] if count is None else [env_index, count]
    return [
        int(make_seed_sequence(seed, *map(int, words)).generate_state(1)[0] >> 1)
        for words in zip(*parts, strict=True)
    ]
