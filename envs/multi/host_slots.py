"""Slots of agents that are not known before a run: those that are present have the rows of a module.

An agent that comes has the first free slot of the module that plays it, and keeps it to its end.
Runners see slots as agents, so that the number of rows never depends on who is present.
"""

import dataclasses
import functools
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

import gymnasium

from jaxrl.core.spaces import is_same_space
from jaxrl.core.types import PyTree
from jaxrl.envs.multi.base import ALL, SLOT_MARK
from jaxrl.envs.multi.checked import CheckedMultiAgentEnv, HostMultiStart, HostMultiStep
from jaxrl.envs.multi.host_env import AgentID, MultiAgentEnv
from jaxrl.errors import EnvError, did_you_mean

SpacePair: TypeAlias = tuple[gymnasium.Space[Any], gymnasium.Space[Any]]


class OpenEpisode(Protocol):
    """Episode that knows the module of every agent that took part; runners have whole ones."""

    def module_for(self, agent_id: AgentID) -> str:
        """Return the module that plays an agent, the same to the episode's end."""
        ...


Mapped: TypeAlias = Callable[[AgentID, Any], str]
EpisodeMaker: TypeAlias = Callable[[Mapped], OpenEpisode]
"""Function from one of an agent's id and an episode, which returns a module, to a new episode."""


class CheckedEpisode:
    """Episode of a check before the run, with what a mapping function may read."""

    def __init__(self, choose: Mapped) -> None:
        """Begin an episode."""
        self.id_ = uuid.uuid4().hex
        self.env_t = self.env_t_started = 0
        self._choose, self._modules = choose, dict[AgentID, str]()

    def module_for(self, agent_id: AgentID) -> str:
        """Return the module that plays an agent, the same to the episode's end."""
        if agent_id not in self._modules:
            self._modules[agent_id] = self._choose(agent_id, self)
        return self._modules[agent_id]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class AgentSlotPlan:
    """Slots of every module in each copy of an environment.

    Attributes:
        number: Slots of each module.
        spaces: Observation space and action space of each module.
        mapping_fn: Function of an agent's id and its episode that returns the agent's module; None
            if there is a single module.
    """

    number: int
    spaces: Mapping[str, SpacePair]
    mapping_fn: Callable[..., object] | None

    @functools.cached_property
    def modules(self) -> dict[str, str]:
        """Module of each slot, in the order of rows."""
        return {
            f"{m}{SLOT_MARK}{place}": m for m in sorted(self.spaces) for place in range(self.number)
        }

    def choose(self, agent_id: AgentID, episode: OpenEpisode) -> str:
        """Return the module of an agent.

        Raises:
            EnvError: If the user's function raises, or returns an unknown module.
        """
        if self.mapping_fn is None:
            return next(iter(self.spaces))
        try:
            module = self.mapping_fn(agent_id, episode)
        except Exception as error:
            raise EnvError(
                f"policy_mapping_fn raised {type(error).__name__} for the agent {agent_id!r}: {error}."
            ) from error
        known = list(self.spaces)
        if not isinstance(module, str) or module not in known:
            raise EnvError(
                f"policy_mapping_fn gives the agent {agent_id!r} the module {module!r}, but the modules "
                f"are {', '.join(known)}: name all of them in policies."
                f"{did_you_mean(str(module), known)}"
            )
        return module


