"""Groups of real actors: equal to a runner in this process, and kept going whatever they do."""

import dataclasses
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import psutil
import pytest
import ray
import ray.util

from jaxrl import IMPALAConfig, PPOConfig
from jaxrl.assembly.assemble import Assembly, assemble
from jaxrl.errors import ConfigError, EnvError, EnvRunnerError
from jaxrl.runners.env_runner import make_env_runner
from jaxrl.runners.fragment import Fragment, Weights
from jaxrl.runners.hooks import NoHooks
from jaxrl.runners.ray.group import RayEnvRunnerGroup
from jaxrl.training.report import to_host
from tests.helpers import assert_equal
from tests.runners.ray.toys import Toy

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

ENVS, STEPS = 2, 8


def config_for(env: Any, runners: int = 2, algo: Any = PPOConfig, **env_config: Any) -> Any:
    """`runners` actors of two environments, fragments of eight steps."""
    config = algo().environment(env, env_config=env_config, disable_env_checking=True)
    config.env_runners(
        num_env_runners=runners, num_envs_per_env_runner=ENVS, rollout_fragment_length=STEPS
    )
    config.training(train_batch_size=runners * ENVS * STEPS)
    config.env_runners(num_cpus_per_env_runner=0.5)
    config.rl_module(model_config={"fcnet_hiddens": [8]})
    return config.debugging(loggers=["json"], seed=3)


def weights_of(assembly: Assembly, version: int) -> Weights:
    state = assembly.train_step.init_without_envs(jax.random.key(version), 4)
    return Weights(version=version, actor=to_host(assembly.train_step.make_actor_state(state)))


class Hooks(NoHooks):
    """Remembers which runners were started again."""

    def __init__(self) -> None:
        self.recreated: list[int] = []

    def call(self, hook: str, **kwargs: Any) -> None:
        assert hook == "on_env_runners_recreated"
        assert not kwargs["is_evaluation"]
        self.recreated += kwargs["env_runner_indices"]


class Run:
    """A group and what it is asked for."""

    def __init__(self, config: Any) -> None:
        config.freeze()
        self.config, self.assembly, self.hooks = config, assemble(config), Hooks()
        self.group = RayEnvRunnerGroup(config, self.assembly, self.hooks)
        self.weights = weights_of(self.assembly, 0)
        self.version = -1

    def batch(self) -> list[Fragment]:
        self.version += 1
        self.group.sync_weights(Weights(version=self.version, actor=self.weights.actor))
        return self.group.next_batch()

    def until(self, is_so: Callable[[], bool], limit_s: float = 60.0) -> None:
        """Batches until something is so."""
        end = time.monotonic() + limit_s
        while not is_so():
            assert time.monotonic() < end, self.faults
            assert len(self.batch()) == self.group.num_env_runners

    @property
    def faults(self) -> dict[str, Any]:
        return self.group.get_metrics()["fault_tolerance"]

    def pids(self) -> list[int]:
        return self.group.foreach_env_runner(lambda runner: os.getpid())


