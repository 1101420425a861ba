"""Groups of agents of a Python environment that act as one agent each, as RLlib's."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
from gymnasium import spaces

from jaxrl.core.types import PyTree
from jaxrl.envs.multi.base import ALL
from jaxrl.envs.multi.host_env import COMMON, AgentDict, AgentID, MultiAgentEnv
from jaxrl.errors import EnvError

GROUP_REWARDS = "_group_rewards"
"""Key of the members' rewards in the info of a group, RLlib's name."""
GROUP_INFO = "_group_info"
"""Key of the members' infos in the info of a group, RLlib's name."""


class GroupedAgents(MultiAgentEnv):
    """An environment whose groups of agents act as one agent each, RLlib's `GroupAgentsWrapper`.

    A group observes and acts in a Tuple with a part for each member, and its reward is their sum.
    Members act together, and the group ends when all of them have: by truncation, unless all
    terminated. The info of a group has the members' rewards as `"_group_rewards"` and their infos
    as `"_group_info"`.
    """

    def __init__(
        self,
        env: MultiAgentEnv,
        groups: Mapping[str, Sequence[AgentID]],
        obs_space: gymnasium.Space[Any] | None = None,
        act_space: gymnasium.Space[Any] | None = None,
    ) -> None:
        """Wrap an environment.

        Args:
            env: Environment of the single agents.
            groups: Members by the name of their group; agents of no group stay on their own.
            obs_space: Observation space of every group, a Tuple; None for that of its members.
            act_space: Action space of every group, a Tuple; None for that of its members.

        Raises:
            EnvError: If a group is empty, has an unknown agent or an agent of another group, or a
                space is no Tuple with a part for each member.
        """
        self.env = env
        self.groups = {name: tuple(members) for name, members in groups.items()}
        self._group_of = _find_groups(self.groups, list(env.possible_agents))
        alone = [agent for agent in env.possible_agents if agent not in self._group_of]
        self.agents = self.possible_agents = [*self.groups, *alone]
        super().__init__()
        self.observation_spaces = {
            **self._join_spaces(env.get_observation_space, obs_space, "obs_space"),
            **{agent: env.get_observation_space(agent) for agent in alone},
        }
        self.action_spaces = {
            **self._join_spaces(env.get_action_space, act_space, "act_space"),
            **{agent: env.get_action_space(agent) for agent in alone},
        }
        self.observation_space, self.action_space = obs_space, act_space
        self.state_space = getattr(env, "state_space", None)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AgentDict, AgentDict]:
        obs, infos = self.env.reset(seed=seed, options=options)
        return self._group_obs(obs, frozenset()), self._group_infos(infos)

    def step(
        self, action_dict: AgentDict
    ) -> tuple[AgentDict, AgentDict, AgentDict, AgentDict, AgentDict]:
        actions = {
            member: part
            for agent, action in action_dict.items()
            for member, part in (
                zip(self.groups[agent], action, strict=True)
                if agent in self.groups
                else ((agent, action),)
            )
        }
        obs, rewards, terminateds, truncateds, infos = self.env.step(actions)
        infos = self._group_infos(infos)
        for name, members in self.groups.items():
            if any(member in rewards for member in members):
                parts = [rewards.get(member, 0.0) for member in members]
                infos.setdefault(name, {})[GROUP_REWARDS] = parts
        terminateds, truncateds = self._group_flags(terminateds, truncateds)
        ended = {name for name in self.groups if terminateds.get(name) or truncateds.get(name)}
        over = terminateds.get(ALL) or truncateds.get(ALL)
        return (
            self._group_obs(obs, frozenset(self.groups) if over else frozenset(ended)),
            self._join(rewards, lambda parts: sum(parts.values())),
            terminateds,
            truncateds,
            infos,
        )

    def state(self) -> PyTree:
        return self.env.state()

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def _join_spaces(
        self,
        get: Callable[[AgentID], gymnasium.Space[Any]],
        given: gymnasium.Space[Any] | None,
        what: str,
    ) -> dict[str, gymnasium.Space[Any]]:
        if given is None:
            return {
                name: spaces.Tuple([get(member) for member in members])
                for name, members in self.groups.items()
            }
        for name, members in self.groups.items():
            if not isinstance(given, spaces.Tuple) or len(given.spaces) != len(members):
                raise EnvError(
                    f"{what} must be a Tuple with a part for each of the {len(members)} members of "
                    f"{name!r}, got {given!r}; leave it out to make it of their own spaces."
                )
        return dict.fromkeys(self.groups, given)

    def _join(self, values: AgentDict, join: Callable[[AgentDict], Any]) -> AgentDict:
        """Return the values of groups, joined from those of the members that have one, and others'."""
        joined: AgentDict = {}
        for agent, value in values.items():
            name = self._group_of.get(agent)
            if name is None:
                joined[agent] = value
            elif name not in joined:
                members = self.groups[name]
                joined[name] = join({each: values[each] for each in members if each in values})
        return joined

    def _group_obs(self, obs: AgentDict, ended: frozenset[str]) -> AgentDict:
        """Return observations of groups; one that ends without all of its members' has none."""
        grouped: AgentDict = {}
        for agent, value in self._join(obs, dict).items():
            if agent not in self.groups:
                grouped[agent] = value
                continue
            missing = [member for member in self.groups[agent] if member not in value]
            if not missing:
                grouped[agent] = tuple(value.values())
            elif agent not in ended:
                raise EnvError(
                    f"Group {agent!r} has an observation of {next(iter(value))!r}, and none of "
                    f"{missing[0]!r}: members of a group act together until all of them end; return "
                    "observations of all, or leave the agent out of the group."
                )
        return grouped

    def _group_flags(
        self, terminateds: AgentDict, truncateds: AgentDict
    ) -> tuple[AgentDict, AgentDict]:
        """Return flags of groups, which end when all of their members do."""
        grouped = ({}, {})
        for flags, source in zip(grouped, (terminateds, truncateds), strict=True):
            flags.update({a: flag for a, flag in source.items() if a not in self._group_of})
        for name, members in self.groups.items():
            terminated = [bool(terminateds.get(member)) for member in members]
            ended = [
                was or bool(truncateds.get(member))
                for was, member in zip(terminated, members, strict=True)
            ]
            grouped[0][name] = all(terminated)
            grouped[1][name] = all(ended) and not all(terminated)
        return grouped

    def _group_infos(self, infos: AgentDict) -> AgentDict:
        shared = {COMMON: infos[COMMON]} if COMMON in infos else {}
        own = {agent: info for agent, info in infos.items() if agent != COMMON}
        grouped = self._join(own, dict)
        for name in self.groups:
            if name in grouped:
                parts = [grouped[name].get(member, {}) for member in self.groups[name]]
                grouped[name] = {GROUP_INFO: parts}
        return {**grouped, **shared}


def _find_groups(
    groups: Mapping[str, tuple[AgentID, ...]], agents: list[AgentID]
) -> dict[AgentID, str]:
    """Return the group of each member."""
    found: dict[AgentID, str] = {}
    for name, members in groups.items():
        if not members:
            raise EnvError(f"Group {name!r} has no members.")
        for member in members:
            if agents and member not in agents:
                raise EnvError(f"Group {name!r} has {member!r}, no possible agent of {agents}.")
            if member in found:
                raise EnvError(f"Agent {member!r} is in the groups {found[member]!r} and {name!r}.")
            found[member] = name
        if name in agents and name not in members:
            raise EnvError(f"Group {name!r} has the id of an agent; give it another name.")
    return found
