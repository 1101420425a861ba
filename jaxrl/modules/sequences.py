"""Rollouts and train batches of recurrent modules."""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxrl.core.struct import replace
from jaxrl.core.types import Columns, ObsSequence, ObsWithCarry, Params, Rollout
from jaxrl.modules.rl_module import RLModule
from jaxrl.modules.unroll import swap_leading_axes

B = TypeVar("B")


def forward_rollout(module: RLModule, params: Params, rollout: Rollout) -> dict[str, Any]:
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


def attach_state_in(module: RLModule, params: Params, rollout: Rollout) -> Rollout:
    """Replace the rollout's extras by the carry before each row, as `STATE_IN`."""
    after = forward_rollout(module, params, rollout)[Columns.STATE_OUT]
    before = jax.tree.map(lambda x, y: _prepend(x, y[:-1]), rollout.carry_in, after)
    return replace(rollout, extras={Columns.STATE_IN: before})


def split_into_sequences(module: RLModule, batch: B, rollout: Rollout, out: dict[str, Any]) -> B:
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
