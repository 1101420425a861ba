"""Environments of several agents in Python whose every return value is written down."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from jaxrl.envs import MultiAgentEnv

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
ONGOING = {"__all__": False}


def at(value: float = 0.0) -> np.ndarray:
    """Return an observation of `BOX`."""
    return np.full((2,), value, np.float32)


class Scripted(MultiAgentEnv):
    """Plays back results; agents are "a" and "b", with an observation `BOX` and two actions."""

    def __init__(
        self, start: Any = None, steps: Sequence[Any] = (), agents: Sequence[Any] = ("a", "b")
    ) -> None:
        self.possible_agents = list(agents)
        self.observation_spaces = dict.fromkeys(agents, BOX)
        self.action_spaces = dict.fromkeys(agents, spaces.Discrete(2))
        super().__init__()
        self.start = ({agent: at() for agent in agents}, {}) if start is None else start
        self.steps, self.actions = list(steps), []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = list(self.steps)
        return self.start

    def step(self, action_dict: dict[Any, Any]) -> Any:
        self.actions.append(action_dict)
        return self.left.pop(0)


class Turns(MultiAgentEnv):
    """Two agents with int ids in turns for five steps; a reward of 1 to who acted."""

    num_steps = 5

    def __init__(self, config: Any = None) -> None:
        self.config = config
        self.possible_agents = [0, 1]
        super().__init__()
        self.observation_space = BOX
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return {0: self.draw()}, {0: {"first": True}}

    def step(self, action_dict: dict[int, Any]) -> Any:
        (actor,) = action_dict
        self.count += 1
        over = self.count >= self.num_steps
        obs = {1 - actor: self.draw()}
        return obs, {actor: 1.0}, {"__all__": over}, ONGOING, {"__common__": {"count": self.count}}

    def draw(self) -> np.ndarray:
        return self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)

    def get_state(self) -> Any:
        return np.asarray(self.count)

    def set_state(self, state: Any) -> None:
        self.count = int(state)
