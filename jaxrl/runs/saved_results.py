"""Results of a run as checkpoints have them: numbers in JSON's types, checked when they are read."""

import math
import sys
import typing
from collections.abc import Mapping
from typing import Any

from jaxrl.metrics import EMPTY_EPISODE_METRICS, flatten
from jaxrl.runners.counts import COUNT
from jaxrl.runs import results


def restore_nan(result: Mapping[str, Any]) -> dict[str, Any]:
    """Restore NaN in a result's episode statistics, which JSON cannot represent."""
    stats = result.get("env_runners")
    if not isinstance(stats, Mapping):
        return dict(result)
    restored = {name: math.nan if value is None else value for name, value in stats.items()}
    missing = {name: value for name, value in EMPTY_EPISODE_METRICS.items() if name not in restored}
    return {**result, "env_runners": {**restored, **missing}}


def keep_numbers(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Remove all values but finite numbers from a nested dictionary."""
    return {
        name: keep_numbers(value) if isinstance(value, dict) else value
        for name, value in tree.items()
        if isinstance(value, dict) or (isinstance(value, int | float) and fits_float(value))
    }


def make_loadable(result: Mapping[str, Any], counts: Mapping[str, int]) -> dict[str, Any]:
    """Return a result as `is_result` wants it: users' functions may write anything into one.

    Args:
        result: Result in JSON's types.
        counts: Counts that take the place of others that are missing or no counts.
    """
    fixed = dict(result)
    for name in (results.ITERATION, results.ENV_STEPS):
        if not COUNT.is_satisfied(fixed.get(name)):
            fixed.pop(name, None)
            fixed |= {name: counts[name]} if name in counts else {}
    stats = fixed.get("env_runners", {})
    if not isinstance(stats, dict):
        return {name: value for name, value in fixed.items() if name != "env_runners"}
    if stats:
        fixed["env_runners"] = {
            name: value
            for name, value in typing.cast(dict[str, Any], stats).items()
            if name not in EMPTY_EPISODE_METRICS or _is_number_or_none(value)
        }
    return fixed


def is_result(value: object) -> typing.TypeGuard[dict[str, Any]]:
    """Return whether the counts and episode statistics of a result are valid, if present."""
    if not isinstance(value, dict):
        return False
    result = typing.cast(dict[Any, Any], value)
    stats, lifetime = result.get("env_runners", {}), (results.ITERATION, results.ENV_STEPS)
    return (
        isinstance(stats, dict)
        and all(_is_number_or_none(stats.get(name)) for name in EMPTY_EPISODE_METRICS)
        and all(COUNT.is_satisfied(result[name]) for name in lifetime if name in result)
    )


def are_numbers(value: object) -> bool:
    """Return whether this is valid output of `RunMetadata.record_result`, or empty."""
    if not is_result(value) or not all(map(_is_number_or_none, flatten(value).values())):
        return False
    return not value or {results.ITERATION, results.ENV_STEPS} <= value.keys()


def _is_number_or_none(value: object) -> bool:
    if value is None or isinstance(value, float):
        return True
    return isinstance(value, int) and fits_float(value)


def fits_float(value: float) -> bool:
    """Return whether a number fits into a float: JSON integers have any number of digits."""
    return abs(value) <= sys.float_info.max
