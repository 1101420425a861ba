"""From the rows of a rollout to the episodes, or parts of them, that they are of."""

from collections.abc import Iterator
from typing import Any

import gymnasium
import jax
import numpy as np
from jaxtyping import Bool, Int

from jaxrl.core.types import PyTree, Rollout
from jaxrl.episodes.single_agent import SingleAgentEpisode


def episodes_from_rollout(
    rollout: Rollout,
    *,
    t_started: Int[np.ndarray, " B"] | None = None,
    observation_space: gymnasium.Space[Any] | None = None,
    action_space: gymnasium.Space[Any] | None = None,
) -> list[SingleAgentEpisode]:
    """The episodes of a rollout, environment by environment, in order of time, as arrays.

    One that goes on after the last row is not done; one that a fault ended is neither, and its
    faulty row is left out.

    Args:
        rollout: `[T, B, ...]`, NumPy, or of the compiled loop.
        t_started: Steps that each environment's first episode had before the first row.
        observation_space: For the accessors of the episodes.
        action_space: Likewise.
    """
    host = jax.tree.map(np.asarray, rollout)
    episodes: list[SingleAgentEpisode] = []
    for column in range(host.mask.shape[1]):
        for first, end in _parts(host, column):
            begins = bool(host.is_first[first, column]) or t_started is None or first > 0

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
                    t_started=0 if begins or t_started is None else int(t_started[column]),
                    len_lookback_buffer=0,
                )
            )
    return episodes


def _parts(rollout: Any, column: int) -> Iterator[tuple[int, int]]:
    """First and end of each run of transitions of one episode."""
    mask: Bool[np.ndarray, " T"] = rollout.mask[:, column]
    over = (rollout.terminated[:, column] | rollout.truncated[:, column]) & mask
    first: int | None = None
    for t in range(len(mask)):
        if first is not None and (not mask[t] or rollout.is_first[t, column]):
            yield first, t
            first = None
        if mask[t] and first is None:
            first = t
        if first is not None and over[t]:
            yield first, t + 1
            first = None
    if first is not None:
        yield first, len(mask)
