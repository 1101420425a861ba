"""JAX keys: from a seed to a run's key, to the keys of its parts, and to draws of sharded rows."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrl.core.seeds import split_seed
from jaxrl.core.struct import pytree
from jaxrl.core.types import Key


@pytree
class RunKeys:
    """Keys of the parts of a run.

    Attributes:
        learner: Key of `Learner.init`.
        env: Key from which each environment's key is folded (`envs.vector.derive_env_keys`).
        run: Key that `TrainState` carries, from which each train batch's key is folded.
    """

    learner: Key
    env: Key
    run: Key


def split_run_key(key: Key) -> RunKeys:
    """Split a run's key, in the same way wherever the environments are stepped."""
    learner, env, run = jax.random.split(key, 3)
    return RunKeys(learner=learner, env=env, run=run)


def make_key(seed: int | np.ndarray | Array) -> Key:
    """Make the key from which everything drawn on the device derives.

    Args:
        seed: Seed as a number or as its two words.
    """
    words = split_seed(int(seed)) if isinstance(seed, int | np.integer) else seed
    key = jax.random.key(words[0])
    # In every implementation, the first of each pair of words is 0 for a seed of 32 bits.
    if isinstance(seed, int | np.integer) and not words[1]:
        return key  # without programs that would be compiled in every process
    data = jax.random.key_data(key)
    return jax.random.wrap_key_data(data.at[::2].set(jnp.asarray(words[1], data.dtype)))


def fold_in_uint64(key: Key, number: int) -> Key:
    """Fold a number below 2**64 into a key; each number gives a different key."""
    low, high = (int(word) for word in split_seed(number))
    key = jax.random.fold_in(key, np.uint32(low))
    return jax.random.fold_in(key, np.uint32(high)) if high else key


class PurposeKeys:
    """Keys of a run for purposes outside of training, one per purpose, made on first use.

    Args:
        seed: Seed of the run.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._keys: dict[int, Key] = {}

    def get(self, purpose: int) -> Key:
        """Return the base key for a purpose, from which the keys of its draws are folded.

        Args:
            purpose: Constant that is folded into the run's key. It is far from the small numbers
                that `split` and the training counters fold in, so the streams do not overlap.
        """
        if purpose not in self._keys:
            self._keys[purpose] = fold_in_uint64(make_key(self._seed), purpose)
        return self._keys[purpose]


def draw_normal_rows(
    key: Key, shape: tuple[int, ...], axis_name: str | None
) -> Float[Array, "N ..."]:
    """Draw standard normals for this device's rows; see `draw_rows`. Consumes the key."""
    return draw_rows(jax.random.normal, key, shape, axis_name)


def draw_rows(
    draw: Callable[..., Float[Array, "..."]],
    key: Key,
    shape: tuple[int, ...],
    axis_name: str | None,
) -> Float[Array, "N ..."]:
    """Draw float32 numbers for this device's rows. Consumes the key.

    The rows of all devices form one array. Every device draws all of it, which is cheap, so that a
    row's draw does not depend on the number of devices.

    Args:
        draw: Function of JAX's that draws numbers, such as `jax.random.uniform`.
        key: Key, the same on all devices.
        shape: Shape of this device's draws, rows first.
        axis_name: Mesh axis that the rows are divided over, or None.
    """
    if axis_name is None:
        return draw(key, shape, jnp.float32)
    num_rows, first_row = shape[0], jax.lax.axis_index(axis_name) * shape[0]
    total = num_rows * jax.lax.axis_size(axis_name)
    rows = draw(key, (total, *shape[1:]), jnp.float32)
    return jax.lax.dynamic_slice_in_dim(rows, first_row, num_rows)
