"""Reading and writing result dictionaries: nested access, flat columns, plain JSON values."""

import enum
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

Result = Mapping[str, Any]
Scalar = int | float | bool | str

ITERATION = "training_iteration"
ENV_STEPS = "num_env_steps_sampled_lifetime"
TIME_TOTAL = "time_total_s"
RETURN_MEAN = "env_runners/episode_return_mean"
RETURN_MIN = "env_runners/episode_return_min"
RETURN_MAX = "env_runners/episode_return_max"
LEN_MEAN = "env_runners/episode_len_mean"
NUM_EPISODES = "env_runners/num_episodes_lifetime"
EVALUATION = "evaluation/env_runners"


def lookup(result: Result, path: str) -> Any:
    """The value at `"a/b/c"` of a nested (or already flat) result, or None if there is none."""
    if path in result:
        return result[path]
    value: Any = result
    for part in path.split("/"):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def number(result: Result, path: str) -> float | None:
    """The value at `path` as a finite float, or None."""
    value = to_plain(lookup(result, path))
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    return None


def env_steps(result: Result) -> int:
    """Environment steps sampled since the run began."""
    steps = number(result, ENV_STEPS)
    if steps is None:
        steps = number(result, f"env_runners/{ENV_STEPS}")
    return int(steps or 0)


def flatten(result: Result, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a nested result as `("a/b/c", plain value)`, in order."""
    for key, value in result.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from flatten(value, f"{name}/")
        else:
            yield name, to_plain(value)


def flat_scalars(result: Result) -> dict[str, Scalar]:
    """`flatten` without what does not fit into one cell: lists, arrays and missing values."""
    return {name: value for name, value in flatten(result) if isinstance(value, Scalar)}


def to_plain(value: Any) -> Any:
    """The value in Python's own types; NaN and infinities stay what they are."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, enum.Enum):
        return to_plain(value.value)
    if isinstance(value, int | float):  # np.float64 is a float, and json writes it as one
        return float(value) if isinstance(value, float) else int(value)
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return np.asarray(value).tolist()
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, type) or callable(value):
        return _import_path(value)
    return repr(value)


def to_json(value: Any) -> Any:
    """`to_plain` for strict JSON, which has no NaN and no infinity: they become null."""
    return _finite(to_plain(value))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value


def _import_path(value: Any) -> str:
    named = isinstance(value, type) or hasattr(value, "__qualname__")
    return f"{value.__module__}:{value.__qualname__}" if named else repr(value)
