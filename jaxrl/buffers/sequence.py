"""Sequences of consecutive rows drawn from the replay buffer's storage, for recurrent learners.

flashbax's own draw of sequences goes over all environments with one key and does not say where
they lie, so they would depend on the number of devices and could have no priorities.
"""

import dataclasses
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from jaxrl.buffers.n_step import folded
from jaxrl.buffers.replay import (
    Drawn,
    Priorities,
    Prioritization,
    Replay,
    ReplayState,
    importance,
)
from jaxrl.buffers.sum_tree import SumTree
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Columns, Counter, Key, Rollout, Sequence, Successors, Transition
from jaxrl.errors import ConfigError


@pytree
class Sequences:
    """Drawn sequences, `[N, W]`, and the importance weight of each.

    An episode may end within a sequence: the recurrent state is reset where `rows.is_first`.
    `learns` is False in the burn-in and where a row is no transition.
    """

    rows: Rollout
    learns: Bool[Array, "N W"]
    weight: Float[Array, " N"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceReplay:
    """Uniform or prioritised draws of W = `burn_in + sequence_length` consecutive rows.

    Sequences start at every `period`-th place of the storage, so that neighbours have
    `W - period` rows in common. None goes over the newest row.

    Args:
        replay: The storage, and how many are drawn; without a prioritization of its own.
        sequence_length: Rows to learn from.
        burn_in: Rows before them, from which the recurrent state is only found.
        period: Rows from a start to the next; divides the storage's length.
        prioritization: Of the starts; None draws uniformly.
        eta: How much of a sequence's priority is its largest error; the rest is their mean.
    """

    replay: Replay
    sequence_length: int
    burn_in: int = 0
    period: int = 1
    prioritization: Prioritization | None = None
    eta: float = 0.9

    def __post_init__(self) -> None:
        """Checks the sizes.

        Raises:
            ConfigError: One that does not fit the storage.
        """
        length = self.replay.length
        if self.replay.prioritization is not None:
            raise ConfigError("Sequences have priorities of their own: leave the replay's at None.")
        if length % self.period:
            raise ConfigError(f"period={self.period} must divide the {length} rows in the storage.")
        if self.width + self.period - 1 > length:
            raise ConfigError(
                f"burn_in={self.burn_in} + sequence_length={self.sequence_length} with "
                f"period={self.period} needs {self.width + self.period - 1} rows of each "
                f"environment; the storage has {length}."
            )

    @property
    def length(self) -> int:
        """Rows of each environment in the storage."""
        return self.replay.length

    @property
    def num_envs(self) -> int:
        """Environments over all devices."""
        return self.replay.num_envs

    @property
    def num_shards(self) -> int:
        """Logical shards."""
        return self.replay.num_shards

    @property
    def num_updates(self) -> int:
        """Draws for each rollout that is added."""
        return self.replay.num_updates

    @property
    def rows_per_update(self) -> int:
        """Rows that one gradient step learns from, over all devices."""
        return self.replay.batch_size * self.sequence_length

    @property
    def in_host_memory(self) -> bool:
        """Whether the state is kept apart from the learner's, in host memory."""
        return self.replay.in_host_memory

    @property
    def first_learned_at(self) -> int:
        """Stored rows from which on there is learning: at least a sequence of each environment."""
        return max(self.replay.first_learned_at, (self.width + self.period - 1) * self.num_envs)

    def can_learn(self, state: ReplayState) -> Bool[Array, ""]:
        """Whether enough is stored."""
        return self.replay.size(state) >= self.first_learned_at // self.num_envs

    def emptied(self, state: ReplayState) -> ReplayState:
        """`Replay.emptied`."""
        return self.replay.emptied(state)

    @property
    def width(self) -> int:
        """Rows of a sequence, W."""
        return self.burn_in + self.sequence_length

    @property
    def _starts(self) -> Replay:
        """The replay whose rows are the starts."""
        length = self.replay.length // self.period
        return dataclasses.replace(self.replay, length=length, prioritization=self.prioritization)

    def init(self, rollout: Rollout) -> ReplayState:
        """Nothing stored, for rollouts `[T, B, ...]` of these shapes and types."""
        state = self.replay.init(rollout)
        if self.prioritization is None:
            return state
        num_envs, starts = rollout.reward.shape[1], self._starts
        shards = starts.shards_of(num_envs)
        return replace(
            state, priorities=Priorities.none(shards, num_envs // shards * starts.length)
        )

    def add(
        self,
        state: ReplayState,
        rollout: Rollout,
        env_index: Int[Array, " B"],
        env_step: UInt32[Array, "T B"],
    ) -> ReplayState:
        """`Replay.add`; sequences that are whole now get the largest priority until now."""
        priorities = self._with_new(state, *rollout.reward.shape)
        added = self.replay.add(replace(state, priorities=None), rollout, env_index, env_step)
        return replace(added, priorities=priorities)

    def _with_new(self, state: ReplayState, num_steps: int, num_envs: int) -> Priorities | None:
        """The priorities after that many rows were written, before `state.rows` says so."""
        if self.prioritization is None or state.priorities is None:
            return None
        length, period, starts = self.replay.length, self.period, self._starts
        shards = starts.shards_of(num_envs)
        # Counted on from the first row ever, modulo 2 L: what was written ends before `head`.
        before = state.rows.current_index + jnp.where(state.rows.is_full, length, 0)
        head = before + num_steps
        # Before these starts nothing changed; from `head` on nothing is written.
        first = -((self.width - 1 - before) // period)
        changed = first + jnp.arange((num_steps + self.width - 2) // period + 1, dtype=jnp.int32)
        start = changed * period
        whole = (start >= jnp.maximum(head - length, 0)) & (start + self.width <= head)
        places = changed % starts.length
        places = jnp.where(start < head, places, -1)
        value = state.priorities.largest**self.prioritization.alpha
        envs = jnp.arange(num_envs // shards, dtype=jnp.int32)[:, None] * starts.length
        leaves = jnp.where(places[None] >= 0, envs + places[None], -1)
        values = jnp.broadcast_to(jnp.where(whole, value, 0.0)[None], leaves.shape)
        tree = jax.vmap(SumTree.set, (0, None, None))(
            state.priorities.tree, leaves.reshape(-1), values.reshape(-1)
        )
        return replace(state.priorities, tree=tree)

    def num_starts(self, state: ReplayState) -> Int[Array, ""]:
        """Whole sequences in the rows of each environment."""
        after_first = self.replay.size(state) - self.width - self._too_old(state)
        return jnp.maximum(after_first // self.period + 1, 0)

    def _too_old(self, state: ReplayState) -> Int[Array, ""]:
        """Rows that are older than the oldest start."""
        return jnp.where(state.rows.is_full, -state.rows.current_index % self.period, 0)

    def draw(
        self,
        state: ReplayState,
        priorities: Priorities | None,
        key: Key,
        shards: Int[Array, " S"],
        env_steps: Counter,
        axis_name: str | None = None,
    ) -> Drawn:
        """Where sequences start, as `Replay.draw`; without weight while none is whole."""
        num_envs, starts = state.rows.experience.mask.shape[0], self._starts
        per_shard, share = num_envs // shards.shape[0], starts.batch_size // starts.num_shards
        keys = jax.vmap(lambda shard: jax.random.fold_in(key, shard))(shards)
        number = self.num_starts(state)
        if self.prioritization is None or priorities is None:
            most = per_shard * jnp.maximum(number, 1)
            places = jax.vmap(lambda k: jax.random.randint(k, (share,), 0, most))(keys)
            env, rank = places // jnp.maximum(number, 1), places % jnp.maximum(number, 1)
            oldest = jnp.where(state.rows.is_full, state.rows.current_index, 0)
            time = oldest + self._too_old(state) + rank * self.period
            weight = jnp.broadcast_to((number > 0).astype(jnp.float32), places.shape)
        else:
            tree = priorities.tree
            places = jax.vmap(lambda t, k: t.stratified(share, k))(tree, keys)
            env, time = places // starts.length, places % starts.length * self.period
            count = (number * per_shard).astype(jnp.float32)
            beta = self.prioritization.beta.value_at(env_steps)
            weight = importance(tree, places, count, beta, axis_name)
        first = jnp.arange(shards.shape[0], dtype=jnp.int32) * per_shard
        drawn = Drawn(
            env=(env + first[:, None]).reshape(-1),
            time=time.reshape(-1) % self.replay.length,
            weight=weight.reshape(-1),
        )
        return replace(drawn, learns=self.sequences(state, drawn).learns[:, self.burn_in :])

    def sequences(self, state: ReplayState, drawn: Drawn) -> Sequences:
        """The rows from the drawn starts on."""
        ahead = jnp.arange(self.width, dtype=jnp.int32)
        times = (drawn.time[:, None] + ahead[None]) % self.replay.length

        def take(x: Array) -> Array:
            return x[drawn.env[:, None], times]

        rows: Rollout = jax.tree.map(take, replace(state.rows.experience, extras={}))
        after_burn_in = jnp.broadcast_to((ahead >= self.burn_in)[None], times.shape)
        return Sequences(
            rows=rows,
            learns=rows.mask & after_burn_in & (drawn.weight > 0.0)[:, None],
            weight=drawn.weight,
        )

    def transitions(
        self,
        state: ReplayState,
        drawn: Drawn,
        gamma: Float[Array, ""],
        shards: Int[Array, " S"],
        key: Key,
    ) -> Transition:
        """The rows that learn, `[N, L]`, with up to n steps folded into each.

        A fold ends with the sequence too, and where `Replay.transitions` says. Consumes the key.
        """
        cut, stored = self.burn_in, state.rows.experience
        sequences, env = self.sequences(state, drawn), drawn.env[:, None]
        carry = stored.extras.get(Columns.STATE_IN)
        sequence = Sequence(
            obs=sequences.rows.obs,
            carry=jax.tree.map(lambda x: x[drawn.env, drawn.time], carry),
            is_first=sequences.rows.is_first,
            burn_in=cut,
        )
        place = jnp.arange(self.sequence_length, dtype=jnp.int32)[None]
        time = (drawn.time[:, None] + cut + place) % self.length
        reward, steps, last = folded(
            stored,
            env,
            time,
            following=self.sequence_length - 1 - place,
            gamma=gamma,
            limit=self.replay.limits(shards, key)[:, None],
            most=self.replay.n_step[1],
        )
        return Transition(
            obs=sequence,
            action=jax.tree.map(lambda x: x[:, cut:], sequences.rows.action),
            reward=reward,
            discount=gamma**steps * (1.0 - stored.terminated[env, last].astype(jnp.float32)),
            next_obs=Successors(
                obs=jax.tree.map(lambda x: x[env, last], stored.final_obs),
                after=place + steps.astype(jnp.int32) - 1,
                sequence=sequence,
            ),
            weight=sequences.learns[:, cut:].astype(jnp.float32) * drawn.weight[:, None],
        )

    def prioritize(
        self,
        priorities: Priorities,
        drawn: Drawn,
        td_error: Float[Array, "N L"],
        axis_name: str | None = None,
    ) -> Priorities:
        """The priorities with those of the drawn starts renewed, as `Replay.prioritize`.

        p = η maxᵢ|δᵢ| + (1 − η) mean |δ| over the rows that learn (Kapturowski et al. 2019,
        section 2.3), the least where there is none.
        """
        learns = drawn.learns
        assert learns is not None, "draw() says which rows learn"
        error = jnp.where(learns, jnp.abs(td_error), 0.0)
        mean = error.sum(axis=1) / jnp.maximum(learns.sum(axis=1), 1)
        mixed = self.eta * error.max(axis=1) + (1.0 - self.eta) * mean
        at_start = replace(drawn, time=drawn.time // self.period)
        return self._starts.prioritize(priorities, at_start, mixed, axis_name)


AnyReplay: TypeAlias = Replay | SequenceReplay
