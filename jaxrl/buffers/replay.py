"""Replay on the device: flashbax's trajectory storage, and transitions of n steps drawn from it.

Rows lie as `[B, L]`, a ring for each environment, all written at the same place. Which rows are
drawn depends on the logical shards of the environments and not on how many devices hold them.
"""

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from jaxrl.buffers.n_step import folded
from jaxrl.buffers.sum_tree import SumTree
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import (
    Columns,
    Counter,
    Key,
    PyTree,
    Rollout,
    Transition,
    strongly_typed,
)
from jaxrl.ops.schedules import Schedule

if TYPE_CHECKING:
    from flashbax.buffers.trajectory_buffer import TrajectoryBufferState

MIN_PRIORITY = 1e-6
"""Added to |td_error|, so that every row keeps a chance (Schaul et al. 2016, section 3.3)."""


@pytree
class Priorities:
    """A sum tree of each shard, `[G, ...]`, and the largest priority until now."""

    tree: SumTree
    largest: Float[Array, ""]

    @staticmethod
    def none(num_shards: int, capacity: int) -> "Priorities":
        """Of nothing yet, with room for `capacity` in each shard."""
        tree = jax.tree.map(
            lambda x: jnp.zeros((num_shards, *x.shape), x.dtype), SumTree.zero(capacity)
        )
        return Priorities(tree=tree, largest=jnp.ones((), jnp.float32))


@pytree
class Streams:
    """Where the latest row of each column came from, `[B]`: an environment, and its step."""

    env_index: Int[Array, " B"]
    env_step: UInt32[Array, " B"]


@pytree
class ReplayState:
    """What is stored; `rows.experience` is a Rollout with the axes `[B, L]`.

    `streams` is None where every rollout goes on where the one before it ended.
    """

    rows: "TrajectoryBufferState[Any]"
    priorities: Priorities | None
    streams: Streams | None


