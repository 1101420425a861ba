"""Conversion of spaces to plain data and back."""

import math
from collections.abc import Mapping
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium import spaces

from jaxrl.errors import CheckpointError, ConfigError

_MAX_ENTRIES = 2**31
_MAX_DEPTH = 32


def space_to_data(name: str, space: gymnasium.Space[Any]) -> dict[str, Any]:
    """Convert a space to plain data.

    Args:
        name: Setting that the space belongs to, for the error message.
        space: Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple.

    Raises:
        ConfigError: If spaces of this class cannot be saved; the message names the setting.
    """
    kind = type(space).__name__
    match space:
        case spaces.Box():
            low, high = space.low.tolist(), space.high.tolist()
            return {"kind": kind, "low": low, "high": high, "dtype": str(space.dtype)}
        case spaces.Discrete():
            return {"kind": kind, "n": int(space.n), "start": int(space.start)}
        case spaces.MultiDiscrete():
            return {"kind": kind, "nvec": space.nvec.tolist(), "start": space.start.tolist()}
        case spaces.MultiBinary():
            return {"kind": kind, "n": space.n if isinstance(space.n, int) else list(space.shape)}
        case spaces.Dict():
            parts = {key: space_to_data(name, part) for key, part in space.spaces.items()}
            return {"kind": kind, "spaces": parts}
        case spaces.Tuple():
            return {"kind": kind, "spaces": [space_to_data(name, part) for part in space.spaces]}
        case _:
            raise ConfigError(
                f"{name} cannot be saved in a checkpoint, got {space!r}: use a Box, Discrete, "
                "MultiDiscrete, MultiBinary, Dict or Tuple."
            )


def space_from_data(data: object, name: str) -> gymnasium.Space[Any]:
    """Restore a space from the output of `space_to_data`.

    Raises:
        CheckpointError: If the data does not describe a space; the message names the setting.
    """
    try:
        return _decode_space(cast(Mapping[str, Any], data), _MAX_DEPTH)
    except Exception as error:
        raise CheckpointError(f"{name} must describe a space, got {str(data)[:100]}.") from error


def _decode_space(data: Mapping[str, Any], depth: int) -> gymnasium.Space[Any]:
    if depth == 0:
        raise ValueError("nested too deep")
    match data["kind"]:
        case "Box":
            dtype = np.dtype(data["dtype"])
            if dtype.kind not in "biuf" or str(dtype) != data["dtype"]:
                raise ValueError("not a numeric dtype")
            low, high = np.asarray(data["low"], dtype), np.asarray(data["high"], dtype)
            return spaces.Box(low, high, dtype=dtype.type)
        case "Discrete":
            return spaces.Discrete(data["n"], start=data["start"])
        case "MultiDiscrete":
            return spaces.MultiDiscrete(data["nvec"], start=data["start"])
        case "MultiBinary":
            if not 0 < math.prod(np.atleast_1d(data["n"]).tolist()) < _MAX_ENTRIES:
                raise ValueError("invalid size of a space")
            return spaces.MultiBinary(data["n"])
        case "Dict":
            parts: Mapping[str, Any] = data["spaces"]
            return spaces.Dict({key: _decode_space(part, depth - 1) for key, part in parts.items()})
        case "Tuple":
            return spaces.Tuple([_decode_space(part, depth - 1) for part in data["spaces"]])
        case _:
            raise ValueError("unknown class of space")
