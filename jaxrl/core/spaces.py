"""Walks through nested spaces: their simple parts, with a path to each.

Nothing here imports JAX: the processes of host environments do without it.
"""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array

from jaxrl.core.types import PyTree
from jaxrl.errors import SpaceError

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


OBSERVATION_SPACE, ACTION_SPACE = "observation_space", "action_space"
SUPPORTED = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def check_supported(space: gymnasium.Space[Any], root: str) -> None:
    """Refuse a space of which a part has no fixed shape or no numbers.

    Raises:
        SpaceError: Names the part by its path from `root`.
    """
    leaves = leaf_spaces(space)
    for path, leaf in leaves:
        if not isinstance(leaf, SUPPORTED):
            raise SpaceError(
                f"{named(root, path)} is {type(leaf).__name__}, whose values have no fixed shape; "
                "use Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these."
            )
    if not leaves:
        raise SpaceError(f"{root} is {space}, which holds nothing; give it a part.")


def leaf_dtype(space: gymnasium.Space[Any]) -> np.dtype[Any]:
    """A simple space's dtype inside a program: 64 bits become 32, choices are int32."""
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return np.dtype(np.int32)
    return np.dtype(jax.dtypes.canonicalize_dtype(space.dtype))


def num_bytes(space: gymnasium.Space[Any], root: str = OBSERVATION_SPACE) -> int:
    """Bytes of one value inside a program; SpaceError names what has no fixed shape."""
    check_supported(space, root)
    return sum(
        math.prod(leaf.shape or ()) * leaf_dtype(leaf).itemsize for _, leaf in leaf_spaces(space)
    )


def flat_size(space: gymnasium.Space[Any], root: str = OBSERVATION_SPACE) -> int:
    """Length of the vector that `flatten` makes of the space; SpaceError names what it cannot."""
    check_supported(space, root)
    return sum(_leaf_size(leaf) for _, leaf in leaf_spaces(space))


def _leaf_size(space: Any) -> int:
    match space:
        case spaces.Discrete():
            return int(space.n)
        case spaces.MultiDiscrete():
            return int(np.sum(space.nvec))
        case _:
            return int(np.prod(space.shape))


def flatten(space: gymnasium.Space[Any], value: PyTree) -> Array:
    """One float32 vector per value: integers one-hot, the rest as it is, in the space's order.

    Args:
        space: Of the value, which may have any leading axes.
        value: Shaped and typed as in a program.
    """
    match space:
        case spaces.Discrete() | spaces.MultiDiscrete():
            return one_hot(choices(space), value)
        case spaces.Dict() | spaces.Tuple():
            parts = [flatten(part, value[key]) for key, part in children(space)]
            return jnp.concatenate([part for part in parts if part.shape[-1]], axis=-1)
        case _:
            return flat(value, len(space.shape or ())).astype(jnp.float32)


def flat(value: Array, ndim: int) -> Array:
    """The last `ndim` axes as one."""
    return value.reshape(*value.shape[: value.ndim - ndim], -1)


Choices: TypeAlias = tuple[int, tuple[tuple[int, int], ...]]
"""The rank of a discrete value, and of each of its entries the number of choices and the first."""


def choices(space: gymnasium.Space[Any]) -> Choices:
    """What a Discrete or MultiDiscrete chooses among."""
    if isinstance(space, spaces.Discrete):
        return 0, ((int(space.n), int(space.start)),)
    assert isinstance(space, spaces.MultiDiscrete)
    sizes, starts = np.ravel(space.nvec).tolist(), np.ravel(space.start).tolist()
    return len(space.shape), tuple(zip(sizes, starts, strict=True))


def one_hot(described: Choices, value: Array) -> Array:
    """Every entry one-hot, one after another."""
    entries = one_hot_entries(described, value)
    return entries[0] if len(entries) == 1 else jnp.concatenate(entries, axis=-1)


def one_hot_entries(described: Choices, value: Array) -> list[Array]:
    """Every entry one-hot."""
    ndim, entries = described
    columns = flat(value, ndim) if ndim else value[..., None]
    return [
        jax.nn.one_hot(columns[..., i] - start, number, dtype=jnp.float32)
        for i, (number, start) in enumerate(entries)
    ]
