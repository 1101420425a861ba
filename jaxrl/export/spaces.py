"""Spaces of an export as plain data, with the bounds of every simple space."""

import math
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from jaxrl.errors import ExportError


def describe_space(
    space: gymnasium.Space[Any], path: str, ignored: Sequence[str] = ()
) -> dict[str, Any]:
    """Return a space as plain data, which `export.numpy_program` reads.

    Args:
        space: Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these.
        path: Name of the space, for the error message.
        ignored: Names of parts of a Dict that values may have beside those of the space.

    Raises:
        ExportError: If a Dict has names that are not strings.
    """
    kind = type(space).__name__
    match space:
        case spaces.Dict():
            names = list(space.spaces)
            if not all(isinstance(name, str) for name in names):
                raise ExportError(f"{path} has names that are not strings, {names}: rename them.")
            parts = [[n, describe_space(part, f"{path}.{n}")] for n, part in space.spaces.items()]
            extra = {"ignored": list(ignored)} if ignored else {}
            return {"kind": kind, "spaces": parts, **extra}
        case spaces.Tuple():
            return {
                "kind": kind,
                "spaces": [describe_space(x, f"{path}[{i}]") for i, x in enumerate(space.spaces)],
            }
        case spaces.Discrete():
            low, high = int(space.start), int(space.start) + int(space.n) - 1
        case spaces.MultiDiscrete():
            low, high = space.start, space.start + space.nvec - 1
        case spaces.MultiBinary():
            low, high = 0, 1
        case spaces.Box():
            low, high = space.low, space.high
        case _:
            raise ExportError(f"{path} is {space}, which exported policies do not have.")
    bounds = {"low": _describe_bound(low), "high": _describe_bound(high)}
    return {"kind": kind, **bounds, "shape": list(space.shape or ()), "dtype": str(space.dtype)}


def _describe_bound(bound: object) -> object:
    """Return the bounds of every entry; one number where they are equal, infinite ones as text."""
    array = np.asarray(bound)
    if array.size and (array == array.flat[0]).all():
        array = array.flat[0]
    return _to_plain(array.tolist())


def _to_plain(value: object) -> object:
    if isinstance(value, list):
        return [_to_plain(entry) for entry in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
