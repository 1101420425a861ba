"""Traversal of nested gymnasium spaces: simple parts and their paths.

Nothing here imports JAX: the processes of host environments do without it.
"""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import gymnasium
import numpy as np
from gymnasium import spaces

from jaxrl.errors import SpaceError

if TYPE_CHECKING:
    from jaxrl.core.types import PyTree

STATE = "state"
"""Part of an observation with the environment's state, for search; networks and filters do not see it."""

SpacePath: TypeAlias = tuple[str | int, ...]
"""Keys of Dicts and indices of Tuples, outermost first."""
LeafSpace: TypeAlias = tuple[SpacePath, Any]
"""Path to a simple space, and that space."""


def get_children(space: gymnasium.Space[Any]) -> list[tuple[str | int, gymnasium.Space[Any]]]:
    """Return the parts of a Dict or Tuple in order, each with its key or index."""
    if isinstance(space, spaces.Dict):
        return list(space.spaces.items())
    assert isinstance(space, spaces.Tuple)
    return list(enumerate(space.spaces))


def is_nested(space: gymnasium.Space[Any]) -> bool:
    """Return whether the space is a Dict or a Tuple."""
    return isinstance(space, spaces.Dict | spaces.Tuple)


def is_integer_box(space: gymnasium.Space[Any]) -> TypeGuard[spaces.Box]:
    """Return whether the space is a Box of integers."""
    return isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.integer)


def get_leaf_spaces(space: gymnasium.Space[Any], path: SpacePath = ()) -> list[LeafSpace]:
    """Return the simple spaces with their paths, in the leaf order of a value's tree.

    In that order the names of a Dict are sorted, whichever order the space itself has.
    """
    if not is_nested(space):
        return [(path, space)]
    parts = get_children(space)
    if isinstance(space, spaces.Dict):
        parts = sorted(parts)
    return [leaf for key, part in parts for leaf in get_leaf_spaces(part, (*path, key))]


def format_path(root: str, path: SpacePath) -> str:
    """Format the name of a part for messages, such as `observation_space['a'][1]`."""
    return root + "".join(f"[{key!r}]" for key in path)


def get_at_path(value: "PyTree", path: SpacePath) -> "PyTree":
    """Return the part of a value at a path."""
    for key in path:
        value = value[key]
    return value


def is_same_space(space: gymnasium.Space[Any], other: gymnasium.Space[Any]) -> bool:
    """Return whether two spaces are equal, with the bounds of a Box compared exactly.

    `==` of gymnasium accepts bounds that are merely close.
    """
    if space != other:
        return False
    pairs = zip(get_leaf_spaces(space), get_leaf_spaces(other), strict=True)
    return all(
        not isinstance(a, spaces.Box)
        or (np.array_equal(a.low, b.low) and np.array_equal(a.high, b.high))
        for (_, a), (_, b) in pairs
    )


def without_parts(
    space: gymnasium.Space[Any], keys: Collection[str | None]
) -> gymnasium.Space[Any]:
    """Return a Dict space without some of its parts; any other space, and one without them, as it is."""
    if not isinstance(space, spaces.Dict) or not any(key in space.spaces for key in keys):
        return space
    return spaces.Dict({name: part for name, part in space.spaces.items() if name not in keys})


def map_leaves(
    function: Callable[..., Any], space: gymnasium.Space[Any], *values: "PyTree"
) -> "PyTree":
    """Map a function over the simple spaces and their parts of the values, as a tree of results."""
    if isinstance(space, spaces.Dict):
        return {
            name: map_leaves(function, part, *(value[name] for value in values))
            for name, part in space.spaces.items()
        }
    if isinstance(space, spaces.Tuple):
        return tuple(
            map_leaves(function, part, *(value[i] for value in values))
            for i, part in enumerate(space.spaces)
        )
    return function(space, *values)


def map_spaces(
    function: Callable[[gymnasium.Space[Any]], gymnasium.Space[Any]], space: gymnasium.Space[Any]
) -> gymnasium.Space[Any]:
    """Return the space with each simple space replaced by the function's result.

    If the function returns every simple space unchanged, the same object is returned.
    """
    if not is_nested(space):
        return function(space)
    old = get_children(space)
    new: list[tuple[Any, gymnasium.Space[Any]]] = [(k, map_spaces(function, s)) for k, s in old]
    if all(after is before for (_, after), (_, before) in zip(new, old, strict=True)):
        return space
    if isinstance(space, spaces.Dict):
        return spaces.Dict(dict(new))
    return spaces.Tuple([part for _, part in new])


OBSERVATION_SPACE, ACTION_SPACE = "observation_space", "action_space"
SUPPORTED_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


SIMPLEX_ADVICE = (
    "declare a Box of the same shape, such as Box(-10, 10, (n,)), and let the environment's step take "
    "its softmax as the shares"
)
"""Replacement of RLlib's action space of shares that sum to 1."""


def check_supported(space: gymnasium.Space[Any], root: str) -> None:
    """Raise if a part of the space has no fixed shape or no numbers.

    Raises:
        SpaceError: If a part is unsupported; the message has its path from `root`.
    """
    leaves = get_leaf_spaces(space)
    for path, leaf in leaves:
        if not isinstance(leaf, SUPPORTED_SPACES):
            if type(leaf).__name__ == "Simplex":  # RLlib's, which gymnasium does not have
                raise SpaceError(f"{format_path(root, path)} is a Simplex: {SIMPLEX_ADVICE}.")
            raise SpaceError(
                f"{format_path(root, path)} is {type(leaf).__name__}, whose values have no fixed shape; "
                "use Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these."
            )
    if not leaves:
        raise SpaceError(f"{root} is {space}, which has no parts; add at least one.")
