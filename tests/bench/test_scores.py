"""Statistics over runs and tasks, against SciPy, plain loops and figures computed by hand."""

import itertools

import numpy as np
import pytest
import scipy.stats

from jaxrl.bench import scores
from jaxrl.bench.job import Curve
from jaxrl.sweeps.statistics import Interval, compute_interval

GENERATOR = np.random.default_rng(7)
TASKS = {name: GENERATOR.normal(0.6, 0.2, size=8) for name in ("a", "b", "c")}


def test_the_interquartile_mean_is_scipys_trimmed_mean() -> None:
    everything = np.concatenate(list(TASKS.values()))
    assert scores.iqm(TASKS) == pytest.approx(scipy.stats.trim_mean(everything, 0.25))


def test_quartiles_that_cut_a_run_count_its_share() -> None:
    # Of five runs a quarter is 1.25: the second and fourth count three quarters.
    values = {"a": np.array([0.0, 1.0, 2.0, 3.0, 100.0])}
    assert scores.iqm(values) == pytest.approx((0.75 * 1 + 2 + 0.75 * 3) / 2.5)


def test_mean_and_median_are_over_the_tasks() -> None:
    values = {"a": np.array([0.0, 0.2]), "b": np.array([1.0, 1.0]), "c": np.array([0.4, 0.8])}
    assert scores.mean(values) == pytest.approx((0.1 + 1.0 + 0.6) / 3)
    assert scores.median(values) == pytest.approx(0.6)


def test_the_optimality_gap_counts_nothing_beyond_the_goal() -> None:
    assert scores.optimality_gap({"a": np.array([0.25, 3.0])}) == pytest.approx(0.375)


def test_resampling_stays_within_a_task() -> None:
    values = {"low": np.zeros(4), "high": np.ones(4)}
    found = compute_interval(scores.mean, values)
    assert (found.low, found.value, found.high) == (0.5, 0.5, 0.5)


def test_the_interval_of_a_mean_is_near_the_normal_one() -> None:
    data = {"a": GENERATOR.normal(size=400)}
    found = compute_interval(scores.mean, data)
    error = 1.96 * data["a"].std() / 20
    assert found.low == pytest.approx(found.value - error, abs=0.02)
    assert found.high == pytest.approx(found.value + error, abs=0.02)


def test_a_single_run_has_no_interval() -> None:
    found = compute_interval(scores.iqm, {"a": np.array([3.0])})
    assert found == Interval(value=3.0, low=3.0, high=3.0, count=1)


def test_the_profile_is_the_share_of_runs_above() -> None:
    taus = np.array([0.0, 0.5, 0.9])
    values = {"a": np.array([0.2, 0.6]), "b": np.array([0.7, 1.0])}
    profile = scores.performance_profile(values, taus)
    np.testing.assert_allclose(profile.share, [1.0, 0.75, 0.25])
    assert np.all(profile.low <= profile.share)
    assert np.all(profile.share <= profile.high)


def test_the_probability_of_improvement_is_mann_whitneys() -> None:
    ours, theirs = {"a": np.array([1.0, 2.0, 3.0])}, {"a": np.array([2.0, 0.0])}
    expected = scipy.stats.mannwhitneyu(ours["a"], theirs["a"]).statistic / 6
    assert scores.probability_of_improvement(ours, theirs).value == pytest.approx(expected)
    swapped = scores.probability_of_improvement(theirs, ours)
    assert swapped.value == pytest.approx(1.0 - expected)


def test_runs_that_are_all_better_leave_no_doubt() -> None:
    better = {name: values + 10.0 for name, values in TASKS.items()}
    found = scores.probability_of_improvement(better, TASKS)
    assert (found.low, found.value, found.high) == (1.0, 1.0, 1.0)


def test_scores_are_0_at_the_low_mark_and_1_at_the_high_one() -> None:
    np.testing.assert_allclose(scores.normalize([-10.0, 0.0, 40.0], -10.0, 30.0), [0, 0.25, 1.25])


def test_a_curve_is_kept_evenly_with_its_last_point() -> None:
    curve = Curve()
    for i in range(1, 1_204):
        curve.add(10 * i, i / 2, i / 100, iteration=i)
    data = curve.to_data()
    steps = data["steps"]
    assert len(steps) == 401
    assert {late - early for early, late in itertools.pairwise(steps)} == {30}
    assert (steps[-1], data["returns"][-1], data["seconds"][-1]) == (12_030, 601.5, 12.03)
    short = Curve([1], [2.0], [3.0])
    assert short.to_data() == {"steps": [1], "returns": [2.0], "seconds": [3.0]}
