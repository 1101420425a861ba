"""Callbacks of groups know their Algorithm, and do not keep it."""

import gc
from typing import Any

import pytest

from jaxrl.algorithms.ppo import PPOConfig
from jaxrl.callbacks import CallbackList
from jaxrl.runners.hooks import AlgorithmHooks


class Algorithm:
    """Stands for one."""


def test_the_algorithm_is_told_of_and_not_kept() -> None:
    calls: list[dict[str, Any]] = []

    def recreated(*, algorithm: Any, env_runner_indices: list[int]) -> None:
        calls.append({"algorithm": type(algorithm).__name__, "indices": env_runner_indices})

    config = PPOConfig().callbacks(on_env_runners_recreated=recreated)
    algorithm = Algorithm()
    hooks = AlgorithmHooks(CallbackList(config.callbacks_settings), algorithm)
    told: dict[str, Any] = {"env_runner_group": None, "env_runner_indices": [2]}
    hooks.call("on_env_runners_recreated", is_evaluation=False, **told)
    del algorithm
    gc.collect()
    hooks.call("on_env_runners_recreated", is_evaluation=False, **told)
    assert [call["algorithm"] for call in calls] == ["Algorithm", "NoneType"]
    assert calls[0]["indices"] == [2]


@pytest.mark.parametrize("hook", ["on_episode_end", "on_sample_end"])
def test_what_runners_call_is_passed_on_as_it_is(hook: str) -> None:
    calls: list[dict[str, Any]] = []
    config = PPOConfig().callbacks(**{hook: lambda **kwargs: calls.append(kwargs)})
    hooks = AlgorithmHooks(CallbackList(config.callbacks_settings), Algorithm())
    assert hooks.has_listeners(hook)
    assert not hooks.has_listeners("on_train_result")
    hooks.call(hook, samples=1, episode=2)
    assert calls == [{"samples": 1, "episode": 2}]
