"""Values against gymnasium spaces, naming the sub-space, what was expected and what was got."""

from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium import spaces

from jaxrl.core.spaces import children
from jaxrl.core.types import PyTree
from jaxrl.errors import EnvError


def check_space(what: str, space: object, *, for_actions: bool) -> None:
    """Refuse a space that no module could be built for.

    Raises:
        EnvError: It, or a part of it, is not a supported gymnasium space.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for key, child in children(space):
            check_space(f"{what}[{key!r}]", child, for_actions=for_actions)
        return
    if not isinstance(space, gymnasium.Space):
        raise EnvError(f"{what} must be a gymnasium space, got {space!r}.")
    if isinstance(space, spaces.Box):
        if for_actions and space.dtype != np.float32:
            raise EnvError(f"{what} must be float32, got {space.dtype}.")
        if space.dtype.itemsize > 4:
            narrow = "float32" if space.dtype.kind == "f" else "int32"
            raise EnvError(
                f"{what} must have at most 32 bits, such as {narrow}, got {space.dtype}."
            )
    elif not isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        raise EnvError(
            f"{what} is {type(space).__name__}; supported are Box, Discrete, MultiDiscrete, "
            f"MultiBinary, Dict and Tuple."
        )


def leaf_dtype(space: gymnasium.Space[Any]) -> np.dtype[Any]:
    """A simple space's dtype inside a JAX program: integers are int32."""
    if isinstance(space, spaces.Box):
        return np.dtype(space.dtype)
    return np.dtype(np.int8 if isinstance(space, spaces.MultiBinary) else np.int32)


def abstract_value(space: gymnasium.Space[Any]) -> PyTree:
    """Shape and dtype of a value inside a JAX program, as `jax.eval_shape` takes them."""
    if isinstance(space, spaces.Dict):
        return {name: abstract_value(child) for name, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(abstract_value(child) for child in space.spaces)
    return jax.ShapeDtypeStruct(tuple(space.shape or ()), leaf_dtype(space))


def check_struct(what: str, space: gymnasium.Space[Any], value: PyTree) -> None:
    """The abstract value (`jax.eval_shape`) has the space's structure, dtypes and shapes.

    Raises:
        EnvError: It does not; the sentence names the sub-space.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        _check_container(what, space, value)
        for key, child in children(space):
            check_struct(f"{what}[{key!r}]", child, value[key])
        return
    dtype, shape = leaf_dtype(space), tuple(space.shape or ())
    if not isinstance(value, jax.ShapeDtypeStruct):
        raise EnvError(f"{what} must be one {dtype} array for {space}, got {type(value).__name__}.")
    if value.dtype != dtype or value.shape != shape:
        raise EnvError(
            f"{what} must be {dtype} of shape {shape} for {space}, "
            f"got {value.dtype} of shape {value.shape}."
        )
    if value.weak_type:
        raise EnvError(
            f"{what} is a weakly typed {dtype}: make it jnp.asarray(value, jnp.{dtype}), or "
            f"programs compile twice."
        )


def check_values(what: str, space: gymnasium.Space[Any], batch: PyTree) -> None:
    """Every value of a batch (one leading axis) lies within the space.

    Raises:
        EnvError: One does not; the sentence names the sub-space, the bounds and the value.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for key, child in children(space):
            check_values(f"{what}[{key!r}]", child, batch[key])
        return
    values = np.asarray(batch)
    if values.dtype.kind == "f" and np.isnan(values).any():
        raise EnvError(f"{what} is NaN at {_where(np.isnan(values))}.")
    low, high = (np.broadcast_to(bound, values.shape) for bound in _bounds(space))
    outside = (values < low) | (values > high)
    if outside.any():
        at = tuple(np.argwhere(outside)[0])
        raise EnvError(
            f"{what} must lie in [{low[at]}, {high[at]}] at {_where(outside)} for {space}, "
            f"got {values[at]}."
        )


def _where(mask: np.ndarray) -> str:
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


def _check_container(what: str, space: spaces.Dict | spaces.Tuple, value: PyTree) -> None:
    if isinstance(space, spaces.Dict):
        if not isinstance(value, dict) or set(value) != set(space.spaces):
            got = sorted(value) if isinstance(value, dict) else type(value).__name__
            raise EnvError(
                f"{what} must be a dictionary with the keys {sorted(space.spaces)}, got {got}."
            )
    elif not isinstance(value, tuple) or len(value) != len(space.spaces):
        got = f"{len(value)} of them" if isinstance(value, tuple) else type(value).__name__
        raise EnvError(f"{what} must be a tuple of {len(space.spaces)}, got {got}.")
