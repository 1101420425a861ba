"""Callbacks: their three forms, the memory tracker, and hooks that cannot be called."""

import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from jaxrl.algorithms.ppo import PPOConfig
from jaxrl.callbacks import HOOKS, CallbackList, Callbacks, MemoryTrackingCallbacks
from jaxrl.config.legacy import HOOKS_REFUSED
from jaxrl.errors import ConfigError


class First(Callbacks):
    """Leaves its name in the result."""

    def on_train_result(self, *, algorithm: Any, result: dict[str, Any]) -> None:
        result.setdefault("called", []).append(type(self).__name__)


class Second(First):
    """Inherits what it does."""


def one(*, algorithm: Any, result: dict[str, Any]) -> None:
    result.setdefault("called", []).append("one")


def two(*, algorithm: Any, result: dict[str, Any]) -> None:
    result.setdefault("called", []).append("two")


def listeners(*args: Any, **settings: Any) -> CallbackList:
    return CallbackList(PPOConfig().callbacks(*args, **settings).callbacks_settings)


@pytest.mark.parametrize(
    ("args", "settings", "called"),
    [
        ((First,), {}, ["First"]),
        (([First, Second],), {}, ["First", "Second"]),
        ((), {"on_train_result": one}, ["one"]),
        ((), {"on_train_result": [one, two]}, ["one", "two"]),
        (([Second],), {"on_train_result": [two, one]}, ["Second", "two", "one"]),
        (("tests.test_callbacks:First",), {}, ["First"]),
    ],
    ids=["class", "classes", "function", "functions", "both, classes first", "import path"],
)
def test_the_forms(args: Any, settings: Any, called: list[str]) -> None:
    callbacks = listeners(*args, **settings)
    result: dict[str, Any] = {}
    callbacks.call("on_train_result", algorithm=None, result=result)
    assert result["called"] == called
    assert callbacks.wants("on_train_result")
    assert not callbacks.wants("on_episode_end")


def test_nothing_listens_by_default() -> None:
    callbacks = listeners()
    assert not any(callbacks.wants(hook) for hook in HOOKS)


@pytest.mark.parametrize("hook", HOOKS_REFUSED)
def test_hooks_that_cannot_be_called_are_refused_by_name(hook: str) -> None:
    assert hook not in HOOKS
    for name in (hook, f"callbacks_{hook}"):
        with pytest.raises(ConfigError, match=f"'{name}'") as caught:
            PPOConfig().callbacks(**{name: one})
        assert HOOKS_REFUSED[hook] in str(caught.value)
    PPOConfig().callbacks(**{hook: None})
    base = type("Base", (Callbacks,), {hook: one})
    for cls in (base, type("Inheriting", (base,), {})):
        with pytest.raises(ConfigError, match=f"{cls.__name__}.{hook} would never") as caught:
            listeners(cls)
        assert HOOKS_REFUSED[hook] in str(caught.value)
        assert "\n" not in str(caught.value)


def test_what_is_no_hook_and_no_callbacks_class_is_refused() -> None:
    wrong = type("Wrong", (Callbacks,), {"on_train_results": one})
    with pytest.raises(ConfigError, match=r"is no hook\. Did you mean 'on_train_result'"):
        listeners(wrong)
    with pytest.raises(ConfigError, match="must be a subclass of jaxrl"):
        listeners(dict)


@pytest.fixture
def _untraced() -> Iterator[None]:
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("_untraced")
def test_memory_is_tracked() -> None:
    callbacks = listeners(MemoryTrackingCallbacks)
    callbacks.call("on_algorithm_init", algorithm=None)
    kept = bytearray(3_000_000)
    result: dict[str, Any] = {"custom_metrics": {"mine": 1}}
    callbacks.call("on_train_result", algorithm=None, result=result)
    memory = result["custom_metrics"]["memory"]
    assert result["custom_metrics"]["mine"] == 1
    assert memory["tracemalloc_current_bytes"] >= len(kept)
    assert memory["tracemalloc_peak_bytes"] >= memory["tracemalloc_current_bytes"]
    assert memory["rss_peak_bytes"] > 10_000_000
    assert memory.get("rss_bytes", 10_000_001) > 10_000_000
    largest = memory["largest_allocations"]
    assert largest.startswith("test_callbacks.py:")
    assert len(largest.split(", ")) <= MemoryTrackingCallbacks.num_largest
    json.dumps(result)
