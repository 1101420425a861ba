"""Conversion of rollouts to episodes."""

from collections.abc import Iterator
from typing import Any

import gymnasium
import jax
import numpy as np
from jaxtyping import Array, Bool, Int

from jaxrl.core.types import PyTree, Rollout
from jaxrl.episodes.single_agent import SingleAgentEpisode


def episodes_from_rollout(
    rollout: Rollout,
    *,
    t_started: Int[np.ndarray, " B"] | None = None,
    observation_space: gymnasium.Space[Any] | None = None,
    action_space: gymnasium.Space[Any] | None = None,
) -> list[SingleAgentEpisode]:
    """Convert a rollout to episodes with array data, ordered by environment, then by time.

    Episodes that continue after the last row are not done. Neither are those that a fault ended,
    whose faulty row is omitted.

    Args:
        rollout: Rollout `[T, B, ...]` of NumPy or JAX arrays.
        t_started: Number of steps of each environment's first episode before the first row, `[B]`.
        observation_space: Observation space, for the episodes' accessors.
        action_space: Action space, for the episodes' accessors.
    """
    host = jax.tree.map(np.asarray, rollout)
    episodes: list[SingleAgentEpisode] = []
    for column in range(host.mask.shape[1]):
        for first, end in _find_segments(host, column):
            is_start = bool(host.is_first[first, column]) or t_started is None or first > 0

            def rows(tree: PyTree, start: int = first, stop: int = end, b: int = column) -> PyTree:
                return jax.tree.map(lambda leaf: leaf[start:stop, b], tree)

            observations = jax.tree.map(
                lambda a, b: np.concatenate([a, b]),
                rows(host.obs),
                rows(host.final_obs, start=end - 1),
            )
            episodes.append(
                SingleAgentEpisode(
                    observations=observations,
                    observation_space=observation_space,
                    actions=rows(host.action),
                    action_space=action_space,
                    rewards=rows(host.reward),
                    terminated=bool(host.terminated[end - 1, column]),
                    truncated=bool(host.truncated[end - 1, column]),
                    extra_model_outputs=rows(host.extras),
                    t_started=0 if is_start or t_started is None else int(t_started[column]),
                    len_lookback_buffer=0,
                )
            )
    return episodes


def _find_segments(rollout: Rollout, column: int) -> Iterator[tuple[int, int]]:
    """Yield the first row and the end of each consecutive sequence of rows of one episode."""
    mask: Bool[Array | np.ndarray, " T"] = rollout.mask[:, column]
    is_last = (rollout.terminated[:, column] | rollout.truncated[:, column]) & mask
    first: int | None = None
    for t in range(len(mask)):
        if first is not None and (not mask[t] or rollout.is_first[t, column]):
            yield first, t
            first = None
        if mask[t] and first is None:
            first = t
        if first is not None and is_last[t]:
            yield first, t + 1
            first = None
    if first is not None:
        yield first, len(mask)
