"""Replay buffer on the device: flashbax's trajectory storage, with n-step transitions.

Rows are stored as `[B, L]`, a ring per environment, all written at the same position. Which rows
are drawn depends on the logical shards of the environments, not on how many devices hold them.
"""

import dataclasses
from types import ModuleType
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from jaxrl.buffers.hindsight import Hindsight
from jaxrl.buffers.sum_tree import SumTree
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import (
    Columns,
    Counter,
    Key,
    Keys,
    PyTree,
    Rollout,
    Transition,
    strip_weak_types,
)
from jaxrl.ops.schedules import Schedule
from jaxrl.ops.search import searchsorted

if TYPE_CHECKING:
    from flashbax.buffers.trajectory_buffer import TrajectoryBufferState

PRIORITY_EPSILON = 1e-6
"""Added to |td_error| so that every row can be drawn (Schaul et al. 2016, section 3.3)."""


@pytree
class Priorities:
    """Sum tree of each shard, `[G, ...]`, and the largest priority so far."""

    tree: SumTree
    largest: Float[Array, ""]

    @staticmethod
    def empty(num_shards: int, capacity: int) -> "Priorities":
        """Return empty priorities with room for `capacity` rows per shard."""
        tree = jax.tree.map(
            lambda x: jnp.zeros((num_shards, *x.shape), x.dtype), SumTree.zeros(capacity)
        )
        return Priorities(tree=tree, largest=jnp.ones((), jnp.float32))


@pytree
class ColumnSources:
    """Origin of the latest row of each column, `[B]`: environment and its step count."""

    env_index: Int[Array, " B"]
    env_step: UInt32[Array, " B"]

    def continue_with(
        self, env_index: Int[Array, " B"], env_step: UInt32[Array, "T B"]
    ) -> Bool[Array, " B"]:
        """Return whether each column of a rollout goes on where the latest one ended."""
        return (self.env_index == env_index) & (self.env_step + 1 == env_step[0])


@pytree
class ReplayState:
    """Stored rows; `rows.experience` is a Rollout with axes `[B, L]`.

    `streams` is None if every rollout continues where the previous one ended.
    """

    rows: "TrajectoryBufferState[Any]"
    priorities: Priorities | None
    streams: ColumnSources | None

    @property
    def has_positions_by_column(self) -> bool:
        """True if columns are written at positions of their own, as by a `PackedReplayBuffer`."""
        return self.rows.is_full.ndim == self.rows.experience.mask.ndim - 1


