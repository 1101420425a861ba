"""What environments on the host draw from: it depends on their place and on nothing else."""

from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from jaxrl.core.seeds import entropy_of, seed_key
from jaxrl.core.types import Device, Key
from jaxrl.envs.vector import copy_keys


def stream_keys(seed: int, env_index: Int[np.ndarray, " B"], device: Device) -> Key:
    """The keys that the environments' draws are folded from, as in the compiled loop."""
    env_key = jax.random.split(seed_key(seed), 3)[1]
    keys = jax.jit(copy_keys)(env_key, np.asarray(env_index, np.int32))[1]
    return jax.device_put(keys, device)


def episode_seeds(
    seed: int, env_index: Int[np.ndarray, " B"], count: Int[np.ndarray, " B"] | None = None
) -> list[int]:
    """Seeds, 31 bits, of new episodes, of each count of transitions another one."""
    parts: list[Any] = [env_index] if count is None else [env_index, count]
    return [
        int(entropy_of(seed, *map(int, places)).generate_state(1)[0] >> 1)
        for places in zip(*parts, strict=True)
    ]
