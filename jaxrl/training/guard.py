"""The divergence guard: skipped updates are counted, and too many in a row lead back."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jaxrl.core.struct import replace
from jaxrl.core.types import Progress, PyTree
from jaxrl.learners.learner import select
from jaxrl.training.train_state import GuardState

SNAPSHOT_INTERVAL = 100
"""Train batches with replay between two states that a rollback may return to."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guard:
    """What is done after non-finite updates.

    Args:
        on_nonfinite: "rollback" returns to a good state after `tolerance` in a row; for "raise" and
            "skip" they are only counted here.
        tolerance: Non-finite updates in a row before that.
    """

    on_nonfinite: str
    tolerance: int

    def after_batch(
        self, guard: GuardState, before: Any, learned: Any, skipped: Bool[Array, " U"]
    ) -> tuple[GuardState, Any]:
        """After the updates of a train batch that began with the state `before`.

        The last good state is the one that the latest train batch without a skipped update
        started from: its parameters are known to give finite gradients.
        """
        guard = _counted(guard, skipped)
        if self.on_nonfinite != "rollback":
            return guard, learned
        roll_back = guard.in_a_row >= self.tolerance
        snapshot = select(~skipped.any(), before, guard.snapshot)
        return replace(
            guard,
            snapshot=snapshot,
            in_a_row=jnp.where(roll_back, 0, guard.in_a_row),
            num_rollbacks=guard.num_rollbacks + roll_back,
        ), select(roll_back, guard.snapshot, learned)

    def after_replay(
        self,
        guard: GuardState,
        learned: Any,
        skipped: Bool[Array, " U"],
        updated: Bool[Array, ""],
        progress: Progress,
    ) -> tuple[GuardState, Any]:
        """After the updates of a train batch with replay, if there were any.

        Such a batch is short, and to keep its first state would cost as much as an update: a good
        state is the last of a batch without a skipped update, once in a hundred batches.
        """
        counted = _counted(guard, skipped)
        guard = replace(counted, in_a_row=jnp.where(updated, counted.in_a_row, guard.in_a_row))
        if self.on_nonfinite != "rollback":
            return guard, learned
        roll_back = guard.in_a_row >= self.tolerance
        due = progress.train_batches.low % SNAPSHOT_INTERVAL == 0
        learned = _replaced_if(roll_back, learned, guard.snapshot)
        return replace(
            guard,
            snapshot=_replaced_if(due & updated & ~skipped.any(), guard.snapshot, learned),
            in_a_row=jnp.where(roll_back, 0, guard.in_a_row),
            num_rollbacks=guard.num_rollbacks + roll_back,
        ), learned


def _counted(guard: GuardState, skipped: Bool[Array, " U"]) -> GuardState:
    tail = _length_of_tail(skipped)
    return replace(
        guard,
        in_a_row=jnp.where(skipped.all(), guard.in_a_row + tail, tail),
        num_nonfinite=guard.num_nonfinite + skipped.sum(dtype=jnp.uint32),
    )


def _replaced_if(condition: Bool[Array, ""], old: PyTree, new: PyTree) -> PyTree:
    """`new` where the condition holds, else `old`, which is not copied then.

    A loop of no turn passes its carry through in place, which a branch does not.
    """
    return jax.lax.fori_loop(0, condition.astype(jnp.int32), lambda _, tree: new, old)


def _length_of_tail(flags: Bool[Array, " U"]) -> Int[Array, ""]:
    """How many of the last entries in a row are set."""
    tail = jnp.argmax(~flags[::-1]).astype(jnp.int32)
    return jnp.where(flags.all(), flags.shape[0], tail)
