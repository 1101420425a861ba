"""Values that a checked environment of several agents returns, by agents' names as strings."""

import dataclasses
from typing import Any

from jaxrl.core.types import PyTree
from jaxrl.envs.multi.base import ALL


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
