"""Observations from outside, held to their space and in its types."""

from collections.abc import Callable
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium import spaces

from jaxrl.core.spaces import leaf_dtype
from jaxrl.core.types import PyTree
from jaxrl.errors import SpaceError

TOLERANCE = 1e-4
"""How far past a Box's bounds a value may lie, relative to the bound: rounding, not error."""


Conform = Callable[[Any], PyTree]


def conform(space: gymnasium.Space[Any], obs: Any, path: str = "obs") -> PyTree:
    """The observation in the space's own types.

    Raises:
        SpaceError: It is not in the space; names the part, what was expected and what was got.
    """
    return conformer(space, path)(obs)


def conformer(space: gymnasium.Space[Any], path: str) -> Conform:
    """`conform` for many observations: what depends on the space alone is worked out once."""
    match space:
        case spaces.Dict():
            return _conform_dict(space, path)
        case spaces.Tuple():
            return _conform_tuple(space, path)
        case spaces.Box():
            return _conform_box(space, path)
        case _:
            return _conform_integers(space, path)


def _conform_dict(space: spaces.Dict, path: str) -> Conform:
    parts = {name: conformer(sub, f"{path}.{name}") for name, sub in space.items()}
    names = parts.keys()

    def check(obs: Any) -> PyTree:
        if not isinstance(obs, dict) or obs.keys() != names:
            raise SpaceError(f"{path} must be a dict with the keys {list(names)}, got {obs}")
        return {name: part(obs[name]) for name, part in parts.items()}

    return check


def _conform_tuple(space: spaces.Tuple, path: str) -> Conform:
    parts = [conformer(sub, f"{path}[{i}]") for i, sub in enumerate(space.spaces)]

    def check(obs: Any) -> PyTree:
        if not isinstance(obs, (tuple, list)) or len(obs) != len(parts):
            raise SpaceError(f"{path} must be a tuple of {len(parts)}, got {obs!r}.")
        return tuple(part(own) for part, own in zip(parts, obs, strict=True))

    return check


def _numbers(space: gymnasium.Space[Any], obs: Any, path: str) -> np.ndarray:
    array = np.asarray(obs)
    if array.shape != (space.shape or ()):
        raise SpaceError(
            f"{path} has shape {array.shape}, but the observation space {space} has {space.shape}."
        )
    if array.dtype.kind not in "biufc":
        raise SpaceError(f"{path} must be numbers, got dtype {array.dtype}.")
    return array


def _conform_box(space: spaces.Box, path: str) -> Conform:
    low = space.low - TOLERANCE * np.maximum(1.0, np.abs(space.low))
    high = space.high + TOLERANCE * np.maximum(1.0, np.abs(space.high))
    dtype = leaf_dtype(space)

    def check(obs: Any) -> np.ndarray:
        array = _numbers(space, obs, path)
        inside = (array >= low) & (array <= high)  # NaN is not
        if not inside.all():
            _refuse_bounds(space, array, inside, path)
        return array.astype(dtype, copy=False)

    return check


def _conform_integers(space: gymnasium.Space[Any], path: str) -> Conform:
    dtype = leaf_dtype(space)

    def check(obs: Any) -> np.ndarray:
        array = _numbers(space, obs, path)
        integers = array.astype(np.int64)
        if not (np.all(integers == array) and space.contains(_native(space, integers))):
            raise SpaceError(f"{path} is {obs!r}, which is not in {space}.")
        return integers.astype(dtype)

    return check


def _native(space: gymnasium.Space[Any], value: np.ndarray) -> Any:
    return value.astype(space.dtype) if space.shape else int(value)


def _refuse_bounds(space: spaces.Box, array: np.ndarray, inside: np.ndarray, path: str) -> NoReturn:
    if np.any(np.isnan(array)):
        raise SpaceError(f"{path} has NaN at {_first(np.isnan(array))}.")
    place = _first(~inside)
    raise SpaceError(
        f"{path}{list(place)} is {array[place]:g}, outside its space's bounds "
        f"[{space.low[place]:g}, {space.high[place]:g}]."
    )


def _first(where: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(where)[0])
