"""Going through sequences step by step, for modules that remember."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jaxrl.core.struct import where_rows
from jaxrl.core.types import Columns, PyTree, Sequence


def swapped(tree: PyTree) -> Any:
    """The first two axes of each leaf exchanged."""
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), tree)


def unroll_steps(
    step: Callable[[PyTree, PyTree], dict[str, Any]], blank: PyTree, sequence: Sequence
) -> dict[str, Any]:
    """The outputs of a function of one step, `[N, L, ...]`, for a sequence; `STATE_OUT` among them.

    Args:
        step: Outputs of an observation and a carry, `[N, ...]`; the carry after it is `STATE_OUT`.
        blank: The carry at an episode's start, `[N, ...]`.
        sequence: Of which the burn-in is gone through without outputs.
    """

    def body(carry: PyTree, row: tuple[PyTree, Bool[Array, " N"]]) -> tuple[PyTree, dict[str, Any]]:
        obs, is_first = row
        out = step(obs, where_rows(is_first, blank, carry))
        return out[Columns.STATE_OUT], out

    start = blank if sequence.carry is None else sequence.carry
    rows = swapped((sequence.obs, sequence.is_first))
    cut = sequence.burn_in
    if cut:
        carry, _ = jax.lax.scan(body, start, jax.tree.map(lambda x: x[:cut], rows))
        start = jax.lax.stop_gradient(carry)
        rows = jax.tree.map(lambda x: x[cut:], rows)
    return swapped(jax.lax.scan(body, start, rows)[1])


def at_rows(carries: PyTree, row: Int[Array, "N L"]) -> PyTree:
    """The carries `[N, L, ...]` after the given rows of each sequence, as `[N * L, ...]`."""

    def take(x: Array) -> Array:
        index = row.reshape(*row.shape, *(1,) * (x.ndim - 2))
        picked = jnp.take_along_axis(x, index, axis=1)
        return picked.reshape(-1, *x.shape[2:])

    return jax.tree.map(take, carries)
