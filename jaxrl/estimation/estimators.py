"""Estimators of a policy's return from E recorded episodes of at most H steps, and their intervals.

Arrays are `[E, H]`, in float64, and rows after an episode's end are masked. Weights are products of
the ratios of the target policy's and the behavior policy's probabilities of the recorded actions
(Precup, Sutton & Singh 2000). After its end, an episode keeps its last weight, and has no reward.
"""

import dataclasses
import math

import numpy as np
from jaxtyping import Bool, Float
from scipy import stats

NUM_RESAMPLES = 2000
"""Number of resamples of a bootstrap interval."""
MAX_RESAMPLED = 2000
"""Number of episodes, or of groups of them if there are more, that are resampled."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Estimated value of a policy: its expected discounted return.

    Attributes:
        value: Estimate.
        low: Lower end of the interval.
        high: Upper end of the interval.
    """

    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class WeightedEpisodes:
    """Recorded episodes with the ratios of the two policies.

    Attributes:
        log_ratio: Log of the ratio of the probabilities of each recorded action.
        reward: Rewards.
        mask: Rows that are steps.
    """

    log_ratio: Float[np.ndarray, "E H"]
    reward: Float[np.ndarray, "E H"]
    mask: Bool[np.ndarray, "E H"]

    def compute_log_weights(self) -> Float[np.ndarray, "E H"]:
        """Compute the log of the product of the ratios up to each step."""
        return np.cumsum(np.where(self.mask, self.log_ratio, 0.0), axis=1)

    def discount_rewards(self, gamma: float) -> Float[np.ndarray, "E H"]:
        """Compute gamma^t r_t, 0 after the end."""
        steps = np.arange(self.reward.shape[1])
        return np.where(self.mask, self.reward, 0.0) * gamma**steps

    def compute_effective_size(self) -> tuple[float, float]:
        """Compute the effective number of episodes, (Σw)² / Σw², and the largest share of Σw.

        Both are 0 if the target policy never takes the recorded actions.
        """
        log_weights = self.compute_log_weights()[:, -1]
        largest = log_weights.max()
        if largest == -np.inf:
            return 0.0, 0.0
        weights = np.exp(log_weights - largest)
        return float(weights.sum() ** 2 / (weights**2).sum()), float(1.0 / weights.sum())


def estimate_mean(samples: Float[np.ndarray, " E"], confidence: float) -> Estimate:
    """Estimate a mean with Student's interval, which is unbounded if it is unknown."""
    value = float(samples.mean())
    if len(samples) < 2 or not np.isfinite(value):
        return Estimate(value, -np.inf, np.inf)
    spread = float(samples.std(ddof=1)) / math.sqrt(len(samples))
    half = float(stats.t.ppf(0.5 + confidence / 2.0, len(samples) - 1)) * spread
    return Estimate(value, value - half, value + half)


def estimate_is(data: WeightedEpisodes, gamma: float, confidence: float) -> Estimate:
    """Estimate by importance sampling of whole episodes: the mean of w_H Σ γ^t r_t."""
    with np.errstate(over="ignore", invalid="ignore"):
        weights = np.exp(data.compute_log_weights()[:, -1])
        samples = weights * data.discount_rewards(gamma).sum(axis=1)
        return estimate_mean(samples, confidence)


def estimate_pdis(data: WeightedEpisodes, gamma: float, confidence: float) -> Estimate:
    """Estimate by importance sampling of each decision: the mean of Σ γ^t w_t r_t."""
    with np.errstate(over="ignore", invalid="ignore"):
        weights = np.exp(data.compute_log_weights())
        samples = (weights * data.discount_rewards(gamma)).sum(axis=1)
        return estimate_mean(samples, confidence)


def estimate_wis(
    data: WeightedEpisodes, gamma: float, confidence: float, rng: np.random.Generator
) -> Estimate:
    """Estimate by weighted importance sampling: Σ w_H G / Σ w_H, biased and consistent."""
    weights = _scale_weights(data.compute_log_weights()[:, -1:])
    returns = data.discount_rewards(gamma).sum(axis=1, keepdims=True)
    return _estimate_ratios(weights * returns, weights, confidence, rng)


