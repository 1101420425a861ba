"""Result keys: nested and flat."""

import pickle
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl import metrics
from jaxrl.errors import ConfigError, UnknownNameError
from jaxrl.runs import results
from tests.helpers import small

RESULT = {"a": {"b": {"c": 1}, "d": None}, "e": 2.0, "empty": {}}


def test_flatten() -> None:
    assert metrics.flatten(RESULT) == {"a/b/c": 1, "a/d": None, "e": 2.0}


def test_lookup() -> None:
    assert metrics.lookup(RESULT, "a/b/c") == 1
    assert metrics.lookup(RESULT, "e") == 2.0
    assert metrics.lookup(RESULT, "a/b/x") is None
    assert metrics.lookup(RESULT, "e/x") is None
    assert metrics.lookup({"a": {"b/c": 1}}, "a/b/c") == 1


def test_results_are_read_by_old_keys_with_one_note(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "_noted_keys", set())
    episodes = {"episode_return_mean": 3.0, "episode_len_mean": 5.0, "num_episodes": 2}
    result = results.RunResult({"env_runners": episodes, "num_env_steps_sampled_lifetime": 9})
    result["evaluation"] = {"env_runners": {"episode_return_mean": 4.0}}
    assert result["episode_reward_mean"] == result.get("episode_reward_mean") == 3.0
    assert result["sampler_results"]["episode_reward_mean"] == 3.0
    assert result["env_runners"]["episode_reward_mean"] == 3.0
    assert result["evaluation"]["episode_reward_mean"] == 4.0
    assert result["evaluation"]["sampler_results"]["episode_reward_mean"] == 4.0
    assert result["evaluation"]["env_runners"]["episode_reward_mean"] == 4.0
    assert (result["timesteps_total"], result["episodes_this_iter"]) == (9, 2)
    assert result["episode_len_mean"] == 5.0
    (message,) = caplog.messages
    assert "'episode_reward_mean' is now 'env_runners/episode_return_mean'" in message
    assert list(result) == ["env_runners", "num_env_steps_sampled_lifetime", "evaluation"]
    assert result.get("episodes_total", -1) == -1
    with pytest.raises(KeyError, match=r"It is now result\['learners'\]\['default_policy'\]"):
        result["info"]
    with pytest.raises(KeyError, match=r"no 'env_runner'\. Did you mean 'env_runners'"):
        result["env_runner"]
    for key in ("episode_reward_max", "nothing"):
        with pytest.raises(KeyError, match=key):
            result[key]
    plain = pickle.loads(pickle.dumps(result))
    assert type(plain) is dict
    assert plain == result
    assert type(plain["evaluation"]) is dict


def test_missing_keys_of_learners_are_explained() -> None:
    result = results.RunResult({"learners": {"p": {"entropy": 1.0, "more": {"x": 2.0}}}})
    with pytest.raises(KeyError, match=r"no 'learners/p/entrop'\. Did you mean 'entropy'"):
        result["learners"]["p"]["entrop"]
    with pytest.raises(KeyError, match="'learners/p/more/y'"):
        result["learners"]["p"]["more"]["y"]
    assert jax.tree.map(lambda x: 2 * x, result) == {
        "learners": {"p": {"entropy": 2.0, "more": {"x": 4.0}}}
    }


def test_old_keys_are_added_for_tune() -> None:
    result = {"env_runners": {"episode_return_mean": 3.0}, "evaluation": {"a": 1}}
    flat = metrics.flatten(results.add_old_keys(result))
    assert flat["episode_reward_mean"] == flat["sampler_results/episode_reward_mean"] == 3.0
    assert flat["env_runners/episode_return_mean"] == 3.0
    assert flat["evaluation/a"] == 1
    assert not any(key.startswith("evaluation/episode") for key in flat)
    assert result == {"env_runners": {"episode_return_mean": 3.0}, "evaluation": {"a": 1}}


def test_unknown_keys_are_refused() -> None:
    for path in (*metrics.KNOWN_KEYS, *metrics.RENAMED_KEYS.values(), "learners/default_policy/x"):
        metrics.check_key(path, "stop")
    for path in (
        "env_runners/module_episode_returns_mean/p0",
        "env_runners/num_agent_steps_sampled/a",
    ):
        metrics.check_key(path, "stop")
    with pytest.raises(UnknownNameError, match=r"stop names 'time_totl_s'.*'time_total_s'"):
        metrics.check_key("time_totl_s", "stop")
    with pytest.raises(UnknownNameError, match=r"mean 'env_runners/episode_return_mean'\?$"):
        metrics.check_key("episode_reward_meann", "stop")  # nearest to RLlib's old key


def test_an_own_metric_is_told_its_place() -> None:
    with pytest.raises(UnknownNameError, match=r"which no result has. A metric of your own needs"):
        metrics.check_key("corridors", "stop")


@pytest.mark.parametrize("placement", ["in_graph", "host"])
def test_every_number_of_a_result_can_be_a_criterion(placement: str) -> None:
    """But for the number of the process."""
    config = small("PPO").env_runners(placement=placement)
    with config.evaluation(evaluation_interval=1, evaluation_duration=2).build() as algorithm:
        found = metrics.flatten(algorithm.train())
    assert "evaluation/env_runners/episode_return_std" in found
    for path, value in found.items():
        if isinstance(value, int | float) and path != "pid":
            metrics.check_key(path, "stop")


@pytest.mark.parametrize("value", ["3", [[1], [1, 2]], np.ones(1), {"b": 1.0}, None, 10**400])
def test_scores_are_numbers(value: Any) -> None:
    result = {"a": {"x": value, "y": np.float32(2.0), "z": float("nan")}}
    if value is None:
        assert metrics.get_score(result, "a/x") is None
    else:
        with pytest.raises(ConfigError, match=r"'a/x' of the result (is|holds)"):
            metrics.get_score(result, "a/x")
    assert (metrics.get_score(result, "a/y"), metrics.get_score(result, "a/z")) == (2.0, None)
