"""Rows of a module that a runner on the host completes, by the rules of `training.completed_rows`.

A row of an agent begins when it acts, and is complete after the step at whose end the agent is to
act again, or has ended. Complete rows go to the front of their column at once, as `pack_rows` moves
them in the compiled program.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
from jaxtyping import Bool, Float

from jaxrl.core.types import Columns, PyTree, Rollout


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RowStep:
    """Meaning of a step to a module's rows, `[R]`; the fields are those of `AgentStep`."""

    reward: Float[np.ndarray, " R"]
    terminated: Bool[np.ndarray, " R"]
    truncated: Bool[np.ndarray, " R"]
    acts_next: Bool[np.ndarray, " R"]
    is_valid: Bool[np.ndarray, " R"]
    final_obs: list[np.ndarray]
    """Leaves `[R, ...]`, of which those of rows that are completed matter."""

    @staticmethod
    def make_empty(obs: Sequence[np.ndarray]) -> "RowStep":
        """Return a step that means nothing to any row, to be filled in; all of it is valid.

        Agents that terminate without a last observation keep the latest one.
        """
        rows = len(obs[0])
        return RowStep(
            reward=np.zeros(rows, np.float32),
            terminated=np.zeros(rows, np.bool_),
            truncated=np.zeros(rows, np.bool_),
            acts_next=np.zeros(rows, np.bool_),
            is_valid=np.ones(rows, np.bool_),
            final_obs=[leaf.copy() for leaf in obs],
        )


@dataclasses.dataclass(kw_only=True, eq=False)
class Pending:
    """Rows that are not complete, `[R, ...]`, in NumPy; they last from fragment to fragment.

    `outputs` are the leaves of what acting records and `carry` those of the carry before it; all but
    `has_row` are valid where `has_row`.
    """

    has_row: Bool[np.ndarray, " R"]
    reward: Float[np.ndarray, " R"]
    obs: list[np.ndarray]
    outputs: list[np.ndarray]
    is_first: Bool[np.ndarray, " R"]
    carry: list[np.ndarray]

    @staticmethod
    def make_none(
        obs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], carry: Sequence[np.ndarray]
    ) -> "Pending":
        """Return pending rows of no agent, for leaves `[R, ...]` of these shapes."""
        rows = len(obs[0])
        return Pending(
            has_row=np.zeros(rows, np.bool_),
            reward=np.zeros(rows, np.float32),
            obs=_zeros_like(obs),
            outputs=_zeros_like(outputs),
            is_first=np.zeros(rows, np.bool_),
            carry=_zeros_like(carry),
        )

    def drop(self) -> int:
        """Forget all rows; return how many there were."""
        number = int(self.has_row.sum())
        self.has_row[:] = False
        return number


