"""Several agents in Ray actors: the same data as in this process, and faults of actors."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl import Algorithm
from jaxrl.algorithms.impala import IMPALAConfig
from jaxrl.algorithms.mappo import MAPPOConfig
from jaxrl.algorithms.ppo import PPOConfig
from tests.multi_agent.host_envs import Duel
from tests.multi_agent.test_host_critics import Watched
from tests.multi_agent.test_host_training import MAPPING, get_leaves
from tests.multi_agent.test_slots import Sampled, find_kind

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


def test_critics_in_actors_see_what_they_see_in_this_process(tmp_path: Path) -> None:
    """Also after a checkpoint within episodes."""

    def make(runners: int) -> Any:
        config = make_config(runners, MAPPOConfig).environment(Watched)
        return config.training(critic_input="joint", num_epochs=1)

    with make(0).build() as local:
        for _ in range(2):
            local.train()
        leaves = get_leaves(local)
    with make(2).build() as remote:
        remote.train()
        path = remote.save(str(tmp_path / "saved"))
    with Algorithm.from_checkpoint(path) as resumed:
        resumed.train()
        for one, other in zip(get_leaves(resumed), leaves, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-6)


def test_agents_that_come_and_go_have_slots_in_actors() -> None:
    found: list[Any] = []
    for runners in (0, 2):
        config = make_config(runners).environment(Sampled, env_config={"places": 3})
        config.multi_agent(
            mapping=None, policies=["car"], policy_mapping_fn=find_kind, max_agents=4
        )
        with config.build() as algorithm:
            for _ in range(2):
                result = algorithm.train()
            found.append((result["env_runners"]["num_module_steps_sampled"], get_leaves(algorithm)))
    assert found[0][0] == found[1][0]
    for one, other in zip(found[0][1], found[1][1], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


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
