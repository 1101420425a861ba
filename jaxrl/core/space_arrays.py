"""Arrays of gymnasium spaces: dtypes on the device, sizes, flat and one-hot encodings."""

import math
from typing import Any, TypeAlias

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array

from jaxrl.core.spaces import OBSERVATION_SPACE, check_supported, get_children, get_leaf_spaces
from jaxrl.core.types import PyTree


def get_leaf_dtype(space: gymnasium.Space[Any]) -> np.dtype[Any]:
    """Return a simple space's dtype inside a program: 64 bits become 32, choices are int32."""
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return np.dtype(np.int32)
    return np.dtype(jax.dtypes.canonicalize_dtype(space.dtype))


def count_bytes(space: gymnasium.Space[Any], root: str = OBSERVATION_SPACE) -> int:
    """Return the bytes of one value inside a program.

    Raises:
        SpaceError: If a part has no fixed shape.
    """
    check_supported(space, root)
    return sum(
        math.prod(leaf.shape or ()) * get_leaf_dtype(leaf).itemsize
        for _, leaf in get_leaf_spaces(space)
    )


def get_flat_size(space: gymnasium.Space[Any], root: str = OBSERVATION_SPACE) -> int:
    """Return the length of the vector that `flatten` makes of a value.

    Raises:
        SpaceError: If a part has no fixed shape.
    """
    check_supported(space, root)
    return sum(_leaf_size(leaf) for _, leaf in get_leaf_spaces(space))


def _leaf_size(
    space: "spaces.Box | spaces.Discrete[Any] | spaces.MultiDiscrete | spaces.MultiBinary",
) -> int:
    match space:
        case spaces.Discrete():
            return int(space.n)
        case spaces.MultiDiscrete():
            return int(np.sum(space.nvec))
        case _:
            return int(np.prod(space.shape))


def flatten(space: gymnasium.Space[Any], value: PyTree) -> Array:
    """Flatten a value to one float32 vector, in the space's order, with integers one-hot.

    Args:
        space: Space of the value.
        value: Value with any leading axes, shaped and typed as in a program.
    """
    match space:
        case spaces.Discrete() | spaces.MultiDiscrete():
            return one_hot(get_choices(space), value)
        case spaces.Dict() | spaces.Tuple():
            parts = [flatten(part, value[key]) for key, part in get_children(space)]
            return jnp.concatenate([part for part in parts if part.shape[-1]], axis=-1)
        case _:
            return flatten_last_axes(value, len(space.shape or ())).astype(jnp.float32)


def flatten_last_axes(value: Array, ndim: int) -> Array:
    """Merge the last `ndim` axes into one."""
    return value.reshape(*value.shape[: value.ndim - ndim], -1)


Choices: TypeAlias = tuple[int, tuple[tuple[int, int], ...]]
"""Rank of a discrete value, and for each entry the number of choices and the first choice."""


def get_choices(space: gymnasium.Space[Any]) -> Choices:
    """Return the choices of a Discrete or MultiDiscrete space."""
    if isinstance(space, spaces.Discrete):
        return 0, ((int(space.n), int(space.start)),)
    assert isinstance(space, spaces.MultiDiscrete)
    sizes, starts = np.ravel(space.nvec).tolist(), np.ravel(space.start).tolist()
    return len(space.shape), tuple(zip(sizes, starts, strict=True))


def one_hot(choices: Choices, value: Array) -> Array:
    """Encode every entry one-hot, concatenated."""
    entries = one_hot_entries(choices, value)
    return entries[0] if len(entries) == 1 else jnp.concatenate(entries, axis=-1)


def one_hot_entries(choices: Choices, value: Array) -> list[Array]:
    """Encode every entry one-hot, as a list."""
    ndim, entries = choices
    columns = flatten_last_axes(value, ndim) if ndim else value[..., None]
    return [
        jax.nn.one_hot(columns[..., i] - start, number, dtype=jnp.float32)
        for i, (number, start) in enumerate(entries)
    ]
