"""Scores of several runs as one number with an interval."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float


def interquartile_mean(
    scores: Sequence[float] | Float[np.ndarray, "... runs"],
) -> Float[np.ndarray, "..."]:
    """Mean of the middle half, quartiles weighted by their share (Agarwal et al. 2021, section 4.3).

    Args:
        scores: At least one; over the last axis.
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
    scores: Sequence[float], *, confidence: float = 0.95, resamples: int = 2_000, seed: int = 0
) -> tuple[float, float]:
    """The percentile bootstrap interval of the interquartile mean.

    Args:
        scores: At least two.
        confidence: How often the interval holds the true one.
        resamples: How many.
        seed: Of their draws.
    """
    data = np.asarray(scores, np.float64)
    draws = np.random.default_rng(seed).integers(len(data), size=(resamples, len(data)))
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(interquartile_mean(data[draws]), [tail, 1.0 - tail])
    return float(low), float(high)
