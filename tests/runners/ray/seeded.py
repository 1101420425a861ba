"""An environment whose episodes differ by their seeds, importable in actors."""

import time
from typing import Any

import gymnasium
import numpy as np


class Seeded(gymnasium.Env[Any, Any]):
    """Five to twenty-nine steps, each rewarded by the action, plus what the seed says."""

    observation_space = gymnasium.spaces.Box(-100.0, 100.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.age, self.end = 0, int(self.np_random.integers(5, 30))
        self.prize = float(self.np_random.uniform())
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        time.sleep(self.seconds)
        self.age += 1
        return self._obs(), float(action) + self.prize, self.age == self.end, False, {}

    def _obs(self) -> Any:
        return np.array([self.age, self.prize], np.float32)
