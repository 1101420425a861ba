"""Checks of spaces and values; errors name the sub-space, the expected and the actual value."""

from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium import spaces

from jaxrl.core.space_arrays import get_leaf_dtype
from jaxrl.core.spaces import get_children, map_leaves
from jaxrl.core.types import PyTree
from jaxrl.errors import EnvError


def check_space(label: str, space: object, *, for_actions: bool = False) -> None:
    """Raise if no module can be built for the space.

    Args:
        label: What the space is, for messages.
        space: Space to check.
        for_actions: Whether it is one of actions in a program, whose Boxes are float32.

    Raises:
        EnvError: If the space, or a part of it, is not a supported gymnasium space.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for key, child in get_children(space):
            check_space(f"{label}[{key!r}]", child, for_actions=for_actions)
        return
    if not isinstance(space, gymnasium.Space):
        raise EnvError(f"{label} must be a gymnasium space, got {space!r}.")
    if isinstance(space, spaces.Box):
        if for_actions and space.dtype != np.float32:
            raise EnvError(f"{label} must be float32, got {space.dtype}.")
        if space.dtype.itemsize > 4:
            narrow = "float32" if space.dtype.kind == "f" else "int32"
            raise EnvError(
                f"{label} must have at most 32 bits, such as {narrow}, got {space.dtype}."
            )
    elif not isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        raise EnvError(
            f"{label} is {type(space).__name__}; supported are Box, Discrete, MultiDiscrete, "
            f"MultiBinary, Dict and Tuple."
        )


def abstract_value(space: gymnasium.Space[Any]) -> PyTree:
    """Return the shapes and dtypes of a value inside a JAX program, for `jax.eval_shape`."""
    return map_leaves(
        lambda leaf: jax.ShapeDtypeStruct(tuple(leaf.shape or ()), get_leaf_dtype(leaf)), space
    )


def _explain_width(got: np.dtype[Any], expected: np.dtype[Any]) -> str:
    """Return why a type has twice the bits, as only `jax_enable_x64` makes it."""
    if got.kind != expected.kind or (got.itemsize, expected.itemsize) != (8, 4):
        return ""
    return f" JAX's default is of 64 bits with jax_enable_x64: state dtype=jnp.{expected}."


def check_struct(label: str, space: gymnasium.Space[Any], value: PyTree) -> None:
    """Check an abstract value (`jax.eval_shape`) for the space's structure, dtypes and shapes.

    Raises:
        EnvError: If the value differs; the message names the sub-space.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        _check_container(label, space, value)
        for key, child in get_children(space):
            check_struct(f"{label}[{key!r}]", child, value[key])
        return
    dtype, shape = get_leaf_dtype(space), tuple(space.shape or ())
    if not isinstance(value, jax.ShapeDtypeStruct):
        raise EnvError(
            f"{label} must be one {dtype} array for {space}, got {type(value).__name__}."
        )
    if value.dtype != dtype or value.shape != shape:
        raise EnvError(
            f"{label} must be {dtype} of shape {shape} for {space}, "
            f"got {value.dtype} of shape {value.shape}.{_explain_width(value.dtype, dtype)}"
        )
    if value.weak_type:
        raise EnvError(
            f"{label} is a weakly typed {dtype}: make it jnp.asarray(value, jnp.{dtype}), or "
            f"programs compile twice."
        )


def check_values(label: str, space: gymnasium.Space[Any], batch: PyTree) -> None:
    """Check that every value of a batch (one leading axis) lies within the space.

    Raises:
        EnvError: If a value does not; the message names the sub-space, the bounds and the value.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for key, child in get_children(space):
            check_values(f"{label}[{key!r}]", child, batch[key])
        return
    values = np.asarray(batch)
    if values.dtype.kind == "f" and np.isnan(values).any():
        raise EnvError(f"{label} is NaN at {_describe_position(np.isnan(values))}.")
    low, high = (np.broadcast_to(bound, values.shape) for bound in _bounds(space))
    outside = (values < low) | (values > high)
    if outside.any():
        at = tuple(np.argwhere(outside)[0])
        raise EnvError(
            f"{label} must lie in [{low[at]}, {high[at]}] at {_describe_position(outside)} for "
            f"{space}, got {values[at]}."
        )


def _describe_position(mask: np.ndarray) -> str:
    index = tuple(int(i) for i in np.argwhere(mask)[0][1:])
    return f"index {index}" if index else "some step"


def _bounds(space: gymnasium.Space[Any]) -> tuple[Any, Any]:
    if isinstance(space, spaces.Box):
        return space.low[None], space.high[None]
    if isinstance(space, spaces.Discrete):
        return space.start, space.start + space.n - 1
    if isinstance(space, spaces.MultiDiscrete):
        return space.start[None], (space.start + space.nvec - 1)[None]
    return 0, 1


def _check_container(label: str, space: spaces.Dict | spaces.Tuple, value: PyTree) -> None:
    if isinstance(space, spaces.Dict):
        if not isinstance(value, dict) or set(value) != set(space.spaces):
            got = sorted(value) if isinstance(value, dict) else type(value).__name__
            raise EnvError(
                f"{label} must be a dictionary with the keys {sorted(space.spaces)}, got {got}."
            )
    elif not isinstance(value, tuple) or len(value) != len(space.spaces):
        got = f"{len(value)} of them" if isinstance(value, tuple) else type(value).__name__
        raise EnvError(f"{label} must be a tuple of {len(space.spaces)}, got {got}.")
