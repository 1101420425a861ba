"""Sum tree for sampling in proportion to priorities.

It replaces flashbax's sum tree, which updates its sums by adding differences in float32. After
large priorities have come and gone, its totals are wrong and it draws leaves of priority zero
(tests/buffers/test_sum_tree.py shows both).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrl.core.struct import pytree
from jaxrl.core.types import Key


@pytree
class SumTree:
    """Binary tree of non-negative leaf values in which every node is the sum of its children.

    Node 1 is the root, nodes 2i and 2i + 1 are the children of node i, and the leaves fill the
    second half. The ancestors of a changed leaf are recomputed from their two children, so no error
    outlives the values that caused it: a sum of n leaves is exact up to log2(n) roundings.

    The methods operate on one tree; use `jax.vmap` for a stack of trees, one per shard.
    """

    nodes: Float[Array, "*shards nodes"]

    @staticmethod
    def zeros(capacity: int) -> "SumTree":
        """Return a tree of at least `capacity` leaves, all zero."""
        num_leaves = 1 << max(capacity - 1, 0).bit_length()
        return SumTree(nodes=jnp.zeros((2 * num_leaves,), jnp.float32))

    @property
    def num_leaves(self) -> int:
        """Requested capacity, rounded up to a power of two."""
        return self.nodes.shape[-1] // 2

    @property
    def _depth(self) -> int:
        return self.num_leaves.bit_length() - 1

    def total(self) -> Float[Array, ""]:
        """Return the sum of all leaves."""
        return self.nodes[1]

    def get(self, index: Int[Array, " K"]) -> Float[Array, " K"]:
        """Return the values of the given leaves."""
        return self.nodes[self.num_leaves + index]

    def set(self, index: Int[Array, " K"], value: Float[Array, " K"]) -> "SumTree":
        """Set the values of the given leaves.

        If an index occurs more than once, the largest of its values is stored; an index out of
        range is ignored.

        Args:
            index: Indices of leaves.
            value: Finite values; negative ones count as zero.
        """
        inside = (index >= 0) & (index < self.num_leaves)
        leaf = jnp.where(inside, self.num_leaves + index, 0)  # node 0 is unused
        # Set to one of its values, then to the largest. Setting it to 0 first would not depend on
        # `value`'s reads of this tree, so XLA would copy the tree to keep both versions.
        value = jnp.maximum(value, 0.0)
        nodes = self.nodes.at[leaf].set(value).at[leaf].max(value)

        def update_parents(_: Int[Array, ""], carry: _Climb) -> _Climb:
            node = carry.node // 2
            sums = carry.nodes[2 * node] + carry.nodes[2 * node + 1]
            sums = jnp.where(node > 0, sums, 0.0)
            return _Climb(nodes=carry.nodes.at[node].set(sums), node=node)

        # XLA compiles this loop into one kernel in 0.1 s; the unrolled loop takes 2 s to compile.
        return SumTree(
            nodes=jax.lax.fori_loop(
                0, self._depth, update_parents, _Climb(nodes=nodes, node=leaf)
            ).nodes
        )

    def find_leaves(self, mass: Float[Array, " K"]) -> Int[Array, " K"]:
        """Return the leaves i with v₀ + … + vᵢ₋₁ ≤ mass < v₀ + … + vᵢ.

        A leaf of value zero is never returned while any other is positive, whatever the rounding.
        If all are zero, leaf 0 is returned.

        Args:
            mass: Cumulative mass from 0 to `total()`, which counts as the end of the last positive
                leaf.
        """
        return self._descend(mass, jnp.zeros_like(mass))

    def sample_stratified(self, num: int, key: Key) -> Int[Array, " num"]:
        """Sample one leaf from each of `num` equal parts of the total, in proportion to the values.

        See Schaul et al. 2016, appendix B.2.1. Consumes the key.
        """
        width = self.total() / num
        start = jnp.arange(num, dtype=jnp.float32) * width
        return self._descend(start, jax.random.uniform(key, (num,), jnp.float32) * width)

    def _descend(self, start: Float[Array, " K"], rest: Float[Array, " K"]) -> Int[Array, " K"]:
        """Return the leaves at the masses `start + rest`.

        The two are kept apart because float32 has only 2²⁴ steps from 0 to the total: with a
        million leaves some 16 per leaf, so that a leaf would be drawn 1/16 too often or too rarely.
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
    """Tree nodes, and the nodes whose sums were just updated."""

    nodes: Float[Array, " nodes"]
    node: Int[Array, " K"]


@pytree
class _Descent:
    """Node, and the remaining mass within it in two parts."""

    node: Int[Array, " K"]
    start: Float[Array, " K"]
    rest: Float[Array, " K"]
