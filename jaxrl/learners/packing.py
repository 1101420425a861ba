"""Small sets of parameters as one vector, which takes one operation instead of one for each tensor.

A state holds its parameters as the tree that modules read. What works on every entry alike (optimizers,
selections, moving averages, the carry of a loop over updates) takes `pack` of it. A packed state that is
unpacked for the next update costs nothing: XLA sees that slices which are put together again are the vector.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool

from jaxrl.core.struct import replace
from jaxrl.core.types import Params, PyTree

T = TypeVar("T")

MAX_RAVELED = 2**14
"""Maximum number of parameters that are one vector.

A vector takes a few operations instead of a few for each tensor, but the tensors are copied out of
it, which costs more with networks of two layers of 128 units. Measured: docs/performance.md.
"""


def ravel(tree: PyTree) -> tuple[PyTree, Callable[[PyTree], PyTree]]:
    """Return the entries of a small tree as one vector, and the function that restores the tree.

    A tree of more than `MAX_RAVELED` entries, of several types, or without any is returned as it is.
    """
    leaves = jax.tree.leaves(tree)
    is_small = sum(leaf.size for leaf in leaves) <= MAX_RAVELED
    if not leaves or not is_small or len({leaf.dtype for leaf in leaves}) > 1:
        return tree, lambda same: same
    return ravel_pytree(tree)


class Packable:
    """Part of a learner's state whose `params` may be one vector, or one for each of its `parts`."""

    params: Params

    @property
    def parts(self) -> tuple[str, ...] | None:
        """Names of the parts of `params` that are vectors of their own; None for a single vector."""
        return None

    def pack(self: T) -> tuple[T, Callable[[Any], T]]:
        """Return the state with vectors as its parameters, and the function that restores such a state."""
        state: PyTree = self
        if state.parts is None:
            packed, restore = ravel(state.params)
            return replace(state, params=packed), lambda x: replace(x, params=restore(x.params))
        pairs = {part: ravel(state.params[part]) for part in state.parts}
        vectors = {part: vector for part, (vector, _) in pairs.items()}

        def unpack(packed: PyTree) -> T:
            trees = {part: restore(packed.params[part]) for part, (_, restore) in pairs.items()}
            return replace(packed, params={**packed.params, **trees})

        return replace(state, params={**state.params, **vectors}), unpack


def pack(state: T) -> tuple[T, Callable[[Any], T]]:
    """Return a tree with every `Packable` of it packed, and the function that restores such a tree."""
    parts, structure = _flatten(state)
    pairs = [part.pack() if isinstance(part, Packable) else (part, None) for part in parts]

    def unpack(packed: T) -> T:
        found = zip(_flatten(packed)[0], pairs, strict=True)
        return structure.unflatten(
            [x if restore is None else restore(x) for x, (_, restore) in found]
        )

    return structure.unflatten([part for part, _ in pairs]), unpack


def _flatten(tree: PyTree) -> tuple[list[Any], Any]:
    return jax.tree.flatten(tree, is_leaf=lambda x: isinstance(x, Packable))


def select(condition: Bool[Array, ""], new: T, old: T) -> T:
    """Select `new` where the scalar condition holds, else `old`, leaf by leaf."""
    packed_new, unpack = pack(new)
    packed_old, _ = pack(old)
    return unpack(jax.tree.map(lambda x, y: jnp.where(condition, x, y), packed_new, packed_old))
