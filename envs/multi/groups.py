"""Groups of agents as single agents: what is trained jointly (VDN, QMIX, central control)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool, Float

from jaxrl.core.space_arrays import get_leaf_dtype
from jaxrl.core.spaces import is_same_space, map_leaves
from jaxrl.core.struct import pytree
from jaxrl.core.types import Key, PyTree, TimeStep
from jaxrl.envs.base import JaxEnv
from jaxrl.envs.multi.base import (
    ALL,
    Entry,
    MultiAgentJaxEnv,
    MultiStart,
    MultiStep,
    get_entries,
)
from jaxrl.envs.multi.made import MultiTimeLimit
from jaxrl.envs.registry import EnvSpec, make_multi
from jaxrl.errors import EnvError, did_you_mean

GroupReward: TypeAlias = Literal["sum", "mean", "same"]


@pytree
class GroupedState:
    """The environment's state, and the members of each group that are present."""

    inner: PyTree
    begun: dict[str, Bool[Array, " m"]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """Agents that are one agent, and what it sees of them.

    Members with equal spaces are stacked, `[m, ...]`; others are a tuple, in which a kind of equal
    agents is one part.

    Attributes:
        name: Id of the group.
        entries: The members' entries, in order.
        reward: How the members' rewards become one.
        member_mask: Whether it observes which members act.
        member_rewards: Whether it observes the members' rewards of the last step.
        global_state: Whether it observes the environment's global state.
    """

    name: str
    entries: tuple[Entry, ...]
    reward: GroupReward
    member_mask: bool
    member_rewards: bool
    global_state: bool

    @property
    def agents(self) -> tuple[str, ...]:
        """Ids of the members."""
        return tuple(agent for entry in self.entries for agent in entry.agents)

    def is_stacked(self, env: MultiAgentJaxEnv[Any, Any], params: PyTree) -> bool:
        """Return whether all members have equal spaces."""
        return all(
            is_same_space(get(self.agents[0], params), get(agent, params))
            for get in (env.observation_space, env.action_space)
            for agent in self.agents[1:]
        )

    def join_spaces(
        self, parts: Sequence[gymnasium.Space[Any]], stacked: bool
    ) -> gymnasium.Space[Any]:
        """Return the space of all members, given that of each entry's members."""
        if stacked:
            return flatten_mask_space(stack_space(parts[0], len(self.agents)))
        return spaces.Tuple(
            [
                stack_space(part, len(entry.agents)) if entry.is_kind else part
                for entry, part in zip(self.entries, parts, strict=True)
            ]
        )

    def join(self, values: Mapping[str, PyTree], stacked: bool) -> PyTree:
        """Return the members' values as the group's."""
        parts = [values[entry.key] for entry in self.entries]
        if not stacked:
            return tuple(parts)
        parts = [
            part if entry.is_kind else jax.tree.map(lambda leaf: leaf[None], part)
            for entry, part in zip(self.entries, parts, strict=True)
        ]
        return jax.tree.map(lambda *leaves: get_numpy(*leaves).concatenate(leaves), *parts)

    def split(self, action: PyTree, stacked: bool) -> dict[str, PyTree]:
        """Return the group's action as its members'."""
        if not stacked:
            return {entry.key: part for entry, part in zip(self.entries, action, strict=True)}
        actions: dict[str, PyTree] = {}
        first = 0
        for entry in self.entries:
            rows = slice(first, first + len(entry.agents)) if entry.is_kind else first
            actions[entry.key] = jax.tree.map(lambda leaf, rows=rows: leaf[rows], action)
            first += len(entry.agents)
        return actions

    def combine(self, reward: Float[Array, " m"], present: Bool[Array, " m"]) -> Float[Array, ""]:
        """Return the group's reward from those of its members that are present."""
        xp = get_numpy(reward, present)
        reward = xp.where(present, reward.astype(xp.float32), xp.float32(0.0))
        if self.reward == "same":
            return reward[xp.argmax(present)]
        total = reward.sum()
        return total if self.reward == "sum" else total / xp.maximum(present.sum(), 1)


class GroupedAgents(MultiAgentJaxEnv[GroupedState, Any]):
    """Environment whose agents are groups, and whoever is in none."""

    def __init__(
        self, env: MultiAgentJaxEnv[Any, Any], params: PyTree, groups: list[Group]
    ) -> None:
        """Group the agents of `env`, whose parameters are `params`."""
        self.env, self.groups = env, {group.name: group for group in groups}
        self._params = params
        self.name = f"Grouped({env.name})"
        self.possible_agents = tuple(self.groups)
        self.acting = env.acting
        if env.max_acting is not None:
            self.max_acting = min(env.max_acting, len(groups))
        self.max_episode_steps = env.max_episode_steps
        self.reset_mode, self.render_fps = env.reset_mode, env.render_fps
        self._stacked = {group.name: group.is_stacked(env, params) for group in groups}

    @property
    def default_params(self) -> PyTree:
        return self._params

    def observation_space(self, agent: str, params: PyTree) -> gymnasium.Space[Any]:
        group = self.groups[agent]
        parts = [self.env.observation_space(entry.agents[0], params) for entry in group.entries]
        members = group.join_spaces(parts, self._stacked[agent])
        size = (len(group.agents),)
        extras: dict[str, gymnasium.Space[Any]] = {}
        if group.member_mask:
            extras["member_mask"] = spaces.MultiBinary(size)
        if group.member_rewards:
            extras["member_rewards"] = spaces.Box(-np.inf, np.inf, size, np.float32)
        state = self.env.state_space(params)
        if group.global_state and state is not None:
            extras["global_state"] = state
        if not extras:
            return members
        own, mask = split_mask(members.spaces if isinstance(members, spaces.Dict) else members)
        own = spaces.Dict(own) if isinstance(own, dict) else own
        return spaces.Dict({**extras, **mask, "obs": own})

    def action_space(self, agent: str, params: PyTree) -> gymnasium.Space[Any]:
        group = self.groups[agent]
        parts = [self.env.action_space(entry.agents[0], params) for entry in group.entries]
        return group.join_spaces(parts, self._stacked[agent])

    def state_space(self, params: PyTree) -> gymnasium.Space[Any] | None:
        return self.env.state_space(params)

    def global_state(self, state: GroupedState, params: PyTree) -> PyTree:
        return self.env.global_state(state.inner, params)

    def reset(self, key: Key, params: PyTree) -> tuple[GroupedState, MultiStart]:
        inner, start = self.env.reset(key, params)
        acts = self._join_flags(start.acts)
        state = GroupedState(
            inner=inner, begun={name: jnp.zeros(flag.shape, bool) for name, flag in acts.items()}
        )
        rewards = {name: jnp.zeros(flag.shape, jnp.float32) for name, flag in acts.items()}
        obs = self.observe(self._get_state(inner, params), start.obs, acts, acts, rewards)
        state = GroupedState(inner=inner, begun=acts)
        return state, MultiStart(obs=obs, acts={name: flag.any() for name, flag in acts.items()})

    def step(
        self, key: Key, state: GroupedState, actions: dict[str, PyTree], params: PyTree
    ) -> tuple[GroupedState, MultiStep]:
        """Step the members; a group ends with the last of its members, or with the episode."""
        own: dict[str, PyTree] = {}
        for name, group in self.groups.items():
            own |= group.split(actions[name], self._stacked[name])
        inner, step = self.env.step(key, state.inner, own, params)
        present, acts = state.begun, self._join_flags(step.acts)
        died, left = self._join_flags(step.terminated), self._join_flags(step.truncated)
        stays = {name: here & ~(died[name] | left[name]) for name, here in present.items()}
        gone = {name: here.any() & ~stays[name].any() for name, here in present.items()}
        by_itself = {name: (here & died[name]).any() for name, here in present.items()}
        rewards = {
            name: jnp.where(present[name], value.astype(jnp.float32), 0.0)
            for name, value in self._join_flags(step.reward).items()
        }
        state = GroupedState(
            inner=inner, begun={name: stays[name] | acts[name] for name in present}
        )
        seen = {name: present[name] | acts[name] for name in present}
        # At its own cut, an environment may say that nobody acts: then all would who are present.
        nobody = ~jnp.stack([flag.any() for flag in acts.values()]).any()
        cut = step.truncated[ALL] & ~step.terminated[ALL] & nobody & (self.acting != "some")
        shown = {name: acts[name] | (cut & present[name] & ~died[name]) for name in present}
        return state, MultiStep(
            obs=self.observe(self._get_state(inner, params), step.obs, shown, seen, rewards),
            acts={name: flag.any() for name, flag in acts.items()},
            reward={
                name: group.combine(rewards[name], present[name])
                for name, group in self.groups.items()
            },
            terminated={
                **{name: gone[name] & by_itself[name] for name in gone},
                ALL: step.terminated[ALL],
            },
            truncated={
                **{name: gone[name] & ~by_itself[name] for name in gone},
                ALL: step.truncated[ALL],
            },
            info=step.info,
        )

    def render(self, state: GroupedState, params: PyTree) -> np.ndarray:
        return self.env.render(state.inner, params)

    def _join_flags(self, values: dict[str, Array]) -> dict[str, Array]:
        """Return one array of the members' numbers or flags for each group."""
        return {name: group.join(values, stacked=True) for name, group in self.groups.items()}

    def _get_state(self, inner: PyTree, params: PyTree) -> PyTree:
        """Return the global state, None if no group observes it."""
        observed = any(group.global_state for group in self.groups.values())
        return self.env.global_state(inner, params) if observed else None

    def is_stacked(self, name: str) -> bool:
        """Return whether observations and actions of a group's members are stacked."""
        return self._stacked[name]

    def observe(
        self,
        global_state: PyTree,
        obs: dict[str, PyTree],
        acts: dict[str, Array],
        seen: dict[str, Array],
        rewards: dict[str, Array],
    ) -> dict[str, PyTree]:
        """Return the groups' observations; those of absent members are zero.

        Args:
            global_state: Global state, if a group observes it.
            obs: Observations by the environment's entries.
            acts: Which members of each group act.
            seen: Which of them are present.
            rewards: Their last rewards.
        """
        result: dict[str, PyTree] = {}
        for name, group in self.groups.items():
            shown = _hide(group, obs, seen[name], acts[name])
            members = group.join(shown, self._stacked[name])
            if self._stacked[name] and isinstance(members, dict) and ACTION_MASK in members:
                members = {**members, ACTION_MASK: members[ACTION_MASK].reshape(-1)}
            extras: dict[str, PyTree] = {}
            if group.member_mask:
                extras["member_mask"] = acts[name].astype(np.int8)
            if group.member_rewards:
                extras["member_rewards"] = rewards[name]
            if group.global_state:
                extras["global_state"] = global_state
            own, mask = split_mask(members)
            result[name] = {**extras, **mask, "obs": own} if extras else members
        return result


class Team(JaxEnv[GroupedState, Any]):
    """All agents of an environment as one agent."""

    def __init__(self, grouped: GroupedAgents) -> None:
        """Create the environment from one whose only agent is a group of all."""
        self.grouped = grouped
        self.name = grouped.name
        self._group = grouped.possible_agents[0]
        self.max_episode_steps = grouped.max_episode_steps
        self.reset_mode, self.render_fps = grouped.reset_mode, grouped.render_fps

    @property
    def default_params(self) -> PyTree:
        return self.grouped.default_params

    def observation_space(self, params: PyTree) -> gymnasium.Space[Any]:
        return self.grouped.observation_space(self._group, params)

    def action_space(self, params: PyTree) -> gymnasium.Space[Any]:
        return self.grouped.action_space(self._group, params)

    def reset(self, key: Key, params: PyTree) -> tuple[GroupedState, PyTree]:
        state, start = self.grouped.reset(key, params)
        return state, start.obs[self._group]

    def step(
        self, key: Key, state: GroupedState, action: PyTree, params: PyTree
    ) -> tuple[GroupedState, TimeStep]:
        """Step all members; the episode ends as the environment says."""
        state, step = self.grouped.step(key, state, {self._group: action}, params)
        return state, TimeStep(
            obs=step.obs[self._group],
            reward=step.reward[self._group],
            terminated=step.terminated[ALL],
            truncated=step.truncated[ALL],
            info=step.info,
        )

    def render(self, state: GroupedState, params: PyTree) -> np.ndarray:
        return self.grouped.render(state, params)

    @property
    def members(self) -> tuple[str, ...]:
        """Ids of the agents, in the order of their actions."""
        return self.grouped.groups[self._group].agents

    def join_observations(self, observations: Mapping[str, PyTree]) -> PyTree:
        """Return the team's observation, given those of the members that act.

        What is not given is zero: other members, rewards, and the global state.
        """
        env, params, name = self.grouped.env, self.default_params, self._group
        entries = self.grouped.groups[name].entries
        rows = {
            agent: jax.tree.map(np.asarray, observations[agent])
            if agent in observations
            else make_blank(env.observation_space(agent, params))
            for agent in self.members
        }
        obs = {
            entry.key: jax.tree.map(lambda *x: np.stack(x), *[rows[a] for a in entry.agents])
            if entry.is_kind
            else rows[entry.agents[0]]
            for entry in entries
        }
        acts = {name: jnp.array([agent in observations for agent in self.members])}
        rewards = {name: jnp.zeros(len(self.members), jnp.float32)}
        space = env.state_space(params)
        state = None if space is None else make_blank(space)
        return self.grouped.observe(state, obs, acts, acts, rewards)[name]

    def split_action(self, action: PyTree) -> dict[str, PyTree]:
        """Return the action of each member."""
        stacked = self.grouped.is_stacked(self._group)
        group = self.grouped.groups[self._group]
        actions: dict[str, PyTree] = {}
        for entry, part in zip(group.entries, group.split(action, stacked).values(), strict=True):
            for index, agent in enumerate(entry.agents):
                own = jax.tree.map(lambda x, i=index: x[i], part) if entry.is_kind else part
                actions[agent] = own
        return actions


def group_agents(
    env: EnvSpec | MultiAgentJaxEnv[Any, Any],
    groups: Mapping[str, Sequence[str]],
    reward: GroupReward = "sum",
    *,
    member_mask: bool = False,
    member_rewards: bool = False,
    global_state: bool = False,
    env_config: Mapping[str, Any] | None = None,
) -> JaxEnv[Any, Any] | MultiAgentJaxEnv[Any, Any]:
    """Return an environment in which each group of agents is one agent.

    One group of all agents gives a `JaxEnv`, for single-agent algorithms; otherwise the result has
    the groups as agents. Observations and actions of members with equal spaces are stacked,
    `[m, ...]`, others are tuples. The observation of an absent member is zero, its action ignored,
    and its reward 0. Where an extra is asked for, an observation is a Dict of the extras, `"obs"`,
    and the members' `"action_mask"` if they have one.

    Args:
        env: Multi-agent environment, as in `make_multi`.
        groups: Agents by group, all of them in one; a kind of equal agents as a whole.
        reward: "sum" or "mean" of the rewards of members that are present, or "same" where all
            members have the same.
        member_mask: Whether a group observes which members act, as `"member_mask"`; where the
            environment truncates its episode and all act, these are those alive.
        member_rewards: Whether it observes the last rewards of its members.
        global_state: Whether it observes the global state.
        env_config: Settings of the environment.

    Raises:
        EnvError: If the groups do not divide the agents, or an option does not exist.
    """
    made = make_multi(env, env_config)
    inner = made.env.env if isinstance(made.env, MultiTimeLimit) else made.env
    if reward not in get_args(GroupReward):
        raise EnvError(f"reward must be 'sum', 'mean' or 'same', got {reward!r}.")
    if global_state and inner.state_space(made.params) is None:
        raise EnvError(
            f"{made.id} has no global state (state_space is None) for global_state=True."
        )
    grouped = GroupedAgents(
        inner,
        made.params,
        [
            Group(
                name=name,
                entries=entries,
                reward=reward,
                member_mask=member_mask,
                member_rewards=member_rewards,
                global_state=global_state,
            )
            for name, entries in _divide(made.id, inner, groups).items()
        ],
    )
    grouped.max_episode_steps = made.max_episode_steps
    return Team(grouped) if len(groups) == 1 else grouped


def _divide(
    env_id: str, env: MultiAgentJaxEnv[Any, Any], groups: Mapping[str, Sequence[str]]
) -> dict[str, tuple[Entry, ...]]:
    """Return each group's entries.

    Raises:
        EnvError: If the groups do not divide the agents.
    """
    if not isinstance(groups, Mapping) or not groups:
        raise EnvError(f"groups must map names to lists of agents, got {groups!r}.")
    members = [agent for agents in groups.values() for agent in agents]
    for agent in members:
        if agent not in env.possible_agents:
            raise EnvError(
                f"{env_id} has no agent {agent!r}.{did_you_mean(agent, env.possible_agents)}"
            )
        if members.count(agent) > 1:
            raise EnvError(f"groups have the agent {agent!r} twice.")
    missing = [agent for agent in env.possible_agents if agent not in members]
    if missing:
        raise EnvError(
            f"groups must have every agent of {env_id}, and {missing[0]!r} is in none; an agent of "
            "its own is a group of one."
        )
    divided: dict[str, tuple[Entry, ...]] = {}
    for name, agents in groups.items():
        entries = [entry for entry in get_entries(env) if set(entry.agents) & set(agents)]
        split = next((e for e in entries if not set(e.agents) <= set(agents)), None)
        if split is not None:
            raise EnvError(f"group {name!r} has a part of the kind {split.key!r}; give it whole.")
        entries.sort(key=lambda entry: list(agents).index(entry.agents[0]))
        divided[name] = tuple(entries)
    return divided


def _hide(
    group: Group, obs: dict[str, PyTree], seen: Bool[Array, " m"], acts: Bool[Array, " m"]
) -> dict[str, PyTree]:
    """Return the members' observations: zeros for the absent, no illegal action for the idle."""
    shown: dict[str, PyTree] = {}
    idle = group.split(~acts, stacked=True)
    for key, here in group.split(seen, stacked=True).items():
        shown[key] = jax.tree.map(
            lambda leaf, here=here: get_numpy(leaf, here).where(
                _expand(here, leaf), leaf, np.zeros((), leaf.dtype)
            ),
            obs[key],
        )
        if isinstance(shown[key], dict) and ACTION_MASK in shown[key]:
            mask = shown[key][ACTION_MASK]
            one = np.ones((), mask.dtype)
            legal = get_numpy(mask, idle[key]).where(_expand(idle[key], mask), one, mask)
            shown[key] = {**shown[key], ACTION_MASK: legal}
    return shown


def get_numpy(*arrays: Any) -> Any:
    """Return NumPy for arrays of NumPy alone, as environments in Python have, else JAX's."""
    return np if all(isinstance(x, np.ndarray | np.generic) for x in arrays) else jnp


def _expand(flags: Bool[Array, "*members"], like: Array) -> Bool[Array, "*_"]:
    return flags.reshape(flags.shape + (1,) * (like.ndim - flags.ndim))


ACTION_MASK = "action_mask"


def make_blank(space: gymnasium.Space[Any]) -> PyTree:
    """Return zeros shaped and typed as values of a space in a program."""
    return map_leaves(lambda leaf: np.zeros(leaf.shape or (), get_leaf_dtype(leaf)), space)


def stack_space(space: gymnasium.Space[Any], count: int) -> gymnasium.Space[Any]:
    """Return the space of `count` values of a space, `[count, ...]`."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({k: stack_space(part, count) for k, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([stack_space(part, count) for part in space.spaces])
    if isinstance(space, spaces.Discrete):
        return spaces.MultiDiscrete(
            np.full(count, space.n, np.int64), start=np.full(count, space.start, np.int64)
        )
    if isinstance(space, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(
            np.stack([space.nvec] * count), start=np.stack([space.start] * count)
        )
    if isinstance(space, spaces.MultiBinary):
        return spaces.MultiBinary((count, *tuple(space.shape or ())))
    assert isinstance(space, spaces.Box)
    low, high = np.stack([space.low] * count), np.stack([space.high] * count)
    return spaces.Box(low, high, dtype=space.dtype.type)


def flatten_mask_space(space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    """Put the members' masks in a row, as masks of MultiDiscrete actions are."""
    if not isinstance(space, spaces.Dict) or ACTION_MASK not in space.spaces:
        return space
    mask = space.spaces[ACTION_MASK]
    size = int(np.prod(mask.shape or ()))
    if isinstance(mask, spaces.Box):
        flat = spaces.Box(mask.low.reshape(size), mask.high.reshape(size), dtype=mask.dtype.type)
    elif isinstance(mask, spaces.MultiDiscrete):
        flat = spaces.MultiDiscrete(mask.nvec.reshape(size))
    else:
        flat = spaces.MultiBinary(size)
    return spaces.Dict({**space.spaces, ACTION_MASK: flat})


def split_mask(members: Any) -> tuple[Any, dict[str, Any]]:
    """Return the members' observations without their action mask, and the mask by its name."""
    if not isinstance(members, dict) or ACTION_MASK not in members:
        return members, {}
    others = {name: part for name, part in members.items() if name != ACTION_MASK}
    own = next(iter(others.values())) if len(others) == 1 else others
    return own, {ACTION_MASK: members[ACTION_MASK]}