class CompletedRows:
    """Rows of a module that a fragment completes, `[T, R, ...]`.

    Args:
        num_steps: Number of steps of the fragment.
        pending: Rows that are pending before it; they are updated in place.
        carry: Leaves of the carry at the start of the fragment.
    """

    def __init__(self, num_steps: int, pending: Pending, carry: Sequence[np.ndarray]) -> None:
        rows = len(pending.has_row)
        self._num_steps, self.pending = num_steps, pending
        self._numbers = np.zeros(rows, np.int64)
        shape = num_steps, rows
        self._obs, self._final_obs, self._outputs = (
            [np.zeros((num_steps, *leaf.shape), leaf.dtype) for leaf in leaves]
            for leaves in (pending.obs, pending.obs, pending.outputs)
        )
        self._reward = np.zeros(shape, np.float32)
        self._terminated, self._truncated, self._is_first, self._mask = (
            np.zeros(shape, np.bool_) for _ in range(4)
        )
        self._carry = [
            np.where(_expand(pending.has_row, now), old, now)
            for old, now in zip(pending.carry, carry, strict=True)
        ]
        self.num_lost = 0
        """Number of rows that were dropped because a step was no transition."""
        self.completed: list[Bool[np.ndarray, " R"]] = []
        """Whether each step completed a row of each column."""

    def begin(
        self,
        acts: Bool[np.ndarray, " R"],
        obs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
        is_first: Bool[np.ndarray, " R"],
        carry: Sequence[np.ndarray],
    ) -> None:
        """Begin the rows of agents that act, given leaves `[R, ...]`."""
        pending = self.pending
        pending.has_row |= acts
        pending.reward[acts] = 0.0
        rows = np.flatnonzero(acts)
        for old, new in (
            (pending.is_first, is_first),
            *zip(pending.obs, obs, strict=True),
            *zip(pending.outputs, outputs, strict=True),
            *zip(pending.carry, carry, strict=True),
        ):
            if len(rows) == len(acts):
                old[...] = new
            else:
                old[rows] = new.take(rows, axis=0)

    def complete(self, step: RowStep, latest: Float[np.ndarray, " R"]) -> Bool[np.ndarray, " R"]:
        """Pay the rows that are pending, and complete those that a step completes.

        Args:
            step: The step.
            latest: Reward of each column's latest complete row, which is updated in place.

        Returns:
            Whether each row was completed.
        """
        pending = self.pending
        pending.reward += step.reward
        ended = step.terminated | step.truncated
        is_complete = pending.has_row & step.is_valid & (ended | step.acts_next)
        columns = np.flatnonzero(is_complete)
        places = self._numbers[columns]
        for to, values in (
            (self._reward, pending.reward),
            (self._terminated, step.terminated),
            (self._truncated, step.truncated),
            (self._is_first, pending.is_first),
            (self._mask, is_complete),
            *zip(self._obs, pending.obs, strict=True),
            *zip(self._outputs, pending.outputs, strict=True),
            *zip(self._final_obs, step.final_obs, strict=True),
        ):
            to[places, columns] = values.take(columns, axis=0)
        latest[columns] = pending.reward.take(columns)
        self._numbers[columns] += 1
        self.num_lost += int((pending.has_row & ~step.is_valid).sum())
        pending.has_row &= step.is_valid & ~is_complete
        self.completed.append(is_complete)
        return is_complete

    def build_rollout(
        self,
        unflatten_obs: Callable[[Sequence[np.ndarray]], PyTree],
        unflatten_outputs: Callable[[Sequence[np.ndarray]], dict[str, PyTree]],
        unflatten_carry: Callable[[Sequence[np.ndarray]], PyTree],
    ) -> Rollout:
        """Build the module's rollout, in the form of the compiled program.

        Args:
            unflatten_obs: Function that builds observations from their leaves.
            unflatten_outputs: Function that builds what acting records, by column.
            unflatten_carry: Function that builds the carry.
        """
        self._bootstrap()
        recorded = dict(unflatten_outputs(self._outputs))
        make = cast("Callable[..., Rollout]", Rollout)  # its fields hold arrays of either kind
        return make(
            obs=unflatten_obs(self._obs),
            action=recorded.pop(Columns.ACTIONS),
            reward=self._reward,
            terminated=self._terminated,
            truncated=self._truncated,
            final_obs=unflatten_obs(self._final_obs),
            is_first=self._is_first,
            mask=self._mask,
            extras=recorded,
            carry_in=unflatten_carry(self._carry),
        )

    def _bootstrap(self) -> None:
        """Give the row behind the last complete one the observation to bootstrap from.

        Where an episode's last row was dropped, the one before it becomes truncated, so that
        nothing runs across.
        """
        has_room = (self._numbers > 0) & (self._numbers < self._num_steps)
        columns = np.flatnonzero(has_room)
        places = self._numbers[columns]
        for obs, final_obs in zip(self._obs, self._final_obs, strict=True):
            obs[places, columns] = final_obs[places - 1, columns]
        is_cut = self._is_first[1:] & self._mask[1:] & ~self._terminated[:-1]
        self._truncated[:-1] |= is_cut


def _zeros_like(leaves: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [np.zeros_like(leaf) for leaf in leaves]


def _expand(rows: Bool[np.ndarray, " R"], like: np.ndarray) -> np.ndarray:
    return rows.reshape(rows.shape + (1,) * (like.ndim - 1))
