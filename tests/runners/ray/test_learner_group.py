"""Learner processes: two equal one, a dead one is a clear error, and their state can be had."""

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
import ray

from jaxrl import Algorithm
from jaxrl.errors import ConfigError, LearnerError
from tests.helpers import assert_close, assert_equal, small

pytestmark = [pytest.mark.ray, pytest.mark.allow_key_reuse]

ONE = {"num_epochs": 1, "minibatch_size": None}


def config_of(placement: str, num_learners: int, **training: Any) -> Any:
    config = small("PPO", **training).env_runners(placement=placement)
    config.env_runners(observation_filter="MeanStdFilter", normalize_rewards=True)
    config.learners(num_learners=num_learners, num_shards=2)
    return config.learners(num_cpus_per_learner=0.5) if num_learners else config


@pytest.fixture(scope="module")
def two(ray_cluster: None) -> Iterator[Algorithm]:
    """Two learners that have learned from one train batch of the compiled loop, in one update."""
    with config_of("auto", 2, **ONE).build() as algorithm:
        algorithm.train()
        yield algorithm


def test_two_learners_equal_one(two: Algorithm) -> None:
    with config_of("auto", 0, **ONE).build() as one:
        one.train()
        assert_close(two.state.learner, one.state.learner)
        assert_close(two.state.connectors, one.state.connectors)
        assert_equal(two.state.ring, one.state.ring)
        assert_equal(two.state.key, one.state.key)


def test_the_state_can_be_replaced_and_saved(two: Algorithm, tmp_path: Any) -> None:
    weights = jax.tree.map(lambda x: x * 0.5, two.get_weights())
    two.set_weights(weights)
    assert_equal(two.get_weights(), weights)
    path = two.save(tmp_path)
    with Algorithm.from_checkpoint(path, num_learners=0) as local:
        assert_equal(local.state.learner, two.state.learner)
        two.restore(path)
        assert_equal(two.state.env, local.state.env)


def test_a_function_reaches_every_learner(two: Algorithm) -> None:
    ranks = two.learner_group.foreach_learner(lambda learner: jax.process_index())
    assert ranks == [0, 1]


@pytest.mark.slow
def test_two_learners_of_host_runners_equal_one() -> None:
    states = []
    for number in (2, 0):
        with config_of("host", number, **ONE).build() as algorithm:
            algorithm.train()
            states.append(jax.device_get((algorithm.state.learner, algorithm.state.connectors)))
    assert_close(*states)


@pytest.mark.slow
def test_a_frozen_learner_is_noticed_within_the_settings_seconds(tmp_path: Any) -> None:
    config = config_of("auto", 2, **ONE).fault_tolerance(learner_health_probe_timeout_s=30.0)
    with config.build() as algorithm:
        algorithm.train()
        path = algorithm.save()
        pids = algorithm.learner_group.foreach_learner(lambda learner: os.getpid())
        os.kill(pids[1], signal.SIGSTOP)
        started = time.monotonic()
        try:
            with pytest.raises(LearnerError, match=r"Learner 1 .*_probe_timeout_s=30 sec") as error:
                algorithm.train()
        finally:
            os.kill(pids[1], signal.SIGKILL)
        assert time.monotonic() - started < 90.0  # on a machine that does much else
        assert path in str(error.value)


def compute_for(seconds: float) -> int:
    """Keep Python busy, then XLA, which has the processor for as long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))
    compute = jax.jit(lambda x: jax.lax.fori_loop(0, 10**8, lambda i, y: y * 3 + i, x))
    end += seconds
    while time.monotonic() < end:
        compute(0).block_until_ready()
    return os.getpid()


def test_learners_that_compute_for_long_are_not_frozen(
    two: Algorithm, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = two.learner_group
    brief = config_of("auto", 2, **ONE).fault_tolerance(learner_health_probe_timeout_s=8.0)
    monkeypatch.setattr(group, "_config", brief)
    assert len(set(group.foreach_learner(lambda learner: compute_for(5.0)))) == 2


def test_learners_must_divide_the_shards() -> None:
    config = small("PPO").learners(num_learners=2, num_shards=1, num_cpus_per_learner=0.5)
    with pytest.raises(ConfigError, match="num_shards=1 is not a multiple of num_learners=2"):
        config.build()


def test_more_learners_than_there_are_resources_for() -> None:
    config = small("PPO").learners(num_learners=2, num_shards=2, num_cpus_per_learner=999)
    with pytest.raises(ConfigError, match="num_learners=2 with num_cpus_per_learner=999"):
        config.build()
    assert np.isfinite(ray.cluster_resources()["CPU"])


def test_a_dead_learner_is_one_error_with_the_last_checkpoint(two: Algorithm) -> None:
    """The last test with the two learners, of which it leaves one."""
    path = two.save()
    ray.kill(two.learner_group._learners[1])  # pyright: ignore
    with pytest.raises(LearnerError, match="num_learners=2 died") as error:
        two.train()
    assert path in str(error.value)
    assert "\n" not in str(error.value)
