"""Medians and ratios with bootstrap intervals, and slopes with Student's t intervals."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import scipy.stats

NUM_GROUPS = 10
"""Number of groups of consecutive measurements; a slope is fitted to the groups' means."""

MIN_POINTS = 2 * NUM_GROUPS
"""Minimum number of measurements for a slope."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """Median with its interval, which is the range for fewer than three values."""

    median: float
    low: float
    high: float
    count: int

    def judge(self, aim: float) -> str:
        """Return whether the true value is at least `aim`: "yes", "no", or "undecided"."""
        if self.low >= aim:
            return "yes"
        return "no" if self.high < aim else "undecided"


def estimate_median(
    values: Sequence[float], *, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Estimate:
    """Compute the median with its percentile bootstrap interval (Efron & Tibshirani, section 13.3).

    Raises:
        ValueError: If there is no value, or one is not finite.
    """
    data = np.asarray(values, dtype=np.float64)
    if data.size == 0 or not np.isfinite(data).all():
        raise ValueError(f"a median needs at least one value, all of them finite, got {values}")
    if data.size < 3:
        low, high = data.min(), data.max()
    else:
        draws = np.random.default_rng(seed).integers(data.size, size=(resamples, data.size))
        tail = (1.0 - confidence) / 2.0
        low, high = np.quantile(np.median(data[draws], axis=1), [tail, 1.0 - tail])
    return Estimate(
        median=float(np.median(data)), low=float(low), high=float(high), count=data.size
    )


def estimate_ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Estimate:
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


def estimate_geometric_mean(
    groups: Sequence[Sequence[float]],
    *,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Estimate:
    """Compute the geometric mean of the groups' medians with its percentile bootstrap interval.

    Each group is resampled separately; the median of a group of fewer than three values is fixed.
    `count` is the number of values in all groups.

    Raises:
        ValueError: If there is no group, one is empty, or a value is not above zero.
    """
    data = [np.asarray(values, dtype=np.float64) for values in groups]
    if not data or any(not values.size or not (values > 0).all() for values in data):
        raise ValueError(f"a geometric mean needs values above zero in every group, got {groups}")
    generator = np.random.default_rng(seed)
    logs = np.zeros(resamples)
    for values in data:
        draws = generator.integers(values.size, size=(resamples, values.size))
        is_fixed = values.size < 3
        logs += np.log(np.median(values if is_fixed else values[draws], axis=-1))
    tail = (1.0 - confidence) / 2.0
    low, high = np.exp(np.quantile(logs / len(data), [tail, 1.0 - tail]))
    middle = np.exp(np.mean([np.log(np.median(values)) for values in data]))
    count = sum(values.size for values in data)
    return Estimate(median=float(middle), low=float(low), high=float(high), count=count)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slope:
    """Slope of a value over time, with its interval."""

    slope: float
    low: float
    high: float
    count: int

    def judge(self, limit: float) -> str:
        """Return whether the true slope is below a limit: "yes", "no", or "undecided"."""
        if self.high < limit:
            return "yes"
        return "no" if self.low >= limit else "undecided"


def estimate_slope(
    times: Sequence[float], values: Sequence[float], *, confidence: float = 0.95
) -> Slope:
    """Compute the least-squares slope of the means of ten groups, with Student's t interval.

    The interval assumes independent points. Measurements within a second or two are correlated;
    means of consecutive groups are nearly independent.

    Args:
        times: Times in ascending order.
        values: Values at these times.
        confidence: Probability that the interval contains the true slope.

    Raises:
        ValueError: If there are fewer than two points per group, or one is not finite.
    """
    t, y = np.asarray(times, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if t.size != y.size or t.size < MIN_POINTS or not np.isfinite(t + y).all():
        raise ValueError(
            f"a slope needs at least {MIN_POINTS} points, all of them finite, got {t.size} times "
            f"and {y.size} values"
        )
    t_mean = np.array([group.mean() for group in np.array_split(t, NUM_GROUPS)])
    y_mean = np.array([group.mean() for group in np.array_split(y, NUM_GROUPS)])
    centered = t_mean - t_mean.mean()
    square = float(centered @ centered)
    slope = float(centered @ y_mean) / square
    residuals = y_mean - y_mean.mean() - slope * centered
    deviation = float(np.sqrt(residuals @ residuals / (NUM_GROUPS - 2) / square))
    margin = float(scipy.stats.t.ppf(0.5 + confidence / 2.0, NUM_GROUPS - 2)) * deviation
    return Slope(slope=slope, low=slope - margin, high=slope + margin, count=t.size)
