"""Callbacks: their three forms, the memory tracker, and hooks that cannot be called."""

import copy
import json
import pickle
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from jaxrl import Algorithm, Callbacks, PPOConfig
from jaxrl.callbacks import HOOKS, HOST_HOOKS, CallbackList, MemoryTrackingCallbacks
from jaxrl.compat.rllib.settings import REFUSED_HOOKS
from jaxrl.errors import ConfigError
from jaxrl.training.episode_stats import EndedEpisode
from tests.helpers import small


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
    assert callbacks.has_listeners("on_train_result")
    assert not callbacks.has_listeners("on_episode_end")


def broken(*, algorithm: Any, result: dict[str, Any]) -> None:
    raise ZeroDivisionError("of the user's")


def test_what_a_callback_raises_passes_through_and_names_the_hook() -> None:
    with pytest.raises(ZeroDivisionError, match="of the user's") as caught:
        listeners(on_train_result=[one, broken]).call("on_train_result", algorithm=None, result={})
    assert caught.value.__notes__ == ["Raised by on_train_result of broken."]


def test_an_ended_episode_answers_to_rllibs_names() -> None:
    episode = EndedEpisode(2.5, 7, 0, 99)
    assert (episode.get_return(), len(episode), episode.env_steps()) == (2.5, 7, 7)
    assert episode.is_done
    assert episode.length == 7
    assert copy.deepcopy(episode) == pickle.loads(pickle.dumps(episode)) == episode
    for name, words in (
        ("total_reward", r"no 'total_reward': get_return\(\) is it"),
        ("get_observations", r"it has episode_return, .*placement='host' records steps"),
    ):
        with pytest.raises(AttributeError, match=words):
            getattr(episode, name)


def test_nothing_listens_by_default() -> None:
    callbacks = listeners()
    assert not any(callbacks.has_listeners(hook) for hook in HOOKS)


@pytest.mark.parametrize("hook", REFUSED_HOOKS)
def test_hooks_that_cannot_be_called_are_refused_by_name(hook: str) -> None:
    assert hook not in HOOKS
    for name in (hook, f"callbacks_{hook}"):
        with pytest.raises(ConfigError, match=f"'{name}'") as caught:
            PPOConfig().callbacks(**{name: one})
        assert REFUSED_HOOKS[hook] in str(caught.value)
    PPOConfig().callbacks(**{hook: None})
    base = type("Base", (Callbacks,), {hook: one})
    for cls in (base, type("Inheriting", (base,), {})):
        with pytest.raises(ConfigError, match=f"{cls.__name__}.{hook} would never") as caught:
            listeners(cls)
        assert REFUSED_HOOKS[hook] in str(caught.value)
        assert "\n" not in str(caught.value)


def test_what_is_no_hook_and_no_callbacks_class_is_refused() -> None:
    wrong = type("Wrong", (Callbacks,), {"on_train_results": one})
    with pytest.raises(ConfigError, match=r"is not a hook\. Did you mean 'on_train_result'"):
        listeners(wrong)
    with pytest.raises(ConfigError, match="must be a subclass of jaxrl"):
        listeners(dict)


def test_a_listener_gets_the_keywords_that_it_takes() -> None:
    got: list[Any] = []

    class Some(Callbacks):
        def on_episode_step(self, *, episode: Any, env_index: int, worker: Any = None) -> None:
            got.append((episode, env_index, worker))

    def all_of_them(**kwargs: Any) -> None:
        got.append(kwargs)

    def positional(episode: Any) -> None:
        got.append(episode)

    callbacks = listeners(Some, on_episode_step=[all_of_them, positional])
    callbacks.call("on_episode_step", episode=1, env_index=2, rl_module=3)
    assert got == [(1, 2, None), {"episode": 1, "env_index": 2, "rl_module": 3}, 1]


def test_a_listener_that_needs_what_there_is_not_is_told_so() -> None:
    def wants_a_runner(*, episode: Any, env_runner: Any) -> None:
        raise AssertionError

    callbacks = listeners(on_episode_end=wants_a_runner)
    with pytest.raises(ConfigError, match=r"on_episode_end of .*wants_a_runner takes 'env_runner'"):
        callbacks.call("on_episode_end", algorithm=None, episode=None)


def test_hooks_of_single_steps_are_refused_where_no_python_is() -> None:
    listeners(on_episode_end=one, on_env_runners_recreated=one).check_no_host_hooks()
    for hook in HOST_HOOKS:
        with pytest.raises(ConfigError, match=f"{hook} would never be called.*placement='host'"):
            listeners(**{hook: one}).check_no_host_hooks()
    stepping = type("Stepping", (Callbacks,), {"on_episode_step": lambda self, **_: None})
    with pytest.raises(ConfigError, match="on_episode_step would never be called"):
        small().callbacks(stepping).build()


class Logging(Callbacks):
    """Logs the return of every episode, and counts them for ever."""

    def on_episode_end(
        self, *, episode: Any, prev_episode_chunks: Any, metrics_logger: Any
    ) -> None:
        total = sum(part.get_return() for part in (*prev_episode_chunks, episode))
        metrics_logger.log_value("custom_metrics/total", total, reduce=("mean", "max"))
        metrics_logger.log_value("custom_metrics/number", 1, reduce="lifetime_sum")


def test_what_runners_log_is_in_results_and_lasts() -> None:
    config = small().callbacks(Logging).env_runners(placement="host")
    config.environment(max_episode_steps=6)
    with config.build() as algorithm:
        for _ in range(2):
            runners = algorithm.train()["env_runners"]
        assert runners["num_episodes"] >= 16
        assert runners["custom_metrics"]["total_max"] == runners["episode_return_max"] == 6.0
        assert runners["custom_metrics"]["total_mean"] <= 6.0
        number = runners["custom_metrics"]["number"]
        assert number == runners["num_episodes_lifetime"]
        path = algorithm.save()
    with Algorithm.from_checkpoint(path) as again:
        runners = again.train()["env_runners"]
        assert runners["num_episodes"] > 0
        assert runners["custom_metrics"]["number"] == number + runners["num_episodes"]


def _log_objects(*, metrics_logger: Any, result: dict[str, Any]) -> None:
    metrics_logger.log_value("array", np.arange(2), reduce="item")
    metrics_logger.log_value("object", {3}, reduce="item")
    result["custom_metrics"] = {"text": "x"}


def test_whatever_is_logged_the_run_is_saved(caplog: pytest.LogCaptureFixture) -> None:
    config = small().callbacks(on_train_result=_log_objects)
    config.checkpointing(checkpoint_score_attribute="custom_metrics/text")
    with config.build() as algorithm:
        algorithm.train()
        path = algorithm.save()
        assert algorithm.save() == path
    warnings = [text for text in caplog.messages if "custom_metrics/text" in text]
    assert [text[-34:] for text in warnings] == ["result is 'x', which is not a number."[-34:]]
    with Algorithm.from_checkpoint(path) as again:
        result = again.train()
    assert (result["array"], result["object"]) == ([0, 1], [3])


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
