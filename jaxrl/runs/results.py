"""Access to and conversion of results: numbers, table cells, plain and JSON values."""

import enum
import functools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl import metrics

Result = Mapping[str, Any]
Scalar = int | float | bool | str
_PLAIN_TYPES = frozenset({int, float, bool, str, type(None)})

ITERATION = "training_iteration"
ENV_STEPS = "num_env_steps_sampled_lifetime"
TIME_TOTAL = "time_total_s"
RETURN_MEAN = "env_runners/episode_return_mean"
RETURN_MIN = "env_runners/episode_return_min"
RETURN_MAX = "env_runners/episode_return_max"
LEN_MEAN = "env_runners/episode_len_mean"
EVALUATION_RESULT = "evaluation/env_runners"
EVALUATION_SECONDS = "timers/evaluation_s"


class PlainResult(dict[str, Any]):
    """Result in builtin Python types, converted and flattened once for all sinks."""

    @functools.cached_property
    def scalars(self) -> dict[str, Scalar]:
        """All scalar values by path."""
        flat = metrics.flatten(self)
        return {name: value for name, value in flat.items() if isinstance(value, Scalar)}


def to_plain_result(result: Result) -> PlainResult:
    """Convert a result to a PlainResult, unless it is one."""
    return result if isinstance(result, PlainResult) else PlainResult(to_plain(result))


def get_number(result: Result, path: str) -> float | None:
    """Return the value at `path` as a float; None if it is not a finite number."""
    value = metrics.lookup(result, path)
    value = value if type(value) in _PLAIN_TYPES else to_plain(value)
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    return None


def get_env_steps(result: Result) -> int:
    """Return the number of environment steps sampled since the run began."""
    return int(get_number(result, ENV_STEPS) or 0)


def get_new_evaluation(result: Result) -> Mapping[str, Any]:
    """Return the evaluation of this iteration; empty if there is none or it is an earlier one."""
    if metrics.lookup(result, EVALUATION_SECONDS) is None:
        return {}
    return metrics.lookup(result, EVALUATION_RESULT) or {}


def flatten_scalars(result: Result) -> dict[str, Scalar]:
    """Return all scalar values by path, without lists, arrays and missing values."""
    return to_plain_result(result).scalars


def to_plain(value: Any) -> Any:
    """Convert a value to builtin Python types; NaN and infinities are kept."""
    kind = type(value)  # fast path: most values have these types, and Mapping checks are slow
    if kind in _PLAIN_TYPES:
        return value
    if kind is dict:
        return {str(key): to_plain(item) for key, item in value.items()}
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, enum.Enum):
        return to_plain(value.value)
    if isinstance(value, int | float):  # np.float64 is a float, and serialized as one
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
        return _format_import_path(value)
    return repr(value)


def to_json(value: object) -> Any:
    """Convert a value like `to_plain`, but to strict JSON: NaN and infinities become null."""
    return _replace_nonfinite(to_plain(value))


def _replace_nonfinite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _replace_nonfinite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_replace_nonfinite(item) for item in value]
    return value


def _format_import_path(value: type | Callable[..., object]) -> str:
    has_name = isinstance(value, type) or hasattr(value, "__qualname__")
    return f"{value.__module__}:{value.__qualname__}" if has_name else repr(value)
