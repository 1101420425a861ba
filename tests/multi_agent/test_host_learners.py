"""Several devices and learners train modules on the rows of Python environments as one does."""

import os
import random
import signal
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl import Algorithm
from jaxrl.algorithms.appo import APPOConfig
from jaxrl.algorithms.dqn import DQNConfig
from jaxrl.algorithms.impala import IMPALAConfig
from jaxrl.algorithms.mappo import MAPPOConfig
from jaxrl.algorithms.ppo import PPOConfig
from jaxrl.errors import ConfigError, LearnerError
from tests.helpers import assert_close, assert_equal
from tests.multi_agent.host_envs import Streams

pytestmark = pytest.mark.allow_key_reuse

MAPPING = {"a": "one", "b": "two", "c": "one"}
DRAWN = {"a": ["one", "two"], "b": "two", "c": ["one", "two"]}


def make_mapping_fn() -> Any:
    """Return a function that draws who plays the agents that two modules may play."""
    rng = random.Random(5)
    return lambda agent, *args, **kwargs: "two" if agent == "b" else rng.choice(["one", "two"])


def make_config(algo: Any = PPOConfig, mapping: Any = MAPPING, **learners: Any) -> Any:
    """Four environments, in two shards, and connectors that keep a state of each environment."""
    config = algo().environment(Streams).multi_agent(mapping=mapping)
    if mapping is DRAWN:
        config.multi_agent(policy_mapping_fn=make_mapping_fn())
    config.env_runners(num_envs_per_env_runner=4, rollout_fragment_length=8)
    config.rl_module(model_config={"fcnet_hiddens": [8]}).debugging(loggers=[], seed=3)
    if algo is DQNConfig:
        config.training(
            train_batch_size=8,
            num_steps_sampled_before_learning_starts=40,
            replay_buffer_config={"type": "prioritized", "capacity": 2048},
            n_step=3,
        )
        config.reporting(min_sample_timesteps_per_iteration=96)
    else:
        config.env_runners(observation_filter="MeanStdFilter", normalize_rewards=True)
        config.training(train_batch_size=32)
    if issubclass(algo, PPOConfig):
        config.training(minibatch_size=None, num_epochs=1)
    if algo is MAPPOConfig:
        config.training(critic_input="joint")
    if learners.get("num_learners"):
        config.learners(num_cpus_per_learner=0.5)
    return config.learners(num_shards=2, **learners)


def assert_same_states(one: Algorithm, other: Algorithm) -> None:
    """Check all modules' learners, buffers and connectors, and what is common to them."""
    first, second = jax.device_get((one.state, other.state))
    for m, own in first.modules.items():
        assert_close(own.learner, second.modules[m].learner, rtol=1e-4, atol=2e-5)
        assert_close(own.connectors, second.modules[m].connectors, rtol=1e-4, atol=1e-5)
        assert_close(own.buffer, second.modules[m].buffer, rtol=1e-4, atol=1e-5)
        assert_equal(own.progress, second.modules[m].progress)
    assert_close(first.ring, second.ring)
    assert_close(first.agents, second.agents)


def assert_same_results(one: dict[str, Any], other: dict[str, Any]) -> None:
    for name in ("num_agent_steps_sampled", "agent_episode_returns_mean", "num_episodes"):
        assert one["env_runners"][name] == pytest.approx(other["env_runners"][name], nan_ok=True)
    for m, metrics in one["learners"].items():
        for name in ("total_loss", "num_module_steps_trained", "num_updates_lifetime"):
            if name in metrics:
                assert metrics[name] == pytest.approx(other["learners"][m][name], rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "mapping"),
    [(PPOConfig, MAPPING), (PPOConfig, DRAWN), (DQNConfig, MAPPING), (MAPPOConfig, MAPPING)],
)
def test_two_devices_equal_one(algo: Any, mapping: Any) -> None:
    with make_config(algo, mapping, num_devices=1).build() as one:
        expected = [one.train() for _ in range(2)]
        with make_config(algo, mapping, num_devices=2).build() as two:
            found = [two.train() for _ in range(2)]
            assert len(two.devices) == 2
            assert_same_states(two, one)
    for pair in zip(found, expected, strict=True):
        assert_same_results(*pair)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("algo", [PPOConfig, DQNConfig, IMPALAConfig, APPOConfig])
def test_two_learners_equal_one_and_resume(algo: Any, tmp_path: Path) -> None:
    with make_config(algo, num_learners=0).build() as one:
        one.train()
        with make_config(algo, num_learners=2).build() as two:
            two.train()
            assert_same_states(two, one)
            path = two.save(str(tmp_path / "saved"))
            expected = two.train()
            weights = two.get_weights()
    with Algorithm.from_checkpoint(path) as resumed:
        assert_same_results(resumed.train(), expected)
        assert_equal(resumed.get_weights(), weights)
    with Algorithm.from_checkpoint(path, num_learners=0) as local:
        assert_same_results(local.train(), expected)
        assert_close(local.get_weights(), weights, rtol=1e-4, atol=2e-5)


@pytest.mark.ray
@pytest.mark.slow
def test_actors_and_learners_train_together_and_a_killed_learner_is_noticed() -> None:
    config = make_config(num_learners=2)
    config.env_runners(num_env_runners=2, num_envs_per_env_runner=2, num_cpus_per_env_runner=0.5)
    with make_config(num_learners=0).build() as one, config.build() as both:
        one.train()
        both.train()
        assert_same_states(both, one)
        weights = jax.tree.map(lambda x: np.asarray(x) * 0.5, both.get_weights())
        both.set_weights(weights)
        assert_equal(both.get_weights(), weights)
        path = both.save()
        pids = both.learner_group.foreach_learner(lambda learner: os.getpid())
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(LearnerError, match="num_learners=2 died") as error:
            both.train()
    assert path in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("algo", "change", "match"),
    [
        (PPOConfig, {"num_learners": 3}, "num_learners=3"),
        (DQNConfig, {"num_learners": 3}, "4 environments cannot be divided over num_learners=3"),
        (PPOConfig, {"num_learners": 2, "num_shards": 1}, "num_shards=1"),
        (DQNConfig, {"num_learners": 2, "num_shards": 1}, "num_shards=1"),
        (PPOConfig, {"num_devices": 3}, "num_devices=3 must divide num_shards=2"),
    ],
)
def test_what_cannot_be_divided_is_refused(algo: Any, change: dict[str, int], match: str) -> None:
    config = make_config(algo)
    with pytest.raises(ConfigError, match=match) as error:
        config.learners(**change).build()
    assert "\n" not in str(error.value)
