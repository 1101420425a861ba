"""When a run ends: thresholds on result keys."""

import math
import sys
from collections.abc import Mapping
from typing import Any, cast

from jaxrl.config.coerce import MismatchError, coerce
from jaxrl.errors import ConfigError
from jaxrl.metrics import (
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    OLD_KEYS,
    TRAINING_ITERATION,
    check_key,
    flatten,
    lookup,
)

Stop = dict[str, float]
"""Result key, e.g. `"env_runners/episode_return_mean"`, to the value at which the run ends."""


def parse_stop(criteria: Any) -> Stop:
    """Criteria as written by a user, nested or with `"a/b"` keys, under today's names.

    Raises:
        UnknownNameError: A key that no result has.
        ConfigError: A threshold that is no number.
    """
    if criteria is None:
        return {}
    if not isinstance(criteria, Mapping):
        raise ConfigError(
            f"stop must be a dictionary such as {{'training_iteration': 10}}, got {criteria!r}."
        )
    stop: Stop = {}
    for written, value in flatten(cast(Mapping[str, Any], criteria)).items():
        key = OLD_KEYS.get(written, written)
        check_key(key, "stop")
        try:
            stop[key] = _finite(coerce(value, float))
        except MismatchError:
            raise ConfigError(
                f"stop must give a finite number for '{written}', got {value!r}, "
                "e.g. {'" + written + "': 100}."
            ) from None
    return stop


def _finite(threshold: float) -> float:
    if not math.isfinite(threshold):  # never reached, and nothing that a time left can be told of
        raise MismatchError
    return threshold


def criteria_of_fit(criteria: Any, should_stop: object) -> Stop:
    """`parse_stop` of what `fit` was given, which must end somehow.

    Raises:
        ConfigError: There is neither a criterion nor a `should_stop`.
    """
    stop = parse_stop(criteria)
    if not stop and should_stop is None:
        raise ConfigError(
            "fit() needs a stop criterion, such as stop={'training_iteration': 10}; got none."
        )
    return stop


def stop_reached(result: Mapping[str, Any], stop: Stop) -> str | None:
    """A sentence on the first criterion that the result has reached, or None."""
    for key, threshold in stop.items():
        value = lookup(result, key)
        if value is not None and value >= threshold:
            return f"{key} = {value:g} has reached {threshold:g}"
    return None


def iterations_left(result: Mapping[str, Any], stop: Stop) -> int:
    """Count the iterations until a criterion that only counts is reached; `sys.maxsize` without one.

    Args:
        result: The latest, empty before the first. Iterations are taken to be alike.
        stop: The criteria.
    """
    iteration = lookup(result, TRAINING_ITERATION) or 0
    steps = lookup(result, NUM_ENV_STEPS_SAMPLED_LIFETIME) or 0
    each = lookup(result, "env_runners/num_env_steps_sampled") or 0
    left = [float(sys.maxsize)]
    if TRAINING_ITERATION in stop:
        left.append(stop[TRAINING_ITERATION] - iteration)
    if NUM_ENV_STEPS_SAMPLED_LIFETIME in stop and each:
        left.append((stop[NUM_ENV_STEPS_SAMPLED_LIFETIME] - steps) / each)
    return max(1, math.ceil(min(left)))


def until_multiple(iteration: int, interval: int) -> int:
    """Count the iterations to the next multiple of an interval; `sys.maxsize` if that is 0."""
    return interval - iteration % interval if interval else sys.maxsize
