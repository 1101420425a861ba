"""Stop criteria: thresholds on result keys."""

import logging
import math
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from jaxrl.config.coerce import MismatchError, check_depth, coerce
from jaxrl.errors import ConfigError, did_you_mean
from jaxrl.metrics import (
    EVALUATION,
    LEARNERS,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    NUM_ENV_STEPS_TRAINED_LIFETIME,
    RENAMED_KEYS,
    TIMERS,
    TRAINING_ITERATION,
    check_key,
    flatten,
    get_score,
    lookup,
)

if TYPE_CHECKING:
    pass

logger = logging.getLogger("jaxrl")

StopCriteria = dict[str, float]
"""Threshold at which a run ends, by result key, e.g. `"env_runners/episode_return_mean"`."""


def parse_stop(criteria: object) -> StopCriteria:
    """Parse stop criteria, nested or with `"a/b"` keys; old keys are replaced by current ones.

    Raises:
        UnknownNameError: If no result has a key.
        ConfigError: If a threshold is not a number, or the criteria contain themselves.
    """
    if criteria is None:
        return {}
    if isinstance(criteria, int | float) and not isinstance(criteria, bool):
        raise ConfigError(
            f"stop must say of what {criteria!r} is the number: "
            f"{{'{NUM_ENV_STEPS_SAMPLED_LIFETIME}': {criteria!r}}} counts environment steps, "
            f"{{'{TRAINING_ITERATION}': {criteria!r}}} iterations."
        )
    if not isinstance(criteria, Mapping):
        raise ConfigError(
            f"stop must be a dictionary such as {{'training_iteration': 10}}, got {criteria!r}."
        )
    check_depth(criteria, "stop")
    stop: StopCriteria = {}
    for written, value in flatten(cast(Mapping[str, Any], criteria)).items():
        key = RENAMED_KEYS.get(written, written)
        check_key(key, "stop")
        try:
            stop[key] = _require_finite(coerce(value, float))
        except MismatchError:
            raise ConfigError(
                f"stop must give a finite number for '{written}', got {value!r}, "
                "e.g. {'" + written + "': 100}."
            ) from None
        if stop[key] < 0 and (key == TRAINING_ITERATION or key.endswith("_lifetime")):
            raise ConfigError(f"stop must give at least 0 for '{written}', got {value!r}.")
    return stop


def _require_finite(threshold: float) -> float:
    if not math.isfinite(threshold):  # never reached, and without an estimate of the remaining time
        raise MismatchError
    return threshold


def parse_fit_criteria(
    criteria: object, should_stop: object, on_iteration: object, *, is_offline: bool
) -> StopCriteria:
    """Parse the stop criteria of `fit`, which must be able to end.

    Args:
        criteria: Stop criteria as written by the user.
        should_stop: Stop function, or None.
        on_iteration: Function called with each result, or None.
        is_offline: Whether the run steps no environment.

    Raises:
        ConfigError: If there is neither a criterion nor a `should_stop`, the only criterion is a
            number of environment steps that are never taken, or a function is none.
    """
    stop = parse_stop(criteria)
    if should_stop is not None and not callable(should_stop):
        raise ConfigError(
            f"should_stop must be a function that returns a bool, got {should_stop!r}."
        )
    if on_iteration is not None and not callable(on_iteration):
        raise ConfigError(
            f"on_iteration must be a function that takes a result, got {on_iteration!r}."
        )
    if not stop and should_stop is None:
        raise ConfigError(
            "fit() needs a stop criterion, such as stop={'training_iteration': 10}; got none."
        )
    steps = stop.get(NUM_ENV_STEPS_SAMPLED_LIFETIME, 0.0)
    if is_offline and len(stop) == 1 and steps > 0:
        raise ConfigError(
            f"{NUM_ENV_STEPS_SAMPLED_LIFETIME}={steps:g} is never reached by a run that learns from "
            f"recorded data and steps no environment: stop={{'{NUM_ENV_STEPS_TRAINED_LIFETIME}': "
            f"{steps:g}}} counts recorded rows."
        )
    return stop


def find_reached_criterion(result: Mapping[str, Any], stop: StopCriteria) -> str | None:
    """Return a sentence on the first criterion that the result has reached, or None.

    Raises:
        ConfigError: If a criterion names something that is not a number.
    """
    for key, threshold in stop.items():
        value = get_score(result, key)
        if value is not None and value >= threshold:
            return f"{key} = {value:g} has reached {threshold:g}"
    return None


def warn_of_missing(result: Mapping[str, Any], stop: StopCriteria) -> None:
    """Log a warning of criteria that a first result does not have, such as a misspelled metric.

    Some appear later: evaluations, times, and all metrics of a learner that has not learned yet.
    """
    for key in stop:
        place, _, rest = key.partition("/")
        is_later = place in (EVALUATION, TIMERS) or (
            place == LEARNERS and not lookup(result, f"{place}/{rest.partition('/')[0]}")
        )
        if not is_later and lookup(result, key) is None:
            logger.warning(
                "stop names %r, which the first result does not have; it is not reached before one "
                "has it.%s",
                key,
                did_you_mean(key, flatten(result)),
            )


def count_iterations_left(result: Mapping[str, Any], stop: StopCriteria) -> int:
    """Return the number of iterations until a criterion on iterations or steps is reached.

    Args:
        result: Latest result, empty before the first. All iterations are assumed to be equal.
        stop: Stop criteria.

    Returns:
        At least 1; `sys.maxsize` if there is no such criterion.
    """
    iteration = lookup(result, TRAINING_ITERATION) or 0
    steps = lookup(result, NUM_ENV_STEPS_SAMPLED_LIFETIME) or 0
    steps_per_iteration = lookup(result, "env_runners/num_env_steps_sampled") or 0
    left = [float(sys.maxsize)]
    if TRAINING_ITERATION in stop:
        left.append(stop[TRAINING_ITERATION] - iteration)
    if NUM_ENV_STEPS_SAMPLED_LIFETIME in stop and steps_per_iteration:
        left.append((stop[NUM_ENV_STEPS_SAMPLED_LIFETIME] - steps) / steps_per_iteration)
    return max(1, math.ceil(min(left)))


def count_until_multiple(iteration: int, interval: int) -> int:
    """Return the iterations to the next multiple of `interval`, or `sys.maxsize` if that is 0."""
    return interval - iteration % interval if interval else sys.maxsize