def estimate_wpdis(
    data: WeightedEpisodes, gamma: float, confidence: float, rng: np.random.Generator
) -> Estimate:
    """Estimate by weighted importance sampling of each decision: Σ_t γ^t (Σ w_t r_t / Σ w_t)."""
    weights = _scale_weights(data.compute_log_weights())
    return _estimate_ratios(weights * data.discount_rewards(gamma), weights, confidence, rng)


def estimate_dr(
    data: WeightedEpisodes,
    q_value: Float[np.ndarray, "E H"],
    value: Float[np.ndarray, "E H+1"],
    gamma: float,
    confidence: float,
) -> Estimate:
    """Estimate doubly robustly (Jiang & Li 2016, equation 10, as a sum over steps).

    Args:
        data: Episodes.
        q_value: Values of the recorded actions, by a model that did not see the episode.
        value: Values of the observations for the target policy, 0 after a termination.
        gamma: Discount factor.
        confidence: Probability that the interval contains the value.
    """
    error = np.where(data.mask, data.reward + gamma * value[:, 1:] - q_value, 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        weights = np.exp(data.compute_log_weights())
        steps = gamma ** np.arange(data.reward.shape[1]) * weights * error
        return estimate_mean(value[:, 0] + steps.sum(axis=1), confidence)


def _scale_weights(log_weights: Float[np.ndarray, "E K"]) -> Float[np.ndarray, "E K"]:
    """Return the weights over the largest of each column, which a ratio of sums cancels."""
    largest = log_weights.max(axis=0, keepdims=True)
    return np.exp(log_weights - np.where(np.isneginf(largest), 0.0, largest))


def _estimate_ratios(
    numerator: Float[np.ndarray, "E K"],
    denominator: Float[np.ndarray, "E K"],
    confidence: float,
    rng: np.random.Generator,
) -> Estimate:
    """Estimate Σ_k (Σ_e numerator / Σ_e denominator) with a BCa interval (Efron 1987).

    The episodes are resampled, or groups of equal size if they are many. The estimate is NaN if all
    weights are 0.
    """

    def compute(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
        ratio = np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0.0)
        return ratio.sum(axis=-1)

    sums = numerator.sum(axis=0), denominator.sum(axis=0)
    if not sums[1][-1] > 0.0:
        return Estimate(np.nan, np.nan, np.nan)
    value = float(compute(*sums))
    if len(numerator) < 2:
        return Estimate(value, -np.inf, np.inf)
    if len(numerator) > MAX_RESAMPLED:
        starts = np.arange(0, len(numerator), -(-len(numerator) // MAX_RESAMPLED))
        numerator, denominator = (np.add.reduceat(x, starts) for x in (numerator, denominator))
    number = len(numerator)
    counts = rng.multinomial(number, np.full(number, 1.0 / number), NUM_RESAMPLES).astype(float)
    resampled = np.sort(compute(counts @ numerator, counts @ denominator))
    without_one = compute(sums[0] - numerator, sums[1] - denominator)
    influence = without_one.mean() - without_one
    scale = float((influence**2).sum()) ** 1.5
    acceleration = float((influence**3).sum()) / (6.0 * scale) if scale > 0.0 else 0.0
    below = (resampled < value).mean() + 0.5 * (resampled == value).mean()
    if not 0.0 < below < 1.0:
        return Estimate(value, float(resampled[0]), float(resampled[-1]))
    bias = float(stats.norm.ppf(below))
    ends = bias + stats.norm.ppf([0.5 - confidence / 2.0, 0.5 + confidence / 2.0])
    levels = stats.norm.cdf(bias + ends / (1.0 - acceleration * ends))
    low, high = np.quantile(resampled, levels)
    return Estimate(value, float(low), float(high))
