"""Medians, ratios and their intervals on data whose answer is known."""

import numpy as np
import pytest

from benchmarks.statistics import Estimate, median_interval, paired_ratio


def test_equal_values_have_an_interval_of_no_width() -> None:
    assert median_interval([2.0] * 7) == Estimate(median=2.0, low=2.0, high=2.0, count=7)


def test_the_interval_holds_the_true_median_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(300):
        estimate = median_interval(rng.normal(1.5, 0.2, size=15), resamples=400)
        hits += estimate.low <= 1.5 <= estimate.high
    assert 0.90 <= hits / 300 <= 1.0


def test_more_confidence_is_a_wider_interval() -> None:
    values = list(np.random.default_rng(2).normal(size=11))
    narrow, wide = (median_interval(values, confidence=level) for level in (0.5, 0.95))
    assert wide.low < narrow.low < narrow.median < narrow.high < wide.high


def test_the_same_values_give_the_same_interval() -> None:
    values = [1.0, 4.0, 2.0, 8.0, 5.0]
    assert median_interval(values) == median_interval(values)


def test_a_ratio_is_taken_within_a_round() -> None:
    """The machine slows down tenfold: the ratio in every round is 2, that of the medians is not."""
    load = np.array([1.0, 1.0, 1.0, 1.0, 0.1, 0.1, 0.1])
    ours, theirs = 200.0 * load, 100.0 * load
    estimate = paired_ratio(list(ours), list(theirs))
    assert (estimate.median, estimate.low, estimate.high) == pytest.approx((2.0, 2.0, 2.0))
    assert paired_ratio([4.0, 9.0, 1.0], [2.0, 1.0, 1.0]).median == pytest.approx(2.0)


def test_two_values_have_their_range() -> None:
    assert median_interval([1.0, 3.0]) == Estimate(median=2.0, low=1.0, high=3.0, count=2)


@pytest.mark.parametrize("values", [[], [1.0, float("nan")], [float("inf")]])
def test_values_that_have_no_median_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        median_interval(values)


def test_a_missing_half_of_a_pair_is_refused() -> None:
    with pytest.raises(ValueError, match="3 and 2"):
        paired_ratio([1.0, 2.0, 3.0], [1.0, 2.0])


def test_a_verdict_needs_the_whole_interval() -> None:
    estimate = Estimate(median=1.9, low=1.8, high=2.0, count=7)
    assert [estimate.verdict(aim) for aim in (1.8, 1.9, 2.1)] == ["yes", "undecided", "no"]
