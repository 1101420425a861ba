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


class Streams(MultiAgentEnv):
    """Agents that act, come, leave, die and are paid at random times, whatever they do.

    An observation is (seed of the copy, episode, agent, time), so that a row tells where it is from.
    """

    possible_agents = ("a", "b", "c")
    observation_spaces = dict.fromkeys(
        possible_agents, gymnasium.spaces.Box(0.0, 1e6, (4,), np.float32)
    )
    action_spaces = dict.fromkeys(possible_agents, gymnasium.spaces.Discrete(3))

    def __init__(self, config: Any = None) -> None:
        super().__init__()
        self.origin = self.number = self.time = 0
        self.here: list[str] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        if seed is not None:
            self.origin, self.number = seed % 100_000, 0
        self.number, self.time = self.number + 1, 0
        self.here = [agent for agent in self.possible_agents if self._draw(agent, 0) < 0.6]
        self.here = self.here or ["a"]
        return {agent: self._observe(agent) for agent in self.here}, {}

    def _draw(self, agent: str, what: int) -> float:
        place = self.origin, self.number, self.time, self.possible_agents.index(agent), what
        return float(np.random.default_rng(place).random())

    def _observe(self, agent: str) -> Any:
        index = self.possible_agents.index(agent)
        return np.asarray([self.origin, self.number, index, self.time], np.float32)

    def step(self, action_dict: dict[Any, Any]) -> Any:
        self.time += 1
        agents = self.possible_agents
        over, cut = self._draw("a", 1) < 0.06, self._draw("a", 2) < 0.06
        gone = {agent: self._draw(agent, 3) for agent in self.here}
        terminated = {agent: True for agent, draw in gone.items() if draw < 0.1}
        truncated = {agent: True for agent, draw in gone.items() if 0.1 <= draw < 0.2}
        acts = [a for a in agents if a not in {**terminated, **truncated}]
        acts = [agent for agent in acts if self._draw(agent, 4) < 0.5]
        reward = {agent: self._draw(agent, 5) for agent in self.here}
        ended = [*self.here] if over or cut else [*terminated, *truncated]
        obs = {a: self._observe(a) for a in agents if a in acts or a in ended}
        self.here = [a for a in agents if (a in self.here and a not in ended) or a in acts]
        ends = {**terminated, "__all__": over}, {**truncated, "__all__": cut and not over}
        return obs, reward, *ends, {}

    def get_state(self) -> Any:
        here = [agent in self.here for agent in self.possible_agents]
        return np.asarray([self.origin, self.number, self.time, *here])

    def set_state(self, state: Any) -> None:
        self.origin, self.number, self.time = (int(x) for x in state[:3])
        self.here = [
            a for a, is_here in zip(self.possible_agents, state[3:], strict=True) if is_here
        ]


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


class Takeaway(MultiAgentEnv):
    """Two players take one or two of five matches in turns; who takes the last one wins."""

    def __init__(self, config: Any = None) -> None:
        self.agents = self.possible_agents = [0, 1]
        super().__init__()
        self.observation_spaces = dict.fromkeys(self.agents, gymnasium.spaces.Discrete(6))
        self.action_spaces = dict.fromkeys(self.agents, gymnasium.spaces.Discrete(2))
        self.left, self.turn = 5, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.left, self.turn = 4 + int(self.np_random.integers(2)), 0
        return {0: self.left}, {}

    def step(self, action_dict: dict[Any, Any]) -> Any:
        (action,) = action_dict.values()
        self.left = max(self.left - 1 - int(action), 0)
        winner, self.turn = self.turn, 1 - self.turn
        over = self.left == 0
        rewards = {winner: 1.0, 1 - winner: -1.0} if over else {}
        obs = dict.fromkeys(self.agents, self.left) if over else {self.turn: self.left}
        return obs, rewards, {"__all__": over}, {"__all__": False}, {}


class Pennies(MultiAgentEnv):
    """Two players act at once: the first one wins if both choose the same, else the second."""

    def __init__(self, config: Any = None) -> None:
        self.agents = self.possible_agents = [0, 1]
        super().__init__()
        self.observation_spaces = self.action_spaces = dict.fromkeys(
            self.agents, gymnasium.spaces.Discrete(2)
        )

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        return dict.fromkeys(self.agents, int(self.np_random.integers(2))), {}

    def step(self, action_dict: dict[Any, Any]) -> Any:
        sign = 1.0 if action_dict[0] == action_dict[1] else -1.0
        over = {"__all__": True}
        return dict.fromkeys(self.agents, 0), {0: sign, 1: -sign}, over, {"__all__": False}, {}
