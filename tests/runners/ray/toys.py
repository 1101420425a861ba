"""Environments with one fault each, importable in actors."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from jaxrl import EnvContext


class Toy(gymnasium.Env[Any, Any]):
    """Episodes of ten steps that reward the step's number; does as its config says.

    `fault` is what happens at step `at` of worker `worker`, once if there is a file `once` to
    leave a mark in: "raise", "die", "hang", "slow" or "broken". "start" raises in the constructor.
    """

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, config: EnvContext) -> None:
        self.config = config
        self._steps = 0
        self._episode = 0
        if config.get("fault") == "start" and config.worker_index == config["worker"]:
            raise OSError("no such simulator")

    def _obs(self) -> Any:
        index = 10 * self.config.worker_index + self.config.vector_index
        return np.array([index / 100, self._episode / 100, self._steps / 1000], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._episode += 1
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._steps += 1
        reward: Any = float(self._steps % 10)
        if self._is_due():
            fault = self.config["fault"]
            if fault == "raise":
                raise ValueError("the simulator broke")
            if fault == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if fault in ("hang", "slow"):
                time.sleep(3600.0 if fault == "hang" else self.config["seconds"])
            if fault == "broken":
                reward = "high"
        return self._obs(), reward, self._steps % 10 == 0, False, {}

    def _is_due(self) -> bool:
        config = self.config
        if "at" not in config or self._steps != config["at"] or config.vector_index != 0:
            return False
        if config.worker_index != config["worker"]:
            return False
        once = config.get("once")
        if once is None:
            return True
        mark = Path(once)
        if mark.exists():
            return False
        mark.touch()
        return True
