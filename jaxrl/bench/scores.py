"""Aggregate metrics with confidence intervals for runs on several tasks (Agarwal et al. 2021).

"Deep reinforcement learning at the edge of the statistical precipice", NeurIPS 2021
(https://arxiv.org/abs/2108.13264). Scores are normalized: 0 is the low mark of a task, 1 the high one.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from jaxrl.sweeps.statistics import (
    MIN_RUNS,
    Groups,
    Interval,
    Statistic,
    bootstrap,
    compute_quantile,
    interquartile_mean,
)


def pool(scores: Groups) -> Float[np.ndarray, "... runs"]:
    """Concatenate the runs of all tasks."""
    return np.concatenate(list(scores.values()), axis=-1)


def iqm(scores: Groups) -> Float[np.ndarray, "..."]:
    """Compute the interquartile mean of all runs of all tasks (section 4.3)."""
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
    """Share of runs whose score is above each of `taus`, with an interval for each (section 4.2)."""

    taus: Float[np.ndarray, " taus"]
    share: Float[np.ndarray, " taus"]
    low: Float[np.ndarray, " taus"]
    high: Float[np.ndarray, " taus"]


def performance_profile(scores: Groups, taus: Float[np.ndarray, " taus"]) -> Profile:
    """Compute the score distribution of all runs: the mean over tasks of the shares."""

    def compute_share(x: Groups) -> Float[np.ndarray, "... taus"]:
        return np.mean([(runs[..., None] > taus).mean(axis=-2) for runs in x.values()], axis=0)

    share, bounds = bootstrap(compute_share, scores)
    low, high = np.clip(bounds, 0.0, 1.0)
    return Profile(taus=taus, share=share, low=low, high=high)


def probability_of_improvement(ours: Groups, theirs: Groups) -> Interval:
    """Estimate the probability that a run of `ours` beats one of `theirs` on a task (section 4.3).

    This is the mean over tasks of the Mann-Whitney statistic; a tie counts half. The interval has all
    probabilities from which the estimate is at most as many standard errors away as Student's
    quantile says (Newcombe 2006, https://doi.org/10.1002/sim.2324, method 5, there for one task and
    with the normal quantile): a resampled standard error is 0 where all runs of the one are better.

    Args:
        ours: Scores of the first algorithm.
        theirs: Scores of the second algorithm on the same tasks.
    """
    differences = [ours[task][:, None] - theirs[task] for task in ours]
    value = float(np.mean([((x > 0) + 0.5 * (x == 0)).mean() for x in differences]))
    count = min(min(x.shape) for x in differences)
    if count < MIN_RUNS:
        return Interval(value=value, low=math.nan, high=math.nan, count=count)
    possible = np.linspace(0.0, 1.0, 10_001)
    spread = (1.0 - possible) / (2.0 - possible) + possible / (1.0 + possible)
    variance = np.zeros_like(
        possible
    )  # of the mean, at most: a task's is concave in its probability
    for x in differences:
        factor = (1.0 + (sum(x.shape) / 2.0 - 1.0) * spread) / x.size
        variance += possible * (1.0 - possible) * factor / len(differences) ** 2
    quantile = compute_quantile(sum(sum(x.shape) - 2 for x in differences))
    inside = possible[np.abs(value - possible) <= quantile * np.sqrt(variance)]
    return Interval(value=value, low=float(inside[0]), high=float(inside[-1]), count=count)


def normalize(values: Sequence[float], low: float, high: float) -> Float[np.ndarray, " runs"]:
    """Normalize returns to scores: 0 at the low mark of a task, 1 at the high one."""
    return (np.asarray(values, np.float64) - low) / (high - low)
