"""Divergence guard: counts skipped updates and rolls back after too many in a row."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jaxrl.core.struct import replace
from jaxrl.core.types import Progress, PyTree
from jaxrl.training.train_state import GuardState

SNAPSHOT_INTERVAL = 100
"""Number of train batches between snapshots for rollbacks, with a replay buffer."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DivergenceGuard:
    """Response to non-finite updates.

    Args:
        on_nonfinite: "rollback" restores a good state after `tolerance` non-finite updates in a
            row; with "raise" and "skip" they are only counted here.
        tolerance: Number of consecutive non-finite updates that triggers it.
    """

    on_nonfinite: str
    tolerance: int

    def update_after_batch(
        self, guard: GuardState, before: PyTree, learned: PyTree, skipped: Bool[Array, " U"]
    ) -> tuple[GuardState, Any]:
        """Update the guard after a train batch, and roll back if necessary.

        The last good state is the one from which the latest train batch without a skipped update
        started: its parameters are known to give finite gradients.

        Args:
            guard: Guard state before the batch.
            before: Learner state before the batch.
            learned: Learner state after the batch.
            skipped: Whether each update was skipped.

        Returns:
            The guard state, and the learner state to continue with.
        """
        guard = _count_skipped(guard, skipped)
        if self.on_nonfinite != "rollback":
            return guard, learned
        roll_back = guard.in_a_row >= self.tolerance
        snapshot = _replace_if(~skipped.any(), guard.snapshot, before)
        return replace(
            guard,
            snapshot=snapshot,
            in_a_row=jnp.where(roll_back, 0, guard.in_a_row),
            num_rollbacks=guard.num_rollbacks + roll_back,
        ), _replace_if(roll_back, learned, guard.snapshot)

    def update_after_replay(
        self,
        guard: GuardState,
        learned: PyTree,
        skipped: Bool[Array, " U"],
        has_updates: Bool[Array, ""],
        progress: Progress,
    ) -> tuple[GuardState, Any]:
        """Update the guard after a train batch with replay, if it had updates.

        Such a batch is short, and keeping its first state would cost as much as an update. A good
        state is therefore the last one of a batch without a skipped update, taken every
        `SNAPSHOT_INTERVAL` batches.

        Args:
            guard: Guard state before the batch.
            learned: Learner state after the batch.
            skipped: Whether each update was skipped.
            has_updates: Whether there were updates.
            progress: Counters of the run.

        Returns:
            The guard state, and the learner state to continue with.
        """
        counted = _count_skipped(guard, skipped)
        guard = replace(counted, in_a_row=jnp.where(has_updates, counted.in_a_row, guard.in_a_row))
        if self.on_nonfinite != "rollback":
            return guard, learned
        roll_back = guard.in_a_row >= self.tolerance
        due = progress.train_batches.low % SNAPSHOT_INTERVAL == 0
        learned = _replace_if(roll_back, learned, guard.snapshot)
        return replace(
            guard,
            snapshot=_replace_if(due & has_updates & ~skipped.any(), guard.snapshot, learned),
            in_a_row=jnp.where(roll_back, 0, guard.in_a_row),
            num_rollbacks=guard.num_rollbacks + roll_back,
        ), learned


def _count_skipped(guard: GuardState, skipped: Bool[Array, " U"]) -> GuardState:
    tail = _tail_length(skipped)
    return replace(
        guard,
        in_a_row=jnp.where(skipped.all(), guard.in_a_row + tail, tail),
        num_nonfinite=guard.num_nonfinite + skipped.sum(dtype=jnp.uint32),
    )


def _replace_if(condition: Bool[Array, ""], old: PyTree, new: PyTree) -> PyTree:
    """Return `new` if the condition holds, else `old` without a copy.

    A zero-trip loop aliases its carry in place; `cond` would copy it.
    """
    return jax.lax.fori_loop(0, condition.astype(jnp.int32), lambda _, tree: new, old)


def _tail_length(flags: Bool[Array, " U"]) -> Int[Array, ""]:
    """Return the number of consecutive set flags at the end."""
    tail = jnp.argmax(~flags[::-1]).astype(jnp.int32)
    return jnp.where(flags.all(), flags.shape[0], tail)
