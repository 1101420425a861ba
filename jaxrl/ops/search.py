"""Looking things up in sorted arrays, and sorting short ones."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

MAX_COMPARISONS = 2**17


def find(ordinal: Int[Array, " N"], wanted: Int[Array, " K"]) -> Int[Array, " K"]:
    """The first place where the ascending `ordinal` reaches each wanted value; N past the last.

    Small problems are done by comparing everything: on a CPU a loop of a binary search costs more
    than a hundred thousand comparisons at once.
    """
    small = ordinal.shape[0] * wanted.shape[0] <= MAX_COMPARISONS
    return jnp.searchsorted(ordinal, wanted, method="compare_all" if small else "scan")


def smallest(x: Float[Array, "*batch n"], number: int) -> Float[Array, "*batch k"]:
    """The smallest of the last axis, ascending.

    By counting for each how many are smaller: n² comparisons, which for the few dozen that it is
    for take a fraction of the time that XLA sorts rows in on a CPU.
    """
    places = jnp.arange(x.shape[-1], dtype=jnp.int32)
    one = (1,) * (x.ndim - 1)
    earlier = (places[:, None] > places[None, :]).reshape(*one, *2 * places.shape)
    this, other = x[..., :, None], x[..., None, :]
    rank = jnp.sum((other < this) | ((other == this) & earlier), axis=-1, dtype=jnp.int32)
    wanted = jnp.arange(number, dtype=jnp.int32).reshape(*one, -1, 1)
    return jnp.sum(jnp.where(rank[..., None, :] == wanted, x[..., None, :], 0.0), axis=-1)
