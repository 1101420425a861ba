"""Open episodes of a client, and the parts of them that it sends.

This file of jaxrl-link imports the standard library and NumPy alone, and is copied to simulators.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .frames import Arrays, Head
from .spaces import stack_rows


class Step(NamedTuple):
    """Step whose reward and successor are not known yet."""

    obs: Arrays
    columns: Arrays
    version: int
    source: str


class Episode:
    """Episode with the steps that have not been sent.

    Args:
        episode_id: Its name.
        training_enabled: Whether to train on it.
    """

    def __init__(self, episode_id: str, training_enabled: bool) -> None:
        self.id, self.training_enabled = episode_id, training_enabled
        self.t_started, self.reward, self.last_reward = 0, 0.0, 0.0
        self.open_step: Step | None = None
        self.successor: Arrays = {}
        self.steps: list[Step] = []
        self.rewards: list[float] = []

    @property
    def t(self) -> int:
        """Number of complete steps."""
        return self.t_started + len(self.steps)


class Numbered(NamedTuple):
    """Message with a part, which is kept until it is acknowledged."""

    number: int
    frame: bytes
    part: Head


def make_part(episode: Episode, end: str | None) -> tuple[Head, Arrays]:
    """Take the complete steps out of an episode, of which there is one at least, as a part.

    Args:
        episode: Episode, which goes on after them.
        end: How it ends, as in EPISODES; None if it goes on.

    Returns:
        Entry of the head, and the arrays.
    """
    steps, rewards = episode.steps, episode.rewards
    part = {
        "episode_id": episode.id,
        "t_started": episode.t_started,
        "length": len(steps),
        "training_enabled": episode.training_enabled,
        "end": end,
        "source": steps[0].source,
    }
    last = episode.successor
    arrays: Arrays = {
        f"0.{name}": stack_rows([*(step.obs[name] for step in steps), last[name]]) for name in last
    }
    for name in steps[0].columns:
        arrays[f"0.{name}"] = stack_rows([step.columns[name] for step in steps])
    arrays["0.reward"] = np.asarray(rewards, np.float32)
    arrays["0.version"] = np.asarray([step.version for step in steps], np.int64)
    episode.t_started, episode.steps, episode.rewards = episode.t, [], []
    return part, arrays