@pytree
class SampledIndices:
    """Positions in the storage with their importance weights, `[N]`.

    `learns` marks the rows of drawn sequences that are learned from; None for single rows.
    """

    env: Int[Array, " N"]
    time: Int[Array, " N"]
    weight: Float[Array, " N"]
    learns: Bool[Array, "N L"] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prioritization:
    """Proportional prioritization (Schaul et al. 2016, section 3.3).

    Args:
        alpha: Exponent of the priorities; 0 is uniform.
        beta: Exponent of the importance weights, or its schedule over environment steps.
    """

    alpha: float
    beta: Schedule


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplayBuffer:
    """Replay buffer with uniform or prioritized sampling of transitions.

    A subclass may be given as `replay_buffer_config={"type": MyBuffer}`. It may override `sample`,
    `gather_transitions`, `update_priorities`, `init_priorities` and `add_priorities`, all of which
    are compiled; its own dataclass fields are further keys of `replay_buffer_config`.

    Args:
        length: Rows per environment, a multiple of the rollout's length.
        num_envs: Number of environments B over all devices.
        num_shards: Number of logical shards, each with an equal part of the environments and of a
            draw.
        batch_size: Rows per draw, over all devices.
        num_updates: Number of draws per added rollout.
        n_step: Minimum and maximum number of steps of a transition; each row's number is drawn from
            this range.
        learning_starts: Number of stored rows from which updates begin.
        prioritization: Prioritization; None samples uniformly.
        allow_gaps: Whether a column may continue with another environment or after lost steps, as
            with runners that restart.
        in_host_memory: Whether the state is kept in host memory, apart from the learner's.
        hindsight: Replacement of goals in drawn rows; None keeps them. It needs rows of one step.
    """

    length: int
    num_envs: int
    num_shards: int
    batch_size: int
    num_updates: int
    n_step: tuple[int, int]
    learning_starts: int
    prioritization: Prioritization | None = None
    allow_gaps: bool = False
    in_host_memory: bool = False
    hindsight: Hindsight | None = None

    @property
    def rows_per_update(self) -> int:
        """Rows per gradient step, over all devices."""
        return self.batch_size

    def with_env_params(self, env_params: PyTree) -> "ReplayBuffer":
        """Return the buffer with the current parameters of the environment, if it reads any."""
        if self.hindsight is None or not jax.tree.leaves(env_params):
            return self
        hindsight = dataclasses.replace(self.hindsight, env_params=env_params)
        return dataclasses.replace(self, hindsight=hindsight)

    def init(self, rollout: Rollout) -> ReplayState:
        """Return an empty buffer for rollouts `[T, B, ...]` of these shapes and dtypes."""
        row = jax.tree.map(lambda x: jnp.zeros(x.shape[2:], x.dtype), select_stored(rollout))
        num_envs = rollout.reward.shape[1]
        rows = strip_weak_types(_import_storage().init(row, num_envs, self.length))
        rows = rows.replace(current_index=rows.current_index.astype(jnp.int32))
        streams = ColumnSources(
            env_index=jnp.full((num_envs,), -1, jnp.int32),
            env_step=jnp.zeros((num_envs,), jnp.uint32),
        )
        return ReplayState(
            rows=rows,
            priorities=self.init_priorities(num_envs),
            streams=streams if self.allow_gaps else None,
        )

    def clear(self, state: ReplayState) -> ReplayState:
        """Return an empty buffer, in the same memory if the state is donated."""
        empty = jax.tree.map(lambda x: x.at[...].set(jnp.zeros((), x.dtype)), state)
        priorities, streams = empty.priorities, empty.streams
        if priorities is not None:
            priorities = replace(priorities, largest=jnp.ones_like(priorities.largest))
        if streams is not None:
            streams = replace(streams, env_index=jnp.full_like(streams.env_index, -1))
        return replace(empty, priorities=priorities, streams=streams)

    @property
    def has_priorities(self) -> bool:
        """True if rows have priorities, which updates change."""
        return self.prioritization is not None

    def init_priorities(self, num_envs: int) -> Priorities | None:
        """Return the priorities of an empty buffer, with an axis of shards; None without any."""
        if self.prioritization is None:
            return None
        shards = self.count_shards(num_envs)
        return Priorities.empty(shards, num_envs // shards * self.length)

    def count_shards(self, num_envs: int) -> int:
        """Return the number of shards that one device's `num_envs` environments make up."""
        return num_envs * self.num_shards // self.num_envs

    def add(
        self,
        state: ReplayState,
        rollout: Rollout,
        env_index: Int[Array, " B"],
        env_step: UInt32[Array, "T B"],
    ) -> ReplayState:
        """Add a rollout `[T, B, ...]`, overwriting the oldest rows.

        New rows get the largest priority so far; rows that are not transitions are never drawn.

        Args:
            state: Buffer with as many columns as the rollout.
            rollout: Rollout; T is the same for all rollouts.
            env_index: Index of each column's environment.
            env_step: Number of the environment's steps before each row.
        """
        before, streams = state.streams, None
        if before is not None:
            continues = before.continue_with(env_index, env_step)
            is_first = rollout.is_first.at[0].set(rollout.is_first[0] | ~continues)
            rollout = replace(rollout, is_first=is_first)
            streams = ColumnSources(env_index=env_index, env_step=env_step[-1])
        by_env = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), select_stored(rollout))
        return ReplayState(
            rows=_import_storage().add(state.rows, by_env),
            priorities=self.add_priorities(state, by_env.mask),
            streams=streams,
        )

    def add_priorities(self, state: ReplayState, mask: Bool[Array, "B T"]) -> Priorities | None:
        """Return the priorities after rows are written at `state.rows.current_index`.

        Args:
            state: Buffer before the rows are written.
            mask: Whether each row is a transition, which may be drawn.
        """
        if self.prioritization is None or state.priorities is None:
            return None
        num_envs, num_steps = mask.shape
        shards = self.count_shards(num_envs)
        times = state.rows.current_index + jnp.arange(num_steps, dtype=jnp.int32)
        envs = jnp.arange(num_envs // shards, dtype=jnp.int32)
        leaves = (envs[:, None] * self.length + (times % self.length)[None, :]).reshape(-1)
        value = state.priorities.largest**self.prioritization.alpha
        values = jnp.where(mask, value, 0.0).reshape(shards, -1)
        tree = jax.vmap(SumTree.set, (0, None, 0))(state.priorities.tree, leaves, values)
        return replace(state.priorities, tree=tree)

    def size(self, state: ReplayState) -> Int[Array, ""]:
        """Return the number of stored rows per environment."""
        return jnp.where(state.rows.is_full, self.length, state.rows.current_index)

    @property
    def min_rows_to_learn(self) -> int:
        """Number of stored rows from which updates begin, at least one and at most the capacity."""
        rows = -(-self.learning_starts // self.num_envs)
        return min(max(rows, 1), self.length) * self.num_envs

    def can_learn(self, state: ReplayState, axis_name: str | None = None) -> Bool[Array, ""]:
        """Return whether enough rows are stored to begin updates, over all devices."""
        del axis_name  # every device has as many rows of each environment
        return self.size(state) >= self.min_rows_to_learn // self.num_envs

    def sample(
        self,
        state: ReplayState,
        priorities: Priorities | None,
        key: Key,
        shards: Int[Array, " S"],
        env_steps: Counter,
        axis_name: str | None = None,
    ) -> SampledIndices:
        """Sample positions of one gradient step's rows, equally many per shard. Consumes the key.

        Args:
            state: Buffer with at least one row.
            priorities: Priorities of its rows, used in place of the state's own.
            key: Key of the draw, the same on every device.
            shards: Logical shards on this device.
            env_steps: Environment steps, for the schedule of beta.
            axis_name: Mesh axis that the shards are sharded over, or None.
        """
        num_envs = state.rows.experience.mask.shape[0]
        per_shard, share = num_envs // shards.shape[0], self.batch_size // self.num_shards
        keys = jax.vmap(lambda shard: jax.random.fold_in(key, shard))(shards)
        if self.prioritization is None or priorities is None:
            env, time = self.sample_uniformly(state, keys, per_shard, share)
            weight = None
        else:
            tree = priorities.tree
            places = jax.vmap(lambda t, k: t.sample_stratified(share, k))(tree, keys)
            env, time = places // self.length, places % self.length
            beta = self.prioritization.beta.value_at(env_steps)
            rows = self.count_rows_per_shard(state, per_shard)
            weight = compute_importance_weights(tree, places, rows, beta, axis_name)
        first = jnp.arange(shards.shape[0], dtype=jnp.int32) * per_shard
        env, time = (env + first[:, None]).reshape(-1), time.reshape(-1)
        is_transition = state.rows.experience.mask[env, time].astype(jnp.float32)
        weight = is_transition if weight is None else weight.reshape(-1) * is_transition
        return SampledIndices(env=env, time=time, weight=weight)

    def sample_uniformly(
        self, state: ReplayState, keys: Keys, per_shard: int, share: int
    ) -> tuple[Int[Array, "S n"], Int[Array, "S n"]]:
        """Sample `share` rows of each shard. Consumes the keys.

        Args:
            state: Buffer with at least one row.
            keys: Key of each shard.
            per_shard: Number of columns of a shard.
            share: Number of rows to draw from a shard.

        Returns:
            The columns, counted from the shard's first, and the positions in them.
        """
        size = self.size(state)
        places = jax.vmap(
            lambda k: jax.random.randint(k, (share,), 0, per_shard * size, jnp.int32)
        )(keys)
        return places // size, places % size

    def count_rows_per_shard(
        self, state: ReplayState, per_shard: int
    ) -> Float[Array, ""] | Float[Array, "S 1"]:
        """Return the number of stored rows of each shard, given its number of columns."""
        del per_shard
        return (self.size(state) * self.num_envs).astype(jnp.float32) / self.num_shards

    def find_newest(self, state: ReplayState, env: Int[Array, " N"]) -> Int[Array, "*N"]:
        """Return the position of the newest row in each of the given columns."""
        del env  # all columns are written at the same position
        return (state.rows.current_index - 1) % self.length

    def gather_transitions(
        self,
        state: ReplayState,
        indices: SampledIndices,
        gamma: Float[Array, ""],
        shards: Int[Array, " S"],
        key: Key,
    ) -> Transition:
        """Gather the drawn rows, with up to n steps folded into each. Consumes the key.

        A fold ends with the episode, before a row that is not a transition, or with the newest row;
        it then bootstraps from where it ended, after fewer steps. In hindsight, goals are replaced.
        """
        rows: Rollout = state.rows.experience

        def take(x: Array, time: Int[Array, " N"]) -> Array:
            return x[indices.env, time]

        def at(tree: PyTree, time: Int[Array, " N"]) -> PyTree:
            return jax.tree.map(lambda x: take(x, time), tree)

        reward, steps, last = self.fold(state, indices, gamma, shards, key)
        terminated = take(rows.terminated, last).astype(jnp.float32)
        transition = Transition(
            obs=at(rows.obs, indices.time),
            action=at(rows.action, indices.time),
            reward=reward,
            discount=gamma**steps * (1.0 - terminated),
            next_obs=at(rows.final_obs, last),
            weight=indices.weight,
        )
        if self.hindsight is None:
            return transition
        following = self.count_following(state, indices)
        return self.hindsight.relabel(
            rows, transition, indices.env, indices.time, following, gamma, shards, key
        )

    def count_following(self, state: ReplayState, indices: SampledIndices) -> Int[Array, " N"]:
        """Return the number of rows that are stored after each of the drawn ones."""
        return (self.find_newest(state, indices.env) - indices.time) % self.length

    def fold(
        self,
        state: ReplayState,
        indices: SampledIndices,
        gamma: Float[Array, ""],
        shards: Int[Array, " S"],
        key: Key,
    ) -> tuple[Float[Array, " N"], Float[Array, " N"], Int[Array, " N"]]:
        """Fold up to n consecutive rows into each drawn one. Consumes the key.

        Returns:
            The sums of discounted rewards, their numbers of steps, and the positions of the last rows.
        """
        return fold_n_steps(
            state.rows.experience,
            indices.env,
            indices.time,
            num_following=self.count_following(state, indices),
            gamma=gamma,
            max_steps=self.sample_max_steps(shards, key),
            largest_max_steps=self.n_step[1],
        )

    def sample_max_steps(self, shards: Int[Array, " S"], key: Key) -> Int[Array, " N"]:
        """Sample the maximum number of steps of each drawn row. Consumes the key."""
        low, high = self.n_step
        share = self.batch_size // self.num_shards
        if low == high:
            return jnp.full((shards.shape[0] * share,), high, jnp.int32)
        keys = jax.vmap(lambda shard: jax.random.fold_in(key, shard))(shards)
        return jax.vmap(lambda k: jax.random.randint(k, (share,), low, high + 1, jnp.int32))(
            keys
        ).reshape(-1)

    def update_priorities(
        self,
        priorities: Priorities,
        indices: SampledIndices,
        td_error: Float[Array, " N"],
        axis_name: str | None = None,
    ) -> Priorities:
        """Set the priorities of the drawn rows to |td_error| + ε.

        A row that is not a transition has no priority, and one without a finite error keeps its
        own.
        """
        assert self.prioritization is not None
        shards = priorities.tree.nodes.shape[0]
        per_shard = indices.env.shape[0] // shards
        fresh = jnp.abs(td_error) + PRIORITY_EPSILON
        valid = (indices.weight > 0.0) & jnp.isfinite(fresh)
        first = jnp.arange(shards, dtype=jnp.int32) * self._envs_per_shard
        env = indices.env.reshape(shards, per_shard) - first[:, None]
        leaves = env * self.length + indices.time.reshape(shards, per_shard)
        old = jax.vmap(SumTree.get)(priorities.tree, leaves)
        fresh, valid = fresh.reshape(shards, -1), valid.reshape(shards, -1)
        values = jnp.where(valid, fresh**self.prioritization.alpha, old)
        largest = jnp.max(jnp.where(valid, fresh, 0.0))
        if axis_name is not None:
            largest = jax.lax.pmax(largest, axis_name)
        return Priorities(
            tree=jax.vmap(SumTree.set)(priorities.tree, leaves, values),
            largest=jnp.maximum(priorities.largest, largest),
        )

    @property
    def _envs_per_shard(self) -> int:
        return self.num_envs // self.num_shards


def fold_n_steps(
    rows: Rollout,
    env: Int[Array, "*#n"],
    time: Int[Array, "*n"],
    num_following: Int[Array, "*#n"],
    gamma: Float[Array, ""],
    max_steps: Int[Array, "*#n"],
    largest_max_steps: int,
) -> tuple[Float[Array, "*n"], Float[Array, "*n"], Int[Array, "*n"]]:
    """Fold up to n consecutive rows into one.

    Args:
        rows: Ring of rows, `[B, L]`.
        env: Columns of the first rows; all index arguments broadcast against `time`.
        time: Positions of the first rows.
        num_following: Number of rows after each first row that may be added.
        gamma: Discount factor.
        max_steps: Maximum number of steps of each fold.
        largest_max_steps: Largest `max_steps`.

    Returns:
        The sums of discounted rewards, their numbers of steps, and the positions of the last rows.
    """
    length = rows.reward.shape[1]
    continues = jnp.ones(time.shape, jnp.bool_)
    reward = rows.reward[env, time]
    steps = jnp.ones(time.shape, jnp.float32)
    last, discount = time, gamma
    for k in range(1, largest_max_steps):
        ended = rows.terminated[env, last] | rows.truncated[env, last]
        place = (time + k) % length
        is_successor = rows.mask[env, place] & ~rows.is_first[env, place]
        continues = continues & ~ended & is_successor & (k <= num_following) & (k < max_steps)
        reward = reward + jnp.where(continues, discount * rows.reward[env, place], 0.0)
        steps = steps + continues
        last = jnp.where(continues, place, last)
        discount = discount * gamma
    return reward, steps, last


def _import_storage() -> ModuleType:
    """Import flashbax's trajectory storage, only when a run uses replay."""
    from flashbax.buffers import trajectory_buffer

    return trajectory_buffer


def select_stored(rollout: Rollout) -> Rollout:
    """Return the stored part of a rollout; extras keep only the recurrent state of each row."""
    carries = {name: x for name, x in rollout.extras.items() if name == Columns.STATE_IN}
    return replace(rollout, extras=carries, carry_in=None)


def compute_importance_weights(
    tree: SumTree,
    leaves: Int[Array, "S n"],
    num_rows: Float[Array, ""] | Float[Array, "S 1"],
    beta: Float[Array, ""],
    axis_name: str | None,
) -> Float[Array, "S n"]:
    """Compute importance weights (M P(i))^-β over their maximum (Schaul et al. 2016, section 3.4).

    All shards are drawn from equally.

    Args:
        tree: Sum tree of each shard.
        leaves: Drawn leaves.
        num_rows: M, number of stored rows per shard.
        beta: Exponent β.
        axis_name: Mesh axis that the shards are sharded over, or None.
    """
    value, total = jax.vmap(SumTree.get)(tree, leaves), jax.vmap(SumTree.total)(tree)[:, None]
    # A shard without transitions has zero weight: 0 / 0 would contaminate the other shards.
    weight = jnp.where(value > 0.0, (num_rows * value / total) ** -beta, 0.0)
    largest = jnp.max(weight)
    if axis_name is not None:
        largest = jax.lax.pmax(largest, axis_name)
    return weight / jnp.where(largest > 0.0, largest, 1.0)


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
