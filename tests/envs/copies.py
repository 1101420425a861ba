"""Copies of small gymnasium environments, and the steps that they make."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from jaxrl.envs import EnvContext, MadeHostEnv, make
from jaxrl.envs.adapters.barrier import make_specs
from jaxrl.envs.adapters.gym_vector import GymVector
from jaxrl.envs.host import HostStep, HostVector
from jaxrl.envs.host_vector import make_gym_vector

CRASHING = "jaxrl:crashing-cartpole-v0"
MODES = ["sync", "async"]


def host(*arguments: Any, **keywords: Any) -> MadeHostEnv:
    made = make(*arguments, **keywords)
    assert isinstance(made, MadeHostEnv)
    return made


def copies(
    made: MadeHostEnv, count: int, mode: str, autoreset: AutoresetMode | None, restart: bool = False
) -> GymVector:
    context = EnvContext(made.env_config)
    plans = make_specs(made, context, count, 0, seed=1, restart_failed=restart)
    return make_gym_vector(plans, mode=mode, autoreset_mode=autoreset)


class Counter(gymnasium.Env[Any, Any]):
    """Counts its steps and ends at the fifth; every episode has a number of its own."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, config: EnvContext) -> None:
        self.context = config
        self.episode, self.count = 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.episode, self.count = self.episode + 1, 0
        return self._obs(), {"reset": self.episode}

    def step(self, action: Any) -> Any:
        self.count += 1
        return self._obs(), float(self.count), self.count == 5, False, {"count": self.count}

    def _obs(self) -> np.ndarray:
        return np.array([self.episode, self.count], np.float32)


def step_rows(vector: HostVector, count: int) -> list[HostStep]:
    action = np.zeros(vector.num_envs, np.int32)
    return [vector.step(action) for _ in range(count)]
