"""Statistics over runs and tasks, against SciPy, plain loops and figures computed by hand."""

import itertools

import numpy as np
import pytest
import scipy.stats

from jaxrl.bench import summary as scores
from jaxrl.bench.job import Curve
from jaxrl.sweeps.statistics import compute_interval

GENERATOR = np.random.default_rng(7)
TASKS = {name: GENERATOR.normal(0.6, 0.2, size=8) for name in ("a", "b", "c")}


def test_the_interquartile_mean_is_scipys_trimmed_mean() -> None:
    everything = np.concatenate(list(TASKS.values()))
    assert scores.iqm(TASKS) == pytest.approx(scipy.stats.trim_mean(everything, 0.25))


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


def test_the_profile_is_the_share_of_runs_above() -> None:
    taus = np.array([0.0, 0.5, 0.9])
    values = {"a": np.array([0.2, 0.6, 0.6]), "b": np.array([0.7, 0.8, 1.0])}
    profile = scores.performance_profile(values, taus)
    np.testing.assert_allclose(profile.share, [1.0, 5 / 6, 1 / 6])
    assert np.all((profile.low >= 0.0) & (profile.low <= profile.share))
    assert np.all((profile.high <= 1.0) & (profile.share <= profile.high))
    few = scores.performance_profile({**values, "b": np.array([0.7, 1.0])}, taus)
    assert np.isnan([few.low, few.high]).all()


def test_the_probability_of_improvement_is_mann_whitneys() -> None:
    ours, theirs = {"a": np.array([1.0, 2.0, 3.0])}, {"a": np.array([2.0, 0.0])}
    expected = scipy.stats.mannwhitneyu(ours["a"], theirs["a"]).statistic / 6
    assert scores.probability_of_improvement(ours, theirs).value == pytest.approx(expected)
    swapped = scores.probability_of_improvement(theirs, ours)
    assert swapped.value == pytest.approx(1.0 - expected)


@pytest.mark.parametrize(
    ("runs", "verdict"),
    [(1, "undecided (1 run)"), (2, "undecided (2 runs)"), (3, "undecided"), (5, "above")],
)
def test_runs_that_are_all_better_may_be_so_by_chance(runs: int, verdict: str) -> None:
    """All of three runs are better or worse than three equal ones in one of ten samples."""
    worse = {"a": np.arange(float(runs))}
    better = {"a": worse["a"] + 100.0}
    found = scores.probability_of_improvement(better, worse)
    assert (found.value, found.get_side(0.5)) == (1.0, verdict)
    many = scores.probability_of_improvement({n: x + 10.0 for n, x in TASKS.items()}, TASKS)
    assert (many.get_side(0.9), many.value, many.high) == ("above", 1.0, 1.0)


@pytest.mark.parametrize("num_tasks", [1, 5])
def test_the_interval_of_a_probability_is_newcombes(num_tasks: int) -> None:
    """At either bound the estimate is Student's quantile of its own standard errors away."""
    runs = {task: np.random.default_rng(task).normal(size=(2, 6)) for task in range(num_tasks)}
    ours, theirs = ({task: x[i] for task, x in runs.items()} for i in (0, 1))
    found = scores.probability_of_improvement(ours, theirs)
    for bound in (found.low, found.high):
        q1, q2 = bound / (2 - bound), 2 * bound**2 / (1 + bound)  # Hanley & McNeil 1982
        variance = bound * (1 - bound) + 5 * (q1 - bound**2) + 5 * (q2 - bound**2)
        error = np.sqrt(variance / 36 / num_tasks)
        quantile = scipy.stats.t.ppf(0.975, 10 * num_tasks)
        assert abs(found.value - bound) == pytest.approx(quantile * error, abs=1e-3)


@pytest.mark.parametrize(("num_tasks", "runs"), [(1, 3), (1, 4), (1, 5), (1, 10), (3, 3), (3, 5)])
def test_equal_runs_are_seldom_an_improvement(num_tasks: int, runs: int) -> None:
    generator = np.random.default_rng(10 * num_tasks + runs)
    sides = []
    for _ in range(500):
        draws = generator.normal(size=(num_tasks, 2, runs))
        ours, theirs = (dict(enumerate(draws[:, i])) for i in (0, 1))
        sides.append(scores.probability_of_improvement(ours, theirs).get_side(0.5))
    assert np.mean([side != "undecided" for side in sides]) <= 0.06


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
