"""Intervals, and what they say of a limit."""

import numpy as np
import pytest
import scipy.stats

from jaxrl.sweeps.statistics import Interval, bootstrap, compute_interval, estimate_iqm

VALUES = np.random.default_rng(2).normal(size=11)


def mean(groups: dict[str, np.ndarray]) -> np.ndarray:
    return groups["a"].mean(axis=-1)


def test_more_confidence_is_a_wider_interval() -> None:
    narrow, wide = (
        compute_interval(mean, {"a": VALUES}, confidence=level) for level in (0.5, 0.95)
    )
    assert wide.low < narrow.low < narrow.value < narrow.high < wide.high


def test_the_bounds_are_near_those_of_scipy() -> None:
    found = compute_interval(mean, {"a": VALUES}, num_resamples=20_000)
    theirs = scipy.stats.bootstrap(
        (VALUES,), np.mean, method="percentile", n_resamples=20_000, rng=0
    ).confidence_interval
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=0.02)


def test_a_statistic_may_be_an_array() -> None:
    limits = np.array([-0.5, 0.5])

    def share(groups: dict[str, np.ndarray]) -> np.ndarray:
        return (groups["a"][..., None] > limits).mean(axis=-2)

    value, bounds = bootstrap(share, {"a": VALUES})
    assert bounds.shape == (2, 2)
    assert np.all(bounds[0] <= value)
    assert np.all(value <= bounds[1])


def test_the_interquartile_mean_has_an_interval() -> None:
    found = estimate_iqm([3.0, 1.0, 2.0, 10.0])
    assert found.value == 2.5
    assert 1.0 <= found.low < found.value < found.high <= 10.0
    assert estimate_iqm([4.0]) == Interval(value=4.0, low=4.0, high=4.0, count=1)


INTERVAL = Interval(value=1.9, low=1.8, high=2.0)


@pytest.mark.parametrize(
    ("limit", "side", "at_least", "at_most"),
    [
        (1.7, "above", "yes", "no"),
        (1.8, "undecided", "yes", "undecided"),
        (1.9, "undecided", "undecided", "undecided"),
        (2.0, "undecided", "undecided", "yes"),
        (2.1, "below", "no", "yes"),
    ],
)
def test_a_verdict_needs_the_whole_interval(
    limit: float, side: str, at_least: str, at_most: str
) -> None:
    assert INTERVAL.get_side(limit) == side
    assert INTERVAL.judge_at_least(limit) == at_least
    assert INTERVAL.judge_at_most(limit) == at_most


def test_intervals_that_touch_do_not_lie_above_one_another() -> None:
    assert Interval(value=3.0, low=2.1, high=4.0).is_above(INTERVAL)
    assert not Interval(value=3.0, low=2.0, high=4.0).is_above(INTERVAL)
