"""Search in sorted arrays, and selection from short ones."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

MAX_COMPARISONS = 2**17


def searchsorted(sorted_values: Int[Array, " N"], wanted: Int[Array, " K"]) -> Int[Array, " K"]:
    """Return the first index where the ascending `sorted_values` reaches each wanted value.

    The index is N where no entry reaches it.

    Small problems compare everything with everything: on a CPU the loop of a binary search costs
    more than a hundred thousand comparisons at once.
    """
    is_small = sorted_values.shape[0] * wanted.shape[0] <= MAX_COMPARISONS
    return jnp.searchsorted(sorted_values, wanted, method="compare_all" if is_small else "scan")


def smallest_k(x: Float[Array, "*batch n"], k: int) -> Float[Array, "*batch k"]:
    """Return the `k` smallest entries of the last axis, ascending.

    The rank of each entry is counted, with n² comparisons: for the few dozen entries this is meant
    for, a fraction of the time that XLA takes to sort rows on a CPU.
    """
    places = jnp.arange(x.shape[-1], dtype=jnp.int32)
    one = (1,) * (x.ndim - 1)
    is_earlier = (places[:, None] > places[None, :]).reshape(*one, *2 * places.shape)
    entry, other = x[..., :, None], x[..., None, :]
    rank = jnp.sum((other < entry) | ((other == entry) & is_earlier), axis=-1, dtype=jnp.int32)
    wanted = jnp.arange(k, dtype=jnp.int32).reshape(*one, -1, 1)
    return jnp.sum(jnp.where(rank[..., None, :] == wanted, x[..., None, :], 0.0), axis=-1)
