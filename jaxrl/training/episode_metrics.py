"""Metrics of episodes from fetched rings and sums."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from jaxrl.core.types import Array
from jaxrl.metrics import EMPTY_EPISODE_METRICS
from jaxrl.training.episode_stats import EndedEpisode, EpisodeStatsBuffer, EpisodeSums


def collect_episodes(
    ring: EpisodeStatsBuffer, counts_before: np.ndarray
) -> tuple[list[EndedEpisode], int]:
    """Collect the episodes that ended since `counts_before`.

    Returns:
        Episodes in order of time, and the number of episodes that the ring had already overwritten.
    """
    size = ring.env_index.shape[1]
    episodes: list[EndedEpisode] = []
    places: list[tuple[int, int]] = []
    missed = 0
    for shard, (before, after) in enumerate(zip(counts_before, ring.count, strict=True)):
        fresh = int((int(after) - int(before)) % 2**32)
        missed += max(0, fresh - size)
        first = int(after) - min(fresh, size)
        for ordinal in range(first, int(after)):
            place = ordinal % size
            places.append((shard, place))
            episodes.append(
                EndedEpisode(
                    float(ring.episode_return[shard, place]),
                    int(ring.episode_length[shard, place]),
                    int(ring.env_index[shard, place]),
                    int(ring.env_step[shard, place]),
                )
            )
    if not episodes:
        return episodes, missed
    at = tuple(np.asarray(places).T)
    order = np.lexsort((ring.env_index[at], ring.row[at], _count_since(ring.arrival[at])))
    return [episodes[i] for i in order], missed


def add_agents(
    episodes: Sequence[EndedEpisode],
    rings: EpisodeStatsBuffer,
    patterns: Sequence[Mapping[str, str]],
) -> tuple[list[EndedEpisode], int]:
    """Add the returns and lengths of their agents to episodes.

    An agent may end several times in an episode, so that its ring goes back less far than that of
    episodes. Those that it may not cover are left out.

    Args:
        episodes: Episodes of environments.
        rings: Latest agent-episodes of each agent, `[A, G, K]`.
        patterns: Module of each agent, in their order, in copies of the environment.

    Returns:
        The episodes, and the number of those that are left out.
    """
    agents = list(patterns[0])
    size = rings.env_index.shape[2]
    steps, count = np.asarray(rings.env_step), np.asarray(rings.count)
    oldest = np.take_along_axis(steps, count[:, :, None] % size, axis=2)[..., 0]
    held = np.arange(size)[None, None] < rings.count[:, :, None]
    found: list[EndedEpisode] = []
    for episode in episodes:
        reach = (np.uint32(episode.env_step) - oldest).astype(np.int32)
        if ((count > size) & (reach < len(episode))).any():
            continue
        ago = (np.uint32(episode.env_step) - rings.env_step).astype(np.uint32)
        of_it = held & (rings.env_index == episode.env_index) & (ago < len(episode))
        took_part = [i for i in range(len(agents)) if of_it[i].any()]
        mapping = patterns[episode.env_index % len(patterns)]
        lengths = {agents[i]: int(rings.episode_length[i][of_it[i]].sum()) for i in took_part}
        returns = {agents[i]: float(rings.episode_return[i][of_it[i]].sum()) for i in took_part}
        found.append(
            dataclasses.replace(
                episode, agent_returns=returns, agent_lengths=lengths, mapping=mapping
            )
        )
    return found, len(episodes) - len(found)


def compute_episode_metrics(
    ring: EpisodeStatsBuffer, sums: EpisodeSums, smoothing: int
) -> dict[str, Any]:
    """Compute statistics over the last `smoothing` episodes.

    If more episodes ended in the iteration, they are over all of these. Until an episode has ended
    they are NaN.
    """
    count = int(sums.count.sum())
    lifetime = int(ring.count.astype(np.int64).sum())
    result: dict[str, Any] = {"num_episodes": count, "num_episodes_lifetime": lifetime}
    if count >= smoothing:
        low, high = sums.min_return.min(), sums.max_return.max()
        mean_return = sums.sum_return.sum(dtype=np.float64) / count
        mean_length = sums.sum_length.sum(dtype=np.float64) / count
        shortest, longest = sums.min_length.min(), sums.max_length.max()
    elif lifetime:
        returns, lengths = _latest_episodes(ring, smoothing)
        low, high, mean_return = returns.min(), returns.max(), returns.mean(dtype=np.float64)
        shortest, longest, mean_length = lengths.min(), lengths.max(), lengths.mean()
    else:
        return {**result, **EMPTY_EPISODE_METRICS}
    return {
        **result,
        "episode_return_mean": float(mean_return),
        "episode_return_min": float(low),
        "episode_return_max": float(high),
        "episode_len_mean": float(mean_length),
        "episode_len_min": int(shortest),
        "episode_len_max": int(longest),
    }


def _latest_episodes(ring: EpisodeStatsBuffer, number: int) -> tuple[Any, Any]:
    """Return the returns and lengths of the newest episodes of all shards together."""
    size = ring.env_index.shape[1]
    held = np.arange(size)[None, :] < np.minimum(ring.count, size)[:, None]
    newest = np.lexsort((-ring.row[held], -_count_since(ring.arrival[held])))[:number]
    return ring.episode_return[held][newest], ring.episode_length[held][newest]


def _count_since(arrival: Array) -> np.ndarray:
    """Return the signed steps of the run since any one of the episodes; counts begin anew at 0."""
    return (np.asarray(arrival) - np.asarray(arrival)[-1:]).astype(np.int32)


def add_sums(before: EpisodeSums | None, sums: EpisodeSums) -> EpisodeSums:
    """Return the sums of two parts; the first may be None, of no episodes."""
    return sums if before is None else _merge_sums(before, sums)


def _merge_sums(a: EpisodeSums, b: EpisodeSums) -> EpisodeSums:
    low = cast("Callable[..., Array]", np.minimum)
    high = cast("Callable[..., Array]", np.maximum)
    return EpisodeSums(
        count=a.count + b.count,
        sum_return=a.sum_return + b.sum_return,
        sum_length=a.sum_length + b.sum_length,
        min_return=low(a.min_return, b.min_return),
        max_return=high(a.max_return, b.max_return),
        min_length=low(a.min_length, b.min_length),
        max_length=high(a.max_length, b.max_length),
    )
