"""Recorded data of CartPole and others, for tests of learning from them."""

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from jaxrl import EpisodeWriter
from jaxrl.episodes.packing import EpisodePart

OBS_SPACE = spaces.Box(-np.inf, np.inf, (2,), np.float32)
ACTION_SPACE = spaces.Discrete(3)


def make_part(
    number: int,
    length: int,
    *,
    terminated: bool = False,
    truncated: bool = False,
    action_space: gymnasium.Space[Any] = ACTION_SPACE,
    **changes: Any,
) -> EpisodePart:
    """Make an episode with normal observations and random actions."""
    rng = np.random.default_rng(number)
    if isinstance(action_space, spaces.Box):
        shape = (length, *action_space.shape)
        action = rng.uniform(action_space.low, action_space.high, shape).astype(np.float32)
    else:
        assert isinstance(action_space, spaces.Discrete)
        action = rng.integers(int(action_space.n), size=length).astype(np.int32)
    part = EpisodePart(
        episode_id=str(number),
        t_started=0,
        obs=rng.normal(size=(length + 1, 2)).astype(np.float32),
        action=action,
        reward=rng.normal(size=length).astype(np.float32),
        extras={},
        version=np.zeros(length, np.int64),
        terminated=terminated,
        truncated=truncated,
        is_cut=not (terminated or truncated),
    )
    return dataclasses.replace(part, **changes)


def make_parts(
    number: int = 6, action_space: gymnasium.Space[Any] = ACTION_SPACE
) -> list[EpisodePart]:
    """Make episodes of 20 to 25 steps that end in every way."""
    return [
        make_part(i, 20 + i, terminated=i % 3 == 0, truncated=i % 3 == 1, action_space=action_space)
        for i in range(number)
    ]


def write_data(
    folder: Path,
    parts: list[EpisodePart] | None = None,
    action_space: gymnasium.Space[Any] = ACTION_SPACE,
    **arguments: Any,
) -> str:
    """Write parts to a folder and return its path."""
    parts = make_parts(action_space=action_space) if parts is None else parts
    with EpisodeWriter(folder, OBS_SPACE, action_space, **arguments) as writer:
        writer.add_parts(parts)
    return str(folder)
