"""Access to and conversion of results: numbers, table cells, plain and JSON values."""

import enum
import functools
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
from jax.tree_util import DictKey, register_pytree_with_keys

from jaxrl.compat.lookup import load
from jaxrl.core.types import PyTree
from jaxrl.errors import UnknownNameError, did_you_mean
from jaxrl.metrics import (
    DEFAULT_MODULE,
    ENV_RUNNERS,
    EVALUATION,
    LEARNERS,
    MOVED_PARTS,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    NUM_ENV_STEPS_TRAINED_LIFETIME,
    RENAMED_KEYS,
    flatten,
    lookup,
)

logger = logging.getLogger("jaxrl")

Result = Mapping[str, Any]
Scalar = int | float | bool | str
_PLAIN_TYPES = frozenset({int, float, bool, str, type(None)})

ITERATION = "training_iteration"
ENV_STEPS = NUM_ENV_STEPS_SAMPLED_LIFETIME
TRAINED_STEPS = NUM_ENV_STEPS_TRAINED_LIFETIME
TIME_TOTAL = "time_total_s"
RETURN_MEAN = "env_runners/episode_return_mean"
RETURN_MIN = "env_runners/episode_return_min"
RETURN_MAX = "env_runners/episode_return_max"
LEN_MEAN = "env_runners/episode_len_mean"
EVALUATION_RESULT = "evaluation/env_runners"
EVALUATION_SECONDS = "timers/evaluation_s"
COMPILE_SECONDS = "timers/compile_s"

PROCESS_KEYS = ("compile", "system", "timers", "pid", "hostname")
"""Keys of a result that describe the process and are not restored."""
UNREPEATABLE_KEYS = frozenset(
    (
        *PROCESS_KEYS,
        *("time_this_iter_s", "time_total_s", "timestamp", "date", "videos"),
        *("num_env_steps_sampled_per_second", "env_step_fraction"),
        *("learner_wait_fraction", "env_runners_wait_fraction"),
    )
)
"""Keys of times, places and the process, at any level, which an equal run does not repeat."""


class PlainResult(dict[str, Any]):
    """Result in builtin Python types, converted and flattened once for all sinks."""

    @functools.cached_property
    def scalars(self) -> dict[str, Scalar]:
        """All scalar values by path."""
        flat = flatten(self)
        return {name: value for name, value in flat.items() if isinstance(value, Scalar)}


_PARTS = (ENV_RUNNERS, EVALUATION, LEARNERS)
"""Parts of a result whose missing keys are explained."""

_CURRENT_KEYS = RENAMED_KEYS | MOVED_PARTS


class RunResult(dict[str, Any]):
    """Result of a training iteration, which can also be read by RLlib's old keys.

    `result["episode_reward_mean"]` is `result["env_runners"]["episode_return_mean"]`. The old keys,
    and those of `unwritten`, can be read, asked for, and popped, but are not part of the dictionary,
    so that files have each value once.

    Args:
        values: Result, or a part of one.
        path: Path of this part in the result, ending in "/", or an empty string.
        current_path: Path where the values of an old part are now.

    Attributes:
        unwritten: Functions that make the values of keys that files do not have.
    """

    def __init__(
        self, values: Mapping[str, Any], path: str = "", current_path: str | None = None
    ) -> None:
        self._path = path
        self._current_path = path if current_path is None else current_path
        self.unwritten: dict[str, Callable[[], Any]] = {}
        super().__init__(values)
        for name, value in values.items():
            if type(value) is dict:
                self[name] = value

    def __setitem__(self, key: str, value: object) -> None:
        is_part = key in _PARTS or self._path.startswith(f"{LEARNERS}/")
        if is_part and type(value) is dict:
            value = RunResult(cast(dict[str, Any], value), f"{self._path}{key}/")
        super().__setitem__(key, value)

    def __missing__(self, key: str) -> Any:
        if key in self.unwritten:
            return self.unwritten[key]()
        if key == "sampler_results" and ENV_RUNNERS in self:
            old_path = f"{self._path}{key}/"
            return RunResult(self[ENV_RUNNERS], old_path, f"{self._path}{ENV_RUNNERS}/")
        value = self._read_old(key)
        if value is None:
            raise UnknownNameError(self._explain_missing(key))
        _note_old_key(f"{self._path}{key}", _CURRENT_KEYS[f"{self._path}{key}"])
        return value

    def _read_old(self, key: object) -> object:
        """Return the value of an old key, None if it is none or the result lacks the value."""
        current = _CURRENT_KEYS.get(f"{self._path}{key}", "")
        inside = current.removeprefix(self._current_path)
        return lookup(self, inside) if inside and inside != key else None

    def _explain_missing(self, key: str) -> str:
        sentence = f"The result has no {f'{self._path}{key}'!r}."
        if key == "info" and not self._path:
            return f"{sentence} It is now result['learners']['{DEFAULT_MODULE}']."
        removed = load("rllib.attributes").REMOVED_RESULT_KEYS
        if not self._path and key in removed:
            return f"{sentence} Instead: {removed[key]}."
        return f"{sentence}{did_you_mean(key, map(str, self))}"

    def __contains__(self, key: object) -> bool:
        if super().__contains__(key) or key in self.unwritten:
            return True
        if key == "sampler_results":
            return ENV_RUNNERS in self
        return self._read_old(key) is not None

    def pop(self, key: str, *default: object) -> PyTree:  # dict.pop ignores __missing__
        """Remove a key, current or old, and return its value, or the default."""
        try:
            value = self[key]
        except KeyError:
            if default:
                return default[0]
            raise
        super().pop(key, None)
        self.unwritten.pop(key, None)
        return value

    def __delitem__(self, key: str) -> None:
        self.pop(key)

    def get(self, key: str, default: object = None) -> Any:  # dict.get ignores __missing__
        """Return the value of a key, current or old, or the default."""
        try:
            return self[key]
        except KeyError:
            return default

    def __reduce__(
        self,
    ) -> tuple[
        type[dict[str, Any]], tuple[dict[str, Any]]
    ]:  # a copy or a pickle is a plain dictionary
        return dict, (dict(self),)


