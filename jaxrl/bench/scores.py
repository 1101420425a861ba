"""Aggregate metrics with confidence intervals for runs on several tasks (Agarwal et al. 2021).

"Deep reinforcement learning at the edge of the statistical precipice", NeurIPS 2021
(https://arxiv.org/abs/2108.13264). Runs are resampled within each task (the stratified bootstrap of
section 4.1). Scores are normalized: 0 is the low mark of a task, 1 the high one.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

from jaxrl.sweeps.statistics import interquartile_mean

RESAMPLES = 2_000
CONFIDENCE = 0.95

Scores: TypeAlias = Mapping[str, Float[np.ndarray, " runs"]]
"""Scores by task. The axis of runs may be preceded by axes of resamples."""

Statistic: TypeAlias = Callable[[Scores], Float[np.ndarray, "..."]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Interval:
    """Estimate with its confidence interval, which has zero width for a single run."""

    value: float
    low: float
    high: float

    def is_above(self, other: "Interval") -> bool:
        """Return whether this interval lies above another one without overlap."""
        return self.low > other.high


def pool(scores: Scores) -> Float[np.ndarray, "... runs"]:
    """Concatenate the runs of all tasks."""
    return np.concatenate(list(scores.values()), axis=-1)


def iqm(scores: Scores) -> Float[np.ndarray, "..."]:
    """Compute the interquartile mean: the mean of the middle half of all runs (section 4.3)."""
    return interquartile_mean(pool(scores))


def mean(scores: Scores) -> Float[np.ndarray, "..."]:
    """Compute the mean over tasks of the mean scores."""
    return np.mean([x.mean(axis=-1) for x in scores.values()], axis=0)


def median(scores: Scores) -> Float[np.ndarray, "..."]:
    """Compute the median over tasks of the mean scores."""
    return np.median([x.mean(axis=-1) for x in scores.values()], axis=0)


def optimality_gap(scores: Scores) -> Float[np.ndarray, "..."]:
    """Compute the mean shortfall of runs below a score of 1 (section 4.3); lower is better."""
    return np.maximum(1.0 - pool(scores), 0.0).mean(axis=-1)


AGGREGATES: Mapping[str, Statistic] = {
    "IQM": iqm,
    "median": median,
    "mean": mean,
    "optimality gap": optimality_gap,
}


def compute_interval(statistic: Statistic, scores: Scores, *, seed: int = 0) -> Interval:
    """Compute a statistic and its percentile interval by the stratified bootstrap."""
    value = float(statistic(scores))
    if all(x.size < 2 for x in scores.values()):
        return Interval(value=value, low=value, high=value)
    resampled = statistic(_resample(scores, np.random.default_rng(seed)))
    low, high = _percentile_bounds(resampled)
    return Interval(value=value, low=float(low), high=float(high))


def _resample(scores: Scores, generator: np.random.Generator) -> Scores:
    """Draw runs with replacement within each task, `[RESAMPLES, runs]`."""
    return {
        task: x[generator.integers(x.size, size=(RESAMPLES, x.size))] for task, x in scores.items()
    }


def _percentile_bounds(values: Float[np.ndarray, "resamples ..."]) -> Float[np.ndarray, "2 ..."]:
    tail = (1.0 - CONFIDENCE) / 2.0
    return np.quantile(values, [tail, 1.0 - tail], axis=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Profile:
    """Share of runs whose score is above each of `taus`, with its interval (section 4.2)."""

    taus: Float[np.ndarray, " taus"]
    share: Float[np.ndarray, " taus"]
    low: Float[np.ndarray, " taus"]
    high: Float[np.ndarray, " taus"]


def performance_profile(
    scores: Scores, taus: Float[np.ndarray, " taus"], *, seed: int = 0
) -> Profile:
    """Compute the score distribution of all runs: the mean over tasks of the shares."""

    def compute_share(x: Scores) -> Float[np.ndarray, "... taus"]:
        return np.mean([(runs[..., None] > taus).mean(axis=-2) for runs in x.values()], axis=0)

    low, high = _percentile_bounds(compute_share(_resample(scores, np.random.default_rng(seed))))
    return Profile(taus=taus, share=compute_share(scores), low=low, high=high)


def probability_of_improvement(ours: Scores, theirs: Scores, *, seed: int = 0) -> Interval:
    """Estimate the probability that a run of `ours` beats one of `theirs` on a task (section 4.3).

    This is the mean over tasks of the Mann-Whitney statistic; a tie counts half.

    Args:
        ours: Scores of the first algorithm.
        theirs: Scores of the second algorithm on the same tasks.
        seed: Seed of the resampling.
    """

    def compute_probability(one: Scores, other: Scores) -> Float[np.ndarray, "..."]:
        means = []
        for task, x in one.items():
            difference = x[..., :, None] - other[task][..., None, :]
            means.append(((difference > 0) + 0.5 * (difference == 0)).mean(axis=(-2, -1)))
        return np.mean(means, axis=0)

    generator = np.random.default_rng(seed)
    low, high = _percentile_bounds(
        compute_probability(_resample(ours, generator), _resample(theirs, generator))
    )
    return Interval(
        value=float(compute_probability(ours, theirs)), low=float(low), high=float(high)
    )


def normalize(values: Sequence[float], low: float, high: float) -> Float[np.ndarray, " runs"]:
    """Normalize returns to scores: 0 at the low mark of a task, 1 at the high one."""
    return (np.asarray(values, np.float64) - low) / (high - low)
