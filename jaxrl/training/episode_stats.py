"""Latest episodes and faults of a run, in fixed shapes that are part of the state.

Every logical shard has its own ring, so shape and content of the state do not depend on the number
of devices. Writes are gathers: each place takes the newest episode that belongs there.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from jaxrl.compat.lookup import RLlibEpisode
from jaxrl.core.struct import pytree
from jaxrl.core.types import Counter, Metrics
from jaxrl.envs.vector import BREACHES, NO_FAULT
from jaxrl.metrics import EPISODE_LEN_MEAN, EPISODE_RETURN_MEAN, NUM_EPISODES
from jaxrl.ops.search import searchsorted


@pytree
class EpisodeStatsBuffer:
    """Last K ended episodes of each of G shards.

    `count` is the number of episodes that ever ended in the shard. `env_step` counts the steps of
    the episode's environment; environments that are not stepped together are at different ones.
    Episodes are in order of time by `arrival`, the steps of the run before their rollout (modulo
    2**32), and `row`, their place in it.
    """

    episode_return: Float[Array, "G K"]
    episode_length: Int[Array, "G K"]
    env_index: Int[Array, "G K"]
    env_step: UInt32[Array, "G K"]
    arrival: UInt32[Array, "G K"]
    row: Int[Array, "G K"]
    count: UInt32[Array, " G"]


@pytree
class FaultLog:
    """Non-finite environment steps: their number per shard, and place and kind of the last one.

    A breach of the contract, which ends the run, is kept before all others.
    """

    count: UInt32[Array, " G"]
    env_index: Int[Array, " G"]
    env_step: UInt32[Array, " G"]
    kind: Int[Array, " G"]


@pytree
class EpisodeRecord:
    """Episode statistics of a rollout, `[T, B]`; the numbers are valid where `ended`."""

    ended: Bool[Array, "T B"]
    episode_return: Float[Array, "T B"]
    episode_length: Int[Array, "T B"]
    env_step: UInt32[Array, "T B"]
    fault: Int[Array, "T B"]


@pytree
class AgentReturns:
    """Sum of the returns of agent-episodes, and their number, for each agent in each pattern."""

    total: Float[Array, "P A"]
    count: Int[Array, "P A"]


@pytree
class AgentStats:
    """Latest agent-episodes of each agent, `[A, G, K]`, and the numbers of rows they ever had.

    `module_steps` has those of each module, where these do not follow from the agents'.
    """

    ring: EpisodeStatsBuffer
    steps: Counter
    module_steps: dict[str, Counter] = dataclasses.field(default_factory=dict[str, Counter])


@pytree
class AgentSums:
    """Agent-episodes that ended while a program ran, `[A, G]`, and the rows that were recorded."""

    episodes: "EpisodeSums"
    steps: UInt32[Array, " A"]


@pytree
class EpisodeSums:
    """Sums and extrema over all episodes that ended while a program ran, per shard."""

    count: Int[Array, " G"]
    sum_return: Float[Array, " G"]
    sum_length: Float[Array, " G"]
    min_return: Float[Array, " G"]
    max_return: Float[Array, " G"]
    min_length: Int[Array, " G"]
    max_length: Int[Array, " G"]

    @staticmethod
    def empty(num_shards: int) -> "EpisodeSums":
        """Return the sums of no episodes."""
        return EpisodeSums(
            count=jnp.zeros((num_shards,), jnp.int32),
            sum_return=jnp.zeros((num_shards,), jnp.float32),
            sum_length=jnp.zeros((num_shards,), jnp.float32),
            min_return=jnp.full((num_shards,), jnp.inf, jnp.float32),
            max_return=jnp.full((num_shards,), -jnp.inf, jnp.float32),
            min_length=jnp.full((num_shards,), jnp.iinfo(jnp.int32).max, jnp.int32),
            max_length=jnp.zeros((num_shards,), jnp.int32),
        )

    def add(self, record: EpisodeRecord) -> "EpisodeSums":
        """Add the episodes of a rollout."""
        shards = self.count.shape[0]
        ended = split_by_shard(record.ended, shards)
        returns = split_by_shard(record.episode_return, shards)
        lengths = split_by_shard(record.episode_length, shards)
        largest = jnp.iinfo(jnp.int32).max
        return EpisodeSums(
            count=self.count + ended.sum(axis=1, dtype=jnp.int32),
            sum_return=self.sum_return + jnp.where(ended, returns, 0.0).sum(axis=1),
            sum_length=self.sum_length
            + jnp.where(ended, lengths, 0).sum(axis=1).astype(jnp.float32),
            min_return=jnp.minimum(self.min_return, jnp.where(ended, returns, jnp.inf).min(axis=1)),
            max_return=jnp.maximum(
                self.max_return, jnp.where(ended, returns, -jnp.inf).max(axis=1)
            ),
            min_length=jnp.minimum(self.min_length, jnp.where(ended, lengths, largest).min(axis=1)),
            max_length=jnp.maximum(self.max_length, jnp.where(ended, lengths, 0).max(axis=1)),
        )

    def merge(self, other: "EpisodeSums") -> "EpisodeSums":
        """Return the sums and extrema over the episodes of both."""
        return EpisodeSums(
            count=self.count + other.count,
            sum_return=self.sum_return + other.sum_return,
            sum_length=self.sum_length + other.sum_length,
            min_return=jnp.minimum(self.min_return, other.min_return),
            max_return=jnp.maximum(self.max_return, other.max_return),
            min_length=jnp.minimum(self.min_length, other.min_length),
            max_length=jnp.maximum(self.max_length, other.max_length),
        )


def compute_episode_means(sums: EpisodeSums, axis_name: str | None) -> Metrics:
    """Compute mean return and length of episodes, NaN if none ended, and their number.

    Args:
        sums: Sums over the episodes of this device's environments.
        axis_name: Mesh axis that the environments are sharded over, or None.
    """
    count = sums.count.sum(dtype=jnp.int32)
    totals = sums.sum_return.sum(), sums.sum_length.sum()
    if axis_name is not None:
        count, totals = jax.lax.psum((count, totals), axis_name)
    returns, lengths = (total / count for total in totals)  # 0 / 0 is NaN
    return {EPISODE_RETURN_MEAN: returns, EPISODE_LEN_MEAN: lengths, NUM_EPISODES: count}


def split_by_shard(x: Array, num_shards: int) -> Array:
    """Reshape `[T, B]` to `[G, T * B / G]`, in order of time within a shard."""
    steps, envs = x.shape
    per_shard = x.reshape(steps, num_shards, envs // num_shards)
    return jnp.swapaxes(per_shard, 0, 1).reshape(num_shards, -1)


def init_episode_stats(num_shards: int, size: int) -> EpisodeStatsBuffer:
    """Return a ring without episodes.

    Args:
        num_shards: Number of logical shards.
        size: Capacity of each shard's ring.
    """
    return EpisodeStatsBuffer(
        episode_return=jnp.zeros((num_shards, size), jnp.float32),
        episode_length=jnp.zeros((num_shards, size), jnp.int32),
        env_index=jnp.zeros((num_shards, size), jnp.int32),
        env_step=jnp.zeros((num_shards, size), jnp.uint32),
        arrival=jnp.zeros((num_shards, size), jnp.uint32),
        row=jnp.zeros((num_shards, size), jnp.int32),
        count=jnp.zeros((num_shards,), jnp.uint32),
    )


def init_fault_log(num_shards: int) -> FaultLog:
    """Return a log without faults."""
    return FaultLog(
        count=jnp.zeros((num_shards,), jnp.uint32),
        env_index=jnp.full((num_shards,), -1, jnp.int32),
        env_step=jnp.zeros((num_shards,), jnp.uint32),
        kind=jnp.zeros((num_shards,), jnp.int32),
    )


def push_episodes(
    ring: EpisodeStatsBuffer,
    record: EpisodeRecord,
    env_index: Int[Array, " B"],
    arrival: UInt32[Array, ""],
) -> EpisodeStatsBuffer:
    """Add a rollout's episodes to the ring; each place takes the newest episode of its ordinals.

    Args:
        ring: Ring of the episodes before.
        record: Record of the rollout.
        env_index: Index of the environment of each column.
        arrival: Environment steps of the run before the rollout, modulo 2**32.
    """
    shards, size = ring.env_index.shape
    steps = record.ended.shape[0]
    envs = jnp.broadcast_to(env_index[None], (steps, env_index.shape[0]))
    per_row = env_index.shape[0] // shards

    def push_to_shard(
        old: EpisodeStatsBuffer,
        ended: Bool[Array, " N"],
        returns: Float[Array, " N"],
        lengths: Int[Array, " N"],
        index: Int[Array, " N"],
        step: UInt32[Array, " N"],
    ) -> EpisodeStatsBuffer:
        ordinal = jnp.cumsum(ended.astype(jnp.int32))
        count = old.count + ordinal[-1].astype(jnp.uint32)
        place = jnp.arange(size, dtype=jnp.uint32)
        # The newest ordinal below `count` that is congruent to the place; older ones are kept.
        age = (count - 1 - place) % jnp.uint32(size)
        is_new = age < ordinal[-1].astype(jnp.uint32)
        nth = ordinal[-1] - age.astype(jnp.int32)
        row = searchsorted(ordinal, jnp.maximum(nth, 1))
        row = jnp.minimum(row, ended.shape[0] - 1)
        return EpisodeStatsBuffer(
            episode_return=jnp.where(is_new, returns[row], old.episode_return),
            episode_length=jnp.where(is_new, lengths[row], old.episode_length),
            env_index=jnp.where(is_new, index[row], old.env_index),
            env_step=jnp.where(is_new, step[row], old.env_step),
            arrival=jnp.where(is_new, arrival, old.arrival),
            row=jnp.where(is_new, row // per_row, old.row),
            count=count,
        )

    return jax.vmap(push_to_shard)(
        ring,
        split_by_shard(record.ended, shards),
        split_by_shard(record.episode_return, shards),
        split_by_shard(record.episode_length, shards),
        split_by_shard(envs, shards),
        split_by_shard(record.env_step, shards),
    )


def push_faults(log: FaultLog, record: EpisodeRecord, env_index: Int[Array, " B"]) -> FaultLog:
    """Add a rollout's faults to the log."""
    shards = log.count.shape[0]
    steps = record.fault.shape[0]
    fault = split_by_shard(record.fault, shards)
    bad, breaches = fault != NO_FAULT, fault >= min(BREACHES)
    any_breach = breaches.any(axis=1)
    envs = split_by_shard(jnp.broadcast_to(env_index[None], (steps, env_index.shape[0])), shards)
    step = split_by_shard(record.env_step, shards)
    shown = jnp.where(any_breach[:, None], breaches, bad)
    last = bad.shape[1] - 1 - jnp.argmax(shown[:, ::-1], axis=1)
    is_new = any_breach | (bad.any(axis=1) & (log.kind < min(BREACHES)))
    shard = jnp.arange(shards, dtype=jnp.int32)
    return FaultLog(
        count=log.count + bad.sum(axis=1, dtype=jnp.uint32),
        env_index=jnp.where(is_new, envs[shard, last], log.env_index),
        env_step=jnp.where(is_new, step[shard, last], log.env_step),
        kind=jnp.where(is_new, fault[shard, last], log.kind),
    )


