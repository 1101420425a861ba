"""Agents of a Python environment: their names as strings, spaces, and conversions of values."""

import functools
import math
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar, cast

import gymnasium
import numpy as np

from jaxrl.core.spaces import is_nested, is_same_space, map_leaves
from jaxrl.core.types import PyTree
from jaxrl.envs.adapters.host_spaces import (
    Converter,
    make_converter,
    to_runner_actions,
    to_runner_space,
)
from jaxrl.envs.multi.base import ALL
from jaxrl.envs.multi.host_env import COMMON, AgentDict, AgentID, MultiAgentEnv
from jaxrl.envs.space_checks import check_space, check_values
from jaxrl.errors import EnvError, did_you_mean

T = TypeVar("T")

_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")


class HostAgents:
    """Names, spaces and conversions of the agents of one environment.

    Attributes:
        name: Name of the environment, for messages.
        possible: Names of all agents that may take part; empty if the environment does not say.
    """

    def __init__(self, env: MultiAgentEnv, name: str) -> None:
        """Read who may take part.

        Raises:
            EnvError: If an id is no string or int, or cannot name files, or two have one name.
        """
        self.name = name
        self._env = env
        self._own: dict[str, AgentID] = {}
        self._has_own_names = True
        """Whether all ids are names."""
        self._names: dict[tuple[type, AgentID], str] = {}
        """Names of the ids that were looked up; True and 1 are different ids."""
        self._agents: dict[str, _Agent] = {}
        self._kinds: list[_Agent] = []
        self.possible = tuple(self._add(agent) for agent in _list_possible(env))
        self._is_open = not self.possible

    def get_name(self, agent: AgentID, where: str) -> str:
        """Return the name of an agent of the environment's dictionaries.

        Raises:
            EnvError: If there is no such agent.
        """
        key = (type(agent), agent)
        if key not in self._names:
            self._names[key] = self._look_up(agent, where)
        return self._names[key]

    def name_keys(self, values: Mapping[Any, T]) -> dict[str, T] | None:
        """Return values by name, None if the name of a key was not looked up yet."""
        names = self._names
        if self._has_own_names and values.keys() <= self._own.keys():
            return dict(values)
        try:
            return {names[type(agent), agent]: value for agent, value in values.items()}
        except KeyError:
            return None

    def _look_up(self, agent: AgentID, where: str) -> str:
        name = self.find_name(agent)
        if name in self._own and _is_same_id(self._own[name], agent):
            return name
        if self._is_open and name not in self._own and agent not in (ALL, COMMON):
            return self._add(agent)
        if name in self._own:
            raise EnvError(
                f"{self.name}: {where} name {agent!r}, but this agent is "
                f"{self._own[name]!r} elsewhere: use one form of the id."
            )
        raise EnvError(
            f"{self.name}: {where} name the unknown agent {agent!r}; add it to possible_agents, "
            f"which are {list(self.possible)}, or return values of those alone."
            f"{did_you_mean(name, self.possible)}"
        )

    def keep_only(self, names: Collection[str]) -> None:
        """Forget all other agents, if agents are not known before; they may come again."""
        if self._is_open:
            self._names.clear()
            self._own = {name: self._own[name] for name in names}
            self._agents = {name: own for name, own in self._agents.items() if name in names}

    def find_name(self, agent: AgentID) -> str:
        """Return the name for a name or an id of the environment's, without looking it up."""
        return agent if isinstance(agent, str) else _spell(agent)

    def get_own_id(self, name: str) -> AgentID:
        """Return the environment's own id of an agent."""
        return self._own[name]

    def get_observation_space(self, name: str) -> gymnasium.Space[Any]:
        """Return the observation space of an agent as modules see it, float64 as float32."""
        return self._get(name).observation_space

    def get_action_space(self, name: str) -> gymnasium.Space[Any]:
        """Return the action space of an agent as modules see it."""
        return self._get(name).action_space

    def convert_obs(self, name: str, value: object) -> PyTree:
        """Convert an observation to new arrays of the agent's space.

        An environment may write its next observation into the arrays that it returned.

        Raises:
            EnvError: If its structure, shapes or dtypes do not fit; see `explain`.
        """
        agent = self._get(name)
        return agent.copy(agent.convert(value))

    def check_bounds(self, name: str, obs: PyTree, label: str) -> None:
        """Check that a converted observation lies within the bounds of the agent's space.

        Raises:
            EnvError: If it does not; the message begins with `label`.
        """
        agent = self._get(name)
        space = agent.observation_space
        batch = map_leaves(lambda _, leaf: np.asarray(leaf)[None], space, obs)
        try:
            check_values(agent.label, space, batch)
        except EnvError as error:
            raise self.explain(name, label, error) from None

    def explain(self, name: str, label: str, error: EnvError) -> EnvError:
        """Return the error of an agent's observation, whose message begins with `label`."""
        reason = str(error).removeprefix(self._get(name).label).removesuffix(".")
        return EnvError(
            f"{label} of agent {name!r}{reason}; return a value of "
            f"get_observation_space({self._own[name]!r})."
        )

    def to_own_actions(self, actions: Mapping[str, PyTree]) -> AgentDict:
        """Return actions by the environment's ids, with the types of its own spaces."""
        own = self._own
        return {own[name]: self._get(name).to_own(action) for name, action in actions.items()}

    def check_finite(self, name: str, obs: PyTree) -> bool:
        """Return whether an observation has no NaN or infinity."""
        return self._get(name).is_finite(obs)

    def _add(self, agent: AgentID) -> str:
        name = self.find_name(agent)
        if not _ID.fullmatch(name) or agent in (ALL, COMMON):
            raise EnvError(
                f"{self.name}: ids of agents are ints, or strings of letters, digits, '_' and '-', "
                f"as in 'agent_0', got {agent!r}."
            )
        if name in self._own:
            raise EnvError(
                f"{self.name}: the agents {self._own[name]!r} and {agent!r} have the same name."
            )
        self._own[name] = agent
        self._has_own_names &= isinstance(agent, str)
        return name

    def _get(self, name: str) -> "_Agent":
        agent = self._agents.get(name)
        if agent is None:
            agent = self._agents[name] = self._make_agent(self._own[name])
        return agent

    def _make_agent(self, own_id: AgentID) -> "_Agent":
        """Return the spaces of an agent, those of an earlier one if they are equal."""
        if not self._is_open:
            return _Agent(self._env, self.name, own_id)
        for kind in self._kinds:
            if kind.has_spaces_of(self._env, self.name, own_id):
                return kind
        self._kinds.append(_Agent(self._env, self.name, own_id))
        return self._kinds[-1]


