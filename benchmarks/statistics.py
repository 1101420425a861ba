"""Medians and ratios with bootstrap intervals, slopes with Student's t intervals, and their text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.stats

from jaxrl.bench.markdown import format_estimate
from jaxrl.sweeps.statistics import CONFIDENCE, MIN_RUNS, Groups, Interval, Statistic

NUM_RESAMPLES = 10_000
NUM_GROUPS = 10
"""Number of groups of consecutive measurements; a slope is fitted to the groups' means."""

MIN_POINTS = 2 * NUM_GROUPS
"""Minimum number of measurements for a slope."""


def to_dict(interval: Interval, name: str = "median") -> dict[str, Any]:
    """Return an interval as plain data, with its value under a name."""
    values = interval.to_data()
    return {name: values.pop("value"), **values}


def from_dict(data: Mapping[str, Any], name: str = "median") -> Interval:
    """Restore an interval from plain data."""
    return Interval.from_data({**data, "value": data[name]})


def estimate_median(values: Sequence[float]) -> Interval:
    """Compute the median with its interval, which less than three values do not have.

    Raises:
        ValueError: If there is no value, or one is not finite.
    """
    data = np.asarray(values, dtype=np.float64)
    if data.size == 0 or not np.isfinite(data).all():
        raise ValueError(f"a median needs at least one value, all of them finite, got {values}")
    return _bootstrap_percentiles(lambda x: np.median(x[0], axis=-1), {0: data})


def _bootstrap_percentiles(statistic: Statistic, groups: Groups) -> Interval:
    """Compute a statistic with the percentiles of its resamples, drawn within each group.

    `count` is the number of values in all groups.
    """
    value, count = float(statistic(groups)), sum(x.size for x in groups.values())
    if min(x.size for x in groups.values()) < MIN_RUNS:
        return Interval(value=value, low=math.nan, high=math.nan, count=count)
    generator = np.random.default_rng(0)
    resampled = {
        name: x[generator.integers(x.size, size=(NUM_RESAMPLES, x.size))]
        for name, x in groups.items()
    }
    tail = (1.0 - CONFIDENCE) / 2.0
    low, high = np.quantile(statistic(resampled), [tail, 1.0 - tail])
    return Interval(value=value, low=float(low), high=float(high), count=count)


def estimate_ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Interval:
    """Compute the median of `numerator[i] / denominator[i]`, both measured in round `i`.

    A ratio within a round cancels the effect of a busy or throttled machine on the whole round.

    Raises:
        ValueError: If the two differ in length.
    """
    if len(numerator) != len(denominator):
        raise ValueError(
            "paired ratios need equally many values on both sides, "
            f"got {len(numerator)} and {len(denominator)}"
        )
    return estimate_median([a / b for a, b in zip(numerator, denominator, strict=True)])


def estimate_geometric_mean(groups: Sequence[Sequence[float]]) -> Interval:
    """Compute the geometric mean of the groups' medians with its interval.

    Each group is resampled separately; `count` is the number of values in all groups.

    Raises:
        ValueError: If there is no group, one is empty, or a value is not above zero.
    """
    data = dict(enumerate(np.asarray(values, dtype=np.float64) for values in groups))
    if not data or any(not values.size or not (values > 0).all() for values in data.values()):
        raise ValueError(f"a geometric mean needs values above zero in every group, got {groups}")

    def compute_log_mean(x: Groups) -> np.ndarray:
        return np.mean([np.log(np.median(values, axis=-1)) for values in x.values()], axis=0)

    found = _bootstrap_percentiles(compute_log_mean, data)
    value, low, high = (float(np.exp(x)) for x in (found.value, found.low, found.high))
    return Interval(value=value, low=low, high=high, count=found.count)


def estimate_slope(times: Sequence[float], values: Sequence[float]) -> Interval:
    """Compute the least-squares slope of the means of ten groups, with Student's t interval.

    The interval assumes independent points. Measurements within a second or two are correlated;
    means of consecutive groups are nearly independent.

    Args:
        times: Times in ascending order.
        values: Values at these times.

    Raises:
        ValueError: If there are fewer than two points per group, or one is not finite.
    """
    t, y = np.asarray(times, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if t.size != y.size or t.size < MIN_POINTS or not np.isfinite(t + y).all():
        raise ValueError(
            f"a slope needs at least {MIN_POINTS} points, all of them finite, got {t.size} times "
            f"and {y.size} values"
        )
    t, y = ([group.mean() for group in np.array_split(x, NUM_GROUPS)] for x in (t, y))
    fit: Any = scipy.stats.linregress(t, y)
    margin = float(scipy.stats.t.ppf(0.5 + CONFIDENCE / 2.0, NUM_GROUPS - 2)) * float(fit.stderr)
    slope = float(fit.slope)
    return Interval(value=slope, low=slope - margin, high=slope + margin, count=len(times))


def describe_rates(rates: Mapping[str, Sequence[float]], name: str = "rates") -> dict[str, Any]:
    """Return the values of each round by peer, under a name, and their medians."""
    medians = {peer: to_dict(estimate_median(values)) for peer, values in rates.items()}
    return {name: dict(rates), "median": medians}


def compare_to(
    rates: Mapping[str, Sequence[float]], base: str, *, is_inverse: bool = False
) -> dict[str, Any]:
    """Return the ratio of every peer to one of them, or its inverse; empty without that one."""
    if base not in rates:
        return {}
    pairs = {peer: (values, rates[base]) for peer, values in rates.items() if peer != base}
    return {
        peer: to_dict(estimate_ratio(*(pair[::-1] if is_inverse else pair)))
        for peer, pair in pairs.items()
    }


def show(data: Mapping[str, Any] | None, spec: str, missing: str = "-") -> str:
    """Format plain data of an interval as `value (low - high)`."""
    return missing if data is None else format_estimate(from_dict(data), spec)


def show_value(data: Mapping[str, Any], spec: str) -> str:
    """Format the value of plain data of an interval."""
    return format(from_dict(data).value, spec)
