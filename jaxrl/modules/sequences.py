"""Rollouts and train batches for modules that remember."""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxrl.core.struct import replace
from jaxrl.core.types import Columns, Params, Remembered, Rollout, Sequence
from jaxrl.modules.rl_module import RLModule
from jaxrl.modules.unroll import swapped

B = TypeVar("B")


def forward_rollout(module: RLModule, params: Params, rollout: Rollout) -> dict[str, Any]:
    """The module's outputs for every row of a rollout, `[T, B, ...]`.

    A module that remembers goes through the rows from `rollout.carry_in` on, and its carries after
    each row are `STATE_OUT`.
    """
    if module.is_stateful:
        sequence = Sequence(
            obs=swapped(rollout.obs),
            carry=rollout.carry_in,
            is_first=swapped(rollout.is_first),
        )
        return swapped(module.unroll(params, sequence))
    shape = rollout.reward.shape
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rollout.obs)
    out = module.forward_train(params, {Columns.OBS: flat})
    return jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), out)


def with_memory(rollout: Rollout, out: dict[str, Any]) -> Rollout:
    """The rollout whose `final_obs` come with what is remembered then, if `forward_rollout` says."""
    if Columns.STATE_OUT not in out:
        return rollout
    final_obs = Remembered(obs=rollout.final_obs, carry=out[Columns.STATE_OUT])
    return replace(rollout, final_obs=final_obs)


def with_carries(module: RLModule, params: Params, rollout: Rollout) -> Rollout:
    """The rollout with the carry before each row as `STATE_IN` among its extras."""
    after = forward_rollout(module, params, rollout)[Columns.STATE_OUT]
    before = jax.tree.map(lambda x, y: _with_first(x, y[:-1]), rollout.carry_in, after)
    return replace(rollout, extras={Columns.STATE_IN: before})


def in_sequences(module: RLModule, batch: B, rollout: Rollout, out: dict[str, Any]) -> B:
    """A train batch `[T, B, ...]` with an `obs` as minibatches of it are taken.

    The rows themselves, for a module without memory. Else sequences `[T / L, B, L, ...]`, L being
    the module's `sequence_length`, each with the carry before its first row.

    Args:
        module: Says which.
        batch: With the rollout's observations as `obs`.
        rollout: What it was prepared from.
        out: Of `forward_rollout`.
    """
    if not module.is_stateful:
        return batch
    length = module.sequence_length or rollout.reward.shape[0]
    after = jax.tree.map(lambda x: x[length - 1 : -1 : length], out[Columns.STATE_OUT])
    cut: Any = jax.tree.map(lambda x: _cut(x, length), batch)
    return replace(
        cut,
        obs=Sequence(
            obs=cut.obs,
            carry=jax.lax.stop_gradient(jax.tree.map(_with_first, rollout.carry_in, after)),
            is_first=_cut(rollout.is_first, length),
        ),
    )


def _with_first(first: Array, later: Array) -> Array:
    """Rows `[n, B, ...]` with one before them."""
    return jnp.concatenate([first[None].astype(later.dtype), later])


def _cut(x: Array, length: int) -> Array:
    """`[T, B, ...]` to `[T / L, B, L, ...]`."""
    parts = x.reshape(-1, length, *x.shape[1:])
    return jnp.swapaxes(parts, 1, 2)
