"""Episodes of a config's recorded data that are held out from training."""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxrl.assembly.dataset_connectors import apply_connectors
from jaxrl.assembly.offline import concatenate_parts, prepare_parts
from jaxrl.buffers.dataset import Dataset
from jaxrl.connectors.pipelines import LearnerPipeline
from jaxrl.core.types import PyTree
from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import DataError
from jaxrl.offline.held_out import hash_episode
from jaxrl.offline.recorded import RecordedData
from jaxrl.training.rollout import PolicyStep

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


def load_held_out(
    config: "AlgorithmConfig",
    data: Sequence[RecordedData],
    held_out: Sequence[Sequence[EpisodePart]],
    policy_step: PolicyStep,
    learner_pipeline: LearnerPipeline,
    num_rows: int | None = None,
    statistics: PyTree | None = None,
) -> Dataset:
    """Lay the held-out episodes into a dataset of NumPy arrays, as they would be learned from.

    Episodes are in the order of their hashes, which does not depend on that of the files.

    Args:
        config: Config with an evaluation on them.
        data: Recorded data by source.
        held_out: Held-out parts of each source, as they are recorded.
        policy_step: Policy with its connectors.
        learner_pipeline: Connectors of rewards.
        num_rows: Number of rows that are needed; None for all.
        statistics: Statistics of the observation connectors, which those that look back are used
            with; None for those of the held-out rows.

    Raises:
        DataError: If no row is left of them.
    """
    parts: list[EpisodePart] = []
    for source, recorded in zip(data, held_out, strict=True):
        parts += prepare_parts(config, source, recorded, policy_step)
    if not parts:
        raise DataError(
            f"{data[0].files[0]} has no rows among the held-out episodes, after input_transform and the "
            "connectors: raise offline_evaluation_split, or leave offline_evaluation_interval out."
        )
    dataset = concatenate_parts(_take_rows(sort_episodes(parts), num_rows))
    return apply_connectors(config, dataset, policy_step, learner_pipeline, statistics)


def sort_episodes(parts: Sequence[EpisodePart]) -> list[EpisodePart]:
    """Return parts in the order of the hashes of their episodes, those of one side by side."""
    return sorted(parts, key=lambda part: (hash_episode(part.episode_id), part.episode_id))


def _take_rows(parts: Sequence[EpisodePart], num_rows: int | None) -> list[EpisodePart]:
    """Return the first parts with at least so many rows; all if there are fewer."""
    if num_rows is None:
        return list(parts)
    before = itertools.accumulate(map(len, parts), initial=0)
    return [part for part, rows in zip(parts, before, strict=False) if rows < num_rows]
