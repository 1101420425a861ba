"""Evaluation of an Algorithm: its episodes, its times, and what it leaves alone."""

import math
from typing import Any

import jax
import pytest

from jaxrl.algorithm import Algorithm
from jaxrl.metrics import EMPTY_EPISODE_METRICS
from tests.helpers import assert_equal, small


def test_evaluation_leaves_training_alone_and_repeats_itself() -> None:
    config = small().evaluation(evaluation_duration=12, evaluation_config={"explore": False})
    with config.build() as algorithm:
        algorithm.train()
        before = algorithm.get_state()["train_state"]
        first = algorithm.evaluate()["env_runners"]
        again = algorithm.evaluate()["env_runners"]
        assert first == again
        assert first["num_episodes"] == 12
        assert first["episode_return_mean"] == pytest.approx(first["episode_len_mean"])
        assert_equal(before, algorithm.get_state()["train_state"])
        assert algorithm.evaluate(num_episodes=7)["env_runners"]["num_episodes"] == 7


def test_evaluation_by_timesteps_plays_exactly_so_many() -> None:
    config = small().evaluation(
        evaluation_duration=640, evaluation_duration_unit="timesteps", evaluation_num_envs=4
    )
    with config.build() as algorithm:
        stats = algorithm.evaluate()["env_runners"]
    assert stats["num_env_steps_sampled"] == 640
    assert stats["num_episodes"] > 4


def test_evaluation_happens_at_its_interval_and_stays_attached() -> None:
    config = small().evaluation(evaluation_interval=2, evaluation_duration=4)
    with config.build() as algorithm:
        results = [algorithm.train() for _ in range(3)]
    assert "evaluation" not in results[0]
    assert results[1]["evaluation"]["env_runners"]["num_episodes"] == 4
    assert results[2]["evaluation"] == results[1]["evaluation"]
    config = small().evaluation(
        evaluation_interval=2, evaluation_duration=4, always_attach_evaluation_results=False
    )
    with config.build() as algorithm:
        assert ["evaluation" in algorithm.train() for _ in range(3)] == [False, True, False]


def test_evaluation_overrides_and_custom_function() -> None:
    shorter = {"max_episode_steps": 5}
    with small().evaluation(evaluation_config=shorter).build() as algorithm:
        assert algorithm.evaluate()["env_runners"]["episode_len_max"] == 5
    with small().evaluation(custom_evaluation_function=count_parameters).build() as algorithm:
        assert algorithm.evaluate() == {"custom_metrics": {"parameters": 107}}


def count_parameters(algorithm: Algorithm) -> dict[str, Any]:
    leaves = jax.tree.leaves(algorithm.get_weights())
    return {"custom_metrics": {"parameters": sum(leaf.size for leaf in leaves)}}


def test_evaluation_cannot_hang() -> None:
    """An environment that never ends: the steps of an evaluation are bounded."""
    config = small(env="tests.endless:Endless").evaluation(evaluation_duration=2)
    with config.build() as algorithm:
        stats = algorithm.evaluate()["env_runners"]
    assert stats["num_episodes"] == 0
    assert stats["num_env_steps_sampled"] == 20_000
    assert all(math.isnan(stats[name]) for name in (*EMPTY_EPISODE_METRICS, "episode_return_std"))
