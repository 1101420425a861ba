"""Episodes of a config's recorded data that are held out from training."""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxrl.assembly.offline import apply_connectors, concatenate_parts, merge_parts, prepare_parts
from jaxrl.buffers.dataset import Dataset
from jaxrl.connectors.pipelines import LearnerPipeline
from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import ConfigError, DataError
from jaxrl.offline.held_out import hash_episode, is_held_out
from jaxrl.offline.recorded import RecordedData
from jaxrl.training.rollout import PolicyStep

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


def read_held_out(
    config: "AlgorithmConfig", data: Sequence[RecordedData]
) -> list[list[EpisodePart]]:
    """Read the parts of the episodes that are held out of each source, as they are recorded.

    Args:
        config: Config with an evaluation on them.
        data: Recorded data by source.

    Raises:
        ConfigError: If no episode is held out, or none is left.
        DataError: If the data are damaged, or do not say which episode a row is of.
    """
    settings = config.evaluation_settings
    share, kept, left = settings.held_out_share, list[list[EpisodePart]](), set[str]()
    for source in data:
        if not source.has_past:
            raise DataError(
                f"{source.files[0]} does not say the episode of each row, by which episodes are held "
                "out (offline_evaluation_interval): name its column in input_read_schema, "
                "{'eps_id': ...}, or leave the interval out."
            )
        held_out: list[EpisodePart] = []
        for part in source.iter_parts():
            if is_held_out(part.episode_id, share):
                held_out.append(part)
            else:
                left.add(part.episode_id)
        kept.append(held_out)
    number = len({part.episode_id for parts in kept for part in parts})
    if not number or not left:
        total = number + len(left)
        problem, advice = ("none", "raise") if not number else ("all", "lower")
        raise ConfigError(
            f"offline_evaluation_split={share} holds out {problem} of the {total} recorded episodes: "
            f"{advice} it, record more episodes, or leave offline_evaluation_interval out."
        )
    return kept


def load_held_out(
    config: "AlgorithmConfig",
    data: Sequence[RecordedData],
    policy_step: PolicyStep,
    learner_pipeline: LearnerPipeline,
    num_rows: int | None = None,
) -> Dataset:
    """Read the held-out episodes into a dataset of NumPy arrays, as they would be learned from.

    Episodes are in the order of their hashes, which does not depend on that of the files.

    Args:
        config: Config with an evaluation on them.
        data: Recorded data by source.
        policy_step: Policy with its connectors.
        learner_pipeline: Connectors of rewards.
        num_rows: Number of rows that are needed; None for all.

    Raises:
        JaxrlError: If there are none, or the data are damaged.
    """
    parts: list[EpisodePart] = []
    for source, recorded in zip(data, read_held_out(config, data), strict=True):
        parts += prepare_parts(config, source, recorded, policy_step)
    if not parts:
        raise DataError(
            f"{data[0].files[0]} has no rows among the held-out episodes, after input_transform and the "
            "connectors: raise offline_evaluation_split, or leave offline_evaluation_interval out."
        )
    return apply_connectors(
        concatenate_parts(_take_rows(sort_episodes(parts), num_rows)), policy_step, learner_pipeline
    )


def sort_episodes(parts: Sequence[EpisodePart]) -> list[EpisodePart]:
    """Return parts in the order of the hashes of their episodes, those of one side by side."""
    merged = merge_parts(parts)
    return sorted(merged, key=lambda part: (hash_episode(part.episode_id), part.episode_id))


def _take_rows(parts: Sequence[EpisodePart], num_rows: int | None) -> list[EpisodePart]:
    """Return the first parts with at least so many rows; all if there are fewer."""
    if num_rows is None:
        return list(parts)
    before = itertools.accumulate(map(len, parts), initial=0)
    return [part for part, rows in zip(parts, before, strict=False) if rows < num_rows]
