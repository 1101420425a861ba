"""Open episodes of a client, and the parts of them that it sends.

This file of jaxrl-link imports the standard library and NumPy alone, and is copied to simulators.
"""

from __future__ import annotations

from typing import Any, NamedTuple

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

    `is_reserved` is whether a step counts already whose action is being computed.

    Args:
        episode_id: Its name.
        training_enabled: Whether to train on it.
    """

    def __init__(self, episode_id: str, training_enabled: bool) -> None:
        self.id, self.training_enabled = episode_id, training_enabled
        self.t_started, self.reward, self.last_reward = 0, 0.0, 0.0
        self.open_step: Step | None = None
        self.is_reserved = False
        self.successor: Arrays = {}
        self.steps: list[Step] = []
        self.rewards: list[float] = []

    @property
    def t(self) -> int:
        """Time step of the next action."""
        return self.t_started + len(self.steps) + (self.open_step is not None)

    @property
    def past_reward(self) -> float:
        """Reward since the latest action."""
        return self.last_reward if self.open_step is None else self.reward

    @property
    def num_open(self) -> int:
        """Number of steps to train on that cannot be sent yet: the open one, and one to act in."""
        num_open = (self.open_step is not None) + self.is_reserved
        return num_open if self.training_enabled else 0

    @property
    def num_unsent(self) -> int:
        """Number of steps to train on that have not been sent."""
        return self.num_open + (len(self.steps) if self.training_enabled else 0)


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
    episode.t_started, episode.steps, episode.rewards = episode.t_started + len(steps), [], []
    return part, arrays


def list_continued(is_open: dict[str, list[Any]], unacknowledged: list[Head]) -> dict[str, Any]:
    """Return the episodes that a server must know before the parts that are sent to it again.

    Args:
        is_open: Time step and training_enabled of each open episode.
        unacknowledged: Entries of the parts, in order.

    Returns:
        The same, from the first of these parts on, also of episodes that have ended.
    """
    continued = dict(is_open)
    for part in reversed(unacknowledged):
        name = part["episode_id"]
        if part["t_started"] or name in is_open:
            continued[name] = [part["t_started"], part["training_enabled"]]
        else:  # the first part of an episode says itself that it starts one
            continued.pop(name, None)
    return continued
