"""Stepwise unrolling of recurrent modules over sequences."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jaxrl.core.struct import where_rows
from jaxrl.core.types import Columns, ObsSequence, PyTree

T = TypeVar("T")


def swap_leading_axes(tree: T) -> T:
    """Swap the first two axes of each leaf."""
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), tree)


def unroll_steps(
    step: Callable[[PyTree, PyTree], dict[str, Any]], initial_carry: PyTree, sequence: ObsSequence
) -> dict[str, Any]:
    """Unroll a function of one step over a sequence; outputs `[N, L, ...]` include `STATE_OUT`.

    Args:
        step: Function from an observation and a carry, `[N, ...]`, to outputs, with the next carry
            as `STATE_OUT`.
        initial_carry: Carry at an episode's start, `[N, ...]`.
        sequence: Sequence whose burn-in is unrolled without outputs.
    """

    def body(carry: PyTree, row: tuple[PyTree, Bool[Array, " N"]]) -> tuple[PyTree, dict[str, Any]]:
        obs, is_first = row
        out = step(obs, where_rows(is_first, initial_carry, carry))
        return out[Columns.STATE_OUT], out

    start = initial_carry if sequence.carry is None else sequence.carry
    rows = swap_leading_axes((sequence.obs, sequence.is_first))
    cut = sequence.burn_in
    if cut:
        carry, _ = jax.lax.scan(body, start, jax.tree.map(lambda x: x[:cut], rows))
        start = jax.lax.stop_gradient(carry)
        rows = jax.tree.map(lambda x: x[cut:], rows)
    return swap_leading_axes(jax.lax.scan(body, start, rows)[1])


def gather_rows(carries: PyTree, row: Int[Array, "N L"]) -> PyTree:
    """Gather the carries `[N, L, ...]` after given rows of each sequence, as `[N * L, ...]`."""

    def take(x: Array) -> Array:
        index = row.reshape(*row.shape, *(1,) * (x.ndim - 2))
        picked = jnp.take_along_axis(x, index, axis=1)
        return picked.reshape(-1, *x.shape[2:])

    return jax.tree.map(take, carries)
