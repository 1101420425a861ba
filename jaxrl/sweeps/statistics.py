"""Interquartile means and other statistics of several runs, with 95 % confidence intervals."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float

CONFIDENCE = 0.95
NUM_RESAMPLES = 2_000
MIN_RUNS = 3
"""Least number of runs that have an interval, and so a verdict."""

UNDECIDED = "undecided"

Groups: TypeAlias = Mapping[Any, Float[np.ndarray, " values"]]
"""Values by group. The axis of values may be preceded by axes of resamples."""

Statistic: TypeAlias = Callable[[Groups], Float[np.ndarray, "..."]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Interval:
    """Estimate with its confidence interval, and what it decides.

    Args:
        value: Estimate.
        low: Lower bound; NaN if there is no interval, which then decides nothing.
        high: Upper bound; NaN if there is no interval.
        count: Number of runs that it is computed from; None if unknown.
    """

    value: float
    low: float
    high: float
    count: int | None = None

    @property
    def is_bounded(self) -> bool:
        """Return whether there is an interval."""
        return not math.isnan(self.low)

    @property
    def undecided(self) -> str:
        """Return the verdict of an interval that decides nothing, with the number of runs if they are too few."""
        if self.count is None or self.count >= MIN_RUNS:
            return UNDECIDED
        return f"{UNDECIDED} ({self.size})"

    @property
    def size(self) -> str:
        """Return the number of runs in words."""
        return "1 run" if self.count == 1 else f"{self.count} runs"

    def compare(self, other: "Interval") -> str:
        """Return "above" or "below" if two intervals do not overlap, else "undecided"."""
        if self.low > other.high:
            return "above"
        if self.high < other.low:
            return "below"
        return _find_fewest([self, other]).undecided

    def compare_to_all(self, others: Sequence["Interval"]) -> str:
        """Return "above" or "below" if this interval lies so beside all others, else "undecided"."""
        verdicts = {self.compare(other) for other in others}
        is_unanimous = len(verdicts) == 1
        return verdicts.pop() if is_unanimous else _find_fewest([self, *others]).undecided

    def get_side(self, limit: float) -> str:
        """Return the side of a limit on which the whole interval lies, or "undecided"."""
        if self.low > limit:
            return "above"
        return "below" if self.high < limit else self.undecided

    def judge_at_least(self, limit: float) -> str:
        """Return whether the true value is at least a limit: "yes", "no", or "undecided"."""
        if self.low >= limit:
            return "yes"
        return "no" if self.high < limit else self.undecided

    def judge_at_most(self, limit: float) -> str:
        """Return whether the true value is at most a limit: "yes", "no", or "undecided"."""
        if self.high <= limit:
            return "yes"
        return "no" if self.low > limit else self.undecided

    def to_data(self) -> dict[str, Any]:
        """Return the interval as plain data, in which missing bounds are None."""
        low, high = (self.low, self.high) if self.is_bounded else (None, None)
        return {"value": self.value, "low": low, "high": high, "count": self.count}

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> "Interval":
        """Return the interval that plain data describe."""
        bounds = {name: math.nan if data[name] is None else data[name] for name in ("low", "high")}
        return Interval(value=data["value"], **bounds, count=data["count"])


def _find_fewest(intervals: Sequence[Interval]) -> Interval:
    """Return the interval that is computed from the fewest runs."""
    return min(intervals, key=lambda x: MIN_RUNS if x.count is None else x.count)


def interquartile_mean(
    scores: Sequence[float] | Float[np.ndarray, "... runs"],
) -> Float[np.ndarray, "..."]:
    """Compute the interquartile mean over the last axis as rliable does.

    Agarwal et al. 2021 (https://arxiv.org/abs/2108.13264) report `scipy.stats.trim_mean(x, 0.25)`:
    the mean without the `n // 4` lowest and the `n // 4` highest of n scores. For up to three runs
    it is the mean.

    Args:
        scores: Scores `[..., runs]` of at least one run.
    """
    ordered = np.sort(np.asarray(scores, np.float64), axis=-1)
    number = ordered.shape[-1]
    return ordered[..., number // 4 : number - number // 4].mean(axis=-1)


def bound_interquartile_mean(
    scores: Sequence[float] | Float[np.ndarray, "... runs"],
) -> Float[np.ndarray, "2 ..."]:
    """Compute the bounds of the interquartile mean of independent runs of one task.

    The interval is Student's, with n - 1 degrees of freedom. Its standard error is the larger one of
    that of the mean, s / √n, and that of the trimmed mean, s_w / ((1 - 2g / n) √n), where s_w is the
    standard deviation with the g = n // 4 lowest and highest scores moved to the next ones (Tukey &
    McLaughlin 1963; Yuen 1974, https://doi.org/10.1093/biomet/61.1.165). The second by itself, with
    their n - 2g - 1 degrees of freedom, is very wide for four runs and too narrow for skewed scores;
    the first by itself is too narrow for scores without tails. No percentiles of resamples (section
    4.1 of Agarwal et al. 2021) are beyond the range of the runs, which misses the median of a
    population in one of four samples of three.

    Args:
        scores: Scores `[..., runs]`.

    Returns:
        Lower and upper bounds; NaN for less than three runs.
    """
    ordered = np.sort(np.asarray(scores, np.float64), axis=-1)
    number = ordered.shape[-1]
    if number < MIN_RUNS:
        return np.full((2, *ordered.shape[:-1]), np.nan)
    cut = number // 4
    middle = ordered[..., cut : number - cut]
    moved = np.clip(ordered, middle[..., :1], middle[..., -1:])
    error = np.maximum(
        ordered.std(axis=-1, ddof=1), moved.std(axis=-1, ddof=1) * number / middle.shape[-1]
    ) / math.sqrt(number)
    margin = compute_quantile(number - 1) * error
    value = middle.mean(axis=-1)
    return np.stack([value - margin, value + margin])


def estimate_iqm(scores: Sequence[float]) -> Interval:
    """Compute the interquartile mean of at least one run's scores, with its interval."""
    low, high = bound_interquartile_mean(scores)
    return Interval(
        value=float(interquartile_mean(scores)), low=float(low), high=float(high), count=len(scores)
    )


def compute_quantile(degrees: int) -> float:
    """Compute the quantile of Student's distribution that leaves out 2.5 % at either side."""
    from scipy.special import stdtrit  # slow to import

    return float(stdtrit(degrees, 0.5 + CONFIDENCE / 2.0))


def bootstrap(
    statistic: Statistic, groups: Groups
) -> tuple[Float[np.ndarray, "..."], Float[np.ndarray, "2 ..."]]:
    """Compute a statistic of several tasks and its bounds by the stratified bootstrap.

    Runs are resampled within each task (Agarwal et al. 2021, section 4.1). Of n runs, one that is
    drawn is left out, and n are drawn with replacement from the others, so that the variance is not
    too small by the factor 1 - 1 / n (bootknife sampling: Hesterberg 2004, "Unbiasing the bootstrap").
    The interval is Student's with the standard deviation of the resampled statistics and as many
    degrees of freedom as there are runs, less one per task: percentiles, which Agarwal et al. take,
    are much too narrow for three runs per task.

    Args:
        statistic: Function that reduces the last axis of the groups.
        groups: Values by group.

    Returns:
        The statistic, and its lower and upper bounds; NaN if a group has less than three values.
    """
    value = statistic(groups)
    if min(x.size for x in groups.values()) < MIN_RUNS:
        return value, np.full((2, *np.shape(value)), np.nan)
    generator = np.random.default_rng(0)
    resampled = {}
    for name, x in groups.items():
        left_out = generator.integers(x.size, size=(NUM_RESAMPLES, 1))
        offsets = generator.integers(1, x.size, size=(NUM_RESAMPLES, x.size))
        resampled[name] = x[(left_out + offsets) % x.size]
    error = np.std(statistic(resampled), axis=0, ddof=1)
    margin = compute_quantile(sum(x.size - 1 for x in groups.values())) * error
    return value, np.stack([value - margin, value + margin])


def compute_interval(statistic: Statistic, groups: Groups) -> Interval:
    """Compute a statistic that is one number, with its interval; arguments as for `bootstrap`."""
    value, (low, high) = bootstrap(statistic, groups)
    count = min(x.size for x in groups.values())
    return Interval(value=float(value), low=float(low), high=float(high), count=count)
