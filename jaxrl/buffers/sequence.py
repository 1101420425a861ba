"""Sampling of sequences from the replay buffer's storage, for recurrent learners.

flashbax's own sequence sampling uses one key for all environments and does not return positions, so
its draws would depend on the number of devices and could not be prioritized.
"""

import dataclasses
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from jaxrl.buffers.replay import (
    Priorities,
    Prioritization,
    ReplayBuffer,
    ReplayState,
    SampledIndices,
    compute_importance_weights,
    fold_n_steps,
)
from jaxrl.buffers.sum_tree import SumTree
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Columns, Counter, Key, ObsSequence, Rollout, SuccessorObs, Transition
from jaxrl.errors import ConfigError


@pytree
class SampledSequences:
    """Drawn sequences, `[N, W]`, with the importance weight of each.

    An episode may end within a sequence: the recurrent state is reset where `rows.is_first`.
    `learns` is False in the burn-in and for rows that are not transitions.
    """

    rows: Rollout
    learns: Bool[Array, "N W"]
    weight: Float[Array, " N"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceReplayBuffer:
    """Replay buffer with uniform or prioritized sampling of sequences.

    A sequence has W = `burn_in + sequence_length` consecutive rows. Sequences start at every
    `period`-th position of the storage, so neighbors share `W - period` rows. None extends past the
    newest row.

    Args:
        replay: Storage and number of draws, without a prioritization of its own.
        sequence_length: Rows to learn from.
        burn_in: Preceding rows, which only initialize the recurrent state.
        period: Distance in rows between starts; must divide the storage's length.
        prioritization: Prioritization of the starts; None samples uniformly.
        eta: Weight η of the largest error in a sequence's priority; 1 - η is the weight of the
            mean.
    """

    replay: ReplayBuffer
    sequence_length: int
    burn_in: int = 0
    period: int = 1
    prioritization: Prioritization | None = None
    eta: float = 0.9

    def __post_init__(self) -> None:
        """Validate the sizes.

        Raises:
            ConfigError: If a size does not fit the storage.
        """
        length = self.replay.length
        if self.replay.prioritization is not None:
            raise ConfigError("Sequences have priorities of their own: leave the replay's at None.")
        if length % self.period:
            raise ConfigError(f"period={self.period} must divide the {length} rows in the storage.")
        if self.rows_per_sequence + self.period - 1 > length:
            raise ConfigError(
                f"burn_in={self.burn_in} + sequence_length={self.sequence_length} with "
                f"period={self.period} needs {self.rows_per_sequence + self.period - 1} rows of each "
                f"environment; the storage has {length}."
            )

    @property
    def length(self) -> int:
        """Rows per environment in the storage."""
        return self.replay.length

    @property
    def num_envs(self) -> int:
        """Number of environments over all devices."""
        return self.replay.num_envs

    @property
    def num_shards(self) -> int:
        """Number of logical shards."""
        return self.replay.num_shards

    @property
    def num_updates(self) -> int:
        """Number of draws per added rollout."""
        return self.replay.num_updates

    @property
    def rows_per_update(self) -> int:
        """Rows per gradient step, over all devices."""
        return self.replay.batch_size * self.sequence_length

    @property
    def in_host_memory(self) -> bool:
        """Return whether the state is kept in host memory, apart from the learner's."""
        return self.replay.in_host_memory

    @property
    def min_rows_to_learn(self) -> int:
        """Number of stored rows from which updates begin, at least one sequence per environment."""
        return max(
            self.replay.min_rows_to_learn,
            (self.rows_per_sequence + self.period - 1) * self.num_envs,
        )

    def can_learn(self, state: ReplayState, axis_name: str | None = None) -> Bool[Array, ""]:
        """Return whether enough rows are stored to begin updates, over all devices."""
        del axis_name  # every device has as many rows of each environment
        return self.replay.size(state) >= self.min_rows_to_learn // self.num_envs

    def clear(self, state: ReplayState) -> ReplayState:
        """Return an empty buffer, as `ReplayBuffer.clear` does."""
        return self.replay.clear(state)

    @property
    def rows_per_sequence(self) -> int:
        """Total rows per sequence, W, including the burn-in."""
        return self.burn_in + self.sequence_length

    @property
    def _starts(self) -> ReplayBuffer:
        """Replay buffer whose rows are the starts of sequences."""
        length = self.replay.length // self.period
        return dataclasses.replace(self.replay, length=length, prioritization=self.prioritization)

    def init(self, rollout: Rollout) -> ReplayState:
        """Return an empty buffer for rollouts `[T, B, ...]` of these shapes and dtypes."""
        state = self.replay.init(rollout)
        if self.prioritization is None:
            return state
        num_envs, starts = rollout.reward.shape[1], self._starts
        shards = starts.count_shards(num_envs)
        return replace(
            state, priorities=Priorities.empty(shards, num_envs // shards * starts.length)
        )

    def add(
        self,
        state: ReplayState,
        rollout: Rollout,
        env_index: Int[Array, " B"],
        env_step: UInt32[Array, "T B"],
    ) -> ReplayState:
        """Add a rollout; sequences that are now complete get the largest priority so far."""
        priorities = self._add_priorities(state, *rollout.reward.shape)
        added = self.replay.add(replace(state, priorities=None), rollout, env_index, env_step)
        return replace(added, priorities=priorities)

    @property
    def has_priorities(self) -> bool:
        """True if starts have priorities, which updates change."""
        return self.prioritization is not None

    def _add_priorities(
        self, state: ReplayState, num_steps: int, num_envs: int
    ) -> Priorities | None:
        """Return the priorities after a write; `state.rows` is not yet updated."""
        if self.prioritization is None or state.priorities is None:
            return None
        length, period, starts = self.replay.length, self.period, self._starts
        shards = starts.count_shards(num_envs)
        # Positions since the first row ever, modulo 2 L; written rows end before `head`.
        before = state.rows.current_index + jnp.where(state.rows.is_full, length, 0)
        head = before + num_steps
        # Earlier starts are unaffected; positions from `head` onward are not written.
        first = -((self.rows_per_sequence - 1 - before) // period)
        changed = first + jnp.arange(
            (num_steps + self.rows_per_sequence - 2) // period + 1, dtype=jnp.int32
        )
        start = changed * period
        whole = (start >= jnp.maximum(head - length, 0)) & (start + self.rows_per_sequence <= head)
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

    def count_starts(self, state: ReplayState) -> Int[Array, ""]:
        """Return the number of complete sequences per environment."""
        after_first = (
            self.replay.size(state) - self.rows_per_sequence - self._num_expired_rows(state)
        )
        return jnp.maximum(after_first // self.period + 1, 0)

    def _num_expired_rows(self, state: ReplayState) -> Int[Array, ""]:
        """Return the number of rows older than the oldest start."""
        return jnp.where(state.rows.is_full, -state.rows.current_index % self.period, 0)

    def sample(
        self,
        state: ReplayState,
        priorities: Priorities | None,
        key: Key,
        shards: Int[Array, " S"],
        env_steps: Counter,
        axis_name: str | None = None,
    ) -> SampledIndices:
        """Sample starts of sequences; weights are zero until one complete sequence is stored.

        Takes the arguments of `ReplayBuffer.sample`.
        """
        num_envs, starts = state.rows.experience.mask.shape[0], self._starts
        per_shard, share = num_envs // shards.shape[0], starts.batch_size // starts.num_shards
        keys = jax.vmap(lambda shard: jax.random.fold_in(key, shard))(shards)
        number = self.count_starts(state)
        if self.prioritization is None or priorities is None:
            most = per_shard * jnp.maximum(number, 1)
            places = jax.vmap(lambda k: jax.random.randint(k, (share,), 0, most, jnp.int32))(keys)
            env, rank = places // jnp.maximum(number, 1), places % jnp.maximum(number, 1)
            oldest = jnp.where(state.rows.is_full, state.rows.current_index, 0)
            time = oldest + self._num_expired_rows(state) + rank * self.period
            weight = jnp.broadcast_to((number > 0).astype(jnp.float32), places.shape)
        else:
            tree = priorities.tree
            places = jax.vmap(lambda t, k: t.sample_stratified(share, k))(tree, keys)
            env, time = places // starts.length, places % starts.length * self.period
            count = (number * per_shard).astype(jnp.float32)
            beta = self.prioritization.beta.value_at(env_steps)
            weight = compute_importance_weights(tree, places, count, beta, axis_name)
        first = jnp.arange(shards.shape[0], dtype=jnp.int32) * per_shard
        drawn = SampledIndices(
            env=(env + first[:, None]).reshape(-1),
            time=time.reshape(-1) % self.replay.length,
            weight=weight.reshape(-1),
        )
        return replace(drawn, learns=self.gather_sequences(state, drawn).learns[:, self.burn_in :])

    def gather_sequences(self, state: ReplayState, indices: SampledIndices) -> SampledSequences:
        """Gather the rows of the drawn sequences."""
        ahead = jnp.arange(self.rows_per_sequence, dtype=jnp.int32)
        times = (indices.time[:, None] + ahead[None]) % self.replay.length

        def take(x: Array) -> Array:
            return x[indices.env[:, None], times]

        rows: Rollout = jax.tree.map(take, replace(state.rows.experience, extras={}))
        after_burn_in = jnp.broadcast_to((ahead >= self.burn_in)[None], times.shape)
        return SampledSequences(
            rows=rows,
            learns=rows.mask & after_burn_in & (indices.weight > 0.0)[:, None],
            weight=indices.weight,
        )

    def gather_transitions(
        self,
        state: ReplayState,
        indices: SampledIndices,
        gamma: Float[Array, ""],
        shards: Int[Array, " S"],
        key: Key,
    ) -> Transition:
        """Gather the rows to learn from, `[N, L]`, with up to n steps folded into each.

        A fold also ends with the sequence; otherwise it ends as in `ReplayBuffer.gather_transitions`. Consumes
        the key.
        """
        cut, stored = self.burn_in, state.rows.experience
        sequences, env = self.gather_sequences(state, indices), indices.env[:, None]
        carry = stored.extras.get(Columns.STATE_IN)
        sequence = ObsSequence(
            obs=sequences.rows.obs,
            carry=jax.tree.map(lambda x: x[indices.env, indices.time], carry),
            is_first=sequences.rows.is_first,
            burn_in=cut,
        )
        place = jnp.arange(self.sequence_length, dtype=jnp.int32)[None]
        time = (indices.time[:, None] + cut + place) % self.length
        reward, steps, last = fold_n_steps(
            stored,
            env,
            time,
            num_following=self.sequence_length - 1 - place,
            gamma=gamma,
            max_steps=self.replay.sample_max_steps(shards, key)[:, None],
            largest_max_steps=self.replay.n_step[1],
        )
        return Transition(
            obs=sequence,
            action=jax.tree.map(lambda x: x[:, cut:], sequences.rows.action),
            reward=reward,
            discount=gamma**steps * (1.0 - stored.terminated[env, last].astype(jnp.float32)),
            next_obs=SuccessorObs(
                obs=jax.tree.map(lambda x: x[env, last], stored.final_obs),
                after=place + steps.astype(jnp.int32) - 1,
                sequence=sequence,
            ),
            weight=sequences.learns[:, cut:].astype(jnp.float32) * indices.weight[:, None],
        )

    def update_priorities(
        self,
        priorities: Priorities,
        indices: SampledIndices,
        td_error: Float[Array, "N L"],
        axis_name: str | None = None,
    ) -> Priorities:
        """Set the priorities of the drawn starts, as `ReplayBuffer.update_priorities` does.

        p = η maxᵢ|δᵢ| + (1 − η) mean |δ| over the rows that are learned from (Kapturowski et al.
        2019, section 2.3), the minimum if there are none.
        """
        learns = indices.learns
        assert learns is not None, "draw() marks the rows to learn from"
        error = jnp.where(learns, jnp.abs(td_error), 0.0)
        mean = error.sum(axis=1) / jnp.maximum(learns.sum(axis=1), 1)
        mixed = self.eta * error.max(axis=1) + (1.0 - self.eta) * mean
        starts = replace(indices, time=indices.time // self.period)
        return self._starts.update_priorities(priorities, starts, mixed, axis_name)


AnyReplayBuffer: TypeAlias = ReplayBuffer | SequenceReplayBuffer
