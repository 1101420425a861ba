"""Evaluation of an Algorithm: its episodes, its times, and what it leaves alone."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import Algorithm, JaxEnv, RandomAgentConfig, TimeStep
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
        counted = algorithm.evaluate(duration_fn=lambda num_played: 5 - num_played)
        assert counted["env_runners"]["num_episodes"] == 5


def test_evaluation_by_timesteps_plays_exactly_so_many() -> None:
    config = small().evaluation(
        evaluation_duration=640, evaluation_duration_unit="timesteps", evaluation_num_envs=4
    )
    with config.build() as algorithm:
        stats = algorithm.evaluate()["env_runners"]
    assert stats["num_env_steps_sampled"] == 640
    assert stats["num_episodes"] > 4


class ShortOrLong(JaxEnv[Any, None]):
    """Episodes of 1 or 3 steps without a time limit, which pay 1000 and their length at the end."""

    name = "short or long"

    def observation_space(self, params: None) -> Any:
        return spaces.Box(0.0, 4.0, (2,), np.float32)

    def action_space(self, params: None) -> Any:
        return spaces.Discrete(2)

    def reset(self, key: Any, params: None) -> Any:
        length = jnp.where(jax.random.bernoulli(key), jnp.float32(1.0), jnp.float32(3.0))
        state = jnp.stack([length, jnp.zeros_like(length)])
        return state, state

    def step(self, key: Any, state: Any, action: Any, params: None) -> Any:
        state = state + jnp.array([0.0, 1.0], jnp.float32)
        over = state[1] >= state[0]
        reward = jnp.where(over, 1000.0 + state[0], 0.0)
        return state, TimeStep(
            obs=state, reward=reward, terminated=over, truncated=jnp.zeros((), bool)
        )


@pytest.mark.parametrize(
    "duration",
    [
        {"evaluation_duration": 6001, "evaluation_duration_unit": "timesteps"},
        {"evaluation_duration": 2600},
    ],
)
def test_every_episode_of_an_evaluation_counts(duration: dict[str, Any]) -> None:
    """Mean and deviation of two lengths follow from each other."""
    config = RandomAgentConfig().environment(ShortOrLong).evaluation(**duration)
    with config.debugging(loggers=[]).build() as algorithm:
        stats = algorithm.evaluate()["env_runners"]
    number, mean = stats["num_episodes"], stats["episode_len_mean"]
    if "evaluation_duration_unit" in duration:
        assert round(number * mean) in range(5999, 6002)  # the last episode may be cut
        assert number > 2600
    else:
        assert number == 2600
    assert mean == pytest.approx(2.0, abs=0.1)
    assert stats["episode_return_mean"] == pytest.approx(1000 + mean, abs=1e-3)
    deviation = math.sqrt((mean - 1) * (3 - mean))
    assert stats["episode_return_std"] == pytest.approx(deviation, rel=1e-3)
    for name, low, high in (("episode_len", 1, 3), ("episode_return", 1001, 1003)):
        assert (stats[f"{name}_min"], stats[f"{name}_max"]) == (low, high)


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
