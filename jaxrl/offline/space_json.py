"""Spaces as JSON, and differences between spaces."""

import json
import math
from collections.abc import Mapping
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium import spaces

from jaxrl.config.serialize import space_from_data, space_to_data
from jaxrl.core.space_arrays import get_leaf_dtype
from jaxrl.core.spaces import check_supported, format_path, get_leaf_spaces
from jaxrl.errors import CheckpointError, ConfigError, DataError, SpaceError
from jaxrl.offline.columns import parse_dtype

_MAX_ENTRIES = 2**26
"""Largest number of entries of a Box that a file may declare."""
_INVALID = (
    *(CheckpointError, ValueError, TypeError, KeyError, AttributeError),
    *(OverflowError, RecursionError),
)


def check_shape(shape: tuple[int, ...]) -> None:
    """Check the shape of a Box that a file declares.

    Raises:
        ValueError: If it has a negative size, or is too large.
    """
    entries = math.prod(max(size, 1) for size in shape)
    if len(shape) > 16 or min(shape, default=1) < 0 or entries > _MAX_ENTRIES:
        raise ValueError("an invalid shape")


def encode_space(space: gymnasium.Space[Any], name: str) -> dict[str, Any]:
    """Return a space as data that JSON can hold.

    Args:
        space: Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these.
        name: Name of the space, for the error message.

    Raises:
        DataError: If a part of the space has no fixed shape or no numbers.
    """
    try:
        check_supported(space, name)
        return _shorten(space_to_data(name, space))
    except (ConfigError, SpaceError) as error:
        raise DataError(f"{name} cannot be recorded: {error}") from error


def decode_space(data: object, name: str) -> gymnasium.Space[Any]:
    """Return the space with the output of `encode_space`.

    Raises:
        DataError: If the data does not describe a space.
    """
    try:
        return space_from_data(_lengthen(cast("dict[str, Any]", data), depth=32), name)
    except _INVALID as error:
        raise DataError(f"{name} must describe a space, got {str(data)[:100]}.") from error


def _shorten(data: dict[str, Any]) -> dict[str, Any]:
    """Return the data with one bound for all entries of a Box that are equal."""
    match data["kind"]:
        case "Box":
            low, high = np.asarray(data["low"]), np.asarray(data["high"])
            bounds = {"low": _shorten_bound(low), "high": _shorten_bound(high)}
            return {"kind": "Box", "shape": list(low.shape), "dtype": data["dtype"], **bounds}
        case "Dict":
            parts = cast("dict[str, Any]", data["spaces"])
            return {**data, "spaces": {name: _shorten(part) for name, part in parts.items()}}
        case "Tuple":
            return {**data, "spaces": [_shorten(part) for part in data["spaces"]]}
        case _:
            return data


def _shorten_bound(bound: np.ndarray) -> object:
    if bound.size and (bound == bound.flat[0]).all():
        return _to_json(bound.flat[0].item())
    return [_to_json(value) for value in bound.ravel().tolist()]


def _to_json(value: float) -> float | str:
    """Return a number; an infinite one, for which JSON has no notation, as text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _lengthen(data: Mapping[str, Any], depth: int) -> dict[str, Any]:
    """Return the data with a bound for every entry of a Box."""
    if depth == 0:
        raise ValueError("nested too deep")
    match data["kind"]:
        case "Box":
            shape = tuple(int(size) for size in data["shape"])
            check_shape(shape)
            dtype = parse_dtype(data["dtype"])
            bounds = {side: _lengthen_bound(data[side], shape, dtype) for side in ("low", "high")}
            return {"kind": "Box", "dtype": data["dtype"], **bounds}
        case "Dict":
            parts = cast("dict[str, Any]", data["spaces"])
            return {**data, "spaces": {n: _lengthen(part, depth - 1) for n, part in parts.items()}}
        case "Tuple":
            return {**data, "spaces": [_lengthen(part, depth - 1) for part in data["spaces"]]}
        case _:
            return dict(data)


def _lengthen_bound(bound: object, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    is_list = isinstance(bound, list)
    entries: list[Any] = cast("list[Any]", bound) if is_list else [bound]
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.asarray([float(v) if isinstance(v, str) else v for v in entries]).astype(dtype)
    return values.reshape(shape) if is_list else np.broadcast_to(values[0], shape)


def find_difference(
    recorded: gymnasium.Space[Any], wanted: gymnasium.Space[Any], name: str
) -> str | None:
    """Return the first part in which two spaces differ, as a clause; None if they are equal.

    Types are compared as programs have them: float64 equals float32, and int64 equals int32.

    Args:
        recorded: Space of the data.
        wanted: Space that is expected.
        name: Name of the space.
    """
    ours, theirs = dict(get_leaf_spaces(recorded)), dict(get_leaf_spaces(wanted))
    for path in [*theirs, *ours]:
        mine, other = ours.get(path), theirs.get(path)
        if mine is None or other is None or not _is_same_leaf(mine, other):
            return f"{format_path(name, path)} is {mine or 'missing'} in the data, and {other or 'missing'}"
    return None


def _is_same_leaf(a: gymnasium.Space[Any], b: gymnasium.Space[Any]) -> bool:
    if not (isinstance(a, spaces.Box) and isinstance(b, spaces.Box)):
        return a == b
    dtype = get_leaf_dtype(a)
    if a.shape != b.shape or dtype != get_leaf_dtype(b):
        return False
    pairs = ((a.low, b.low), (a.high, b.high))
    with np.errstate(over="ignore"):
        return all(np.array_equal(x.astype(dtype), y.astype(dtype)) for x, y in pairs)


def dump_json(data: object, indent: int | None = None) -> str:
    """Return data as strict JSON, without NaN or infinity."""
    return json.dumps(data, indent=indent, allow_nan=False)
