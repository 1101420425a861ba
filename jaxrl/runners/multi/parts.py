"""Parts of a runner of several agents that others read: modules, episodes and programs."""

from typing import Any

import gymnasium

from jaxrl.envs.multi.host_env import AgentID
from jaxrl.episodes import MultiAgentEpisode
from jaxrl.modules.rl_module import RLModule
from jaxrl.runners.episode_sampling import EpisodeSampler
from jaxrl.runners.host_policy import HostPolicy
from jaxrl.runners.multi.scenes import CriticScenes
from jaxrl.runners.multi.slots import AgentSlots
from jaxrl.runners.multi.tracker import MultiEpisodeTracker
from jaxrl.runtime.program import Program


class MultiRunnerParts(EpisodeSampler[MultiAgentEpisode, MultiEpisodeTracker]):
    """Base class of a runner of several agents, with what callbacks and trackers read."""

    module: dict[str, RLModule]
    _policy: HostPolicy
    _scenes: CriticScenes | None
    _slots: AgentSlots

    @property
    def programs(self) -> list[Program]:
        """Compiled programs of the runner."""
        return [*self._policy.programs, *([] if self._scenes is None else [self._scenes.program])]

    @property
    def spaces(self) -> dict[str, tuple[gymnasium.Space[Any], gymnasium.Space[Any]]]:
        """Observation and action space of every module."""
        return {m: (own.observation_space, own.action_space) for m, own in self.module.items()}

    def get_spaces(self) -> dict[str, tuple[gymnasium.Space[Any], gymnasium.Space[Any]]]:
        """Return `spaces`."""
        return self.spaces

    def find_row(self, env: int, agent: str) -> tuple[str, int]:
        """Return the group of the module that plays an agent in an episode, and the agent's row."""
        return self._slots.find(env, agent)

    def get_episode(self, env: int) -> MultiAgentEpisode:
        """Return the ongoing episode of an environment; it has data only if callbacks need them."""
        return self._slots.episodes[env]

    def get_modules(self, env: int) -> dict[AgentID, str]:
        """Return the module of every agent for which one was chosen in the current episode."""
        return self._slots.get_modules(env)

    def set_episode(self, env: int, episode: MultiAgentEpisode) -> None:
        """Replace the ongoing episode by its next chunk."""
        self._slots.set_episode(env, episode)
