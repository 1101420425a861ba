"""Several agents in Ray actors: the same data as in this process, and faults of actors."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl import Algorithm
from jaxrl.algorithms.dqn import DQNConfig
from jaxrl.algorithms.impala import IMPALAConfig
from jaxrl.algorithms.mappo import MAPPOConfig
from jaxrl.algorithms.ppo import PPOConfig
from jaxrl.algorithms.sac import SACConfig
from tests.multi_agent.host_envs import Duel, Streams
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


class Alike(Sampled):
    """Agents whose observations are the same in every copy: actors number their own."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.number = 1000


def test_agents_that_come_and_go_have_slots_in_actors() -> None:
    found: list[Any] = []
    for runners in (0, 2):
        config = make_config(runners).environment(Alike, env_config={"places": 3})
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
        pids = algorithm.env_runner_group.foreach_env_runner(
            lambda runner: os.getpid(), local_env_runner=False
        )
        os.kill(pids[0], signal.SIGKILL)
        restarts, deadline = 0, time.monotonic() + 120.0
        while not restarts and time.monotonic() < deadline:
            result = algorithm.train()
            restarts = result["fault_tolerance"]["num_env_runner_restarts"]
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


def make_replay_config(runners: int, env: Any = Streams, algo: Any = DQNConfig) -> Any:
    """Four environments in this process, or in actors of two each, and buffers of all their rows."""
    mapping = {"a": "one", "b": "two", "c": "one"} if env is Streams else MAPPING
    config = algo().environment(env).multi_agent(mapping=mapping)
    config.env_runners(num_env_runners=runners, num_envs_per_env_runner=2 if runners else 4)
    config.env_runners(rollout_fragment_length=4)
    config.training(
        train_batch_size=8,
        num_steps_sampled_before_learning_starts=40,
        replay_buffer_config={"type": "prioritized", "capacity": 2048},
        n_step=3,
    )
    if runners:
        config.env_runners(num_cpus_per_env_runner=0.5)
    config.rl_module(model_config={"fcnet_hiddens": [8]})
    config.reporting(min_sample_timesteps_per_iteration=160)
    return config.debugging(loggers=[], seed=3)


def get_stored_rows(algorithm: Algorithm) -> dict[str, list[tuple[float, ...]]]:
    """The transitions that each module's buffer holds, sorted."""
    rows: dict[str, list[tuple[float, ...]]] = {}
    for m, own in algorithm.state.modules.items():
        stored: Any = own.buffer
        held = stored.rows.experience
        mask = np.arange(held.mask.shape[1]) < np.asarray(stored.rows.current_index)[:, None]
        columns = [held.obs, held.final_obs, held.action, held.reward, held.terminated]
        columns += [held.truncated, held.is_first]
        flat = [np.asarray(x)[mask].reshape(mask.sum(), -1) for x in columns]
        rows[m] = sorted(map(tuple, np.concatenate(flat, axis=1).round(4).tolist()))
    return rows


@pytest.mark.parametrize("algo", [DQNConfig, SACConfig])
def test_actors_feed_every_modules_buffer_with_the_rows_of_this_process(
    algo: Any, tmp_path: Path
) -> None:
    with make_replay_config(0, algo=algo).build() as local:
        local.train()
        first = get_stored_rows(local)
        expected = local.train()
        both = get_stored_rows(local)
    with make_replay_config(2, algo=algo).build() as remote:
        found = remote.train()
        assert get_stored_rows(remote) == first
        path = remote.save(str(tmp_path / "saved"))
    faults = found["fault_tolerance"]
    assert faults["num_agent_steps_lost"] == 0
    assert faults["num_env_steps_received_lifetime"] == 160
    assert faults["num_env_steps_trained_lifetime"] == 160
    for m, rows in first.items():
        assert len(rows) == found["replay_buffer"][m]["num_module_steps_stored"] > 40
        assert found["learners"][m]["num_updates_lifetime"] > 0
    with Algorithm.from_checkpoint(path) as resumed:
        result = resumed.train()
        # pending rows went on; which actions are greedy may differ in the last bit
        where = {m: [row[:8] for row in rows] for m, rows in get_stored_rows(resumed).items()}
        assert where == {m: [row[:8] for row in rows] for m, rows in both.items()}
    for name in ("num_agent_steps_sampled_lifetime", "num_env_steps_sampled_lifetime"):
        assert result["env_runners"][name] == expected["env_runners"][name]


