"""Independent copies of a gymnasium environment as one Python environment of several agents."""

import inspect
from typing import Any

import numpy as np

from jaxrl.envs.adapters.barrier import derive_seed
from jaxrl.envs.adapters.gymnasium import create_env
from jaxrl.envs.context import EnvContext
from jaxrl.envs.host import MadeHostEnv
from jaxrl.envs.multi.base import ALL
from jaxrl.envs.multi.host_env import AgentDict, MultiAgentEnv
from jaxrl.envs.params import check_count
from jaxrl.envs.registry import EnvSpec, make
from jaxrl.errors import EnvError


class HostCopies(MultiAgentEnv):
    """Base class of what `make_multi_agent` returns for a Python environment: an agent in each copy.

    Agents are the ints from 0 on, as in RLlib. An agent ends with its own copy, and the episode
    with the last of them. Agent 0 has the seed of the reset itself; the other copies have seeds of
    their own, so that they differ.
    """

    copied: EnvSpec = ""

    def __init__(self, config: EnvContext | None = None) -> None:
        """Make the copies.

        Args:
            config: `num_agents` (default: 1), and the copied environment's own arguments.

        Raises:
            EnvError: If the number is not positive, or the environment cannot be made.
        """
        context = EnvContext() if config is None else config
        arguments = dict(context)
        count = arguments.pop("num_agents", 1)
        check_count("num_agents", count)
        made = make(self.copied, arguments)
        if not isinstance(made, MadeHostEnv):
            raise EnvError(f"{made.id} is written in JAX with these arguments, and not without.")
        if isinstance(context, EnvContext):
            inner = context.copy_with_overrides(arguments)
        else:
            inner = EnvContext(arguments)
        self.envs = [create_env(made.id, made.create, inner) for _ in range(count)]
        self.agents = self.possible_agents = list(range(count))
        super().__init__()
        self.observation_spaces = {i: env.observation_space for i, env in enumerate(self.envs)}
        self.action_spaces = {i: env.action_space for i, env in enumerate(self.envs)}
        self.render_mode = self.envs[0].render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AgentDict, AgentDict]:
        super().reset(seed=seed)
        obs: AgentDict = {}
        infos: AgentDict = {}
        for index, env in enumerate(self.envs):
            own = seed if seed is None or index == 0 else derive_seed(seed, index)
            obs[index], infos[index] = env.reset(seed=own, options=options)
        self.agents = list(self.possible_agents)
        return obs, infos

    def step(
        self, action_dict: AgentDict
    ) -> tuple[AgentDict, AgentDict, AgentDict, AgentDict, AgentDict]:
        obs: AgentDict = {}
        rewards: AgentDict = {}
        terminateds: AgentDict = {}
        truncateds: AgentDict = {}
        infos: AgentDict = {}
        for agent, action in action_dict.items():
            result = self.envs[agent].step(action)
            obs[agent], rewards[agent], terminateds[agent], truncateds[agent] = result[:4]
            infos[agent] = result[4]
        ended = {a for a in action_dict if terminateds[a] or truncateds[a]}
        self.agents = [agent for agent in self.agents if agent not in ended]
        over, by_itself = not self.agents, any(terminateds.values())
        terminateds[ALL] = over and by_itself
        truncateds[ALL] = over and not by_itself
        return obs, rewards, terminateds, truncateds, infos

    def render(self) -> np.ndarray | None:
        """Return the copies' pictures side by side, None if they have none."""
        frames = [frame for env in self.envs if isinstance(frame := env.render(), np.ndarray)]
        return np.concatenate(frames, axis=1) if len(frames) == len(self.envs) else None

    def close(self) -> None:
        for env in self.envs:
            env.close()


def make_host_class(env: EnvSpec, env_id: str) -> type[HostCopies]:
    """Return the class of copies of a Python environment."""
    attributes = {
        "__doc__": f"Independent copies of {env_id}.",
        "copied": staticmethod(env) if inspect.isfunction(env) else env,
    }
    return type("HostMultiAgentCopies", (HostCopies,), attributes)
