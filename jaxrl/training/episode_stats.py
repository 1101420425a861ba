"""The last episodes and faults of a run, in fixed shapes that travel with the state.

Every logical shard has a ring of its own, so the state has the same shape and content whatever
the number of devices. Writing is by gathers: for each place the newest episode that belongs there.
"""

import dataclasses
from typing import NoReturn

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from jaxrl.core.struct import pytree
from jaxrl.core.types import Metrics
from jaxrl.envs.vector import NO_FAULT
from jaxrl.metrics import EPISODE_LEN_MEAN, EPISODE_RETURN_MEAN, NUM_EPISODES
from jaxrl.ops.search import find


@pytree
class EpisodeRing:
    """The last K ended episodes of each of G shards; `count` is all that ever ended there."""

    episode_return: Float[Array, "G K"]
    episode_length: Int[Array, "G K"]
    env_index: Int[Array, "G K"]
    env_step: UInt32[Array, "G K"]
    count: UInt32[Array, " G"]


@pytree
class FaultLog:
    """Non-finite environment steps: how many in each shard, and the last one's place and kind."""

    count: UInt32[Array, " G"]
    env_index: Int[Array, " G"]
    env_step: UInt32[Array, " G"]
    kind: Int[Array, " G"]


@pytree
class EpisodeRecord:
    """What a rollout says of episodes, `[T, B]`; the numbers count where `ended`."""

    ended: Bool[Array, "T B"]
    episode_return: Float[Array, "T B"]
    episode_length: Int[Array, "T B"]
    env_step: UInt32[Array, "T B"]
    fault: Int[Array, "T B"]


@pytree
class EpisodeSums:
    """Moments over all the episodes that ended while a program ran, per shard."""

    count: Int[Array, " G"]
    sum_return: Float[Array, " G"]
    sum_length: Float[Array, " G"]
    min_return: Float[Array, " G"]
    max_return: Float[Array, " G"]
    min_length: Int[Array, " G"]
    max_length: Int[Array, " G"]

    @staticmethod
    def zero(num_shards: int) -> "EpisodeSums":
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
        """With the episodes of one more rollout."""
        shards = self.count.shape[0]
        ended = by_shard(record.ended, shards)
        returns = by_shard(record.episode_return, shards)
        lengths = by_shard(record.episode_length, shards)
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


def episode_means(record: EpisodeRecord, axis_name: str | None) -> Metrics:
    """The mean return and length of a rollout's episodes, NaN if none ended, and their number.

    Args:
        record: Of this device's environments.
        axis_name: Mesh axis that the environments are divided over, or None.
    """
    sums = EpisodeSums.zero(1).add(record)
    count, totals = sums.count, (sums.sum_return, sums.sum_length)
    if axis_name is not None:
        count, totals = jax.lax.psum((count, totals), axis_name)
    means = [(total / count)[0] for total in totals]  # 0 / 0 is NaN
    return {EPISODE_RETURN_MEAN: means[0], EPISODE_LEN_MEAN: means[1], NUM_EPISODES: count[0]}


