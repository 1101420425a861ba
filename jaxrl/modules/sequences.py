"""Sequences of recurrent modules: unrolling, and rollouts and train batches cut into them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jaxrl.core.struct import replace, where_rows
from jaxrl.core.types import Columns, ObsSequence, ObsWithCarry, Params, PyTree, Rollout

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


if TYPE_CHECKING:
    from jaxrl.modules.rl_module import RLModule

B = TypeVar("B")


def forward_rollout(module: "RLModule", params: Params, rollout: Rollout) -> dict[str, Any]:
    """Compute the module's outputs for every row of a rollout, `[T, B, ...]`.

    A recurrent module is unrolled from `rollout.carry_in`, and the carry after each row is
    `STATE_OUT`.
    """
    if module.is_stateful:
        sequence = ObsSequence(
            obs=swap_leading_axes(rollout.obs),
            carry=rollout.carry_in,
            is_first=swap_leading_axes(rollout.is_first),
        )
        return swap_leading_axes(module.unroll(params, sequence))
    shape = rollout.reward.shape
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rollout.obs)
    out = module.forward_train(params, {Columns.OBS: flat})
    return jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), out)


def attach_final_carries(rollout: Rollout, out: dict[str, Any]) -> Rollout:
    """Attach the carries in the outputs of `forward_rollout`, if any, to `final_obs`."""
    if Columns.STATE_OUT not in out:
        return rollout
    final_obs = ObsWithCarry(obs=rollout.final_obs, carry=out[Columns.STATE_OUT])
    return replace(rollout, final_obs=final_obs)


def attach_state_in(module: "RLModule", params: Params, rollout: Rollout) -> Rollout:
    """Replace the rollout's extras by the carry before each row, as `STATE_IN`."""
    after = forward_rollout(module, params, rollout)[Columns.STATE_OUT]
    before = jax.tree.map(lambda x, y: _prepend(x, y[:-1]), rollout.carry_in, after)
    return replace(rollout, extras={Columns.STATE_IN: before})


def split_into_sequences(module: "RLModule", batch: B, rollout: Rollout, out: dict[str, Any]) -> B:
    """Split a train batch `[T, B, ...]` into the rows or sequences that minibatches consist of.

    A module without a carry learns from the rows themselves. A recurrent one learns from sequences
    `[T / L, B, L, ...]`, with L the module's `sequence_length`, each with the carry before its
    first row.

    Args:
        module: Module to learn.
        batch: Train batch with the rollout's observations as `obs`.
        rollout: Rollout that the batch was made from.
        out: Outputs of `forward_rollout`.
    """
    if not module.is_stateful:
        return batch
    length = module.sequence_length or rollout.reward.shape[0]
    boundary_carries = jax.tree.map(lambda x: x[length - 1 : -1 : length], out[Columns.STATE_OUT])
    split_batch = jax.tree.map(lambda x: _split_rows(x, length), batch)
    return replace(
        split_batch,
        obs=ObsSequence(
            obs=split_batch.obs,
            carry=jax.lax.stop_gradient(jax.tree.map(_prepend, rollout.carry_in, boundary_carries)),
            is_first=_split_rows(rollout.is_first, length),
        ),
    )


def _prepend(first: Array, later: Array) -> Array:
    """Prepend a row to rows `[n, B, ...]`."""
    return jnp.concatenate([first[None].astype(later.dtype), later])


def _split_rows(x: Array, length: int) -> Array:
    """Reshape `[T, B, ...]` to `[T / L, B, L, ...]`."""
    parts = x.reshape(-1, length, *x.shape[1:])
    return jnp.swapaxes(parts, 1, 2)
