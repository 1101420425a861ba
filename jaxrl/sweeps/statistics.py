"""Aggregate statistics of the scores of several runs."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float


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


def bootstrap_interval(
    scores: Sequence[float], *, confidence: float = 0.95, num_resamples: int = 2_000, seed: int = 0
) -> tuple[float, float]:
    """Compute the percentile bootstrap interval of the interquartile mean.

    Args:
        scores: Scores of at least two runs.
        confidence: Confidence level of the interval.
        num_resamples: Number of bootstrap samples.
        seed: Seed of the bootstrap samples.

    Returns:
        The lower and the upper bound.
    """
    data = np.asarray(scores, np.float64)
    draws = np.random.default_rng(seed).integers(len(data), size=(num_resamples, len(data)))
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(interquartile_mean(data[draws]), [tail, 1.0 - tail])
    return float(low), float(high)
