"""Off-policy estimation of a policy: estimators from recorded episodes, intervals, and the report."""

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, cast

import jax
import numpy as np
from jaxtyping import Bool, Float
from scipy import stats

from jaxrl.config.coerce import MismatchError, coerce
from jaxrl.config.fields import Check, between_zero_and_one, format_value, unit_interval
from jaxrl.config.offline import make_fqe_settings
from jaxrl.config.settings.offline import METHODS, MODELED, WEIGHTED, FQESettings
from jaxrl.core.keys import make_key
from jaxrl.core.seeds import check_seed
from jaxrl.errors import ConfigError, DataError, did_you_mean
from jaxrl.estimation.target import (
    FQERows,
    Target,
    TargetRows,
    WholeEpisodes,
    read_whole_episodes,
    scale_rewards,
)
from jaxrl.offline.recorded import RecordedData

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


MIN_EFFECTIVE_SHARE = 0.05
"""Effective share of the episodes below which a report warns."""
MAX_WEIGHT_SHARE = 0.2
"""Share of one episode in the sum of weights above which a report warns."""
MAX_DROPPED_SHARE = 0.1
"""Share of the steps in episodes that are not whole above which a report warns."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EstimateReport:
    """Estimates of a policy's value, the expected discounted return, beside that of the behavior.

    Attributes:
        estimates: Estimates by method.
        behavior: Mean discounted return of the recorded episodes.
        gamma: Discount factor.
        confidence: Probability that an interval contains the value.
        explore: Whether the estimated policy samples its actions.
        num_episodes: Number of episodes.
        num_steps: Number of their steps.
        num_dropped: Number of recorded parts that belong to no whole episode.
        effective_size: Effective number of episodes by their weights; None without weights.
        largest_share: Share of the largest weight; None without weights.
        warnings: Reasons to doubt the estimates.
    """

    estimates: Mapping[str, Estimate]
    behavior: Estimate
    gamma: float
    confidence: float
    explore: bool
    num_episodes: int
    num_steps: int
    num_dropped: int
    effective_size: float | None
    largest_share: float | None
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return dataclasses.asdict(self)


def check_methods(methods: Collection[str]) -> None:
    """Check the names of methods.

    Raises:
        ConfigError: If there is none, or one is unknown.
    """
    if not methods:
        raise ConfigError(f"methods is empty; choose from {', '.join(METHODS)}.")
    for name in methods:
        if name not in METHODS:
            raise ConfigError(
                f"methods has the unknown {name!r}.{did_you_mean(name, METHODS)} Choose from "
                f"{', '.join(METHODS)}."
            )


def estimate(
    target: Target,
    data: RecordedData | WholeEpisodes,
    *,
    gamma: float,
    methods: Sequence[str] | None = None,
    confidence: float = 0.95,
    fqe: Mapping[str, Any] | None = None,
    seed: int = 0,
    ignore_final_observation: bool = False,
) -> EstimateReport:
    """Estimate the value of a policy from episodes that another one recorded.

    Importance sampling estimates the return up to the recorded end, also where it is a time limit.
    The value function of "dm" (also called "fqe") and "dr" goes on after a time limit, as critics
    do. Each episode's values are of a model that was fitted to the other half of the episodes.

    Args:
        target: Policy to estimate.
        data: Recorded data, or episodes of them that have been read.
        gamma: Discount factor.
        methods: Names of methods; None for "wis" and "dr" if the data have the probabilities of
            their actions and the policy has some, else for "dm". Actions that "dr" cannot model
            leave "wis".
        confidence: Probability that the intervals contain the value.
        fqe: Settings of fitted Q evaluation, by name.
        seed: Seed of resampling and of the fits.
        ignore_final_observation: Whether truncated episodes end one step earlier; see
            `read_whole_episodes`.

    Raises:
        ConfigError: If a setting or method is invalid, or the policy has no probabilities that a
            method needs.
        DataError: If the data are damaged, or lack whole episodes or the probabilities of actions.
    """
    _check_number("gamma", gamma, unit_interval)
    _check_number("confidence", confidence, between_zero_and_one)
    check_seed(seed)
    if methods is None:
        methods = _choose_methods(target, has_density=data.has_density)
    check_methods(methods)
    settings = make_fqe_settings(fqe)
    check_target(target, methods)
    episodes = data
    if not isinstance(episodes, WholeEpisodes):
        pipeline = target.policy_step.action_pipeline
        episodes = read_whole_episodes(
            episodes, pipeline, ignore_final_observation=ignore_final_observation
        )
    check_densities(episodes, methods)
    needs_weights, needs_model = (bool(kind & set(methods)) for kind in (WEIGHTED, MODELED))
    follow_key, fit_key = jax.random.split(make_key(seed))
    rows = target.follow(episodes, follow_key, needs_actions=needs_model)
    weighted = _make_weighted(episodes, rows) if needs_weights else None
    values = None
    if needs_model:
        values = _fit_values(target, episodes, rows, gamma, settings, fit_key)
    return _make_report(target, episodes, weighted, values, gamma, list(methods), confidence, seed)


def _choose_methods(target: Target, *, has_density: bool) -> Sequence[str]:
    if not (has_density and target.has_probability):
        return ("dm",)
    return ("wis", "dr") if target.has_modeled_actions else ("wis",)


def _check_number(name: str, value: object, check: Check) -> None:
    try:
        is_valid = check.is_satisfied(coerce(value, float))
    except MismatchError:
        is_valid = False
    if not is_valid:
        raise ConfigError(f"{name} must be {check.requirement}, got {format_value(value)}.")


def check_target(target: Target, methods: Collection[str]) -> None:
    """Check that a policy can be estimated by some methods.

    Raises:
        ConfigError: If it has no probabilities that one needs, or actions that one cannot model.
    """
    needs_weights, needs_model = (bool(kind & set(methods)) for kind in (WEIGHTED, MODELED))
    target.check(needs_probability=needs_weights, needs_model=needs_model)


def check_densities(episodes: WholeEpisodes, methods: Collection[str]) -> None:
    """Check that episodes have the probabilities that methods need.

    Raises:
        DataError: If they have not.
    """
    weighted = [method for method in methods if method in WEIGHTED]
    if weighted and episodes.behavior_log_prob is None:
        raise DataError(
            f"{episodes.source} has no probabilities of the recorded actions, action_logp, which "
            f"{', '.join(weighted)} need: record with explore=True and a policy that has some, or use "
            "the methods dm and fqe."
        )


@dataclasses.dataclass(frozen=True, eq=False)
class _Values:
    q_value: Float[np.ndarray, "E H"]
    value: Float[np.ndarray, "E H+1"]


def _make_weighted(episodes: WholeEpisodes, rows: Sequence[TargetRows]) -> WeightedEpisodes:
    behavior = cast(Sequence[np.ndarray], episodes.behavior_log_prob)
    ratios = [
        np.asarray(row.log_prob[:-1], np.float64) - log_prob
        for row, log_prob in zip(rows, behavior, strict=True)
    ]
    return WeightedEpisodes(
        log_ratio=episodes.pad(ratios),
        reward=episodes.pad([part.reward for part in episodes.parts]),
        mask=episodes.mask,
    )


def _fit_values(
    target: Target,
    episodes: WholeEpisodes,
    rows: Sequence[TargetRows],
    gamma: float,
    settings: FQESettings,
    key: jax.Array,
) -> _Values:
    """Compute Q and V of every episode by a model that was fitted to the other half."""
    lengths = episodes.lengths
    owner = np.repeat(np.arange(len(lengths)), lengths)
    ends = np.cumsum(lengths) - 1
    terminated = np.zeros(len(owner), np.bool_)
    terminated[ends] = [part.terminated for part in episodes.parts]

    def join(trees: Sequence[Any]) -> Any:
        return jax.tree.map(lambda *x: np.concatenate(x), *trees)

    reward = np.concatenate([part.reward for part in episodes.parts]).astype(np.float32)
    make = cast("Callable[..., FQERows]", FQERows)  # its fields hold arrays of either kind
    data = make(
        obs=join([row.obs for row in rows]),
        target=join([row.action for row in rows]),
        index=(np.arange(len(owner)) + owner).astype(np.int32),
        action=join([part.action for part in episodes.parts]),
        reward=reward,
        terminated=terminated,
    )
    returns = [_discount(part.reward, gamma) for part in episodes.parts]
    scale = float(np.sqrt(np.mean(np.square(returns)))) or 1.0
    scaled, model = scale_rewards(data, scale), target.get_model(settings)
    half_keys = jax.random.split(key, 3)
    half = np.asarray(jax.random.permutation(half_keys[2], len(lengths))) % 2
    q_value, value = np.zeros(len(owner)), np.zeros(len(owner) + len(lengths))
    starts = np.repeat(half, lengths + 1)
    for fold in range(2):
        others = half != fold if len(lengths) > 1 else np.ones(1, np.bool_)
        critic = model.fit(scaled, np.flatnonzero(others[owner]), gamma, half_keys[fold])
        q_fold, value_fold = model.compute(critic, scaled)
        q_value = np.where(half[owner] == fold, scale * q_fold, q_value)
        value = np.where(starts == fold, scale * value_fold, value)
    value[data.index[terminated] + 1] = 0.0
    longest = int(lengths.max())
    padded = np.zeros((len(lengths), longest + 1))
    for i, row in enumerate(np.split(value, np.cumsum(lengths + 1)[:-1])):
        padded[i, : len(row)] = row
    return _Values(episodes.pad(np.split(q_value, ends[:-1] + 1)), padded)


def _discount(reward: np.ndarray, gamma: float) -> float:
    return float(np.sum(reward * gamma ** np.arange(len(reward))))


def _make_report(
    target: Target,
    episodes: WholeEpisodes,
    weighted: WeightedEpisodes | None,
    values: _Values | None,
    gamma: float,
    methods: Sequence[str],
    confidence: float,
    seed: int,
) -> EstimateReport:
    rng = np.random.default_rng(seed)
    returns = np.asarray([_discount(part.reward, gamma) for part in episodes.parts])
    behavior = estimate_mean(returns, confidence)
    compute: dict[str, Callable[[], Estimate]] = {}
    if values is not None:
        compute |= dict.fromkeys(
            ("dm", "fqe"), lambda: estimate_mean(values.value[:, 0], confidence)
        )
    if weighted is not None:
        compute |= {
            "is": lambda: estimate_is(weighted, gamma, confidence),
            "pdis": lambda: estimate_pdis(weighted, gamma, confidence),
            "wis": lambda: estimate_wis(weighted, gamma, confidence, rng),
            "wpdis": lambda: estimate_wpdis(weighted, gamma, confidence, rng),
        }
    if values is not None and weighted is not None:
        compute["dr"] = lambda: estimate_dr(
            weighted, values.q_value, values.value, gamma, confidence
        )
    estimates = {name: compute[name]() for name in methods}
    size, share = (None, None) if weighted is None else weighted.compute_effective_size()
    return EstimateReport(
        estimates=estimates,
        behavior=behavior,
        gamma=gamma,
        confidence=confidence,
        explore=target.explore,
        num_episodes=len(episodes.parts),
        num_steps=int(episodes.lengths.sum()),
        num_dropped=episodes.num_dropped,
        effective_size=size,
        largest_share=share,
        warnings=(
            *_warn_of_dropped(episodes),
            *_find_warnings(estimates, behavior, len(episodes.parts), size, share),
        ),
    )


def _warn_of_dropped(episodes: WholeEpisodes) -> list[str]:
    """Return what to doubt where many steps are in episodes that are not whole."""
    dropped = episodes.num_dropped_steps
    share = dropped / (dropped + int(episodes.lengths.sum()))
    if share <= MAX_DROPPED_SHARE:
        return []
    warning = (
        f"{100.0 * share:.0f}% of the steps are in episodes without a recorded start or end, which are "
        "left out: long episodes are cut more often, and the values are of the others."
    )
    return [warning]


def _find_warnings(
    estimates: Mapping[str, Estimate],
    behavior: Estimate,
    num_episodes: int,
    size: float | None,
    share: float | None,
) -> list[str]:
    warnings: list[str] = []
    if size is not None and share is not None:
        if size == 0.0:
            warnings.append("The policy never takes the recorded actions: the weights are all 0.")
        elif size < MIN_EFFECTIVE_SHARE * num_episodes:
            warnings.append(
                f"The weights leave {size:.1f} of {num_episodes} episodes effectively: the policy "
                "takes other actions than those recorded."
            )
        if share > MAX_WEIGHT_SHARE:
            warnings.append(f"One episode has {100.0 * share:.0f}% of the weight.")
    for name, estimate in estimates.items():
        if not np.isfinite(estimate.value):
            warnings.append(f"{name} is {estimate.value}, because of its weights.")
        elif estimate.low <= behavior.high and estimate.high >= behavior.low:
            warnings.append(
                f"{name} does not tell the policy from the behavior: their intervals overlap."
            )
    return warnings
