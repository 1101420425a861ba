"""Scores of several runs on several tasks as figures with intervals (Agarwal et al. 2021).

"Deep reinforcement learning at the edge of the statistical precipice", NeurIPS 2021
(https://arxiv.org/abs/2108.13264). Runs are resampled within each task (the stratified bootstrap of
section 4.1). Scores are normalised: 0 is a task's low mark, 1 its high one.
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
"""By task. The last axis may have others before it, of resamples."""

Statistic: TypeAlias = Callable[[Scores], Float[np.ndarray, "..."]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Interval:
    """A figure and the interval that holds the true one; of no width for a single run."""

    value: float
    low: float
    high: float

    def is_above(self, other: "Interval") -> bool:
        """Whether the intervals leave no doubt."""
        return self.low > other.high


def pooled(scores: Scores) -> Float[np.ndarray, "... runs"]:
    """The runs of all tasks together."""
    return np.concatenate(list(scores.values()), axis=-1)


def iqm(scores: Scores) -> Float[np.ndarray, "..."]:
    """The mean of the middle half of all runs (section 4.3)."""
    return interquartile_mean(pooled(scores))


def mean(scores: Scores) -> Float[np.ndarray, "..."]:
    """The mean over tasks of their means."""
    return np.mean([x.mean(axis=-1) for x in scores.values()], axis=0)


def median(scores: Scores) -> Float[np.ndarray, "..."]:
    """The median over tasks of their means."""
    return np.median([x.mean(axis=-1) for x in scores.values()], axis=0)


def optimality_gap(scores: Scores) -> Float[np.ndarray, "..."]:
    """By how much runs stay below 1, on average (section 4.3); less is better."""
    return np.maximum(1.0 - pooled(scores), 0.0).mean(axis=-1)


AGGREGATES: Mapping[str, Statistic] = {
    "IQM": iqm,
    "median": median,
    "mean": mean,
    "optimality gap": optimality_gap,
}


def interval_of(statistic: Statistic, scores: Scores, *, seed: int = 0) -> Interval:
    """A statistic with its percentile interval by the stratified bootstrap."""
    value = float(statistic(scores))
    if all(x.size < 2 for x in scores.values()):
        return Interval(value=value, low=value, high=value)
    drawn = statistic(_resampled(scores, np.random.default_rng(seed)))
    low, high = _bounds(drawn)
    return Interval(value=value, low=float(low), high=float(high))


def _resampled(scores: Scores, generator: np.random.Generator) -> Scores:
    """Runs drawn with replacement within each task, `[RESAMPLES, runs]`."""
    return {
        task: x[generator.integers(x.size, size=(RESAMPLES, x.size))] for task, x in scores.items()
    }


def _bounds(drawn: Float[np.ndarray, "resamples ..."]) -> Float[np.ndarray, "2 ..."]:
    tail = (1.0 - CONFIDENCE) / 2.0
    return np.quantile(drawn, [tail, 1.0 - tail], axis=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Profile:
    """The share of runs whose score is above each of `taus`, with its interval (section 4.2)."""

    taus: Float[np.ndarray, " taus"]
    share: Float[np.ndarray, " taus"]
    low: Float[np.ndarray, " taus"]
    high: Float[np.ndarray, " taus"]


def performance_profile(
    scores: Scores, taus: Float[np.ndarray, " taus"], *, seed: int = 0
) -> Profile:
    """The score distribution of all runs: the mean over tasks of the shares."""

    def share(of: Scores) -> Float[np.ndarray, "... taus"]:
        return np.mean([(x[..., None] > taus).mean(axis=-2) for x in of.values()], axis=0)

    low, high = _bounds(share(_resampled(scores, np.random.default_rng(seed))))
    return Profile(taus=taus, share=share(scores), low=low, high=high)


def probability_of_improvement(ours: Scores, theirs: Scores, *, seed: int = 0) -> Interval:
    """How likely a run of ours is better than one of theirs on the same task (section 4.3).

    The mean over tasks of the Mann-Whitney statistic; a tie counts half.

    Args:
        ours: Of the same tasks as `theirs`.
        theirs: The other's.
        seed: Of the resampling.
    """

    def better(one: Scores, other: Scores) -> Float[np.ndarray, "..."]:
        means = []
        for task, x in one.items():
            difference = x[..., :, None] - other[task][..., None, :]
            means.append(((difference > 0) + 0.5 * (difference == 0)).mean(axis=(-2, -1)))
        return np.mean(means, axis=0)

    generator = np.random.default_rng(seed)
    low, high = _bounds(better(_resampled(ours, generator), _resampled(theirs, generator)))
    return Interval(value=float(better(ours, theirs)), low=float(low), high=float(high))


def normalised(values: Sequence[float], low: float, high: float) -> Float[np.ndarray, " runs"]:
    """Returns as scores: 0 at a task's low mark, 1 at its high one."""
    return (np.asarray(values, np.float64) - low) / (high - low)
