"""Statistics of several runs or measurements, with bootstrap intervals."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float

CONFIDENCE = 0.95
RESAMPLES = 2_000

Groups: TypeAlias = Mapping[Any, Float[np.ndarray, " values"]]
"""Values by group. The axis of values may be preceded by axes of resamples."""

Statistic: TypeAlias = Callable[[Groups], Float[np.ndarray, "..."]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Interval:
    """Estimate with its confidence interval, which has zero width for a single value.

    Args:
        value: Estimate.
        low: Lower bound.
        high: Upper bound.
        count: Number of values that it is computed from; None if unknown.
    """

    value: float
    low: float
    high: float
    count: int | None = None

    def is_above(self, other: "Interval") -> bool:
        """Return whether this interval lies above another one without overlap."""
        return self.low > other.high

    def get_side(self, limit: float) -> str:
        """Return the side of a limit on which the whole interval lies, or "undecided"."""
        if self.low > limit:
            return "above"
        return "below" if self.high < limit else "undecided"

    def judge_at_least(self, limit: float) -> str:
        """Return whether the true value is at least a limit: "yes", "no", or "undecided"."""
        if self.low >= limit:
            return "yes"
        return "no" if self.high < limit else "undecided"

    def judge_at_most(self, limit: float) -> str:
        """Return whether the true value is at most a limit: "yes", "no", or "undecided"."""
        if self.high <= limit:
            return "yes"
        return "no" if self.low > limit else "undecided"


def bootstrap(
    statistic: Statistic,
    groups: Groups,
    *,
    confidence: float = CONFIDENCE,
    num_resamples: int = RESAMPLES,
) -> tuple[Float[np.ndarray, "..."], Float[np.ndarray, "2 ..."]]:
    """Compute a statistic and its percentile bounds by the stratified bootstrap.

    Values are drawn with replacement within each group (Efron & Tibshirani, section 13.3).

    Args:
        statistic: Function that reduces the last axis of the groups.
        groups: Values by group.
        confidence: Probability that the interval contains the true value.
        num_resamples: Number of bootstrap samples, which are the same in every call.

    Returns:
        The statistic, and its lower and upper bounds.
    """
    generator = np.random.default_rng(0)
    resampled = {
        name: x[generator.integers(x.size, size=(num_resamples, x.size))]
        for name, x in groups.items()
    }
    tail = (1.0 - confidence) / 2.0
    bounds = np.quantile(statistic(resampled), [tail, 1.0 - tail], axis=0)
    return statistic(groups), bounds


def compute_interval(
    statistic: Statistic,
    groups: Groups,
    *,
    confidence: float = CONFIDENCE,
    num_resamples: int = RESAMPLES,
) -> Interval:
    """Compute a statistic that is one number, with its interval; arguments as for `bootstrap`."""
    count = sum(x.size for x in groups.values())
    if all(x.size < 2 for x in groups.values()):
        value = float(statistic(groups))
        return Interval(value=value, low=value, high=value, count=count)
    value, (low, high) = bootstrap(
        statistic, groups, confidence=confidence, num_resamples=num_resamples
    )
    return Interval(value=float(value), low=float(low), high=float(high), count=count)


def interquartile_mean(
    scores: Sequence[float] | Float[np.ndarray, "... runs"],
) -> Float[np.ndarray, "..."]:
    """Compute the interquartile mean over the last axis (Agarwal et al. 2021, section 4.3).

    Scores at the quartiles are weighted by the share of them that lies in the middle half.

    Args:
        scores: Scores `[..., runs]` of at least one run.
    """
    ordered = np.sort(np.asarray(scores, np.float64), axis=-1)
    number = ordered.shape[-1]
    weights = np.ones(number)
    cut = number / 4
    whole, part = int(cut), cut - int(cut)
    weights[:whole] = weights[number - whole :] = 0.0
    weights[whole] -= part
    weights[-1 - whole] -= part
    return (ordered * weights).sum(axis=-1) / weights.sum()


def estimate_iqm(scores: Sequence[float], *, num_resamples: int = RESAMPLES) -> Interval:
    """Compute the interquartile mean of at least one run's scores, with its interval."""
    groups = {"": np.asarray(scores, np.float64)}
    return compute_interval(
        lambda x: interquartile_mean(x[""]), groups, num_resamples=num_resamples
    )