Start = Callable[[Any], Run]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts groups, and sees that nothing of them is left."""
    runs: list[Run] = []

    def start_one(config: Any) -> Run:
        runs.append(Run(config))
        return runs[-1]

    yield start_one
    for run in runs:
        pids = run.pids()
        run.group.stop()
        run.group.stop()
        assert_ends(pids)


def assert_ends(pids: list[int]) -> None:
    end = time.monotonic() + 20.0
    while any(psutil.pid_exists(pid) for pid in pids):
        assert time.monotonic() < end, f"processes of {pids} are left"
        time.sleep(0.02)


def assert_balanced(faults: dict[str, Any]) -> None:
    assert faults["num_env_steps_received_lifetime"] == (
        faults["num_env_steps_trained_lifetime"]
        + faults["num_env_steps_queued"]
        + sum(faults["num_env_steps_discarded_lifetime"].values())
    )


def columns(fragments: list[Fragment]) -> Any:
    """Fragments side by side, as the learner takes them."""
    rollouts = [(f.rollout, f.record) for f in fragments]
    return jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *rollouts)


@pytest.mark.representatives("gymnasium:CartPole-v1")
@pytest.mark.allow_key_reuse  # keys of copies are folded with a count, call after call
@pytest.mark.parametrize("env", ["CartPole-v1", "gymnasium:CartPole-v1"])
def test_actors_sample_what_one_runner_in_this_process_does(env: str, start: Start) -> None:
    config = config_for(env)
    config.python_environment(extra_python_environs_for_worker={"JAXRL_TOLD": "so"})
    run = start(config)
    weights = [weights_of(run.assembly, version) for version in range(3)]
    local = make_env_runner(run.config, num_envs=2 * ENVS, first_env_index=0, num_workers=2)
    for version in (0, 1, 2):
        run.group.sync_weights(weights[version])
        local.set_weights(weights[version])
        remote = run.group.next_batch()
        assert [fragment.weights_version for fragment in remote] == [version] * 2
        assert [fragment.env_index.tolist() for fragment in remote] == [[0, 1], [2, 3]]
        assert_equal(columns(remote), columns([local.sample_fragment(STEPS)]))
        if version == 1:
            saved = run.group.get_state()
            assert_equal(saved, local.get_state())
    local.close()
    # Fragments are views into the object store: the learner's copy is the only one.
    assert not remote[0].rollout.obs.flags.writeable
    if env == "CartPole-v1":
        run.group.set_state(saved)
        assert_equal(columns(run.group.next_batch()), columns(remote))
    told = run.group.foreach_env_runner_with_index(
        lambda index, runner: (index, runner.worker_index, *_seen())
    )
    threads = {"NPROC": "1", "OMP_NUM_THREADS": "1"}
    seen = (["cpu"], {"CUDA_VISIBLE_DEVICES": "", **threads, "JAXRL_TOLD": "so"})
    assert told == [(1, (1, 1, *seen)), (2, (2, 2, *seen))]
    assert [
        spaces["__env__"][0].shape[0] for spaces in run.group.foreach_env_runner("get_spaces")
    ] == [
        2,
        2,
    ]
    run.group.sync_weights(weights[0])
    episodes = run.group.foreach_env_runner(lambda runner: runner.sample(num_episodes=2))
    assert [[each.is_done for each in own] for own in episodes] == [[True] * 2] * 2
    assert run.group.foreach_env_runner(lambda runner: runner.weights_version) == [0, 0]
    assert [fragment.weights_version for fragment in run.group.next_batch()] == [0, 0]
    with pytest.raises(AttributeError, match="num_env_runners actors there is none"):
        _ = run.group.local_env_runner  # pyright: ignore
    with pytest.raises(EnvRunnerError, match=r"EnvRunner \d raised ZeroDivisionError"):
        run.group.foreach_env_runner(lambda runner: 1 // 0)
    with pytest.raises(EnvRunnerError, match=r"4 environments.*have 4|has 3 environments"):
        run.group.set_state(jax.tree.map(lambda leaf: leaf[:3], saved))
    shares = [{"num_steps": steps} for steps in (1, 2, 3)]
    evaluation = run.group.evaluate_async(weights[0], "sample_fragment", shares)
    lengths = [fragment.rollout.reward.shape[0] for fragment in evaluation.collect()]
    assert lengths == [1, 2, 3]
    assert evaluation.is_done
    assert (
        run.faults["num_env_steps_received_lifetime"]
        == run.faults["num_env_steps_trained_lifetime"]
    )


@pytest.mark.slow
@pytest.mark.allow_key_reuse
def test_several_fragments_of_each_actor_are_those_of_one_runner_in_order(start: Start) -> None:
    config = config_for("CartPole-v1").training(train_batch_size=3 * 2 * ENVS * STEPS)
    run = start(config)
    weights = weights_of(run.assembly, 0)
    local = make_env_runner(run.config, num_envs=2 * ENVS, first_env_index=0, num_workers=2)
    for version in (0, 1):
        run.group.sync_weights(dataclasses.replace(weights, version=version))
        local.set_weights(dataclasses.replace(weights, version=version))
        remote = run.group.next_batch()
        assert [fragment.worker_index for fragment in remote] == [1, 2] * 3
        assert_equal(columns(remote), columns([local.sample_fragment(STEPS) for _ in range(3)]))
    local.close()


def _seen() -> tuple[list[str], dict[str, str]]:
    names = ("CUDA_VISIBLE_DEVICES", "NPROC", "OMP_NUM_THREADS", "JAXRL_TOLD")
    return [device.platform for device in jax.devices()], {name: os.environ[name] for name in names}


def test_killed_hung_and_raising_runners_come_back(start: Start, tmp_path: Path) -> None:
    config = config_for(Toy, fault="hang", at=30, worker=1, once=str(tmp_path / "hung"))
    config.env_runners(sample_timeout_s=4.0)
    config.fault_tolerance(env_runner_health_probe_timeout_s=0.5)
    run = start(config)
    first = run.batch()
    before = run.pids()
    os.kill(before[1], signal.SIGKILL)
    while run.faults["num_env_runner_restarts"] == 0:
        batch = run.batch()
        assert len(batch) == 2
        assert {fragment.weights_version for fragment in batch} == {run.version}
    assert run.hooks.recreated == [2]
    run.until(lambda: [f.worker_index for f in run.batch()] == [1, 2])
    run.until(lambda: "hangs" in str(run.faults["restarts"]))
    run.until(lambda: run.hooks.recreated == [2, 1])
    faults = run.faults
    assert "SIGKILL" in str(faults["restarts"]) or "died" in str(faults["restarts"])
    assert_balanced(faults)
    assert 0 < faults["num_env_steps_maybe_lost_lifetime"] <= 2 * ENVS * STEPS
    assert faults["num_healthy_env_runners"] == 2
    assert set(run.pids()).isdisjoint(before)
    # The environments of a new actor have the same places and draw anew.
    last = run.batch()
    assert [f.env_index.tolist() for f in last] == [f.env_index.tolist() for f in first]
    assert last[1].record.env_step.min() > first[1].record.env_step.max()
    # A checkpoint that finds a runner dead waits for the one that takes its place.
    os.kill(run.pids()[0], signal.SIGKILL)
    state = run.group.get_state()
    assert state["count"].shape == (2 * ENVS,)
    run.until(lambda: run.hooks.recreated == [2, 1, 1])
    # Where nothing is known of the environments, their draws go on from the counts.
    counts = run.group.get_counts()
    run.group.set_counts(counts)
    run.group.set_state(None)
    steps = [fragment.record.env_step.min() for fragment in run.batch()]
    assert steps == [max(counts["env_steps"])] * 2


def test_a_sub_environment_is_restarted_alone(start: Start) -> None:
    config = config_for(Toy, runners=1, fault="raise", at=5, worker=1)
    config.fault_tolerance(restart_failed_sub_environments=True)
    run = start(config)
    pids = run.pids()
    fragments = [run.batch()[0] for _ in range(3)]
    faults = run.faults
    assert faults["num_sub_env_restarts"] == 24 // 5
    assert faults["num_env_runner_restarts"] == 0
    assert run.pids() == pids
    assert "ValueError: the simulator broke" in faults["restarts"][0]
    assert "Traceback" in faults["restarts"][0]
    # The other environment's episodes are as they are without faults: ten steps each.
    other = np.concatenate([f.rollout.terminated[:, 1] for f in fragments])
    assert np.flatnonzero(other).tolist() == [9, 19]


def test_ignored_failures_leave_the_others_until_none_is_left(start: Start) -> None:
    config = config_for(Toy, fault="raise", at=12, worker=2)
    config.fault_tolerance(ignore_env_runner_failures=True)
    config.resources(placement_strategy="STRICT_PACK")
    run = start(config)
    tables = ray.util.placement_group_table().values()
    assert [t["strategy"] for t in tables if t["state"] == "CREATED"] == ["STRICT_PACK"]
    run.until(lambda: run.faults["num_healthy_env_runners"] == 1)
    assert [fragment.worker_index for fragment in run.batch()] == [1, 1]
    assert "the simulator broke" in run.faults["restarts"][0]
    assert run.faults["num_env_runner_restarts"] == 0
    (pid,) = run.pids()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(EnvRunnerError, match=r"All 2 EnvRunners of .*Toy are lost"):
        run.until(lambda: False)
    assert_balanced(run.faults)
    run.group.stop()
    tables = ray.util.placement_group_table().values()
    assert not [t for t in tables if t["state"] == "CREATED"]


def test_a_failure_that_nothing_allows_ends_the_run_with_its_traceback(start: Start) -> None:
    config = config_for(Toy, runners=1, fault="raise", at=3, worker=1)
    config.fault_tolerance(restart_failed_env_runners=False)
    run = start(config)
    with pytest.raises(EnvRunnerError, match="restart_failed_env_runners") as caught:
        run.batch()
    message = str(caught.value)
    assert "EnvRunner 1" in message
    assert "Toy" in message
    assert 'raise ValueError("the simulator broke")' in message


def test_a_broken_contract_is_refused_rather_than_tried_again(start: Start) -> None:
    run = start(config_for(Toy, runners=1, fault="broken", at=3, worker=1))
    with pytest.raises(EnvError, match=r"EnvRunner 1 .*reward must be one number, got 'high'"):
        run.batch()


def test_an_environment_that_cannot_start_is_named() -> None:
    config = config_for(Toy, runners=1, fault="start", worker=1)
    with pytest.raises(EnvRunnerError, match="no such simulator") as caught:
        RayEnvRunnerGroup(config, assemble(config), NoHooks())
    message = str(caught.value)
    assert "EnvRunner 1" in message
    assert "Toy" in message
    assert "OSError" in message


def test_what_cannot_be_sent_or_placed_is_refused_before_an_actor_is_started() -> None:
    lock = threading.Lock()

    def make(context: Any) -> Any:
        with lock:
            return Toy(context)

    config = config_for(make)
    with pytest.raises(ConfigError, match=r"env cannot be sent to Ray actors.*num_env_runners=0"):
        RayEnvRunnerGroup(config, assemble(config), NoHooks())
    config = config_for(Toy)
    config.env_runners(num_cpus_per_env_runner=3)
    with pytest.raises(
        ConfigError,
        match=r"num_env_runners=2 with num_cpus_per_env_runner=3 needs 6 CPU, but Ray has 4: set "
        r"num_env_runners=1, or num_cpus_per_env_runner=2 ",
    ):
        RayEnvRunnerGroup(config, assemble(config), NoHooks())
    config.env_runners(num_cpus_per_env_runner=1, custom_resources_per_env_runner={"camera": 1})
    with pytest.raises(ConfigError, match="custom_resources_per_env_runner=1 needs 2 camera"):
        RayEnvRunnerGroup(config, assemble(config), NoHooks())


def test_asynchronous_runners_keep_the_queue_full_and_lose_nothing(start: Start) -> None:
    config = config_for(Toy, algo=IMPALAConfig)
    config.training(learner_queue_size=2)
    config.env_runners(max_requests_in_flight_per_env_runner=2)
    run = start(config)
    seen: set[tuple[int, int]] = set()
    for _ in range(10):
        for fragment in run.batch():
            assert (fragment.worker_index, fragment.number) not in seen
            seen.add((fragment.worker_index, fragment.number))
    time.sleep(0.5)
    metrics = run.group.get_metrics()
    faults, sampling = metrics["fault_tolerance"], metrics["env_runners"]
    assert sampling["num_fragments_queued"] == 4
    assert faults["num_env_steps_queued"] == 4 * ENVS * STEPS
    assert faults["num_env_steps_trained_lifetime"] == 10 * 2 * ENVS * STEPS
    assert_balanced(faults)
    assert 0.0 < sampling["staleness_mean"] <= sampling["staleness_max"]
    assert 0.0 <= sampling["learner_wait_fraction"] <= 1.0
    assert 0.0 < sampling["env_runners_wait_fraction"] <= 1.0
    os.kill(run.pids()[0], signal.SIGKILL)
    run.until(lambda: run.faults["num_env_runner_restarts"] == 1)
    run.until(lambda: 1 in {fragment.worker_index for fragment in run.batch()})
    assert_balanced(run.faults)
    assert run.faults["num_env_steps_maybe_lost_lifetime"] <= 2 * ENVS * STEPS


def test_actors_have_the_policies_that_they_act_with(tmp_path: Path) -> None:
    config = config_for("CartPole-v1").debugging(results_dir=str(tmp_path))
    with config.build() as algorithm:
        for _ in range(2):
            weights = algorithm.get_weights()["default_policy"]
            found = [
                *algorithm.env_runner_group.foreach_env_runner(
                    lambda r: r.get_policy().get_weights()
                ),
                *algorithm.env_runner_group.foreach_worker_with_id(
                    lambda index, runner: runner.get_weights()["default_policy"]
                ),
                algorithm.env_runner_group.local_worker()
                .policy_map["default_policy"]
                .get_weights(),
            ]
            assert len(found) == 5
            for own in found:
                assert_equal(own, weights)
            algorithm.train()
        algorithm.set_weights({"default_policy": jax.tree.map(lambda x: x + 1.0, weights)})
        set_ = algorithm.env_runner_group.foreach_env_runner(lambda r: r.get_policy().get_weights())
        assert_equal(set_[0], algorithm.get_weights()["default_policy"])


@pytest.mark.representatives("IMPALAConfig")
@pytest.mark.parametrize("algo", [PPOConfig, IMPALAConfig])
def test_a_group_that_nobody_holds_lets_its_actors_go(algo: Any) -> None:
    def use() -> list[int]:
        run = Run(config_for(Toy, runners=1, algo=algo))
        run.batch()
        return run.pids()

    pids = use()
    gc.collect()
    assert_ends(pids)
