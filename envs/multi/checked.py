"""An environment of several agents in Python with its contract checked at every call."""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from typing import Any, Literal, NoReturn, TypeGuard, TypeVar, cast

import gymnasium
import jax
import numpy as np

from jaxrl.core.spaces import is_nested, is_same_space, map_leaves
from jaxrl.core.types import PyTree
from jaxrl.envs.adapters.host_spaces import (
    Converter,
    is_finite,
    make_converter,
    to_runner_actions,
    to_runner_space,
)
from jaxrl.envs.multi.base import ALL
from jaxrl.envs.multi.host_env import COMMON, AgentDict, AgentID, MultiAgentEnv
from jaxrl.envs.space_checks import check_space, check_values
from jaxrl.envs.wrappers import check_max_episode_steps
from jaxrl.errors import EnvError, did_you_mean


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostMultiStart:
    """First observations of an episode; the agents that have one act on it.

    Attributes:
        obs: Observations by agent, as arrays of the agents' spaces.
        infos: Infos by agent; agents without one are left out.
        info: Info of no agent in particular (`"__common__"`).
        global_state: Global state, None if the environment has none.
    """

    obs: dict[str, PyTree]
    infos: dict[str, dict[str, Any]]
    info: dict[str, Any]
    global_state: PyTree = None

    @property
    def acts(self) -> dict[str, bool]:
        """Return whether an agent acts next, of those present."""
        return dict.fromkeys(self.obs, True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostMultiStep:
    """One step, before any reset.

    An agent is present in a step if it acted in it, or acted before and has not ended.

    Attributes:
        obs: Observations after the step, of those that act next, and of ended agents the last one.
        reward: Rewards of the agents present, 0 where the environment gave none; and those of other
            agents, which belong to no action of theirs and count in their returns alone.
        terminated: Whether an agent that is present ends by itself, or with the episode; and
            `"__all__"`, whether the episode ends.
        truncated: The same of cuts.
        acts: Whether an agent acts next, of those present and of those that join.
        joined: Agents whose agent-episode begins with this step's observation.
        infos: Infos by agent; agents without one are left out.
        info: Info of no agent in particular (`"__common__"`).
        rewards_without_action: Number of rewards of agents that are not present.
        global_state: Global state after the step, None if the environment has none.
        own_ids: The environment's own ids of agents that are named by slots.
    """

    obs: dict[str, PyTree]
    reward: dict[str, float]
    terminated: dict[str, bool]
    truncated: dict[str, bool]
    acts: dict[str, bool]
    joined: tuple[str, ...]
    infos: dict[str, dict[str, Any]]
    info: dict[str, Any]
    rewards_without_action: int = 0
    global_state: PyTree = None
    own_ids: dict[str, Any] = dataclasses.field(default_factory=dict[str, Any])

    @property
    def is_over(self) -> bool:
        """Return whether the episode ends with this step."""
        return self.terminated[ALL] or self.truncated[ALL]

    @property
    def present(self) -> tuple[str, ...]:
        """Agents that took part in the step."""
        return tuple([name for name in self.terminated if name != ALL])


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
            return is_finite(obs)
        found: list[bool] = []
        map_leaves(lambda _, leaf: found.append(is_finite(leaf)), self.observation_space, obs)
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


def _to_own_leaf(space: gymnasium.Space[Any], value: Any) -> object:
    if isinstance(space, gymnasium.spaces.Discrete):
        return np.int64(value)  # what sample() returns
    return np.asarray(value).astype(space.dtype, copy=False)


class UsualStep:
    """Step at which all agents that are present, and no others, have each value, and none ends.

    Attributes:
        names: Names of these agents by the environment's own ids.

    Args:
        own_ids: The environment's own ids of the agents that are present, by name.
    """

    def __init__(self, own_ids: Mapping[str, AgentID]) -> None:
        self.names = {agent: name for name, agent in own_ids.items()}
        self._types = {type(agent) for agent in self.names}
        self._no_ends = {**dict.fromkeys(self.names, False), ALL: False}
        self._end_types = {*self._types, str}
        self._named_no_ends = {**dict.fromkeys(own_ids, False), ALL: False}

    def make_flags(self) -> dict[str, bool]:
        """Return that no agent ends, by name."""
        return self._named_no_ends.copy()

    def matches(
        self, obs: object, rewards: object, terminateds: object, truncateds: object, infos: object
    ) -> bool:
        """Return whether what an environment returned is such a step, whatever its values."""
        names, ids, types = self.names.keys(), self._types, {bool}
        return (
            _is_dict_of(obs, names, ids)
            and _is_dict_of(rewards, names, ids)
            and _is_dict_of(infos, names, ids)
            and {*map(type, infos.values())} <= {dict}
            and _is_dict_of(terminateds, self._no_ends.keys(), self._end_types)
            and _is_dict_of(truncateds, self._no_ends.keys(), self._end_types)
            and {*map(type, terminateds.values()), *map(type, truncateds.values())} == types
            and terminateds == truncateds == self._no_ends
        )


def _is_dict_of(
    value: object, keys: Set[AgentID], types: set[type]
) -> TypeGuard[dict[AgentID, object]]:
    """Return whether a value is a dictionary of these keys; True and 1 are different ones."""
    return type(value) is dict and value.keys() == keys and {*map(type, value)} == types


MAX_IDLE_STEPS = 1_000
"""Steps in a row at which no agent acts, after which an episode is taken for one without end."""

_RESET_ARITY = "(observations, infos), both by agent"
_STEP_ARITY = "(observations, rewards, terminateds, truncateds, infos), all by agent"


class NonFiniteValueError(EnvError):
    """A reward or an observation that is NaN or infinite.

    Attributes:
        what: Which of them.
    """

    def __init__(self, message: str, what: Literal["reward", "observation"]) -> None:
        """Initialize the error."""
        super().__init__(message, what)
        self.what = what


class CheckedMultiAgentEnv:
    """An environment whose every breach of the contract is an error of one sentence.

    Agents have names here: ids that are ints become strings, and the environment's dictionaries
    keep theirs. A missing reward is 0. Flags of an agent that is not present are ignored, as those
    that an environment repeats for an agent that ended. What the environment raises passes.

    Attributes:
        env: The environment.
        name: Name of the environment, for messages.
        agents: Names, spaces and conversions of its agents.
        num_steps: Number of steps of the episode so far.
        rewards_without_action: Number of rewards, since it was made, of agents that were not
            present: before their first action, or after their end.
        state_space: Space of the global state, None if the environment has none.
        leaves_agents_waiting: Whether agents have been present without an observation, who have none
            at a time limit either, unless the environment defines `get_final_observation`.
    """

    def __init__(
        self,
        env: MultiAgentEnv,
        name: str | None = None,
        *,
        max_episode_steps: int | None = None,
        trains: bool = False,
        reads_state: bool | None = None,
    ) -> None:
        """Wrap an environment.

        Args:
            env: Environment with RLlib's interface.
            name: Name for messages, None for that of the class.
            max_episode_steps: Number of steps at which an episode is truncated, None for no limit.
            trains: Whether it is stepped for training, which checks no bounds of observations.
            reads_state: Whether the global state is read at every step, if there is one; None
                reads it unless it is stepped for training.

        Raises:
            EnvError: If an id or a limit is invalid.
        """
        self.env = env
        self.name = name or type(env).__name__
        self.agents = HostAgents(env, self.name)
        self.num_steps = 0
        self.rewards_without_action = 0
        self._limit = None
        if max_episode_steps is not None:
            self._limit = check_max_episode_steps(max_episode_steps)
        self._trains = trains
        self._reads_state = not trains if reads_state is None else reads_state
        self.leaves_agents_waiting = False
        self._asked: dict[str, None] = {}
        self._present: dict[str, None] = {}
        self._usual: UsualStep | None = None
        """Step at which nothing changes, for the agents that are present; None if not made yet."""
        self._idle_steps = 0
        self._is_running = False
        self.state_space, self._convert_state = _find_state(env, self.name)

    @property
    def possible_agents(self) -> tuple[str, ...]:
        """Names of all agents that may take part; empty if the environment does not say."""
        return self.agents.possible

    @property
    def agents_to_act(self) -> tuple[str, ...]:
        """Names of the agents whose actions the next step takes."""
        return tuple(self._asked)

    def get_own_id(self, agent: str) -> AgentID:
        """Return the environment's own id of an agent, which may be an int."""
        return self.agents.get_own_id(agent)

    def get_observation_space(self, agent: str) -> gymnasium.Space[Any]:
        """Return the observation space of an agent as modules see it, float64 as float32."""
        return self.agents.get_observation_space(agent)

    def get_action_space(self, agent: str) -> gymnasium.Space[Any]:
        """Return the action space of an agent as modules see it."""
        return self.agents.get_action_space(agent)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> HostMultiStart:
        """Begin an episode.

        Raises:
            EnvError: If the result breaks the contract.
        """
        self._is_running = False
        result = self.env.reset(seed=seed, options=options)
        parts = _unpack(f"{self.name}: reset", result, 2, _RESET_ARITY)
        obs = self._name_keys(parts[0], "reset's observations")
        infos, info = self._split_infos(parts[1], "reset's infos")
        self.num_steps = self._idle_steps = 0
        converted = {name: self._convert(name, value) for name, value in obs.items()}
        self._present, self._usual = dict.fromkeys(converted), None
        self._asked = dict.fromkeys(converted)
        state = self._get_state()
        self._is_running = True
        return HostMultiStart(obs=converted, infos=infos, info=info, global_state=state)

    def step(self, actions: Mapping[Any, PyTree]) -> HostMultiStep:
        """Take one step.

        Args:
            actions: Actions of exactly the agents that act, by name or by the environment's id.

        Raises:
            EnvError: If the actions or the result break the contract.
        """
        own = self._to_own_actions(actions)
        self.num_steps += 1
        self._is_running = False  # until the step is known to be sound
        result = self.env.step(own)
        is_sound = isinstance(result, tuple) and len(result) == 5
        parts = result if is_sound else _unpack(f"{self._at}: step", result, 5, _STEP_ARITY)
        step = self._check_usual_step(*parts)
        if step is None:
            step = self._check_step(*parts)
            self.rewards_without_action += step.rewards_without_action
            self._asked = {name: None for name, acts in step.acts.items() if acts}
            self._present = {
                name: None
                for name in (*step.present, *step.joined)
                if not (step.terminated.get(name) or step.truncated.get(name))
            }
            self._usual = None
        else:
            self._asked = self._present
        self._count_idle(step)
        self._is_running = not step.is_over
        return step

    def get_flags(self, agents: Sequence[str]) -> dict[str, np.ndarray]:
        """Return where the episode is, as arrays: counts, and who acts next and is present.

        Args:
            agents: Names of all agents that may take part.
        """
        return {
            "counts": np.asarray([self.num_steps, self._idle_steps, self._is_running], np.int32),
            "acts": np.asarray([agent in self._asked for agent in agents], np.bool_),
            "present": np.asarray([agent in self._present for agent in agents], np.bool_),
        }

    def set_flags(self, agents: Sequence[str], flags: Mapping[str, np.ndarray]) -> None:
        """Restore what `get_flags` returned, for an environment that has been set to that step."""
        self.num_steps, self._idle_steps = int(flags["counts"][0]), int(flags["counts"][1])
        self._is_running = bool(flags["counts"][2])
        self._asked = {a: None for a, acts in zip(agents, flags["acts"], strict=True) if acts}
        self._present = {a: None for a, here in zip(agents, flags["present"], strict=True) if here}
        self._usual = None

    def render(self) -> Any:
        """Return the environment's picture, None if there is none."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    @property
    def _at(self) -> str:
        return f"{self.name}: step {self.num_steps}" if self.num_steps else f"{self.name}: reset"

    def _to_own_actions(self, actions: Mapping[Any, PyTree]) -> AgentDict:
        """Return the actions by the environment's ids, if they are of those that act."""
        if not self._is_running:
            raise EnvError(f"{self.name}: the episode has not begun or is over; call reset first.")
        named = {self.agents.find_name(agent): action for agent, action in actions.items()}
        if named.keys() != self._asked.keys():
            self._refuse_actions(named)
        return self.agents.to_own_actions(named)

    def _refuse_actions(self, named: Mapping[str, PyTree]) -> NoReturn:
        """Raise the error of actions that are not those of the agents that act."""
        step, found = self.num_steps + 1, [name for name in named if name not in self._asked]
        if found:
            raise EnvError(
                f"{self.name}: step {step} got an action of agent {found[0]!r}, which was not asked"
                f": it has no observation to act on; act for {list(self._asked)}."
            )
        missing = [name for name in self._asked if name not in named]
        raise EnvError(
            f"{self.name}: step {step} got no action of agent {missing[0]!r}, which has an "
            f"observation to act on; act for {list(self._asked)}."
        )

    def _check_usual_step(
        self, obs: Any, rewards: Any, terminateds: object, truncateds: object, infos: Any
    ) -> HostMultiStep | None:
        """Return the step if all agents that are present go on, None for any other step.

        It is that of `_check_step`, which says what is wrong with a step.
        """
        if self._limit is not None and self.num_steps >= self._limit:
            return None
        if self._usual is None:
            self._usual = UsualStep({name: self.agents.get_own_id(name) for name in self._present})
        usual = self._usual
        if not usual.matches(obs, rewards, terminateds, truncateds, infos):
            return None
        names = usual.names
        return HostMultiStep(
            reward={name: self._to_reward(name, rewards[agent]) for agent, name in names.items()},
            obs={names[agent]: self._convert(names[agent], value) for agent, value in obs.items()},
            terminated=usual.make_flags(),
            truncated=usual.make_flags(),
            acts=dict.fromkeys(self._present, True),
            joined=(),
            infos={names[agent]: info for agent, info in infos.items()},
            info={},
            global_state=self._get_state(),
        )

    def _check_step(
        self, obs: object, rewards: object, terminateds: object, truncateds: object, infos: object
    ) -> HostMultiStep:
        named_obs = self._name_keys(obs, "the observations")
        reward = {
            name: self._to_reward(name, value)
            for name, value in self._name_keys(rewards, "the rewards").items()
        }
        terminated = self._to_flags(terminateds, "terminateds")
        truncated = self._to_flags(truncateds, "truncateds")
        if ALL not in terminated | truncated:
            raise EnvError(
                f"{self._at}: terminateds must be a dictionary with {ALL!r}, which says whether the "
                f"episode is over, got {list(terminated)}; return terminateds[{ALL!r}]=True or False at "
                "every step."
            )
        terminated.setdefault(ALL, False)
        truncated.setdefault(ALL, False)
        own_infos, info = self._split_infos(infos, "the infos")
        if self._limit is not None and self.num_steps >= self._limit:
            truncated[ALL] = truncated[ALL] or not terminated[ALL]
        ended = terminated[ALL], truncated[ALL]
        over = ended[0] or ended[1]
        ends: dict[str, tuple[bool, bool]] = {}
        for name in self._present:  # an agent's own flags, or those of the episode
            own = terminated.get(name, False), truncated.get(name, False)
            ends[name] = own if own[0] or own[1] else ended
        newcomers = [
            name
            for name in named_obs
            if name not in ends and not (over or terminated.get(name) or truncated.get(name))
        ]
        is_cut_by_limit = ended[1] and not cast("AgentDict", truncateds).get(ALL, False)
        if is_cut_by_limit:
            last = self._get_final_observations(ends, named_obs)
            named_obs = {**named_obs, **last}
            reward |= {name: reward.get(name, 0.0) + self._get_final_reward(name) for name in last}
        elif not over:
            waits = any(name not in named_obs for name, end in ends.items() if not any(end))
            self.leaves_agents_waiting |= waits and not self._tells_final_observations
        obs_after = {
            name: self._convert(name, value)
            for name, value in named_obs.items()
            if name in ends or name in newcomers
        }
        self._check_last_obs(ends, obs_after, limited=is_cut_by_limit)
        alone = [name for name, value in reward.items() if name not in ends and value != 0.0]
        return HostMultiStep(
            obs=obs_after,
            reward={
                **{name: reward.get(name, 0.0) for name in ends},
                **{name: reward[name] for name in alone},
            },
            terminated={**{name: end[0] for name, end in ends.items()}, ALL: ended[0]},
            truncated={**{name: end[1] for name, end in ends.items()}, ALL: ended[1]},
            acts={
                **{name: name in obs_after and not (t or c) for name, (t, c) in ends.items()},
                **dict.fromkeys(newcomers, True),
            },
            joined=tuple(newcomers),
            infos=own_infos,
            info=info,
            rewards_without_action=len(alone),
            global_state=self._get_state(),
        )

    @property
    def _tells_final_observations(self) -> bool:
        """True if the environment defines `get_final_observation`."""
        own = getattr(type(self.env), "get_final_observation", None)
        return own is not None and own is not MultiAgentEnv.get_final_observation

    def _get_final_observations(
        self, ends: dict[str, tuple[bool, bool]], obs: dict[str, Any]
    ) -> dict[str, Any]:
        """Return last observations of agents that a time limit truncates while they wait."""
        if not self._tells_final_observations:
            return {}
        waiting = [name for name, end in ends.items() if name not in obs and end == (False, True)]
        own = {name: self.agents.get_own_id(name) for name in waiting}
        return {name: self.env.get_final_observation(agent) for name, agent in own.items()}

    def _get_final_reward(self, name: str) -> float:
        """Return what an agent that waits has earned and was not paid yet."""
        get_reward = getattr(self.env, "get_final_reward", None)
        return (
            0.0
            if get_reward is None
            else self._to_reward(name, get_reward(self.agents.get_own_id(name)))
        )

    def _check_last_obs(
        self, ends: dict[str, tuple[bool, bool]], obs: dict[str, PyTree], *, limited: bool
    ) -> None:
        for name, (terminated, truncated) in ends.items():
            if not truncated or terminated or name in obs:
                continue
            own = self.agents.get_own_id(name)
            if limited:
                raise EnvError(
                    f"{self._at}: max_episode_steps={self._limit} truncates agent {name!r}, which "
                    "has no observation at this step to estimate the rest of its return from; leave "
                    "the limit out, or define get_final_observation(agent_id), which returns it."
                )
            raise EnvError(
                f"{self._at}: agent {name!r} is truncated without a last observation to estimate "
                f"the rest of its return from; return obs[{own!r}] at this step too, or "
                f"terminateds[{own!r}]=True if its task ended."
            )

    def _convert(self, name: str, value: object) -> PyTree:
        try:
            obs = self.agents.convert_obs(name, value)
        except EnvError as error:  # without a cause: nothing that the user wrote has raised
            raise self.agents.explain(name, f"{self._at}: the observation", error) from None
        if not self.agents.check_finite(name, obs):
            own = self.agents.get_own_id(name)
            raise NonFiniteValueError(
                f"{self._at}: the observation of agent {name!r} is NaN or infinite; return finite "
                f"numbers in obs[{own!r}].",
                "observation",
            )
        if not self._trains:
            self.agents.check_bounds(name, obs, f"{self._at}: the observation")
        return obs

    def _to_reward(self, name: str, value: object) -> float:
        if isinstance(value, float | np.floating) and math.isfinite(value):
            return float(value)
        own = self.agents.get_own_id(name)
        try:
            array = np.asarray(value)
        except ValueError:  # a ragged list
            array = np.asarray(None)
        if array.shape != () or array.dtype.kind not in "fiub":
            raise EnvError(
                f"{self._at}: the reward of agent {name!r} must be one number, got {value!r}; "
                f"return a float in rewards[{own!r}], or leave it out for 0."
            )
        if not math.isfinite(array):
            raise NonFiniteValueError(
                f"{self._at}: the reward of agent {name!r} is {float(array)}; return a finite number "
                f"in rewards[{own!r}].",
                "reward",
            )
        return float(array)

    def _to_flags(self, value: object, what: str) -> dict[str, bool]:
        """Return flags by name, with that of the whole episode if it is there."""
        if not isinstance(value, dict):
            raise EnvError(
                f"{self._at}: {what} must be a dictionary by agent, got a {type(value).__name__}; "
                f"return {what}[{ALL!r}]=True where the episode is over."
            )
        flags = dict(value)
        for agent, flag in value.items():
            if type(flag) is bool:
                continue
            if not isinstance(flag, np.bool_) and not _is_bool_array(flag):
                raise EnvError(
                    f"{self._at}: {what}[{agent!r}] must be a bool, got {flag!r}; return True or "
                    "False."
                )
            flags[agent] = bool(flag)
        is_over = flags.pop(ALL, None)
        named = self._name_keys(flags, what)
        return named if is_over is None else {**named, ALL: is_over}

    def _split_infos(
        self, value: object, what: str
    ) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
        """Return infos by name, and the one of no agent in particular."""
        shared: Any = {}
        if isinstance(value, dict) and COMMON in value:
            shared = value[COMMON]
            value = {agent: info for agent, info in value.items() if agent != COMMON}
        infos = self._name_keys(value, what)
        for info in (*infos.values(), shared):
            if not isinstance(info, dict):
                agent = next((a for a, own in infos.items() if own is info), COMMON)
                raise EnvError(
                    f"{self._at}: the info of {agent!r} must be a dictionary, got {info!r}; return "
                    "{} for nothing."
                )
        return infos, shared

    def _name_keys(self, value: object, what: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise EnvError(
                f"{self._at}: {what} must be a dictionary by agent, got a {type(value).__name__}; "
                "return {} where no agent has any."
            )
        named = self.agents.name_keys(value)
        if named is not None:
            return named
        where = f"step {self.num_steps}'s {what.removeprefix('the ')}" if self.num_steps else what
        return {self.agents.get_name(agent, where): part for agent, part in value.items()}

    def _get_state(self) -> PyTree:
        if self._convert_state is None or not self._reads_state:
            return None
        state = jax.tree.map(np.array, self._convert_state(self.env.state()))
        if all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state)):
            return state
        raise NonFiniteValueError(
            f"{self._at}: the global state is NaN or infinite; return finite numbers by state().",
            "observation",
        )

    def _count_idle(self, step: HostMultiStep) -> None:
        """Raise if nobody has acted for so long that the episode seems to have no end."""
        self._idle_steps = 0 if self._asked or step.is_over else self._idle_steps + 1
        if self._idle_steps > MAX_IDLE_STEPS:
            raise EnvError(
                f"{self._at}: no agent has had an observation for {MAX_IDLE_STEPS} steps; return "
                f"terminateds[{ALL!r}]=True when the last agent has ended, or an observation of "
                "who acts next."
            )


def _unpack(label: str, result: object, number: int, arity: str) -> tuple[Any, ...]:
    if isinstance(result, tuple) and len(result) == number:
        return result
    got = f"{len(result)} values" if isinstance(result, tuple) else f"a {type(result).__name__}"
    raise EnvError(f"{label} must return {arity}, got {got}.")


def _is_bool_array(flag: object) -> bool:
    return isinstance(flag, np.ndarray) and flag.shape == () and flag.dtype == np.bool_


def _find_state(
    env: MultiAgentEnv, name: str
) -> "tuple[gymnasium.Space[Any] | None, Converter | None]":
    """Return the space and the converter of the global state, None if there is none."""
    space = getattr(env, "state_space", None)
    if not isinstance(space, gymnasium.Space) or not callable(getattr(env, "state", None)):
        return None, None
    space = to_runner_space(space)
    return space, make_converter(f"{name}: the global state", space)