def _flatten_result(result: RunResult) -> tuple[list[tuple[object, object]], tuple[str, ...]]:
    names = tuple(sorted(result))
    return [(DictKey(name), result[name]) for name in names], names


def _unflatten_result(names: tuple[str, ...], values: Iterable[object]) -> dict[str, object]:
    return dict(zip(names, values, strict=True))


cast(Any, register_pytree_with_keys)(RunResult, _flatten_result, _unflatten_result)
_noted_keys: set[str] = set()


def _note_old_key(old: str, current: str) -> None:
    """Log the first old key that is read in this process."""
    if not _noted_keys:
        _noted_keys.add(old)
        logger.warning(
            f"A result was read by an old key: '{old}' is now '{current}'; other old keys of "
            "RLlib's work too."
        )


def add_old_keys(result: Result) -> dict[str, Any]:
    """Return a copy of a result that also has its values under RLlib's old keys.

    Ray Tune compares its metric and stop criteria with the keys of the dictionary itself.
    """
    extended: dict[str, Any] = {**result}
    for old, current in _CURRENT_KEYS.items():
        value = lookup(result, current)
        if value is not None:
            *path, name = old.split("/")
            part = extended
            for key in path:
                part[key] = {**part.get(key, {})}
                part = part[key]
            part.setdefault(name, value)
    return extended


def to_plain_result(result: Result) -> PlainResult:
    """Convert a result to a PlainResult, unless it is one."""
    return result if isinstance(result, PlainResult) else PlainResult(to_plain(result))


def get_number(result: Result, path: str) -> float | None:
    """Return the value at `path` as a float; None if it is not a finite number."""
    value = lookup(result, path)
    value = value if type(value) in _PLAIN_TYPES else to_plain(value)
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    return None


def get_steps(result: Result) -> int:
    """Return the progress of a run: environment steps sampled, or recorded rows trained on."""
    return int(get_number(result, ENV_STEPS) or get_number(result, TRAINED_STEPS) or 0)


def get_steps_key(result: Result) -> str:
    """Return the key of `get_steps`."""
    return TRAINED_STEPS if is_offline(result) else ENV_STEPS


def is_offline(result: Result) -> bool:
    """Return whether a run has trained without sampling, from recorded data."""
    return not get_number(result, ENV_STEPS) and bool(get_number(result, TRAINED_STEPS))


def get_new_evaluation(result: Result) -> Mapping[str, Any]:
    """Return the evaluation of this iteration; empty if there is none or it is an earlier one."""
    if lookup(result, EVALUATION_SECONDS) is None:
        return {}
    return lookup(result, EVALUATION_RESULT) or {}


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