def count_pending(runner: Any) -> int:
    """Rows of a runner that are not complete."""
    state = runner.get_state()["modules"].values()
    return sum(int(own["pending"]["has_row"].sum()) for own in state)


@pytest.mark.parametrize("algo", [PPOConfig, DQNConfig])
def test_the_pending_rows_of_an_actor_that_dies_are_counted(algo: Any) -> None:
    """In a duel one agent acts at each step, so rows, pending and lost ones add up to the steps."""
    config = make_config(2) if algo is PPOConfig else make_replay_config(2, Duel)
    with config.fault_tolerance(restart_failed_env_runners=True).build() as algorithm:
        algorithm.train()
        group = algorithm.env_runner_group
        pending = group.foreach_env_runner(count_pending, local_env_runner=False)
        assert pending == [2, 2]
        pids = group.foreach_env_runner(lambda runner: os.getpid(), local_env_runner=False)
        os.kill(pids[0], signal.SIGKILL)
        result: dict[str, Any] = {"fault_tolerance": {"num_env_runner_restarts": 0}}
        while not result["fault_tolerance"]["num_env_runner_restarts"]:
            result = algorithm.train()
        while group.num_healthy_env_runners < 2:
            result = algorithm.train()
        result = algorithm.train()
        pending = group.foreach_env_runner(count_pending, local_env_runner=False)
    faults, sampled = result["fault_tolerance"], result["env_runners"]
    assert faults["num_agent_steps_lost"] == 2
    discarded = sum(faults["num_env_steps_discarded_lifetime"].values())
    assert faults["num_env_steps_received_lifetime"] == (
        faults["num_env_steps_trained_lifetime"] + discarded
    )
    rows = sum(sampled["num_agent_steps_sampled_lifetime"].values())
    assert discarded == 0
    assert rows + 2 + sum(pending) == sampled["num_env_steps_sampled_lifetime"]


def test_parameters_of_modules_that_are_not_trained_are_sent_once() -> None:
    config = make_config(2).multi_agent(policies_to_train=["one"])
    config.fault_tolerance(restart_failed_env_runners=True)
    with config.build() as algorithm:
        group: Any = algorithm.env_runner_group

        def get_params() -> list[Any]:
            return group.foreach_env_runner(
                lambda runner: {
                    m: jax.tree.map(
                        lambda x, i=i, own=own: (
                            np.asarray(x) if own.is_single else np.asarray(x)[i]
                        ),
                        runner._policy._actor[g].params,
                    )
                    for g, own in runner._policy.groups.items()
                    for i, m in enumerate(own.modules)
                },
                local_env_runner=False,
            )

        for _ in range(3):
            algorithm.train()
        assert group._fleet.num_kept_params_sent == 2
        weights = {m: jax.tree.map(np.array, own) for m, own in algorithm.get_weights().items()}
        weights["two"] = jax.tree.map(lambda x: x + 1.0, weights["two"])
        algorithm.set_weights(weights)
        algorithm.train()
        algorithm.train()
        assert group._fleet.num_kept_params_sent == 4
        found = get_params()
        os.kill(
            group.foreach_env_runner(lambda runner: os.getpid(), local_env_runner=False)[0],
            signal.SIGKILL,
        )
        while group._fleet.num_restarts == 0 or group.num_healthy_env_runners < 2:
            algorithm.train()
        algorithm.train()
        assert group._fleet.num_kept_params_sent == 5
        found += get_params()
    for own in found:
        jax.tree.map(np.testing.assert_array_equal, own["two"], weights["two"])
        trained = zip(*map(jax.tree.leaves, (own["one"], weights["one"])), strict=True)
        assert any(np.any(one != other) for one, other in trained)
