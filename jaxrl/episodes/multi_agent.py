"""Episode of several agents on the host: an episode of each, and the modules that play them."""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl.episodes.single_agent import SingleAgentEpisode

ChooseModule = Callable[[Any, "MultiAgentEpisode"], str]
"""Function of an agent's id and its episode that returns the id of the module that plays it."""


class MultiAgentEpisode:
    """Episode of an environment of several agents, or a chunk of one.

    The episode of an agent has its steps in its own time: from each of its actions to its next one,
    or to its end. A step is added when it is complete.

    Attributes:
        id_: Identifier shared by all chunks of an episode.
        env_index: Index of the environment within the run.
        env_t_started: Number of environment steps of the episode before this chunk.
        env_t: Number of environment steps of the episode so far.
        agent_episodes: Episodes by agent, of those that have had an observation.
        ended_agent_episodes: Episodes of agents that ended and came again.
        is_terminated: Whether the task has ended.
        is_truncated: Whether the episode was cut off before its task ended.
        custom_data: Data of callbacks, which is copied to the next chunk.
    """

    def __init__(
        self, choose_module: ChooseModule, env_index: int = 0, id_: str | None = None
    ) -> None:
        """Initialize an empty episode."""
        self.id_ = id_ or uuid.uuid4().hex
        self.env_index = env_index
        self.env_t = self.env_t_started = 0
        self.agent_episodes: dict[Any, SingleAgentEpisode] = {}
        self.ended_agent_episodes: list[SingleAgentEpisode] = []
        self.is_terminated = self.is_truncated = False
        self.custom_data: dict[str, Any] = {}
        self._choose_module = choose_module
        self._modules: dict[Any, str] = {}
        self._rewards_without_action = 0.0

    @property
    def episode_id(self) -> str:
        """The episode's `id_`, under the name of RLlib's older episodes."""
        return self.id_

    @property
    def is_done(self) -> bool:
        """Whether the episode has ended."""
        return self.is_terminated or self.is_truncated

    @property
    def agent_ids(self) -> set[Any]:
        """Ids of the agents that have had an observation."""
        return set(self.agent_episodes)

    @property
    def module_ids(self) -> set[str]:
        """Ids of the modules that have played so far."""
        return set(self._modules.values())

    def __len__(self) -> int:
        """Number of environment steps of this chunk."""
        return self.env_t - self.env_t_started

    def module_for(self, agent_id: Any) -> str:
        """Return the module that plays an agent, chosen once for the whole episode."""
        if agent_id not in self._modules:
            self._modules[agent_id] = self._choose_module(agent_id, self)
        return self._modules[agent_id]

    def set_modules(self, modules: Mapping[Any, str]) -> None:
        """Set the modules that have been chosen, as where an episode is restored."""
        self._modules = dict(modules)

    def add_reward_without_action(self, reward: float) -> None:
        """Add the reward of an agent that is not present, which belongs to none of its actions."""
        self._rewards_without_action += reward

    def get_return(self) -> float:
        """Return the sum of all agents' rewards in this chunk."""
        episodes = [*self.agent_episodes.values(), *self.ended_agent_episodes]
        return sum(episode.get_return() for episode in episodes) + self._rewards_without_action

    def get_agents_that_stepped(self) -> set[Any]:
        """Return the ids of agents that have completed a step."""
        return {agent for agent, episode in self.agent_episodes.items() if len(episode)}

    def get_observations(
        self, indices: Any = None, *, agent_ids: Sequence[Any] | None = None, **arguments: Any
    ) -> dict[Any, Any]:
        """Return observations by agent; indices are in each agent's own time."""
        return self._collect("get_observations", indices, agent_ids, arguments)

    def get_infos(
        self, indices: Any = None, *, agent_ids: Sequence[Any] | None = None, **arguments: Any
    ) -> dict[Any, Any]:
        """Return infos by agent; indices are in each agent's own time."""
        return self._collect("get_infos", indices, agent_ids, arguments)

    def get_actions(
        self, indices: Any = None, *, agent_ids: Sequence[Any] | None = None, **arguments: Any
    ) -> dict[Any, Any]:
        """Return actions by agent; indices are in each agent's own time."""
        return self._collect("get_actions", indices, agent_ids, arguments)

    def get_rewards(
        self, indices: Any = None, *, agent_ids: Sequence[Any] | None = None, **arguments: Any
    ) -> dict[Any, Any]:
        """Return rewards by agent; indices are in each agent's own time."""
        return self._collect("get_rewards", indices, agent_ids, arguments)

    def get_extra_model_outputs(
        self,
        key: str,
        indices: Any = None,
        *,
        agent_ids: Sequence[Any] | None = None,
        **arguments: Any,
    ) -> dict[Any, Any]:
        """Return an output of the modules by agent; indices are in each agent's own time."""
        arguments = {"key": key, **arguments}
        return self._collect("get_extra_model_outputs", indices, agent_ids, arguments)

    def _collect(
        self, name: str, indices: Any, agent_ids: Sequence[Any] | None, arguments: dict[str, Any]
    ) -> dict[Any, Any]:
        """Call a getter of each agent's episode that is long enough for a single index."""
        least = 0 if name in ("get_observations", "get_infos") else 1
        return {
            agent: getattr(episode, name)(indices=indices, **arguments)
            for agent, episode in self._select(agent_ids)
            if len(episode) >= least or indices is None
        }

    def _select(self, agent_ids: Sequence[Any] | None) -> Iterator[tuple[Any, SingleAgentEpisode]]:
        for agent, episode in self.agent_episodes.items():
            if agent_ids is None or agent in agent_ids:
                yield agent, episode

    def cut(self, len_lookback_buffer: int = 0) -> "MultiAgentEpisode":
        """Return the next chunk of the episode, which goes on where this one ends."""
        after = MultiAgentEpisode(self._choose_module, self.env_index, self.id_)
        after.env_t = after.env_t_started = self.env_t
        after.custom_data = dict(self.custom_data)
        after.set_modules(self._modules)
        after.agent_episodes = {
            agent: episode.cut(len_lookback_buffer)
            for agent, episode in self.agent_episodes.items()
            if not episode.is_done
        }
        return after

    def to_numpy(self) -> "MultiAgentEpisode":
        """Convert the data of all agents to arrays, in place."""
        for agent, episode in self.agent_episodes.items():
            if len(episode):
                self.agent_episodes[agent] = episode.to_numpy()
        return self

    def __repr__(self) -> str:
        """Describe the episode in one line."""
        modules = {str(agent): module for agent, module in self._modules.items()}
        return (
            f"MultiAgentEpisode(len={len(self)}, done={self.is_done}, modules={modules}, "
            f"return={np.float32(self.get_return())}, id_={self.id_})"
        )
