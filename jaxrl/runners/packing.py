"""Many small arrays as one, so that a step costs one transfer however much it returns."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt32

from jaxrl.core.types import PyTree


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Leaf:
    """Where a leaf `[B, *shape]` lies among the words of a row, and in which type."""

    start: int
    stop: int
    shape: tuple[int, ...]
    wide: np.dtype[Any]
    dtype: np.dtype[Any]


class Packing:
    """The layout of a tree of arrays `[B, ...]` in one array of 32-bit words `[B, width]`.

    Bits are kept as they are. Types of fewer than 32 bits take a word each.
    """

    def __init__(self, shapes: PyTree) -> None:
        """Lays out what `jax.eval_shape` says of a tree."""
        leaves, self._structure = jax.tree.flatten(shapes)
        self._leaves: list[_Leaf] = []
        start = 0
        for leaf in leaves:
            dtype, shape = np.dtype(leaf.dtype), tuple(leaf.shape[1:])
            wide = _wide(dtype)
            stop = start + math.prod(shape) * wide.itemsize // 4
            self._leaves.append(_Leaf(start=start, stop=stop, shape=shape, wide=wide, dtype=dtype))
            start = stop
        self.width = start

    def pack(self, tree: PyTree) -> UInt32[Array, "B width"]:
        """The words of a tree of this layout; to be traced."""
        parts: list[Array] = []
        for leaf, spec in zip(jax.tree.leaves(tree), self._leaves, strict=True):
            words = jax.lax.bitcast_convert_type(jnp.asarray(leaf, spec.wide), jnp.uint32)
            parts.append(words.reshape(leaf.shape[0], spec.stop - spec.start))
        return jnp.concatenate(parts, axis=1)

    def unpack(self, words: UInt32[np.ndarray, "*batch width"]) -> PyTree:
        """The tree, NumPy, with the batch axes of the words; may share their memory."""
        batch = words.shape[:-1]
        leaves: list[np.ndarray] = []
        for spec in self._leaves:
            leaf = words[..., spec.start : spec.stop].view(spec.wide).reshape(*batch, *spec.shape)
            leaves.append(leaf if spec.wide == spec.dtype else leaf.astype(spec.dtype))
        return jax.tree.unflatten(self._structure, leaves)


def _wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type of 32 or 64 bits that holds every value of another."""
    if dtype.itemsize >= 4:
        return dtype
    return np.dtype(np.float32 if jnp.issubdtype(dtype, jnp.floating) else np.int32)