class _Agent:
    """Spaces and the converter of one agent."""

    def __init__(self, env: MultiAgentEnv, env_name: str, agent: AgentID) -> None:
        observation_space, self.own_action_space = self.own_spaces = _get_spaces(
            env, env_name, agent
        )
        self.observation_space = to_runner_space(observation_space)
        self.action_space = to_runner_actions(self.own_action_space)
        self.label = f"{env_name}: the observation of agent {agent!r}"
        self._convert_own: Converter = make_converter(self.label, observation_space)
        self._is_cast = self.observation_space is not observation_space
        self.copy = _make_function(_copy_leaf, self.observation_space)
        self.to_own = _make_function(_to_own_leaf, self.own_action_space)
        self._is_nested = is_nested(self.observation_space)

    def is_finite(self, obs: PyTree) -> bool:
        """Return whether an observation has no NaN or infinity."""
        if not self._is_nested:
            return _is_finite_leaf(obs)
        found: list[bool] = []
        map_leaves(lambda _, leaf: found.append(_is_finite_leaf(leaf)), self.observation_space, obs)
        return all(found)

    def has_spaces_of(self, env: MultiAgentEnv, env_name: str, agent: AgentID) -> bool:
        """Return whether another agent has equal spaces."""
        others = _get_spaces(env, env_name, agent)
        return all(map(is_same_space, self.own_spaces, others))

    def convert(self, value: object) -> PyTree:
        """Return an observation with the types of the environment's space, cast to those of modules.

        Raises:
            EnvError: If it does not fit the environment's space.
        """
        obs = self._convert_own(value)
        return map_leaves(_to_runner_leaf, self.observation_space, obs) if self._is_cast else obs


def _get_spaces(
    env: MultiAgentEnv, env_name: str, agent: AgentID
) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
    return (
        _get_space(env.get_observation_space, env_name, "observation", agent),
        _get_space(env.get_action_space, env_name, "action", agent),
    )


def _get_space(
    get: Callable[[AgentID], object], env_name: str, kind: str, agent: AgentID
) -> gymnasium.Space[Any]:
    label = f"{env_name}: {kind}_space of agent {agent!r}"
    try:
        space = get(agent)
    except (KeyError, AttributeError, TypeError):
        space = None
    if not isinstance(space, gymnasium.Space):
        raise EnvError(
            f"{label} is missing, got {space!r}: set self.{kind}_spaces to a dictionary by agent, or "
            f"return it by get_{kind}_space({agent!r})."
        )
    check_space(label, to_runner_space(space))
    return space


def _list_possible(env: MultiAgentEnv) -> list[AgentID]:
    """Return `possible_agents`, else the agents that have spaces, else those of the moment."""
    possible = getattr(env, "possible_agents", None)
    if possible is not None and len(possible):
        return list(possible)
    by_agent = getattr(env, "observation_spaces", None)
    if by_agent:
        return list(by_agent)
    return list(getattr(env, "agents", None) or ())


def _spell(agent: AgentID) -> str:
    is_int = isinstance(agent, int | np.integer) and not isinstance(agent, bool)
    return str(int(cast("int", agent))) if is_int else f"({agent!r})"  # which no id is


def _is_same_id(own: AgentID, agent: AgentID) -> bool:
    return own == agent and isinstance(own, str) == isinstance(agent, str)


def _to_runner_leaf(space: gymnasium.Space[Any], value: PyTree) -> PyTree:
    is_array = isinstance(space, gymnasium.spaces.Box)
    return value.astype(space.dtype, copy=False) if is_array else value


def _make_function(
    function: Callable[[gymnasium.Space[Any], Any], Any], space: gymnasium.Space[Any]
) -> Callable[[PyTree], PyTree]:
    """Return the function of values that maps a function over the parts of a space."""
    if is_nested(space):
        return functools.partial(map_leaves, function, space)
    return functools.partial(function, space)


def _copy_leaf(_: gymnasium.Space[Any], value: Any) -> np.ndarray:
    return np.array(value)


def _is_finite_leaf(leaf: np.ndarray) -> bool:
    """Return whether an array has no NaN or infinity.

    The sum of its squares is not finite if it has, which is quicker to compute; large numbers may
    overflow in it.
    """
    if leaf.dtype.kind in "iub" or math.isfinite(np.vdot(leaf, leaf)):
        return True
    return bool(np.isfinite(leaf).all())


def _to_own_leaf(space: gymnasium.Space[Any], value: Any) -> object:
    if isinstance(space, gymnasium.spaces.Discrete):
        return np.int64(value)  # what sample() returns
    return np.asarray(value).astype(space.dtype, copy=False)
