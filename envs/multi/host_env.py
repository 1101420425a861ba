"""Interface of environments of several agents written in Python, RLlib's, and its recognition."""

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import gymnasium

if TYPE_CHECKING:
    from jaxrl.core.types import PyTree
    from jaxrl.envs.multi.host_groups import GroupedAgents

AgentID: TypeAlias = Hashable
"""Id of an agent in a user's dictionaries: a string or an int."""
AgentDict: TypeAlias = dict[Any, Any]
"""Values by the id of their agent."""

COMMON = "__common__"
"""Key of what `infos` says of no agent in particular, RLlib's name."""

_METHODS = ("reset", "step", "get_observation_space", "get_action_space")


class MultiAgentEnv(gymnasium.Env[Any, Any]):
    """Base class of environments of several agents stepped in Python, RLlib's interface.

    Who is in the observations acts next: `step` receives an action of each of those agents, and of
    no other. An agent is present from its first observation to its own end, whether it acts at every
    step, in turns or from time to time, and its reward may come at any step. An agent that ended may
    have an observation again later in the episode, which begins a new agent-episode.

    Attributes:
        agents: Ids of the agents that take part now; it may change in an episode.
        possible_agents: Ids of all agents that may ever take part; empty if they are not known.
        observation_spaces: Observation spaces by agent.
        action_spaces: Action spaces by agent.
        observation_space: Observation space of every agent, or a Dict of them by agent, where
            `observation_spaces` is None.
        action_space: The same of actions.
        state_space: Space of what `state()` returns, None if there is no global state.
    """

    observation_spaces: Mapping[Any, gymnasium.Space[Any]] | None = None
    action_spaces: Mapping[Any, gymnasium.Space[Any]] | None = None
    agents: Sequence[Any] = ()
    possible_agents: Sequence[Any] = ()
    observation_space: gymnasium.Space[Any] | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    action_space: gymnasium.Space[Any] | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    state_space: gymnasium.Space[Any] | None = None

    def __init__(self) -> None:
        """Initialize the lists of agents: those that may take part are at first those that do."""
        super().__init__()
        if not self.agents:
            self.agents = []
        if not self.possible_agents:
            self.possible_agents = list(self.agents)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AgentDict, AgentDict]:
        """Begin an episode; the base class seeds `self.np_random`.

        Args:
            seed: Seed of the environment's random numbers, None to go on with them.
            options: Options of the episode.

        Returns:
            Observations of the agents that act first, and infos, by agent.
        """
        super().reset(seed=seed, options=options)
        return {}, {}

    def step(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, action_dict: AgentDict
    ) -> tuple[AgentDict, AgentDict, AgentDict, AgentDict, AgentDict]:
        """Take one step with the actions of the agents that had an observation.

        Args:
            action_dict: Actions by agent.

        Returns:
            Observations of the agents that act next and of those that end; rewards, 0 where there
            is none; `terminateds` and `truncateds`, which also hold the end of the episode under
            `"__all__"`; and infos, which may have `"__common__"`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define step")

    def get_observation_space(self, agent_id: AgentID) -> gymnasium.Space[Any]:
        """Return the observation space of one agent."""
        return _find_space(self.observation_spaces, self.observation_space, agent_id)

    def get_action_space(self, agent_id: AgentID) -> gymnasium.Space[Any]:
        """Return the action space of one agent."""
        return _find_space(self.action_spaces, self.action_space, agent_id)

    def get_final_observation(self, agent_id: AgentID) -> "PyTree":
        """Return what an agent observes whose turn it is not, where a time limit ends the episode.

        An environment in turns that defines it can be given `max_episode_steps`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define get_final_observation")

    def get_final_reward(self, agent_id: AgentID) -> float:
        """Return what an agent whose turn it is not has earned since, where a time limit ends the episode.

        Nothing, unless an environment pays agents at their own turns.
        """
        return 0.0

    def state(self) -> "PyTree":
        """Return the global state, a value of `state_space`."""
        raise NotImplementedError(f"{type(self).__name__} does not define state")

    def render(self) -> Any:
        """Return a picture of the environment, None if there is none."""
        return None

    @property
    def num_agents(self) -> int:
        """Number of agents that take part now."""
        return len(self.agents)

    @property
    def max_num_agents(self) -> int:
        """Number of agents that may take part."""
        return len(self.possible_agents)

    def with_agent_groups(
        self,
        groups: Mapping[str, Sequence[AgentID]],
        obs_space: gymnasium.Space[Any] | None = None,
        act_space: gymnasium.Space[Any] | None = None,
    ) -> "GroupedAgents":
        """Return the environment with groups of agents that act as one agent each.

        Args:
            groups: Members by the name of their group; agents of no group stay on their own.
            obs_space: Observation space of every group, a Tuple; None for that of its members.
            act_space: Action space of every group, a Tuple; None for that of its members.
        """
        from jaxrl.envs.multi.host_groups import GroupedAgents

        return GroupedAgents(self, groups, obs_space, act_space)


def _find_space(
    by_agent: Mapping[Any, gymnasium.Space[Any]] | None,
    shared: gymnasium.Space[Any] | None,
    agent: AgentID,
) -> Any:
    if by_agent is not None:
        return by_agent[agent]
    if isinstance(shared, gymnasium.spaces.Dict) and agent in shared.spaces:
        return shared.spaces[agent]  # pyright: ignore[reportArgumentType]
    return shared


def is_multi_agent_env(env: object) -> TypeGuard[MultiAgentEnv]:
    """Return whether an object is an environment of several agents in Python, RLlib's included.

    It is recognized by its methods, so that RLlib is not imported.
    """
    return not isinstance(env, type) and is_multi_agent_class(type(env))


def is_multi_agent_class(cls: type) -> TypeGuard[type[MultiAgentEnv]]:
    """Return whether instances of a class are environments of several agents in Python."""
    if issubclass(cls, MultiAgentEnv):
        return True
    return all(callable(getattr(cls, name, None)) for name in _METHODS)
