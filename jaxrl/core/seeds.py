"""From a seed to what is drawn with: keys on the device, NumPy's entropy on the host.

A seed has 64 bits. Those of 32 bits draw what `jax.random.key` and `numpy.random.SeedSequence`
make of them; the high word of others is added to both, so that every seed has its own draws, with
or without JAX's 64-bit types.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import UInt32

from jaxrl.core.types import Key
from jaxrl.errors import ConfigError

NUM_SEEDS = 2**64
"""Seeds count from 0 to one below."""
SEEDS_IN_WORDS = "a whole number of at least 0 and below 2**64"


def is_seed(value: object) -> bool:
    """Whether it is one, if it is a whole number at all."""
    return isinstance(value, int | np.integer) and 0 <= int(value) < NUM_SEEDS


def check_seed(value: object, name: str = "seed") -> None:
    """Refuse what is no seed.

    Raises:
        ConfigError: It is none, naming `name`.
    """
    if not is_seed(value) or isinstance(value, bool):
        raise ConfigError(f"{name} must be {SEEDS_IN_WORDS}, got {value!r}.")


def seed_words(seed: int) -> UInt32[np.ndarray, "2"]:
    """The low and the high word of a seed, as `seed_key` takes them where seeds are traced."""
    return np.asarray([int(seed) % 2**32, int(seed) >> 32], np.uint32)


def seed_key(seed: int | Any) -> Key:
    """The key that everything drawn on the device derives from.

    Args:
        seed: A number, or its words.
    """
    words: Any = seed_words(int(seed)) if isinstance(seed, int | np.integer) else seed
    data = jax.random.key_data(jax.random.key(words[0]))
    # Of every implementation's words, each first of two is 0 for a seed of 32 bits.
    return jax.random.wrap_key_data(data.at[::2].set(jnp.asarray(words[1], data.dtype)))


def folded(key: Key, number: int) -> Key:
    """A key of its own for every number below 2**64."""
    low, high = (int(word) for word in seed_words(number))
    key = jax.random.fold_in(key, np.uint32(low))
    return jax.random.fold_in(key, np.uint32(high)) if high else key


def entropy_of(seed: int, *places: int) -> np.random.SeedSequence:
    """What draws on the host derive from, another one for each of the places.

    Args:
        seed: Of the run.
        places: What tells the draws from others of the run, each below 2**32.
    """
    low, high = (int(word) for word in seed_words(seed))
    return np.random.SeedSequence((low, *places), spawn_key=(high,) if high else ())
