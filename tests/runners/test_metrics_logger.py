"""MetricsLogger: each reduction, merging of several loggers, what lasts and what is cleared."""

import json
import pickle
from typing import Any

import numpy as np
import pytest

from jaxrl.errors import ConfigError
from jaxrl.runners.metrics_logger import MetricsLogger

VALUES = [4.0, 1.0, 3.0, 2.0]
ema = 4.0
for _value in VALUES[1:]:
    ema = 0.75 * ema + 0.25 * _value


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, 2.5),
        ({"reduce": "mean"}, 2.5),
        ({"reduce": "mean", "window": 2}, 2.5),
        ({"reduce": "mean", "window": 3}, 2.0),
        ({"reduce": "min"}, 1.0),
        ({"reduce": "min", "window": 2}, 2.0),
        ({"reduce": "max"}, 4.0),
        ({"reduce": "max", "window": 3}, 3.0),
        ({"reduce": "sum"}, 10.0),
        ({"reduce": "sum", "window": 2}, 5.0),
        ({"reduce": "lifetime_sum"}, 10.0),
        ({"reduce": "sum", "clear_on_reduce": False}, 10.0),
        ({"reduce": "ema", "ema_coeff": 0.25}, ema),
        ({"reduce": "item"}, 2.0),
        ({"reduce": "percentiles", "percentiles": [0, 50, 100]}, {"0": 1.0, "50": 2.5, "100": 4.0}),
        ({"reduce": "percentiles", "window": 2, "percentiles": [100]}, {"100": 3.0}),
    ],
    ids=str,
)
def test_reductions_of_one_logger_and_of_two(settings: dict[str, Any], wanted: Any) -> None:
    logger, root = MetricsLogger(), MetricsLogger()
    for value in VALUES:
        logger.log_value("x", np.float32(value), **settings)
    assert logger.peek("x") == pytest.approx(wanted)
    assert logger.reduce()["x"] == pytest.approx(wanted)
    first, second = MetricsLogger(), MetricsLogger()
    for part, values in ((first, VALUES[:3]), (second, VALUES[3:])):
        for value in values:
            part.log_value("x", value, **settings)
    root.aggregate(pickle.loads(pickle.dumps([first.take(), second.take()])))
    assert root.reduce()["x"] == pytest.approx(wanted)
    assert "x" not in first


def test_what_lasts_and_what_is_cleared() -> None:
    root = MetricsLogger()

    def log(value: float) -> dict[str, Any]:
        part = MetricsLogger()
        part.log_value("mean", value)
        part.log_value("window", value, window=2)
        part.log_value("life", value, reduce="lifetime_sum")
        part.log_value("ema", value, reduce="ema", ema_coeff=0.5)
        root.aggregate([part.take()])
        return root.reduce()

    assert log(1.0) == {"mean": 1.0, "window": 1.0, "life": 1.0, "ema": 1.0}
    assert log(2.0) == {"mean": 2.0, "window": 1.5, "life": 3.0, "ema": 1.5}
    assert log(4.0) == {"mean": 4.0, "window": 3.0, "life": 7.0, "ema": 2.75}
    state = json.loads(json.dumps(root.get_state()))
    assert root.reduce() == {"window": 3.0, "life": 7.0, "ema": 2.75}
    root = MetricsLogger()
    root.set_state(state)
    assert log(2.0) == {"mean": 2.0, "window": 3.0, "life": 9.0, "ema": 2.375}


def test_several_reductions_at_once() -> None:
    logger = MetricsLogger()
    for value in VALUES:
        logger.log_value(("a", "angle"), value, reduce=("mean", "min", "max"))
    assert logger.reduce() == {"a": {"angle_mean": 2.5, "angle_min": 1.0, "angle_max": 4.0}}


def test_keys_nest() -> None:
    logger = MetricsLogger()
    logger.log_dict({"b": 1.0, "c": {"d": 2.0}}, key="a", reduce="sum")
    logger.log_value("a/b", 2.0, reduce="sum")
    assert logger.peek() == {"a": {"b": 3.0, "c": {"d": 2.0}}}
    assert logger.peek(("a", "c")) == {"d": 2.0}
    assert ("a", "b") in logger
    assert logger.peek("none", default=7) == 7
    with pytest.raises(KeyError, match="Nothing was logged as 'a/bb'"):
        logger.peek("a/bb")
    logger.delete("a", "c")
    assert logger.peek() == {"a": {"b": 3.0}}


def test_time_is_logged() -> None:
    logger = MetricsLogger()
    with logger.log_time("seconds", reduce="sum"):
        sum(range(1000))
    assert 0.0 < logger.peek("seconds") < 10.0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"reduce": "meen"}, "Did you mean 'mean'"),
        ({"reduce": "item", "window": 3}, "window=3 of 'x'"),
        ({"window": float("inf")}, "window of .x. must be a number of values above 0, got inf"),
        ({"window": 0}, "window of 'x' must be a number of values above 0, got 0"),
        ({"window": "3"}, "window of 'x' must be a number of values above 0, got '3'"),
        ({"reduce": "ema", "ema_coeff": 2}, "ema_coeff of 'x' must be above 0 and at most 1"),
        ({"reduce": "percentiles", "percentiles": [200]}, r"numbers from 0 to 100, got \[200\]"),
        ({"reduce": "percentiles", "percentiles": 50}, "numbers from 0 to 100, got 50"),
        ({"ema_coeff": 0.1}, "ema_coeff of 'x'"),
        ({"percentiles": [5]}, "percentiles of 'x'"),
        ({"clear_on_reduce": False}, "clear_on_reduce=False of 'x'"),
        ({"reduce": "max"}, "logged with reduce='sum' and then with reduce='max'"),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_refused(settings: dict[str, Any], words: str) -> None:
    logger = MetricsLogger()
    logger.log_value("x", 1.0, reduce="sum")
    with pytest.raises(ConfigError, match=words):
        logger.log_value("x", 1.0, **settings)
    assert logger.peek("x") == 1.0


