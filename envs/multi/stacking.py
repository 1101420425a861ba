"""Spaces and values of several equal agents as those of one, stacked or in a row."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from jaxrl.core.space_arrays import get_leaf_dtype
from jaxrl.core.spaces import map_leaves
from jaxrl.core.types import PyTree

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
