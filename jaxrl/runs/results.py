"""What sinks and displays need of a result: numbers, cells of a table, plain JSON values."""

import enum
import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl import metrics

Result = Mapping[str, Any]
Scalar = int | float | bool | str
_PLAIN = frozenset({int, float, bool, str, type(None)})

ITERATION = "training_iteration"
ENV_STEPS = "num_env_steps_sampled_lifetime"
TIME_TOTAL = "time_total_s"
RETURN_MEAN = "env_runners/episode_return_mean"
RETURN_MIN = "env_runners/episode_return_min"
RETURN_MAX = "env_runners/episode_return_max"
LEN_MEAN = "env_runners/episode_len_mean"
EVALUATED = "evaluation/env_runners"
EVALUATION_SECONDS = "timers/evaluation_s"


class PlainResult(dict[str, Any]):
    """A result in Python's own types, converted and flattened once for all that look at it."""

    @functools.cached_property
    def scalars(self) -> dict[str, Scalar]:
        """Every value that fits into one cell, under its path."""
        flat = metrics.flatten(self)
        return {name: value for name, value in flat.items() if isinstance(value, Scalar)}


def plain_result(result: Result) -> PlainResult:
    """Convert a result, unless that was done before."""
    return result if isinstance(result, PlainResult) else PlainResult(to_plain(result))


def number(result: Result, path: str) -> float | None:
    """The value at `path` as a finite float, or None."""
    value = metrics.lookup(result, path)
    value = value if type(value) in _PLAIN else to_plain(value)
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    return None


def env_steps(result: Result) -> int:
    """Environment steps sampled since the run began."""
    return int(number(result, ENV_STEPS) or 0)


def new_evaluation(result: Result) -> Mapping[str, Any]:
    """The evaluation that this result brought, empty if it has none or repeats an earlier one."""
    if metrics.lookup(result, EVALUATION_SECONDS) is None:
        return {}
    return metrics.lookup(result, EVALUATED) or {}


def flat_scalars(result: Result) -> dict[str, Scalar]:
    """Every value that fits into one cell, under its path: no list, array or missing value."""
    return plain_result(result).scalars


def to_plain(value: Any) -> Any:
    """The value in Python's own types; NaN and infinities stay what they are."""
    kind = type(value)  # most are of these types, and asking for a Mapping costs much more
    if kind in _PLAIN:
        return value
    if kind is dict:
        return {str(key): to_plain(item) for key, item in value.items()}
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
