"""Walks through nested spaces: their simple parts, with a path to each.

Nothing here imports JAX: the processes of host environments do without it.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces

Path: TypeAlias = tuple[str | int, ...]
"""Keys of Dicts and indices of Tuples, from the outermost space on."""
Leaf: TypeAlias = tuple[Path, Any]
"""The path to a simple space, and that space."""


def children(space: gymnasium.Space[Any]) -> list[tuple[str | int, gymnasium.Space[Any]]]:
    """The parts of a Dict or Tuple in their order, each with its key or index."""
    if isinstance(space, spaces.Dict):
        return list(space.spaces.items())
    assert isinstance(space, spaces.Tuple)
    return list(enumerate(space.spaces))


def is_nested(space: gymnasium.Space[Any]) -> bool:
    """Whether the space is a Dict or a Tuple."""
    return isinstance(space, spaces.Dict | spaces.Tuple)


def leaf_spaces(space: gymnasium.Space[Any], path: Path = ()) -> list[Leaf]:
    """The simple spaces with their paths, in the order of the leaves of a value's tree.

    That order has the names of a Dict sorted, whichever order the space itself has.
    """
    if not is_nested(space):
        return [(path, space)]
    parts = children(space)
    if isinstance(space, spaces.Dict):
        parts = sorted(parts)
    return [leaf for key, part in parts for leaf in leaf_spaces(part, (*path, key))]


def named(root: str, path: Path) -> str:
    """A part's name in messages, such as `observation_space['a'][1]`."""
    return root + "".join(f"[{key!r}]" for key in path)


def at_path(value: Any, path: Path) -> Any:
    """The part of a value that belongs to a path."""
    for key in path:
        value = value[key]
    return value


def same_space(space: gymnasium.Space[Any], other: gymnasium.Space[Any]) -> bool:
    """Whether the spaces are equal, the bounds of a Box exactly: `==` takes close ones for equal."""
    if space != other:
        return False
    pairs = zip(leaf_spaces(space), leaf_spaces(other), strict=True)
    return all(
        not isinstance(a, spaces.Box)
        or (np.array_equal(a.low, b.low) and np.array_equal(a.high, b.high))
        for (_, a), (_, b) in pairs
    )


def map_leaves(function: Callable[..., Any], space: gymnasium.Space[Any], *values: Any) -> Any:
    """The function of each simple space and its part of the values, as a tree of that structure."""
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
    """The space with the function's result in the place of each simple one.

    Where the function returns every space itself, so does this.
    """
    if not is_nested(space):
        return function(space)
    old = children(space)
    new: list[tuple[Any, gymnasium.Space[Any]]] = [(k, map_spaces(function, s)) for k, s in old]
    if all(after is before for (_, after), (_, before) in zip(new, old, strict=True)):
        return space
    if isinstance(space, spaces.Dict):
        return spaces.Dict(dict(new))
    return spaces.Tuple([part for _, part in new])
