"""Settings of importers, and the conversion of foreign values to those of the spaces."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

MAX_GROUP_BYTES = 2**30
"""Default limit of the bytes that a file declares to be read at once."""


Spaces = tuple[gymnasium.Space[Any] | None, gymnasium.Space[Any] | None]
"""Observation space and action space, each None where a file does not say it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportSettings:
    """Facts that foreign files do not hold.

    Attributes:
        observation_space: Space of the observations.
        action_space: Space of the environment's actions.
        schema: Column of the file by RLlib's name of it, for those with another name.
        ignore_final_observation: Whether the last step of an episode that was not terminated is
            dropped where the observation after it is not recorded.
        max_group_bytes: Limit of the bytes that a file declares to be read at once.
    """

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    schema: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    ignore_final_observation: bool = False
    max_group_bytes: int = MAX_GROUP_BYTES


def unknown_versions(length: int) -> np.ndarray:
    """Return the versions of steps of which nothing is known."""
    return np.full(length, -1, np.int64)
