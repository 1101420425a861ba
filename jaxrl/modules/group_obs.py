"""Observations of a group of agents, as `jaxrl.envs.group_agents` makes them, for modules of teams."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import gymnasium
import jax.numpy as jnp
from gymnasium import spaces
from jaxtyping import Array, Bool, Float

from jaxrl.core.space_arrays import flatten, get_flat_size
from jaxrl.core.types import PyTree, obs_only
from jaxrl.distributions.from_space import describe_space
from jaxrl.errors import SpaceError
from jaxrl.modules.rl_module import ACTION_MASK

MEMBERS, MEMBER_MASK = "obs", "member_mask"
MEMBER_REWARDS, GLOBAL_STATE = "member_rewards", "global_state"
"""Parts of a group's observation: its members', who acts, what each was paid, and the global state."""


@dataclasses.dataclass(frozen=True)
class MemberSpaces:
    """Spaces of the members of a group, which have equal ones.

    Attributes:
        size: Number of members.
        obs: Observation space of one member.
        state: Space of the global state, None without one.
    """

    size: int
    obs: gymnasium.Space[Any]
    state: gymnasium.Space[Any] | None

    @staticmethod
    def from_group(space: gymnasium.Space[Any]) -> "MemberSpaces":
        """Return the members' spaces of a group's, which the module observes.

        Raises:
            SpaceError: If it is not the observation of a group of equal members.
        """
        parts = get_parts(space.spaces) if isinstance(space, spaces.Dict) else {}
        if not {MEMBERS, MEMBER_MASK} <= set(parts):
            raise SpaceError(
                f"A team is observed with the parts '{MEMBERS}' and '{MEMBER_MASK}', but the module "
                f"observes {describe_space(space)}: leave out connectors that join these parts, "
                "stack frames, or add actions and rewards."
            )
        members = parts[MEMBERS]
        if isinstance(members, spaces.Tuple):
            raise SpaceError(
                "Members of a team have networks of one shape, so their observation spaces must be equal, "
                f"got {describe_space(members)}: pad them to one space in the environment."
            )
        size = int(parts[MEMBER_MASK].shape[0])
        return MemberSpaces(size, take_member_space(members), parts.get(GLOBAL_STATE))

    def acting(self, obs: PyTree) -> Bool[Array, "*batch m"]:
        """Return which members act on the group's observations."""
        return get_parts(obs_only(obs))[MEMBER_MASK].astype(jnp.bool_)

    def flatten_obs(self, obs: PyTree) -> Float[Array, "*batch m n"]:
        """Return each member's bare observations as a vector."""
        return flatten(self.obs, get_parts(obs)[MEMBERS])

    def flatten_state(self, obs: PyTree) -> Float[Array, "*batch s"]:
        """Return the global state as a vector; there is one."""
        assert self.state is not None
        return flatten(self.state, get_parts(obs)[GLOBAL_STATE])

    @property
    def obs_width(self) -> int:
        """Size of a member's flat observation."""
        return get_flat_size(self.obs)

    @property
    def state_width(self) -> int:
        """Size of the flat global state, 0 without one."""
        return 0 if self.state is None else get_flat_size(self.state)


def get_parts(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a group's observation other than the action mask."""
    others = {name: part for name, part in parts.items() if name != ACTION_MASK}
    if ACTION_MASK in parts and len(others) == 1:
        (inner,) = others.values()
        inner = inner.spaces if isinstance(inner, spaces.Dict) else inner
        return dict(inner) if isinstance(inner, Mapping) else {}
    return others


def take_member_space(space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    """Return the space of one member, given that of all of them stacked, `[m, ...]`."""
    match space:
        case spaces.Dict():
            return spaces.Dict({k: take_member_space(part) for k, part in space.spaces.items()})
        case spaces.Tuple():
            return spaces.Tuple([take_member_space(part) for part in space.spaces])
        case spaces.MultiDiscrete() if space.nvec.ndim == 1:
            return spaces.Discrete(int(space.nvec[0]), start=int(space.start[0]))
        case spaces.MultiDiscrete():
            return spaces.MultiDiscrete(space.nvec[0], start=space.start[0])
        case spaces.MultiBinary():
            return spaces.MultiBinary(space.shape[1:])
        case _:
            assert isinstance(space, spaces.Box)
            return spaces.Box(space.low[0], space.high[0], dtype=space.dtype.type)