@pytree
class Drawn:
    """Places in the storage, and the importance weight of each, `[N]`.

    `learns` says which rows of drawn sequences learn; None where single rows were drawn.
    """

    env: Int[Array, " N"]
    time: Int[Array, " N"]
    weight: Float[Array, " N"]
    learns: Bool[Array, "N L"] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prioritization:
    """Proportional prioritisation (Schaul et al. 2016, section 3.3).

    Args:
        alpha: Exponent of the priorities; 0 is uniform.
        beta: Exponent of the importance weights, or its schedule over environment steps.
    """

    alpha: float
    beta: Schedule


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replay:
    """Uniform or prioritised draws of transitions.

    Args:
        length: Rows of each environment, a multiple of the rollout's length.
        num_envs: Environments B over all devices.
        num_shards: Logical shards, each with an equal part of the environments and of a draw.
        batch_size: Rows of one draw, over all devices.
        num_updates: Draws for each rollout that is added.
        n_step: Least and most steps of a transition; each row's number is drawn between them.
        learning_starts: Stored rows from which on there is learning.
        prioritization: None draws uniformly.
        may_skip: Whether a column may go on with another environment, or after steps that were
            lost, as with runners that come and go.
        in_host_memory: Whether the state is kept apart from the learner's, in host memory.
    """

    length: int
    num_envs: int
    num_shards: int
    batch_size: int
    num_updates: int
    n_step: tuple[int, int]
    learning_starts: int
    prioritization: Prioritization | None = None
    may_skip: bool = False
    in_host_memory: bool = False

    @property
    def rows_per_update(self) -> int:
        """Rows that one gradient step learns from, over all devices."""
        return self.batch_size

    def init(self, rollout: Rollout) -> ReplayState:
        """Nothing stored, for rollouts `[T, B, ...]` of these shapes and types."""
        row = jax.tree.map(lambda x: jnp.zeros(x.shape[2:], x.dtype), _kept(rollout))
        num_envs = rollout.reward.shape[1]
        rows = strongly_typed(_storage().init(row, num_envs, self.length))
        streams = Streams(
            env_index=jnp.full((num_envs,), -1, jnp.int32),
            env_step=jnp.zeros((num_envs,), jnp.uint32),
        )
        return ReplayState(
            rows=rows,
            priorities=self._no_priorities(num_envs),
            streams=streams if self.may_skip else None,
        )

    def emptied(self, state: ReplayState) -> ReplayState:
        """The state with nothing stored, in the same memory where that is given away."""
        nothing = jax.tree.map(lambda x: x.at[...].set(jnp.zeros((), x.dtype)), state)
        priorities, streams = nothing.priorities, nothing.streams
        if priorities is not None:
            priorities = replace(priorities, largest=jnp.ones_like(priorities.largest))
        if streams is not None:
            streams = replace(streams, env_index=jnp.full_like(streams.env_index, -1))
        return replace(nothing, priorities=priorities, streams=streams)

    def _no_priorities(self, num_envs: int) -> Priorities | None:
        if self.prioritization is None:
            return None
        shards = self.shards_of(num_envs)
        return Priorities.none(shards, num_envs // shards * self.length)

    def shards_of(self, num_envs: int) -> int:
        """How many shards that many environments are, those of one device."""
        return num_envs * self.num_shards // self.num_envs

    def add(
        self,
        state: ReplayState,
        rollout: Rollout,
        env_index: Int[Array, " B"],
        env_step: UInt32[Array, "T B"],
    ) -> ReplayState:
        """The oldest rows overwritten by those of a rollout `[T, B, ...]`.

        New rows get the largest priority until now; rows that are no transitions are never drawn.

        Args:
            state: Of as many columns as the rollout.
            rollout: T is that of every rollout.
            env_index: The environment of each column.
            env_step: Its number of steps before each row.
        """
        before, streams = state.streams, None
        if before is not None:
            goes_on = (before.env_index == env_index) & (before.env_step + 1 == env_step[0])
            is_first = rollout.is_first.at[0].set(rollout.is_first[0] | ~goes_on)
            rollout = replace(rollout, is_first=is_first)
            streams = Streams(env_index=env_index, env_step=env_step[-1])
        by_env = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), _kept(rollout))
        return ReplayState(
            rows=_storage().add(state.rows, by_env),
            priorities=self._with_new(state, by_env.mask),
            streams=streams,
        )

    def _with_new(self, state: ReplayState, mask: Bool[Array, "B T"]) -> Priorities | None:
        """The priorities after rows were written, before `state.rows` says so."""
        if self.prioritization is None or state.priorities is None:
            return None
        num_envs, num_steps = mask.shape
        shards = self.shards_of(num_envs)
        times = state.rows.current_index + jnp.arange(num_steps, dtype=jnp.int32)
        envs = jnp.arange(num_envs // shards, dtype=jnp.int32)
        leaves = (envs[:, None] * self.length + (times % self.length)[None, :]).reshape(-1)
        value = state.priorities.largest**self.prioritization.alpha
        values = jnp.where(mask, value, 0.0).reshape(shards, -1)
        tree = jax.vmap(SumTree.set, (0, None, 0))(state.priorities.tree, leaves, values)
        return replace(state.priorities, tree=tree)

    def size(self, state: ReplayState) -> Int[Array, ""]:
        """Rows that are stored for each environment."""
        return jnp.where(state.rows.is_full, self.length, state.rows.current_index)

    @property
    def first_learned_at(self) -> int:
        """Stored rows from which on there is learning: at least one, at most all that fit."""
        rows = -(-self.learning_starts // self.num_envs)
        return min(max(rows, 1), self.length) * self.num_envs

    def can_learn(self, state: ReplayState) -> Bool[Array, ""]:
        """Whether enough is stored."""
        return self.size(state) >= self.first_learned_at // self.num_envs

    def draw(
        self,
        state: ReplayState,
        priorities: Priorities | None,
        key: Key,
        shards: Int[Array, " S"],
        env_steps: Counter,
        axis_name: str | None = None,
    ) -> Drawn:
        """Where the rows of one gradient step lie, equally many of each shard. Consumes the key.

        Args:
            state: With at least one row stored.
            priorities: Of its rows, in place of the state's own.
            key: The draw's, the same on every device.
            shards: The logical shards that are here.
            env_steps: What the schedule of beta goes by.
            axis_name: Mesh axis that the shards are divided over, or None.
        """
        num_envs, size = state.rows.experience.mask.shape[0], self.size(state)
        per_shard, share = num_envs // shards.shape[0], self.batch_size // self.num_shards
        keys = jax.vmap(lambda shard: jax.random.fold_in(key, shard))(shards)
        if self.prioritization is None or priorities is None:
            places = jax.vmap(lambda k: jax.random.randint(k, (share,), 0, per_shard * size))(keys)
            env, time = places // size, places % size
            weight = None
        else:
            tree = priorities.tree
            places = jax.vmap(lambda t, k: t.stratified(share, k))(tree, keys)
            env, time = places // self.length, places % self.length
            rows = (size * self.num_envs).astype(jnp.float32)
            beta = self.prioritization.beta.value_at(env_steps)
            weight = importance(tree, places, rows / self.num_shards, beta, axis_name)
        first = jnp.arange(shards.shape[0], dtype=jnp.int32) * per_shard
        env, time = (env + first[:, None]).reshape(-1), time.reshape(-1)
        is_transition = state.rows.experience.mask[env, time].astype(jnp.float32)
        weight = is_transition if weight is None else weight.reshape(-1) * is_transition
        return Drawn(env=env, time=time, weight=weight)

    def transitions(
        self,
        state: ReplayState,
        drawn: Drawn,
        gamma: Float[Array, ""],
        shards: Int[Array, " S"],
        key: Key,
    ) -> Transition:
        """The rows with up to n steps folded into each.

        A fold ends with the episode, before a row that is no transition, and with the newest row;
        the bootstrap then is from where it ended, after fewer steps. Consumes the key.
        """
        rows: Rollout = state.rows.experience

        def take(x: Array, time: Int[Array, " N"]) -> Array:
            return x[drawn.env, time]

        def at(tree: PyTree, time: Int[Array, " N"]) -> PyTree:
            return jax.tree.map(lambda x: take(x, time), tree)

        newest = (state.rows.current_index - 1) % self.length
        reward, steps, last = folded(
            rows,
            drawn.env,
            drawn.time,
            following=(newest - drawn.time) % self.length,
            gamma=gamma,
            limit=self.limits(shards, key),
            most=self.n_step[1],
        )
        terminated = take(rows.terminated, last).astype(jnp.float32)
        return Transition(
            obs=at(rows.obs, drawn.time),
            action=at(rows.action, drawn.time),
            reward=reward,
            discount=gamma**steps * (1.0 - terminated),
            next_obs=at(rows.final_obs, last),
            weight=drawn.weight,
        )

    def limits(self, shards: Int[Array, " S"], key: Key) -> Int[Array, " N"]:
        """The most steps of each row of a draw. Consumes the key."""
        low, high = self.n_step
        share = self.batch_size // self.num_shards
        if low == high:
            return jnp.full((shards.shape[0] * share,), high, jnp.int32)
        keys = jax.vmap(lambda shard: jax.random.fold_in(key, shard))(shards)
        return jax.vmap(lambda k: jax.random.randint(k, (share,), low, high + 1))(keys).reshape(-1)

    def prioritize(
        self,
        priorities: Priorities,
        drawn: Drawn,
        td_error: Float[Array, " N"],
        axis_name: str | None = None,
    ) -> Priorities:
        """The priorities with those of the drawn rows renewed, |td_error| + ε.

        A row that is no transition keeps none, and one without a finite error keeps its own.
        """
        assert self.prioritization is not None
        shards = priorities.tree.nodes.shape[0]
        per_shard = drawn.env.shape[0] // shards
        fresh = jnp.abs(td_error) + MIN_PRIORITY
        valid = (drawn.weight > 0.0) & jnp.isfinite(fresh)
        first = jnp.arange(shards, dtype=jnp.int32) * self._envs_per_shard
        env = drawn.env.reshape(shards, per_shard) - first[:, None]
        leaves = env * self.length + drawn.time.reshape(shards, per_shard)
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


def _storage() -> Any:
    """The rings of flashbax, imported by those who replay."""
    from flashbax.buffers import trajectory_buffer

    return trajectory_buffer


def _kept(rollout: Rollout) -> Rollout:
    """What is stored of a rollout; of what came beside it, the carries before its rows alone."""
    carries = {name: x for name, x in rollout.extras.items() if name == Columns.STATE_IN}
    return replace(rollout, extras=carries, carry_in=None)


def importance(
    tree: SumTree,
    places: Int[Array, "S n"],
    rows: Float[Array, ""],
    beta: Float[Array, ""],
    axis_name: str | None,
) -> Float[Array, "S n"]:
    """(M P(i))^-β over its maximum (Schaul et al. 2016, section 3.4), of shards drawn from alike.

    Args:
        tree: Of each shard.
        places: The drawn leaves.
        rows: M, the stored rows of a shard.
        beta: The exponent.
        axis_name: Mesh axis that the shards are divided over, or None.
    """
    value, total = jax.vmap(SumTree.get)(tree, places), jax.vmap(SumTree.total)(tree)[:, None]
    # A shard in which nothing is a transition weighs nothing: 0 / 0 would spoil the other shards.
    weight = jnp.where(value > 0.0, (rows * value / total) ** -beta, 0.0)
    largest = jnp.max(weight)
    if axis_name is not None:
        largest = jax.lax.pmax(largest, axis_name)
    return weight / jnp.where(largest > 0.0, largest, 1.0)
