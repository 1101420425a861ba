"""Python environments of several agents for tests of training."""

from typing import Any

import gymnasium
import numpy as np

from jaxrl.envs.multi.host_env import MultiAgentEnv

AGENTS = ("left", "right")


class Forgetful(MultiAgentEnv):
    """Two agents that act in turns, with draws, whose state cannot be saved.

    An agent is paid 1 for the action that it observes. It is over after `length` steps, in turns
    terminated and truncated.
    """

    possible_agents = AGENTS
    observation_spaces = dict.fromkeys(AGENTS, gymnasium.spaces.Box(-2.0, 20.0, (3,), np.float32))
    action_spaces = dict.fromkeys(AGENTS, gymnasium.spaces.Discrete(2))

    def __init__(self, config: Any = None) -> None:
        super().__init__()
        config = config or {}
        self.length = int(config.get("length", 7))
        self.fails_at = config.get("fails_at")
        self.bad_reward_at = config.get("bad_reward_at")
        self.row = getattr(config, "vector_index", 0)
        self.time = self.number = self.wanted = self.total_steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.time, self.number = 0, self.number + 1
        return self._observe(), {}

    def _observe(self) -> dict[str, Any]:
        """Draw what the next agent is to do, and show it to it."""
        self.wanted = int(self.np_random.integers(2))
        return {AGENTS[self.time % 2]: np.asarray([self.wanted, self.time, self.number % 2], "f4")}

    def step(self, action_dict: dict[Any, Any]) -> Any:
        self.time, self.total_steps = self.time + 1, self.total_steps + 1
        if self.row == 1 and self.total_steps == self.fails_at:
            raise RuntimeError("the simulator is gone")
        reward = {agent: float(action == self.wanted) for agent, action in action_dict.items()}
        if self.row == 1 and self.total_steps == self.bad_reward_at:
            reward = dict.fromkeys(action_dict, float("nan"))
        obs, over = self._observe(), self.time == self.length
        ends, cut = over and self.number % 2 == 0, over and self.number % 2 == 1
        if cut:
            obs = {agent: np.asarray([0.0, self.time, -1.0], "f4") for agent in AGENTS}
        return obs, reward, {"__all__": ends}, {"__all__": cut}, {}


class Duel(Forgetful):
    """The same with a state that can be saved."""

    def get_state(self) -> Any:
        return np.asarray([self.time, self.number, self.wanted, self.total_steps])

    def set_state(self, state: Any) -> None:
        self.time, self.number, self.wanted, self.total_steps = map(int, state)


class CartPoles(MultiAgentEnv):
    """CartPoles with an agent each, as RLlib's MultiAgentCartPole."""

    def __init__(self, config: Any = None) -> None:
        super().__init__()
        number = (config or {}).get("num_agents", 2)
        self.poles = [gymnasium.make("CartPole-v1") for _ in range(number)]
        self.agents = self.possible_agents = list(range(number))
        self.observation_spaces = {i: pole.observation_space for i, pole in enumerate(self.poles)}
        self.action_spaces = {i: pole.action_space for i, pole in enumerate(self.poles)}
        self.ended: set[int] = set()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.ended = set()
        seeds = [None if seed is None else seed + i for i in self.agents]
        return {i: self.poles[i].reset(seed=seeds[i])[0] for i in self.agents}, {}

    def step(self, action_dict: dict[Any, Any]) -> Any:
        obs, reward, terminated, truncated = {}, {}, {}, {}
        for i, action in action_dict.items():
            obs[i], reward[i], terminated[i], truncated[i], _ = self.poles[i].step(action)
            if terminated[i] or truncated[i]:
                self.ended.add(i)
        terminated["__all__"] = len(self.ended) == len(self.poles)
        truncated["__all__"] = False
        return obs, reward, terminated, truncated, {}
