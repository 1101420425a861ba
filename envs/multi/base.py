"""The contract of environments with several agents: pure functions, a dictionary entry an agent."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Generic, Literal, TypeAlias, cast

import gymnasium
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxrl.core.struct import pytree
from jaxrl.core.types import Key, PyTree
from jaxrl.envs.base import ParamsT, ResetMode, StateT

Acting: TypeAlias = Literal["all", "some"]

ALL = "__all__"
"""Key of the end of the whole episode in `terminated` and `truncated`, RLlib's name."""


SLOT_MARK = "#"
"""Mark in the name of a slot, which no id of an agent has: agents that come and go share it."""


def is_slot(agent: str) -> bool:
    """Return whether a name is that of a slot, which different agents have one after the other."""
    return SLOT_MARK in agent


@pytree
class MultiStart:
    """First observations of an episode, and who acts on them.

    An observation matters only of an agent that acts.
    """

    obs: dict[str, PyTree]
    acts: dict[str, Bool[Array, "*members"]]


@pytree
class MultiStep:
    """Result of one step for every agent, before any reset.

    `obs` holds the successor's observations and `acts` says who acts on them. `terminated` and
    `truncated` also have the key `"__all__"`, the end of the episode; an agent without a flag of
    its own then ends as the episode does. Entries of absent agents are ignored.
    """

    obs: dict[str, PyTree]
    acts: dict[str, Bool[Array, "*members"]]
    reward: dict[str, Float[Array, "*members"]]
    terminated: dict[str, Bool[Array, "*members"]]
    truncated: dict[str, Bool[Array, "*members"]]
    info: dict[str, Any] = dataclasses.field(default_factory=dict[str, Any])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """Key of an environment's dictionaries: an agent, or a kind of equal agents in one array."""

    key: str
    agents: tuple[str, ...]
    is_kind: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Leading axes of the entry's arrays: none for an agent, the members for a kind."""
        return (len(self.agents),) if self.is_kind else ()


class MultiAgentJaxEnv(Generic[StateT, ParamsT]):
    """Base class of environments of several agents written in JAX.

    As a `JaxEnv`, it is a single copy without auto-reset, vectorization or time limit, and traced
    but for `render`. Every dictionary has an entry for every possible agent, so that shapes are
    fixed. An agent is present from the first step at which it acts to its own end, and may act
    again later in the episode, which begins a new agent-episode. While it is present, `obs` holds
    its observation also where it does not act. The action of an agent that does not act is any
    value of its space, and must be ignored. An action mask is the part `"action_mask"` of an
    observation, as for a single agent.
    """

    name: str = "MultiAgentJaxEnv"
    possible_agents: tuple[str, ...] = ()
    """Ids of all agents that may take part, in the order of rows."""
    agent_kinds: Mapping[str, int] = {}
    """Numbers of equal agents by kind. The agents `ally_0` to `ally_26` of the kind `ally` share
    the entry `"ally"`, whose arrays are `[27, ...]`, so that no program grows with their number."""
    acting: Acting | None = None
    """Agents that act at a step: "all" that are present, or "some" of them. None is "all" if `step`
    says of every agent that it acts, whatever its arguments, and "some" otherwise. A run that finds
    "all" to be wrong ends with an error."""
    max_acting: int | None = None
    """Largest number of agents that act at one step, with "some"; 1 in games of turns."""
    teams: Mapping[str, tuple[str, ...]] = {}
    """Agents by team; those of none are a team of their own."""
    max_episode_steps: int | None = None
    """Time limit that `make_multi` applies, None for no limit."""
    own_time_limit: int | None = None
    """Time limit at which `step` itself truncates, for what is said of the environment."""
    time_limit_fault: str | None = None
    """Reason why episodes cannot be truncated, None if they can."""
    note: str | None = None
    """Sentence for `config.explain()`."""
    reset_mode: ResetMode = "every_step"
    """Cheapest auto-reset mode for this environment; see `jaxrl.envs.vector`."""
    render_fps: float = 30
    """Environment steps per second of video."""
    has_hidden_state: bool = False
    """True if the state holds what a player is not to know, so that no search may begin from it."""

    @property
    def default_params(self) -> ParamsT:
        """Default parameters, None if the environment has none."""
        return cast(ParamsT, None)

    def observation_space(self, agent: str, params: ParamsT) -> gymnasium.Space[Any]:
        """Return the observation space of one agent."""
        raise NotImplementedError(f"{type(self).__name__} does not define observation_space")

    def action_space(self, agent: str, params: ParamsT) -> gymnasium.Space[Any]:
        """Return the action space of one agent."""
        raise NotImplementedError(f"{type(self).__name__} does not define action_space")

    def state_space(self, params: ParamsT) -> gymnasium.Space[Any] | None:
        """Return the space of the global state that central critics see, None without one."""
        return None

    def reset(self, key: Key, params: ParamsT) -> tuple[StateT, MultiStart]:
        """Return an initial state, its observations and who acts on them. Consumes the key."""
        raise NotImplementedError(f"{type(self).__name__} does not define reset")

    def step(
        self, key: Key, state: StateT, actions: dict[str, PyTree], params: ParamsT
    ) -> tuple[StateT, MultiStep]:
        """Take one step with an action for every entry."""
        raise NotImplementedError(f"{type(self).__name__} does not define step")

    def global_state(self, state: StateT, params: ParamsT) -> PyTree:
        """Return the global state, a value of `state_space`."""
        raise NotImplementedError(f"{type(self).__name__} does not define global_state")

    def render(self, state: StateT, params: ParamsT) -> np.ndarray:
        """Render the state as an RGB image, uint8 `[H, W, 3]`."""
        raise NotImplementedError(f"{type(self).__name__} cannot be rendered")


def number_agents(kind: str, count: int) -> tuple[str, ...]:
    """Return the ids of equal agents: `ally_0`, `ally_1`, ..."""
    return tuple(f"{kind}_{index}" for index in range(count))


def get_entries(env: MultiAgentJaxEnv[Any, Any]) -> tuple[Entry, ...]:
    """Return the entries of an environment's dictionaries, in the order of its agents."""
    kind_of = {
        agent: kind
        for kind, count in env.agent_kinds.items()
        for agent in number_agents(kind, count)
    }
    entries: dict[str, Entry] = {}
    for agent in env.possible_agents:
        kind = kind_of.get(agent)
        if kind is None:
            entries[agent] = Entry(key=agent, agents=(agent,))
        elif kind not in entries:
            members = number_agents(kind, env.agent_kinds[kind])
            entries[kind] = Entry(key=kind, agents=members, is_kind=True)
    return tuple(entries.values())


def make_flags(
    env: MultiAgentJaxEnv[Any, Any], *, value: bool
) -> dict[str, Bool[Array, "*members"]]:
    """Return the same flag for all agents, by entry: who acts if all do."""
    return {entry.key: jnp.full(entry.shape, value, jnp.bool_) for entry in get_entries(env)}


def make_no_ends(env: MultiAgentJaxEnv[Any, Any]) -> dict[str, Bool[Array, "*members"]]:
    """Return `terminated` or `truncated` of a step at which nobody ends, nor the episode."""
    return {**make_flags(env, value=False), ALL: jnp.zeros((), bool)}
