"""Medians, ratios and their intervals on data whose answer is known."""

import numpy as np
import pytest

from benchmarks.statistics import (
    estimate_geometric_mean,
    estimate_median,
    estimate_ratio,
    estimate_slope,
    from_dict,
    to_dict,
)
from jaxrl.sweeps.statistics import Interval


def test_equal_values_have_an_interval_of_no_width() -> None:
    assert estimate_median([2.0] * 7) == Interval(value=2.0, low=2.0, high=2.0, count=7)


def test_the_interval_holds_the_true_median_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(300):
        estimate = estimate_median(rng.normal(1.5, 0.2, size=15))
        hits += estimate.low <= 1.5 <= estimate.high
    assert 0.90 <= hits / 300 <= 1.0


def test_the_same_values_give_the_same_interval() -> None:
    values = [1.0, 4.0, 2.0, 8.0, 5.0]
    assert estimate_median(values) == estimate_median(values)


def test_a_ratio_is_taken_within_a_round() -> None:
    """The machine slows down tenfold: the ratio in every round is 2, that of the medians is not."""
    load = np.array([1.0, 1.0, 1.0, 1.0, 0.1, 0.1, 0.1])
    ours, theirs = 200.0 * load, 100.0 * load
    estimate = estimate_ratio(list(ours), list(theirs))
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((2.0, 2.0, 2.0))
    assert estimate_ratio([4.0, 9.0, 1.0], [2.0, 1.0, 1.0]).value == pytest.approx(2.0)


@pytest.mark.parametrize("values", [[2.0], [1.0, 3.0]])
def test_less_than_three_values_have_no_interval(values: list[float]) -> None:
    found = estimate_median(values)
    assert (found.value, found.is_bounded, found.count) == (2.0, False, len(values))
    assert to_dict(found) == {"median": 2.0, "low": None, "high": None, "count": len(values)}
    assert from_dict(to_dict(found)).judge_at_least(0.0).startswith("undecided (")


@pytest.mark.parametrize("values", [[], [1.0, float("nan")], [float("inf")]])
def test_values_that_have_no_median_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        estimate_median(values)


def test_a_missing_half_of_a_pair_is_refused() -> None:
    with pytest.raises(ValueError, match="3 and 2"):
        estimate_ratio([1.0, 2.0, 3.0], [1.0, 2.0])


def test_files_name_a_median_or_a_slope() -> None:
    interval = Interval(value=1.9, low=1.8, high=2.0, count=7)
    assert to_dict(interval) == {"median": 1.9, "low": 1.8, "high": 2.0, "count": 7}
    assert from_dict(to_dict(interval, "slope"), "slope") == interval


def test_a_line_has_its_slope_and_an_interval_of_no_width() -> None:
    times = np.linspace(2.0, 12.0, 120)
    slope = estimate_slope(list(times), list(3.0 * times + 7.0))
    assert (slope.value, slope.low, slope.high) == pytest.approx((3.0, 3.0, 3.0))
    assert slope.count == 120


@pytest.mark.parametrize("memory", [0.0, 0.7])
def test_a_slope_is_in_its_interval_about_as_often_as_it_says(memory: float) -> None:
    """Also where a value resembles the one before it, as memory in use does."""
    rng, times = np.random.default_rng(4), np.linspace(0.0, 10.0, 120)
    hits = 0
    for _ in range(300):
        noise = np.zeros(120)
        for i, draw in enumerate(rng.normal(size=120)):
            noise[i] = memory * noise[i - 1] + draw if i else draw
        estimate = estimate_slope(list(times), list(0.5 * times + noise))
        hits += estimate.low <= 0.5 <= estimate.high
    assert 0.88 <= hits / 300 <= 1.0


@pytest.mark.parametrize(
    ("times", "values"),
    [
        ([1.0] * 5, [1.0] * 5),
        ([1.0] * 30, [1.0] * 29),
        ([*range(29), 29], [1.0] * 29 + [np.nan]),
    ],
)
def test_points_that_have_no_slope_are_refused(times: list[float], values: list[float]) -> None:
    with pytest.raises(ValueError, match="at least 20 points"):
        estimate_slope(times, values)


def test_a_geometric_mean_is_of_the_medians() -> None:
    groups = [[1.0, 2.0, 9.0], [8.0, 8.0, 8.0]]
    estimate = estimate_geometric_mean(groups)
    assert estimate.value == pytest.approx(4.0)
    assert estimate.low == pytest.approx(8.0**0.5)  # of three draws two are 1, in 7 of 27
    assert estimate.high == pytest.approx(72.0**0.5)
    assert estimate.count == 6


def test_a_geometric_mean_of_equal_ratios_is_exact_whatever_their_order() -> None:
    estimate = estimate_geometric_mean([[2.0] * 7, [0.5] * 7, [3.0] * 3])
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((3.0 ** (1 / 3),) * 3)


@pytest.mark.parametrize("groups", [[], [[]], [[1.0], [0.0]], [[-1.0]]])
def test_a_geometric_mean_needs_values_above_zero(groups: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="above zero"):
        estimate_geometric_mean(groups)