_ALTERNATIVES = {
    "total_reward": "get_return() is it",
    "get_length": "len(episode) is it",
}


@dataclasses.dataclass(frozen=True)
class EndedEpisode(RLlibEpisode):
    """Ended episode, as passed to `on_episode_end`.

    It has the attributes of RLlib's episodes for which data exist: return and length, and with
    several agents `agent_returns` and `agent_lengths` (numbers of own steps) of those that took part;
    an agent that came more than once has the sums. Episodes whose agents ended so often that the ring
    buffer does not hold all of it are not reported.
    """

    episode_return: float
    episode_length: int
    env_index: int
    env_step: int
    agent_returns: Mapping[str, float] = dataclasses.field(default_factory=dict[str, float])
    agent_lengths: Mapping[str, int] = dataclasses.field(default_factory=dict[str, int])
    mapping: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    custom_data: dict[str, Any] = dataclasses.field(default_factory=dict[str, Any], compare=False)

    is_done = True

    def module_for(self, agent_id: str) -> str:
        """Return the module that plays an agent.

        Raises:
            KeyError: If there is no such agent, or its module was drawn.
        """
        module = self.mapping[str(agent_id)]
        if module.startswith(":"):
            raise KeyError(
                f"The module of {agent_id!r} was drawn in the compiled program, which does not keep "
                "it by episode."
            )
        return module

    def get_return(self) -> float:
        """Return the sum of the rewards."""
        return self.episode_return

    def __len__(self) -> int:
        return self.episode_length

    @property
    def length(self) -> int:
        """The same, by the name of RLlib's older episodes."""
        return self.episode_length

    def env_steps(self) -> int:
        """Return the length."""
        return self.episode_length

    def agent_steps(self) -> int:
        """Return the number of steps of all agents; of a single one, the length."""
        if not self.mapping:
            return self.episode_length
        return sum(self.agent_lengths.values())

    def __getattr__(self, name: str) -> NoReturn:
        instead = _ALTERNATIVES.get(name)
        if name.startswith("__") or not hasattr(type(self), "__dataclass_fields__"):
            raise AttributeError(name)
        fields = ", ".join(field.name for field in dataclasses.fields(self))
        host = "an environment in Python" if self.mapping else "placement='host'"
        raise AttributeError(
            f"An episode of the compiled program has no '{name}': "
            + (instead or f"it has {fields}, get_return() and len(); {host} records steps")
            + "."
        )
