"""Medians of paired ratios, with a bootstrap interval; slopes, with Student's."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import scipy.stats

GROUPS = 10
"""Means of consecutive measurements that a slope is fitted to."""

MIN_POINTS = 2 * GROUPS
"""The fewest measurements that a slope is taken of."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """A median and its interval. With fewer than three values the interval is their range."""

    median: float
    low: float
    high: float
    count: int

    def verdict(self, aim: float) -> str:
        """Whether the true value is at least `aim`, as far as the interval tells."""
        if self.low >= aim:
            return "yes"
        return "no" if self.high < aim else "undecided"


def median_interval(
    values: Sequence[float], *, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Estimate:
    """The median with its percentile bootstrap interval (Efron & Tibshirani, section 13.3).

    Raises:
        ValueError: there is no value, or one is not finite.
    """
    data = np.asarray(values, dtype=np.float64)
    if data.size == 0 or not np.isfinite(data).all():
        raise ValueError(f"a median needs at least one value, all of them finite; got {values}")
    if data.size < 3:
        low, high = data.min(), data.max()
    else:
        draws = np.random.default_rng(seed).integers(data.size, size=(resamples, data.size))
        tail = (1.0 - confidence) / 2.0
        low, high = np.quantile(np.median(data[draws], axis=1), [tail, 1.0 - tail])
    return Estimate(
        median=float(np.median(data)), low=float(low), high=float(high), count=data.size
    )


def paired_ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Estimate:
    """The median of `numerator[i] / denominator[i]`, both measured in round `i`.

    A ratio within a round cancels what a busy or throttled machine does to the whole round.

    Raises:
        ValueError: the two differ in length.
    """
    if len(numerator) != len(denominator):
        raise ValueError(
            f"pairs need as many values on both sides; got {len(numerator)} and {len(denominator)}"
        )
    return median_interval([a / b for a, b in zip(numerator, denominator, strict=True)])


def geometric_mean_interval(
    groups: Sequence[Sequence[float]],
    *,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Estimate:
    """The geometric mean of the groups' medians, with its percentile bootstrap interval.

    Each group is resampled by itself, as the median of one is. `count` is of all values. With fewer
    than three values in a group its median stays what it is.

    Raises:
        ValueError: there is no group, one is empty, or a value is not finite and above zero.
    """
    data = [np.asarray(values, dtype=np.float64) for values in groups]
    if not data or any(not values.size or not (values > 0).all() for values in data):
        raise ValueError(f"a geometric mean needs values above zero in every group; got {groups}")
    random = np.random.default_rng(seed)
    logs = np.zeros(resamples)
    for values in data:
        draws = random.integers(values.size, size=(resamples, values.size))
        few = values.size < 3
        logs += np.log(np.median(values if few else values[draws], axis=-1))
    tail = (1.0 - confidence) / 2.0
    low, high = np.exp(np.quantile(logs / len(data), [tail, 1.0 - tail]))
    middle = np.exp(np.mean([np.log(np.median(values)) for values in data]))
    count = sum(values.size for values in data)
    return Estimate(median=float(middle), low=float(low), high=float(high), count=count)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slope:
    """What a value grows by per unit of time, with the interval of it."""

    slope: float
    low: float
    high: float
    count: int

    def is_below(self, limit: float) -> str:
        """Whether the true slope is under a limit, as far as the interval tells."""
        if self.high < limit:
            return "yes"
        return "no" if self.low >= limit else "undecided"


def slope_interval(
    times: Sequence[float], values: Sequence[float], *, confidence: float = 0.95
) -> Slope:
    """The least-squares slope of the means of ten groups, with Student's interval.

    What was measured within a second or two is alike, which the textbook's interval would take for
    independent; means of consecutive groups nearly are.

    Args:
        times: In ascending order.
        values: As many.
        confidence: How often the interval holds the true slope.

    Raises:
        ValueError: there are fewer points than two a group, or one is not finite.
    """
    t, y = np.asarray(times, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if t.size != y.size or t.size < MIN_POINTS or not np.isfinite(t + y).all():
        raise ValueError(
            f"a slope needs at least {MIN_POINTS} points, all of them finite; got {t.size} times "
            f"and {y.size} values"
        )
    t_mean = np.array([group.mean() for group in np.array_split(t, GROUPS)])
    y_mean = np.array([group.mean() for group in np.array_split(y, GROUPS)])
    centred = t_mean - t_mean.mean()
    square = float(centred @ centred)
    slope = float(centred @ y_mean) / square
    residuals = y_mean - y_mean.mean() - slope * centred
    deviation = float(np.sqrt(residuals @ residuals / (GROUPS - 2) / square))
    reach = float(scipy.stats.t.ppf(0.5 + confidence / 2.0, GROUPS - 2)) * deviation
    return Slope(slope=slope, low=slope - reach, high=slope + reach, count=t.size)
