"""Replay buffer whose columns fill on their own, for agents that act in turns, join and die."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from jaxrl.buffers.replay import (
    ColumnSources,
    Priorities,
    ReplayBuffer,
    ReplayState,
    select_stored,
)
from jaxrl.buffers.sum_tree import SumTree
from jaxrl.core.struct import replace
from jaxrl.core.types import Key, Keys, Rollout
from jaxrl.ops.search import searchsorted


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackedReplayBuffer(ReplayBuffer):
    """Replay buffer that stores transitions alone, each column at a position of its own.

    Rows that are not transitions (an agent off its turn, absent or dead) take no room, are never
    drawn and do not end n-step folds: the rows of a column are consecutive in its agent's own time.
    `state.rows.current_index` and `is_full` are `[B]`. Where every row is a transition, it stores
    and draws what a `ReplayBuffer` does.
    """

    def init(self, rollout: Rollout) -> ReplayState:
        """Return an empty buffer for rollouts `[T, B, ...]` of these shapes and dtypes."""
        state = super().init(rollout)
        columns = (rollout.reward.shape[1],)
        rows = dataclasses.replace(
            state.rows,
            current_index=jnp.zeros(columns, jnp.int32),
            is_full=jnp.zeros(columns, bool),
        )
        return replace(state, rows=rows)

    def add(
        self,
        state: ReplayState,
        rollout: Rollout,
        env_index: Int[Array, " B"],
        env_step: UInt32[Array, "T B"],
    ) -> ReplayState:
        """Add the transitions of a rollout `[T, B, ...]`, overwriting each column's oldest rows.

        New rows get the largest priority so far.

        Args:
            state: Buffer with as many columns as the rollout.
            rollout: Rollout; T is the same for all rollouts, and at most the storage's length.
            env_index: Index of each column.
            env_step: Number of the environment's steps before each row.
        """
        rollout, streams = _cut_streams(state.streams, rollout, env_index, env_step)
        by_column = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), select_stored(rollout))
        place = self._get_places(state, by_column.mask)
        columns = jnp.arange(place.shape[0], dtype=jnp.int32)[:, None]
        experience = jax.tree.map(
            lambda stored, x: stored.at[columns, place].set(x, mode="drop"),
            state.rows.experience,
            by_column,
        )
        end = state.rows.current_index + by_column.mask.sum(axis=1, dtype=jnp.int32)
        rows = dataclasses.replace(
            state.rows,
            experience=experience,
            current_index=end % self.length,
            is_full=state.rows.is_full | (end >= self.length),
        )
        priorities = self.add_priorities(state, by_column.mask)
        return ReplayState(rows=rows, priorities=priorities, streams=streams)

    def add_priorities(self, state: ReplayState, mask: Bool[Array, "B T"]) -> Priorities | None:
        """Return the priorities after the transitions among rows are written.

        Args:
            state: Buffer before the rows are written.
            mask: Whether each row is a transition.
        """
        if self.prioritization is None or state.priorities is None:
            return None
        columns, num_steps = mask.shape
        shards = self.count_shards(columns)
        first = jnp.arange(columns, dtype=jnp.int32) % (columns // shards) * self.length
        leaves = jnp.where(mask, first[:, None] + self._get_places(state, mask), -1)
        value = state.priorities.largest**self.prioritization.alpha
        values = jnp.broadcast_to(value, (shards, columns // shards * num_steps))
        tree = jax.vmap(SumTree.set)(state.priorities.tree, leaves.reshape(shards, -1), values)
        return replace(state.priorities, tree=tree)

    def size(self, state: ReplayState) -> Int[Array, " B"]:
        """Return the number of stored rows of each column."""
        return jnp.where(state.rows.is_full, self.length, state.rows.current_index)

    def can_learn(self, state: ReplayState, axis_name: str | None = None) -> Bool[Array, ""]:
        """Return whether enough rows are stored to begin updates, over all devices."""
        rows = self.size(state).sum()
        if axis_name is not None:
            rows = jax.lax.psum(rows, axis_name)
        return rows >= self.min_rows_to_learn

    def sample_uniformly(
        self, state: ReplayState, keys: Keys, per_shard: int, share: int
    ) -> tuple[Int[Array, "S n"], Int[Array, "S n"]]:
        """Sample `share` of each shard's rows, as `ReplayBuffer.sample_uniformly` does.

        A shard without a row gives rows that are not transitions.
        """
        sizes = self.size(state).reshape(-1, per_shard)

        def sample(key: Key, sizes: Int[Array, " B"]) -> tuple[Array, Array]:
            ends = jnp.cumsum(sizes)
            number = jax.random.randint(key, (share,), 0, jnp.maximum(ends[-1], 1), jnp.int32)
            column = jnp.minimum(searchsorted(ends, number + 1), per_shard - 1)
            return column, number - (ends - sizes)[column]

        return jax.vmap(sample)(keys, sizes)

    def count_rows_per_shard(self, state: ReplayState, per_shard: int) -> Float[Array, "S 1"]:
        """Return the number of stored rows of each shard, given its number of columns."""
        sizes = self.size(state).reshape(-1, per_shard)
        return sizes.sum(axis=1, keepdims=True).astype(jnp.float32)

    def find_newest(self, state: ReplayState, env: Int[Array, " N"]) -> Int[Array, " N"]:
        """Return the position of the newest row in each of the given columns."""
        return (state.rows.current_index[env] - 1) % self.length

    def _get_places(self, state: ReplayState, mask: Bool[Array, "B T"]) -> Int[Array, "B T"]:
        """Return the position that each transition is written at; `length` for other rows."""
        number = jnp.cumsum(mask, axis=1, dtype=jnp.int32) - 1
        place = (state.rows.current_index[:, None] + number) % self.length
        return jnp.where(mask, place, self.length)


def _cut_streams(
    streams: ColumnSources | None,
    rollout: Rollout,
    env_index: Int[Array, " B"],
    env_step: UInt32[Array, "T B"],
) -> tuple[Rollout, ColumnSources | None]:
    """Mark the first transition of each column that does not go on where the latest one ended.

    A column without a transition stays cut until it has one.

    Returns:
        The rollout, and where its columns end.
    """
    if streams is None:
        return rollout, None
    continues, mask = streams.continue_with(env_index, env_step), rollout.mask
    is_begin = mask & (jnp.cumsum(mask, axis=0) == 1) & ~continues[None]
    ends = ColumnSources(
        env_index=jnp.where(continues | mask.any(axis=0), env_index, -1), env_step=env_step[-1]
    )
    return replace(rollout, is_first=rollout.is_first | is_begin), ends
