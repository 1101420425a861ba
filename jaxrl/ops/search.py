"""Looking things up in sorted arrays."""

import jax.numpy as jnp
from jaxtyping import Array, Int

MAX_COMPARISONS = 2**17


def find(ordinal: Int[Array, " N"], wanted: Int[Array, " K"]) -> Int[Array, " K"]:
    """The first place where the ascending `ordinal` reaches each wanted value; N past the last.

    Small problems are done by comparing everything: on a CPU a loop of a binary search costs more
    than a hundred thousand comparisons at once.
    """
    small = ordinal.shape[0] * wanted.shape[0] <= MAX_COMPARISONS
    return jnp.searchsorted(ordinal, wanted, method="compare_all" if small else "scan")
