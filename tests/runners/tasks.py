"""Environments with tasks: a corridor whose length is the task, in gymnasium and in JAX."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from jaxrl.envs import TaskSettableEnv


class Corridor(TaskSettableEnv):
    """An episode of as many steps as the task says, a reward of 1 each; 3 steps without a task.

    `crash_at` raises at the step of that number, once per copy.
    """

    observation_space = spaces.Box(0.0, 1000.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, crash_at: int = 0) -> None:
        self.length, self.num_steps, self.tasks = 3, 0, []
        self.crash_at, self.total = crash_at, 0

    def sample_tasks(self, n_tasks: int) -> list[Any]:
        return [{"length": 10 + n} for n in range(n_tasks)]

    def set_task(self, task: Any) -> None:
        if task["length"] < 1:
            raise ValueError("no such corridor")
        self.tasks.append(task)
        self.length = task["length"]

    def get_task(self) -> Any:
        return {"length": self.length}

    def observe(self) -> np.ndarray:
        return np.array([self.num_steps, self.length], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.num_steps = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.num_steps, self.total = self.num_steps + 1, self.total + 1
        if self.total == self.crash_at:
            raise RuntimeError("crash")
        return self.observe(), 1.0, self.num_steps >= self.length, False, {}


class ByWrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that knows nothing of tasks."""


def wrapped(context: Any) -> gymnasium.Env[Any, Any]:
    """Two wrappers around the corridor."""
    return ByWrapper(ByWrapper(Corridor(**context)))


class OldCorridor(gymnasium.Env[Any, Any]):
    """A class of the user's own that has only `set_task`, and no base class for it."""

    observation_space = Corridor.observation_space
    action_space = Corridor.action_space

    def __init__(self) -> None:
        self.corridor = Corridor()

    def set_task(self, task: Any) -> None:
        self.corridor.set_task(task)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.corridor.reset(seed=seed)

    def step(self, action: Any) -> Any:
        return self.corridor.step(action)


def lengths_of(runner: Any) -> list[int]:
    """Lengths of the corridors of a runner in its own process."""
    return [env.unwrapped.length for env in runner.vector.get_sub_environments()]
