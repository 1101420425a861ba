"""Result keys: nested and flat."""

import pytest

from jaxrl import metrics
from jaxrl.errors import UnknownNameError

RESULT = {"a": {"b": {"c": 1}, "d": None}, "e": 2.0, "empty": {}}


def test_flatten() -> None:
    assert metrics.flatten(RESULT) == {"a/b/c": 1, "a/d": None, "e": 2.0}


def test_lookup() -> None:
    assert metrics.lookup(RESULT, "a/b/c") == 1
    assert metrics.lookup(RESULT, "e") == 2.0
    assert metrics.lookup(RESULT, "a/b/x") is None
    assert metrics.lookup(RESULT, "e/x") is None


def test_unknown_keys_are_refused() -> None:
    for path in (*metrics.KNOWN_KEYS, *metrics.RENAMED_KEYS.values(), "learners/default_policy/x"):
        metrics.check_key(path, "stop")
    with pytest.raises(UnknownNameError, match=r"stop names 'time_totl_s'.*'time_total_s'"):
        metrics.check_key("time_totl_s", "stop")
