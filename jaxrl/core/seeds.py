"""Seeds: their range, their words, and NumPy's seed sequences on the host.

A seed has 64 bits. Seeds of 32 bits give the same draws as `jax.random.key` and
`numpy.random.SeedSequence`; the high word of larger ones is mixed into both, so that every seed has
its own draws, with or without JAX's 64-bit types (`jaxrl.core.keys`). Nothing here imports JAX: the
processes of host environments do without it.
"""

from typing import TYPE_CHECKING

import numpy as np

from jaxrl.errors import ConfigError

if TYPE_CHECKING:
    from jaxtyping import UInt32

NUM_SEEDS = 2**64
"""Number of seeds; they range from 0 to `NUM_SEEDS - 1`."""
SEED_DESCRIPTION = "a whole number of at least 0 and below 2**64"


def is_seed(value: object) -> bool:
    """Return whether a value is an integer in the range of seeds."""
    return isinstance(value, int | np.integer) and 0 <= int(value) < NUM_SEEDS


def check_seed(value: object, name: str = "seed") -> None:
    """Raise if a value is not a valid seed.

    Raises:
        ConfigError: If it is not; the message names `name`.
    """
    if not is_seed(value) or isinstance(value, bool):
        raise ConfigError(f"{name} must be {SEED_DESCRIPTION}, got {value!r}.")


def split_seed(seed: int) -> "UInt32[np.ndarray, '2']":
    """Split a seed into its low and high word, as `make_key` takes them where seeds are traced."""
    return np.asarray([int(seed) % 2**32, int(seed) >> 32], np.uint32)


def make_seed_sequence(seed: int, *stream_ids: int) -> np.random.SeedSequence:
    """Make the seed sequence of one stream of draws on the host.

    Args:
        seed: Seed of the run.
        stream_ids: Indices below 2**32 that identify the stream within the run.
    """
    low, high = (int(word) for word in split_seed(seed))
    return np.random.SeedSequence((low, *stream_ids), spawn_key=(high,) if high else ())
