"""Priorities in a tree of sums, for draws in proportion to them.

In place of flashbax's sum tree, which keeps its sums by adding differences in float32, so that
after large priorities came and went its totals are wrong and it draws leaves of priority zero
(tests/buffers/test_sum_tree.py shows both).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrl.core.struct import pytree
from jaxrl.core.types import Key


@pytree
class SumTree:
    """Non-negative values at the leaves of a binary tree whose every node is its children's sum.

    Node 1 is the root, nodes 2i and 2i + 1 are the children of node i, and the leaves fill the
    second half. A node on the way up from a changed leaf is computed anew from its two children,
    so no error outlives the values that caused it: a sum of n leaves is right to log2(n) roundings.

    The methods take one tree; a stack of trees, one for each shard, goes through `jax.vmap`.
    """

    nodes: Float[Array, "*shards nodes"]

    @staticmethod
    def zero(capacity: int) -> "SumTree":
        """A tree of at least `capacity` leaves, all zero."""
        num_leaves = 1 << max(capacity - 1, 0).bit_length()
        return SumTree(nodes=jnp.zeros((2 * num_leaves,), jnp.float32))

    @property
    def num_leaves(self) -> int:
        """The capacity that was asked for, rounded up to a power of two."""
        return self.nodes.shape[-1] // 2

    @property
    def _depth(self) -> int:
        return self.num_leaves.bit_length() - 1

    def total(self) -> Float[Array, ""]:
        """The sum of all leaves."""
        return self.nodes[1]

    def get(self, index: Int[Array, " K"]) -> Float[Array, " K"]:
        """The values of these leaves."""
        return self.nodes[self.num_leaves + index]

    def set(self, index: Int[Array, " K"], value: Float[Array, " K"]) -> "SumTree":
        """The tree with these values at these leaves.

        Where an index occurs more than once the largest of its values holds; one that is no leaf
        changes nothing.

        Args:
            index: Leaves.
            value: Finite; what is below zero counts as zero.
        """
        inside = (index >= 0) & (index < self.num_leaves)
        leaf = jnp.where(inside, self.num_leaves + index, 0)  # node 0 is nobody's child
        # Set to one of its values, then to the largest: were it set to 0 first, that write would not
        # wait for what `value` reads of this tree, and XLA would copy the tree to have both.
        value = jnp.maximum(value, 0.0)
        nodes = self.nodes.at[leaf].set(value).at[leaf].max(value)

        def raise_sums(_: Int[Array, ""], carry: _Climb) -> _Climb:
            node = carry.node // 2
            sums = carry.nodes[2 * node] + carry.nodes[2 * node + 1]
            sums = jnp.where(node > 0, sums, 0.0)
            return _Climb(nodes=carry.nodes.at[node].set(sums), node=node)

        # A loop of many short turns: XLA makes it one kernel, and compiles it in a tenth of a
        # second where the turns written out take two.
        return SumTree(
            nodes=jax.lax.fori_loop(
                0, self._depth, raise_sums, _Climb(nodes=nodes, node=leaf)
            ).nodes
        )

    def find(self, mass: Float[Array, " K"]) -> Int[Array, " K"]:
        """The leaves i with v₀ + … + vᵢ₋₁ ≤ mass < v₀ + … + vᵢ.

        Never a leaf of value zero while any other is larger, whatever the rounding. Leaf 0 where
        all are zero.

        Args:
            mass: From 0 to `total()`, which is taken as the end of the last leaf of any value.
        """
        return self._descend(mass, jnp.zeros_like(mass))

    def stratified(self, num: int, key: Key) -> Int[Array, " num"]:
        """One leaf from each of `num` equal parts of the total, in proportion to the values.

        Schaul et al. 2016, appendix B.2.1. Consumes the key.
        """
        width = self.total() / num
        start = jnp.arange(num, dtype=jnp.float32) * width
        return self._descend(start, jax.random.uniform(key, (num,)) * width)

    def _descend(self, start: Float[Array, " K"], rest: Float[Array, " K"]) -> Int[Array, " K"]:
        """The leaves at the masses `start + rest`.

        The two are kept apart because float32 has 2²⁴ steps from 0 to the total: some 16 to a leaf
        where there are a million, so that a leaf would be drawn 1/16 too often or too rarely.
        """

        def step(_: Int[Array, ""], at: _Descent) -> _Descent:
            left, right = self.nodes[2 * at.node], self.nodes[2 * at.node + 1]
            from_start = jnp.minimum(at.start, left)
            after = at.rest - (left - from_start)
            goes_right = (after >= 0.0) & (right > 0.0)
            return _Descent(
                node=2 * at.node + goes_right.astype(jnp.int32),
                start=jnp.where(goes_right, at.start - from_start, at.start),
                rest=jnp.where(goes_right, after, at.rest),
            )

        root = jnp.ones(start.shape, jnp.int32)
        at = _Descent(node=root, start=start, rest=rest)
        return jax.lax.fori_loop(0, self._depth, step, at).node - self.num_leaves


@pytree
class _Climb:
    """Nodes of the tree, and those whose sums are right."""

    nodes: Float[Array, " nodes"]
    node: Int[Array, " K"]


@pytree
class _Descent:
    """A node, and the mass that is left to go within it in two parts."""

    node: Int[Array, " K"]
    start: Float[Array, " K"]
    rest: Float[Array, " K"]
