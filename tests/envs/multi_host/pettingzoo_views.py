"""Views of the adapters as environments of PettingZoo, by which its own tests test the adapters."""

from typing import Any

from pettingzoo import AECEnv, ParallelEnv

from jaxrl.envs import ParallelPettingZooEnv, PettingZooEnv


class ParallelView(ParallelEnv):
    """Agents act at once: an adapter's values, without the end of the episode for all."""

    metadata = {"render_modes": [], "name": "view"}
    render_mode = None

    def __init__(self, adapter: ParallelPettingZooEnv) -> None:
        self.adapter = adapter
        self.possible_agents = list(adapter.possible_agents)
        self.agents = list(adapter.agents)

    def observation_space(self, agent: str) -> Any:
        return self.adapter.observation_spaces[agent]

    def action_space(self, agent: str) -> Any:
        return self.adapter.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        found = self.adapter.reset(seed=seed, options=options)
        self.agents = list(self.adapter.agents)
        return found

    def step(self, actions: dict[str, Any]) -> Any:
        obs, rewards, *ends, infos = self.adapter.step(actions)
        over = [end.pop("__all__") for end in ends]
        self.agents = list(self.adapter.agents)
        assert any(over) == (not self.agents)
        return obs, rewards, *ends, infos


class TurnsView(AECEnv):
    """Agents act in turns; what an adapter tells of agents that ended is told one by one."""

    metadata = {"render_modes": [], "name": "view", "is_parallelizable": False}
    render_mode = None

    def __init__(self, adapter: PettingZooEnv) -> None:
        super().__init__()
        self.adapter = adapter
        self.possible_agents = list(adapter.possible_agents)
        self.agents = list(adapter.agents)

    def observation_space(self, agent: str) -> Any:
        return self.adapter.observation_spaces[agent]

    def action_space(self, agent: str) -> Any:
        return self.adapter.action_spaces[agent]

    def observe(self, agent: str) -> Any:
        own = self.latest.get(agent)
        return self.adapter.get_final_observation(agent) if own is None else own

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.latest, infos = self.adapter.reset(seed=seed, options=options)
        self.agents = list(self.adapter.agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict(self.rewards)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: infos.get(agent, {}) for agent in self.agents}
        (self.agent_selection,) = self.latest

    def step(self, action: Any) -> None:
        if self.terminations[self.agent_selection] or self.truncations[self.agent_selection]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[self.agent_selection] = 0.0
        self.latest, rewards, terminated, truncated, infos = self.adapter.step(
            {self.agent_selection: action}
        )
        over = [end.pop("__all__") for end in (terminated, truncated)]
        acting = [a for a in self.latest if not (terminated[a] or truncated[a])]
        assert len(acting) == (0 if any(over) else 1)
        self.rewards = {agent: rewards.get(agent, 0.0) for agent in self.agents}
        self._accumulate_rewards()
        self.terminations.update(terminated)
        self.truncations.update(truncated)
        self.infos.update(infos)
        self.agent_selection = next(iter(acting or self.latest))
        self._deads_step_first()