class SlottedEnv(CheckedMultiAgentEnv):
    """A checked environment whose agents have the names of their slots.

    Values of agents without a slot, such as a reward of one that ended, are those of a name in
    parentheses, which no slot has.

    Attributes:
        episode: Ongoing episode, which knows the module of every agent that took part.
        make_episode: Function that makes the next one.
    """

    def __init__(self, plan: AgentSlotPlan, env: MultiAgentEnv, name: str, **options: Any) -> None:
        """Give the agents of an environment slots; options are those of every checked one."""
        super().__init__(env, name, **options)
        self._plan = plan
        self._free: dict[str, list[str]] = {}
        self._slots: dict[str, str] = {}
        self._own: dict[str, AgentID] = {}
        self._ended: list[str] = []
        self.make_episode: EpisodeMaker = CheckedEpisode
        self.episode: OpenEpisode = CheckedEpisode(plan.choose)

    @property
    def possible_agents(self) -> tuple[str, ...]:
        return tuple(self._plan.modules)

    @property
    def agents_to_act(self) -> tuple[str, ...]:
        return tuple(self._slots[name] for name in super().agents_to_act)

    def get_own_id(self, agent: str) -> AgentID:
        """Return the id of the agent in a slot, also of one that ended in the latest step."""
        return self._own[agent]

    def get_observation_space(self, agent: str) -> gymnasium.Space[Any]:
        return self._plan.spaces[self._plan.modules[agent]][0]

    def get_action_space(self, agent: str) -> gymnasium.Space[Any]:
        return self._plan.spaces[self._plan.modules[agent]][1]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> HostMultiStart:
        """Begin an episode, in which all slots are free."""
        self.agents.keep_only(())
        self._slots, self._own, self._ended = {}, {}, []
        self._free = {m: [] for m in self._plan.spaces}
        for slot, m in reversed(self._plan.modules.items()):
            self._free[m].append(slot)
        self.episode = self.make_episode(self._plan.choose)
        start = super().reset(seed, options)
        for name in start.obs:
            self._enter(name)
        return dataclasses.replace(
            start, obs=self._rename(start.obs), infos=self._rename(start.infos)
        )

    def step(self, actions: Mapping[str, PyTree]) -> HostMultiStep:
        """Take one step, given the actions of slots; who ended at the one before frees its slot."""
        self._release()
        own = {slot: name for name, slot in self._slots.items()}
        step = super().step({own[slot]: action for slot, action in actions.items()})
        for name in step.joined:
            self._enter(name)
        self._ended = [n for n in step.present if step.terminated[n] or step.truncated[n]]
        return dataclasses.replace(
            step,
            obs=self._rename(step.obs),
            reward=self._rename(step.reward),
            terminated=self._rename(step.terminated),
            truncated=self._rename(step.truncated),
            acts=self._rename(step.acts),
            joined=tuple(self._slots[name] for name in step.joined),
            infos=self._rename(step.infos),
            own_ids=self._own,
        )

    def _enter(self, name: str) -> None:
        """Give an agent a slot of its module."""
        own_id = self.agents.get_own_id(name)
        module = self.episode.module_for(own_id)
        own = self.agents.get_observation_space(name), self.agents.get_action_space(name)
        for kind, space, wanted in zip(
            ("observation", "action"), own, self._plan.spaces[module], strict=True
        ):
            if not is_same_space(space, wanted):
                raise EnvError(
                    f"{self.name}: the {kind} space of the agent {own_id!r} is {space}, and that of its "
                    f"module {module!r} is {wanted}: let policy_mapping_fn choose a module with these "
                    "spaces, and name it in policies."
                )
        if not self._free[module]:
            number = self._plan.number
            raise EnvError(
                f"{self.name}: the agent {own_id!r} comes while all {number} slots of the module "
                f"{module!r} are taken, since an agent has its slot from its first observation to the step "
                f"after its end: set max_agents={2 * number} or more; what a saved run has learned goes on "
                f"with Algorithm.from_checkpoint(path, policy_ids={sorted(self._plan.spaces)}, "
                f"max_agents={2 * number})."
            )
        slot = self._free[module].pop()
        self._slots[name], self._own[slot] = slot, own_id

    def _release(self) -> None:
        """Free the slots of agents that ended."""
        for name in self._ended:
            slot = self._slots.pop(name)
            self._free[self._plan.modules[slot]].append(slot)
        self.agents.keep_only(self._slots)
        self._own = {slot: self._own[slot] for slot in self._slots.values()}
        self._ended = []

    def _rename(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values by slot."""
        renamed: dict[str, Any] = {}
        for name, value in values.items():
            slot = name if name == ALL else self._slots.get(name, f"({name})")
            renamed[slot] = value
            if slot[0] == "(":
                self._own[slot] = self.agents.get_own_id(name)
        return renamed