@pytest.mark.parametrize("value", ["y", None, [1.0, 2.0], np.arange(2), 10**400])
def test_what_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"'a/0' was logged with .*reduce='item'"):
        MetricsLogger().log_value(("a", 0), value)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="under a name"):
        MetricsLogger().log_value("", 1.0)


def test_settings_are_numbers_of_numpy_too() -> None:
    logger = MetricsLogger()
    logger.log_value(("a", 0), 1.0, window=np.int64(2))
    logger.log_value("b", 1.0, reduce="ema", ema_coeff=np.float32(0.5))
    logger.log_value("c", 1.0, reduce="percentiles", percentiles=np.array([50]))
    assert json.loads(json.dumps(logger.get_state()))["a/0"]["window"] == 2
    logger.delete("a", 0)  # pyright: ignore[reportArgumentType]
    assert list(logger.peek()) == ["b", "c"]


@pytest.mark.parametrize(("first", "second"), [("a/b", "a/b/c"), ("a/b/c", "a")])
def test_a_key_is_a_value_or_a_group(first: str, second: str) -> None:
    logger = MetricsLogger()
    logger.log_value(first, 1.0)
    with pytest.raises(ConfigError, match=f"'{second}' was logged beside '{first}'"):
        logger.log_value(second, 1.0)
    logger.log_value("a2", 1.0)
    assert logger.reduce()["a2"] == 1.0


def test_several_reductions_of_a_lifetime_are_sums() -> None:
    logger = MetricsLogger()
    totals = []
    for _ in range(3):
        logger.log_value("n", 1, reduce=("sum",), clear_on_reduce=False)
        totals.append(logger.reduce()["n_sum"])
    assert totals == [1.0, 2.0, 3.0]
    with pytest.raises(ConfigError, match="clear_on_reduce"):
        logger.log_value("n", 1, reduce=("sum", "max"), clear_on_reduce=False)


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"window": 100}, 2.5),
        ({"reduce": "min", "window": 100}, 1.0),
        ({"reduce": "percentiles", "window": 8, "percentiles": [0, 100]}, {"0": 1.0, "100": 4.0}),
        ({"reduce": "ema"}, 2.5 * (1.0 + 8.0 * 0.99**250)),
        ({}, 12.5),
        ({"reduce": "sum"}, 25_000.0),
        ({"reduce": "item"}, 4.0),
    ],
)
def test_runners_that_log_at_the_same_time_count_alike(settings: Any, wanted: Any) -> None:
    """As RLlib merges its runners; each has two fragments, of 250 values and of 250 others."""
    whole, parts = MetricsLogger(), []
    for factor in (9.0, 1.0):
        for index in range(1, 5):
            runner = MetricsLogger()
            for _ in range(250):
                runner.log_value("x", factor * index, **settings)
            parts.append((index, runner.take()))
    whole.aggregate_runners(parts)
    assert whole.reduce()["x"] == pytest.approx(wanted)


def test_the_window_of_runners_has_the_latest_values_of_each() -> None:
    whole = MetricsLogger()
    whole.log_value("x", -1.0, reduce="percentiles", window=5, percentiles=[0, 100])
    parts = []
    for index, values in ((1, [1.0, 2.0, 3.0]), (2, [10.0]), (1, [4.0])):
        runner = MetricsLogger()
        for value in values:
            runner.log_value("x", value, reduce="percentiles", window=5, percentiles=[0, 100])
        parts.append((index, runner.take()))
    whole.aggregate_runners(parts)
    assert whole.get_state()["x"]["data"] == [1.0, 2.0, 3.0, 10.0, 4.0]


@pytest.mark.parametrize("order", [[np.nan, 1.0, 2.0], [1.0, np.nan, 2.0], [1.0, 2.0, np.nan]])
def test_nan_counts_only_if_nothing_else_was_logged(order: list[float]) -> None:
    wanted = {"mean": 1.5, "min": 1.0, "max": 2.0, "sum": 3.0, "lifetime_sum": 3.0, "ema": 1.01}
    logger, alone = MetricsLogger(), MetricsLogger()
    for value in order:
        logger.log_value("x", value, reduce=tuple(wanted))
        logger.log_value("window", value, window=5)
    alone.log_value("x", np.nan)
    assert np.isnan(alone.reduce()["x"])
    result = logger.reduce()
    assert {name: result[f"x_{name}"] for name in wanted} == pytest.approx(wanted)
    assert result["window"] == 1.5
