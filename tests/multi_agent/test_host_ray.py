"""Several agents in Ray actors: the same data as in this process, and faults of actors."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl import Algorithm
from jaxrl.algorithms.impala import IMPALAConfig
from jaxrl.algorithms.ppo import PPOConfig
from tests.multi_agent.host_envs import Duel
from tests.multi_agent.test_host_training import MAPPING, get_leaves

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.usefixtures("ray_cluster"),
]


def make_config(runners: int, algo: Any = PPOConfig) -> Any:
    """Four environments in this process, or in actors of two each."""
    config = algo().environment(Duel).multi_agent(mapping=MAPPING)
    config.env_runners(num_env_runners=runners, num_envs_per_env_runner=2 if runners else 4)
    config.env_runners(rollout_fragment_length=9).training(train_batch_size=36)
    if algo is PPOConfig:
        config.training(minibatch_size=18, num_epochs=1)
    if runners:
        config.env_runners(num_cpus_per_env_runner=0.5)
    config.rl_module(model_config={"fcnet_hiddens": [8]})
    return config.debugging(loggers=[], seed=3)


def test_actors_sample_what_this_process_does_and_resume(tmp_path: Path) -> None:
    with make_config(0).build() as local:
        for _ in range(2):
            expected = local.train()
        leaves = get_leaves(local)
    with make_config(2).build() as remote:
        remote.train()
        path = remote.save(str(tmp_path / "saved"))
    with Algorithm.from_checkpoint(path) as resumed:
        found = resumed.train()
        for one, other in zip(get_leaves(resumed), leaves, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-6)
    for name in (
        "num_agent_steps_sampled_lifetime",
        "num_module_steps_sampled",
        "agent_episode_returns_mean",
    ):
        assert found["env_runners"][name] == pytest.approx(expected["env_runners"][name])
    assert found["fault_tolerance"]["num_agent_steps_lost"] == 0


def test_steps_of_an_actor_that_dies_are_counted_and_training_goes_on() -> None:
    config = make_config(2, IMPALAConfig).fault_tolerance(restart_failed_env_runners=True)
    config.env_runners(max_requests_in_flight_per_env_runner=1)
    with config.build() as algorithm:
        algorithm.train()
        pids = algorithm.env_runner_group.foreach_env_runner(lambda runner: os.getpid())
        os.kill(pids[0], signal.SIGKILL)
        restarts = 0
        for _ in range(200):
            result = algorithm.train()
            restarts = result["fault_tolerance"]["num_env_runner_restarts"]
            if restarts:
                break
        faults = result["fault_tolerance"]
        received = faults["num_env_steps_received_lifetime"]
        discarded = sum(faults["num_env_steps_discarded_lifetime"].values())
    assert restarts == 1
    assert received == (
        faults["num_env_steps_trained_lifetime"] + faults["num_env_steps_queued"] + discarded
    )
    assert (
        faults["num_env_steps_trained_lifetime"]
        == (result["env_runners"]["num_env_steps_sampled_lifetime"])
    )
