"""Search in sorted arrays, and selection from short ones."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

MAX_COMPARISONS = {"cpu": 2**12, "default": 2**17}
"""Largest numbers of comparisons, by platform, that cost less than the loop of a binary search."""


def searchsorted(sorted_values: Int[Array, " N"], wanted: Int[Array, " K"]) -> Int[Array, " K"]:
    """Return the first index where the ascending `sorted_values` reaches each wanted value.

    The index is N where no entry reaches it.
    """
    comparisons = sorted_values.shape[0] * wanted.shape[0]
    methods = {
        name: "compare_all" if comparisons <= most else "scan"
        for name, most in MAX_COMPARISONS.items()
    }
    search = {
        name: functools.partial(jnp.searchsorted, method=method) for name, method in methods.items()
    }
    if len(set(methods.values())) == 1:
        return search["default"](sorted_values, wanted)
    return jax.lax.platform_dependent(sorted_values, wanted, **search)


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