def by_shard(x: Array, num_shards: int) -> Array:
    """`[T, B]` to `[G, T * B / G]`, in order of time within a shard."""
    steps, envs = x.shape
    per_shard = x.reshape(steps, num_shards, envs // num_shards)
    return jnp.swapaxes(per_shard, 0, 1).reshape(num_shards, -1)


def empty_ring(num_shards: int, size: int) -> EpisodeRing:
    """No episodes yet; `size` places a shard."""
    return EpisodeRing(
        episode_return=jnp.zeros((num_shards, size), jnp.float32),
        episode_length=jnp.zeros((num_shards, size), jnp.int32),
        env_index=jnp.zeros((num_shards, size), jnp.int32),
        env_step=jnp.zeros((num_shards, size), jnp.uint32),
        count=jnp.zeros((num_shards,), jnp.uint32),
    )


def empty_fault_log(num_shards: int) -> FaultLog:
    """No faults yet."""
    return FaultLog(
        count=jnp.zeros((num_shards,), jnp.uint32),
        env_index=jnp.full((num_shards,), -1, jnp.int32),
        env_step=jnp.zeros((num_shards,), jnp.uint32),
        kind=jnp.zeros((num_shards,), jnp.int32),
    )


def push_episodes(
    ring: EpisodeRing, record: EpisodeRecord, env_index: Int[Array, " B"]
) -> EpisodeRing:
    """The ring after a rollout: each place holds the newest episode whose ordinal belongs there."""
    shards, size = ring.env_index.shape
    steps = record.ended.shape[0]
    envs = jnp.broadcast_to(env_index[None], (steps, env_index.shape[0]))

    def of_shard(
        old: EpisodeRing,
        ended: Bool[Array, " N"],
        returns: Float[Array, " N"],
        lengths: Int[Array, " N"],
        index: Int[Array, " N"],
        step: UInt32[Array, " N"],
    ) -> EpisodeRing:
        ordinal = jnp.cumsum(ended.astype(jnp.int32))
        count = old.count + ordinal[-1].astype(jnp.uint32)
        place = jnp.arange(size, dtype=jnp.uint32)
        # The newest ordinal below `count` that is congruent to the place; older ones stay.
        age = (count - 1 - place) % jnp.uint32(size)
        is_new = age < ordinal[-1].astype(jnp.uint32)
        nth = ordinal[-1] - age.astype(jnp.int32)
        row = find(ordinal, jnp.maximum(nth, 1))
        row = jnp.minimum(row, ended.shape[0] - 1)
        return EpisodeRing(
            episode_return=jnp.where(is_new, returns[row], old.episode_return),
            episode_length=jnp.where(is_new, lengths[row], old.episode_length),
            env_index=jnp.where(is_new, index[row], old.env_index),
            env_step=jnp.where(is_new, step[row], old.env_step),
            count=count,
        )

    return jax.vmap(of_shard)(
        ring,
        by_shard(record.ended, shards),
        by_shard(record.episode_return, shards),
        by_shard(record.episode_length, shards),
        by_shard(envs, shards),
        by_shard(record.env_step, shards),
    )


def push_faults(log: FaultLog, record: EpisodeRecord, env_index: Int[Array, " B"]) -> FaultLog:
    """The log after a rollout."""
    shards = log.count.shape[0]
    steps = record.fault.shape[0]
    fault = by_shard(record.fault, shards)
    bad = fault != NO_FAULT
    envs = by_shard(jnp.broadcast_to(env_index[None], (steps, env_index.shape[0])), shards)
    step = by_shard(record.env_step, shards)
    last = bad.shape[1] - 1 - jnp.argmax(bad[:, ::-1], axis=1)
    any_bad = bad.any(axis=1)
    shard = jnp.arange(shards)
    return FaultLog(
        count=log.count + bad.sum(axis=1, dtype=jnp.uint32),
        env_index=jnp.where(any_bad, envs[shard, last], log.env_index),
        env_step=jnp.where(any_bad, step[shard, last], log.env_step),
        kind=jnp.where(any_bad, fault[shard, last], log.kind),
    )


_INSTEAD = {
    "total_reward": "get_return() is it",
    "length": "len(episode) is it",
    "get_length": "len(episode) is it",
}


@dataclasses.dataclass(frozen=True)
class EndedEpisode:
    """One episode that ended, as `on_episode_end` receives it.

    It answers to what RLlib's episodes have, as far as there are data: its return and its length.
    """

    episode_return: float
    episode_length: int
    env_index: int
    env_step: int

    is_done = True

    def get_return(self) -> float:
        """The sum of its rewards."""
        return self.episode_return

    def __len__(self) -> int:
        return self.episode_length

    def env_steps(self) -> int:
        """Its length."""
        return self.episode_length

    def agent_steps(self) -> int:
        """Its length: there is one agent."""
        return self.episode_length

    def __getattr__(self, name: str) -> NoReturn:
        instead = _INSTEAD.get(name)
        if name.startswith("__") or not hasattr(type(self), "__dataclass_fields__"):
            raise AttributeError(name)
        fields = ", ".join(field.name for field in dataclasses.fields(self))
        raise AttributeError(
            f"An episode of the compiled program has no '{name}': "
            + (
                instead
                or f"it has {fields}, get_return() and len(); placement='host' records steps"
            )
            + "."
        )
