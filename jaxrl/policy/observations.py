"""Validation and conversion of external observations against their space."""

from collections.abc import Callable, Collection
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium import spaces

from jaxrl.core.space_arrays import get_leaf_dtype
from jaxrl.core.types import PyTree
from jaxrl.errors import SpaceError

BOUNDS_TOLERANCE = 1e-4
"""Tolerance for values outside a Box's bounds, relative to the bound, to allow for rounding."""


Conformer = Callable[[object], PyTree]
"""Function that validates an observation and converts it to the types of its space."""


def conform(space: gymnasium.Space[Any], obs: object, path: str = "obs") -> PyTree:
    """Validate an observation and convert it to the types of its space.

    Args:
        space: Space of the observation.
        obs: Observation.
        path: Name of the observation in error messages.

    Raises:
        SpaceError: If the observation is not in the space; names the invalid part, with the
            expected and the actual value.
    """
    return make_conformer(space, path)(obs)


def make_conformer(
    space: gymnasium.Space[Any], path: str, ignored: Collection[str] = ()
) -> Conformer:
    """Return `conform` for a fixed space, with the space-dependent work done once.

    Args:
        space: Space of the observations.
        path: Name of the observation in error messages.
        ignored: Names of parts of a Dict that are dropped where an observation has them.
    """
    match space:
        case spaces.Dict():
            return _conform_dict(space, path, frozenset(ignored))
        case spaces.Tuple():
            return _conform_tuple(space, path)
        case spaces.Box():
            return _conform_box(space, path)
        case _:
            return _conform_integers(space, path)


def _conform_dict(space: spaces.Dict, path: str, ignored: frozenset[str]) -> Conformer:
    parts = {name: make_conformer(sub, f"{path}.{name}") for name, sub in space.items()}
    names = parts.keys()

    def check(obs: object) -> PyTree:
        if not isinstance(obs, dict) or obs.keys() - ignored != names:
            raise SpaceError(f"{path} must be a dict with the keys {list(names)}, got {obs!r}.")
        return {name: part(obs[name]) for name, part in parts.items()}

    return check


def _conform_tuple(space: spaces.Tuple, path: str) -> Conformer:
    parts = [make_conformer(sub, f"{path}[{i}]") for i, sub in enumerate(space.spaces)]

    def check(obs: object) -> PyTree:
        if not isinstance(obs, (tuple, list)) or len(obs) != len(parts):
            raise SpaceError(f"{path} must be a tuple of length {len(parts)}, got {obs!r}.")
        return tuple(part(value) for part, value in zip(parts, obs, strict=True))

    return check


def _to_numeric_array(space: gymnasium.Space[Any], obs: object, path: str) -> np.ndarray:
    try:
        array = np.asarray(obs)
    except (TypeError, ValueError):
        raise SpaceError(f"{path} must be an array for {space}, got {_describe(obs)}.") from None
    if array.shape != (space.shape or ()):
        raise SpaceError(
            f"{path} has shape {array.shape}, but the observation space {space} has {space.shape}."
        )
    if array.dtype.kind not in "biuf":
        raise SpaceError(f"{path} must be numeric, got dtype {array.dtype}.")
    return array


def _describe(obs: object) -> str:
    if isinstance(obs, tuple) and len(obs) == 2 and isinstance(obs[1], dict):
        return "a tuple of an array and a dict: that is reset()'s (observation, info), of which the first is the observation"
    return f"a {type(obs).__name__} of unequal parts"


def _conform_box(space: spaces.Box, path: str) -> Conformer:
    dtype = get_leaf_dtype(space)
    is_integral = np.dtype(space.dtype).kind in "iu"
    low, high = space.low, space.high
    if is_integral and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        low, high = np.clip(low, limits.min, None), np.clip(high, None, limits.max)
    else:
        low = low - BOUNDS_TOLERANCE * np.maximum(1.0, np.abs(low))
        high = high + BOUNDS_TOLERANCE * np.maximum(1.0, np.abs(high))

    def check(obs: object) -> np.ndarray:
        array = _to_numeric_array(space, obs, path)
        is_inside = (array >= low) & (array <= high)  # False for NaN
        if not is_inside.all():
            _raise_out_of_bounds(space, array, is_inside, path)
        if is_integral and array.dtype.kind == "f" and (is_cut := array != np.floor(array)).any():
            index = _find_first(is_cut)
            raise SpaceError(
                f"{path}{list(index)} is {array[index]!s}, and {space} has whole numbers alone: pass "
                "the observation as the environment returns it."
            )
        return array.astype(dtype, copy=False)

    return check


def _conform_integers(space: gymnasium.Space[Any], path: str) -> Conformer:
    dtype = get_leaf_dtype(space)

    def check(obs: object) -> np.ndarray:
        array = _to_numeric_array(space, obs, path)
        integers = array.astype(np.int64)
        if not (np.all(integers == array) and space.contains(_to_native(space, integers))):
            raise SpaceError(f"{path} is {obs!r}, which is not in {space}.")
        return integers.astype(dtype)

    return check


def _to_native(space: gymnasium.Space[Any], value: np.ndarray) -> np.ndarray | int:
    return value.astype(space.dtype) if space.shape else int(value)


def _raise_out_of_bounds(
    space: spaces.Box, array: np.ndarray, is_inside: np.ndarray, path: str
) -> NoReturn:
    if np.any(np.isnan(array)):
        raise SpaceError(f"{path} has NaN at {_find_first(np.isnan(array))}.")
    index = _find_first(~is_inside)
    raise SpaceError(
        f"{path}{list(index)} is {array[index]:g}, outside its space's bounds "
        f"[{space.low[index]:g}, {space.high[index]:g}]."
    )


def _find_first(condition: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(condition)[0])
