"""Aggregate metrics with confidence intervals for runs on several tasks (Agarwal et al. 2021).

"Deep reinforcement learning at the edge of the statistical precipice", NeurIPS 2021
(https://arxiv.org/abs/2108.13264). Runs are resampled within each task (the stratified bootstrap of
section 4.1). Scores are normalized: 0 is the low mark of a task, 1 the high one.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from jaxrl.sweeps.statistics import (
    Groups,
    Interval,
    Statistic,
    bootstrap,
    compute_interval,
    interquartile_mean,
)


def pool(scores: Groups) -> Float[np.ndarray, "... runs"]:
    """Concatenate the runs of all tasks."""
    return np.concatenate(list(scores.values()), axis=-1)


def iqm(scores: Groups) -> Float[np.ndarray, "..."]:
    """Compute the interquartile mean: the mean of the middle half of all runs (section 4.3)."""
    return interquartile_mean(pool(scores))


def mean(scores: Groups) -> Float[np.ndarray, "..."]:
    """Compute the mean over tasks of the mean scores."""
    return np.mean([x.mean(axis=-1) for x in scores.values()], axis=0)


def median(scores: Groups) -> Float[np.ndarray, "..."]:
    """Compute the median over tasks of the mean scores."""
    return np.median([x.mean(axis=-1) for x in scores.values()], axis=0)


def optimality_gap(scores: Groups) -> Float[np.ndarray, "..."]:
    """Compute the mean shortfall of runs below a score of 1 (section 4.3); lower is better."""
    return np.maximum(1.0 - pool(scores), 0.0).mean(axis=-1)


AGGREGATES: Mapping[str, Statistic] = {
    "IQM": iqm,
    "median": median,
    "mean": mean,
    "optimality gap": optimality_gap,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Profile:
    """Share of runs whose score is above each of `taus`, with its interval (section 4.2)."""

    taus: Float[np.ndarray, " taus"]
    share: Float[np.ndarray, " taus"]
    low: Float[np.ndarray, " taus"]
    high: Float[np.ndarray, " taus"]


def performance_profile(scores: Groups, taus: Float[np.ndarray, " taus"]) -> Profile:
    """Compute the score distribution of all runs: the mean over tasks of the shares."""

    def compute_share(x: Groups) -> Float[np.ndarray, "... taus"]:
        return np.mean([(runs[..., None] > taus).mean(axis=-2) for runs in x.values()], axis=0)

    share, (low, high) = bootstrap(compute_share, scores)
    return Profile(taus=taus, share=share, low=low, high=high)


def probability_of_improvement(ours: Groups, theirs: Groups) -> Interval:
    """Estimate the probability that a run of `ours` beats one of `theirs` on a task (section 4.3).

    This is the mean over tasks of the Mann-Whitney statistic; a tie counts half.

    Args:
        ours: Scores of the first algorithm.
        theirs: Scores of the second algorithm on the same tasks.
    """

    def compute_probability(both: Groups) -> Float[np.ndarray, "..."]:
        means = []
        for task in ours:
            difference = both[True, task][..., :, None] - both[False, task][..., None, :]
            means.append(((difference > 0) + 0.5 * (difference == 0)).mean(axis=(-2, -1)))
        return np.mean(means, axis=0)

    both = {
        (is_ours, task): x
        for is_ours, scores in ((True, ours), (False, theirs))
        for task, x in scores.items()
    }
    return compute_interval(compute_probability, both)


def normalize(values: Sequence[float], low: float, high: float) -> Float[np.ndarray, " runs"]:
    """Normalize returns to scores: 0 at the low mark of a task, 1 at the high one."""
    return (np.asarray(values, np.float64) - low) / (high - low)
