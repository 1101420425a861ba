"""Rows that belong to different members of a stack of modules, computed in blocks of one member.

Every block of rows gathers the parameters of its member once. Computing all members for all rows
costs as many forward passes as there are members, and gathering the parameters of each row costs
more than that; blocks cost at most `1 + members * block / rows` passes, of the members that have rows.
"""

import math
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jaxrl.core.struct import pytree
from jaxrl.core.types import PyTree

T = TypeVar("T")

MIN_BLOCK = 8
"""Minimum number of rows of a block."""


@pytree
class Blocks:
    """Blocks of rows, `N` of `block` rows each.

    Attributes:
        source: Row in each place of each block; 0 in places that are not filled.
        member: Member that each block belongs to.
        place: Place of each row, counted over all blocks.
        count: Number of blocks that have rows, the first ones.
    """

    source: Int[Array, "N block"]
    member: Int[Array, " N"]
    place: Int[Array, " R"]
    count: Int[Array, ""]


def choose_block_size(num_rows: int, num_members: int) -> int:
    """Return the number of rows of a block: a quarter of a member's mean share, a power of two."""
    share = max(1, num_rows // (4 * num_members))
    return min(num_rows, max(MIN_BLOCK, 2 ** round(math.log2(share))))


def make_blocks(member: Int[Array, " R"], num_members: int, size: int) -> Blocks:
    """Sort rows into blocks of the same member, in their order.

    Args:
        member: Member of each row; a row of none, -1, has a place that is not its own.
        num_members: Number of members.
        size: Number of rows of a block.
    """
    num_rows = member.shape[0]
    number = -(-num_rows // size) + num_members
    is_of = member[:, None] == jnp.arange(num_members, dtype=jnp.int32)[None]
    counts = jnp.cumsum(is_of, axis=0, dtype=jnp.int32)
    blocks_of = -(-counts[-1] // size)
    first = jnp.cumsum(blocks_of) - blocks_of
    known = jnp.clip(member, 0)
    rank = jnp.take_along_axis(counts, known[:, None], axis=1)[:, 0] - 1
    place = first[known] * size + rank
    rows = jnp.arange(num_rows, dtype=jnp.int32)
    target = jnp.where(member >= 0, place, number * size)
    source = jnp.zeros((number * size,), jnp.int32).at[target].set(rows, mode="drop")
    index = jnp.arange(number, dtype=jnp.int32)
    owner = (index[:, None] >= jnp.cumsum(blocks_of)[None]).sum(axis=1, dtype=jnp.int32)
    return Blocks(
        source=source.reshape(number, size),
        member=jnp.minimum(owner, num_members - 1),
        place=jnp.clip(place, 0, number * size - 1),
        count=blocks_of.sum(dtype=jnp.int32),
    )


def compute_in_blocks(
    function: Callable[[PyTree, T], PyTree],
    stack: PyTree,
    member: Int[Array, " R"],
    rows: T,
    size: int,
) -> PyTree:
    """Apply a function of a member and rows `[n, ...]` to the rows of each member.

    Args:
        function: Function of the parameters of one member, and rows of it, whose results have a
            leading axis of rows, and each of whose rows depends on that row alone.
        stack: Parameters of all members, `[K, ...]`.
        member: Member of each row; results of rows of none, -1, are those of any other row.
        rows: Inputs `[R, ...]`.
        size: Number of rows of a block.

    Returns:
        Results `[R, ...]`, each row computed by its own member.
    """
    num_members = jax.tree.leaves(stack)[0].shape[0]
    blocks = make_blocks(member, num_members, size)

    def compute(source: Int[Array, " block"], owner: Int[Array, ""]) -> PyTree:
        return function(take(stack, owner), take(rows, source))

    def compute_in_turn(blocks: Blocks) -> PyTree:
        number = blocks.member.shape[0]
        shapes = jax.eval_shape(compute, blocks.source[0], blocks.member[0])
        empty = jax.tree.map(lambda x: jnp.zeros((number, *x.shape), x.dtype), shapes)

        def add(i: Int[Array, ""], results: PyTree) -> PyTree:
            return put(results, i, compute(blocks.source[i], blocks.member[i]))

        return jax.lax.fori_loop(0, blocks.count, add, empty)

    results: PyTree = jax.lax.platform_dependent(
        blocks,
        cpu=compute_in_turn,
        default=lambda blocks: jax.vmap(compute)(blocks.source, blocks.member),
    )
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[blocks.place], results)


def put(stack: PyTree, index: Int[Array, ""] | int, member: PyTree) -> PyTree:
    """Return a stack with another member at an index."""
    return jax.tree.map(lambda x, new: x.at[index].set(new.astype(x.dtype)), stack, member)


def take(tree: T, index: Int[Array, "*n"]) -> T:
    """Return members of a stacked tree."""
    return jax.tree.map(lambda x: x[index], tree)
