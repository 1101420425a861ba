"""Tasks of environments on the host: every copy has the current one, also after a restart."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl import Algorithm
from jaxrl.envs import EnvContext, TaskSettableEnv, make
from jaxrl.envs.host_vector import make_vector
from jaxrl.envs.task_settable import find_task_layer
from jaxrl.errors import ConfigError, EnvError
from tests.helpers import assert_equal, small
from tests.runners.tasks import Corridor, OldCorridor, lengths_of, wrapped

STAGES = [
    {"task": {"length": 2}, "until": 256},
    {"task": {"length": 5}, "until": 384},
    {"task": {"length": 9}},
]


def staged(env: Any = wrapped, **settings: Any) -> Any:
    config = small(env=env).environment(**{"curriculum": STAGES, **settings})
    config.env_runners(num_envs_per_env_runner=4).evaluation(evaluation_duration=4)
    return config.debugging(loggers=[])


def lengths(algorithm: Algorithm) -> list[int]:
    assert algorithm.env_runner_group is not None
    return algorithm.env_runner_group.foreach_env_runner(lengths_of)[0]


def evaluated(algorithm: Algorithm) -> float:
    return algorithm.evaluate()["env_runners"]["episode_len_mean"]


def test_every_copy_gets_the_task_of_its_stage() -> None:
    with staged().build() as algorithm:
        algorithm.train()
        assert lengths(algorithm) == [2] * 4
        assert evaluated(algorithm) == 2
        results = [algorithm.train() for _ in range(3)]
        assert [result["curriculum"]["stage"] for result in results] == [0, 1, 2]
        assert results[-1]["env_runners"]["episode_len_max"] == 9
        assert lengths(algorithm) == [9] * 4
        assert evaluated(algorithm) == 9
        group: Any = algorithm.env_runner_group
        (env, *_) = group.runner.vector.get_sub_environments()
        assert env.unwrapped.tasks == [{"length": 2}, {"length": 5}, {"length": 9}]  # once each


def test_an_evaluation_environment_of_its_own_keeps_its_task() -> None:
    config = staged(env=Corridor).evaluation(evaluation_config={"env_config": {"crash_at": 0}})
    with config.build() as algorithm:
        algorithm.train()
        assert evaluated(algorithm) == 3


def test_rllibs_function_sets_the_task_where_it_changes() -> None:
    calls: list[Any] = []

    def choose(train_results: Any, task_settable_env: Any, env_ctx: Any) -> Any:
        assert isinstance(task_settable_env, TaskSettableEnv)
        assert isinstance(env_ctx, EnvContext)
        assert not np.isnan(train_results["episode_reward_mean"])  # RLlib's old key
        calls.append(task_settable_env.get_task())
        if len(calls) == 1:
            return task_settable_env.get_task()
        return task_settable_env.sample_tasks(2)[1]

    with staged(env=Corridor, curriculum=None, env_task_fn=choose).build() as algorithm:
        results = [algorithm.train() for _ in range(4)]
        group: Any = algorithm.env_runner_group
        (env, *_) = group.runner.vector.get_sub_environments()
        assert env.tasks == [{"length": 3}, {"length": 11}]
    assert calls == [{"length": 3}, {"length": 3}, {"length": 11}, {"length": 11}]
    tasks = [result["curriculum"]["task"] for result in results]
    assert tasks == [None, {"length": 3}, {"length": 11}, {"length": 11}]


def test_a_copy_made_again_has_the_current_task() -> None:
    config = staged(env=Corridor, env_config={"crash_at": 90})
    config.fault_tolerance(restart_failed_sub_environments=True)
    with config.build() as algorithm:
        results = [algorithm.train() for _ in range(3)]
        assert results[-1]["fault_tolerance"]["num_sub_env_restarts"] == 4
        group: Any = algorithm.env_runner_group
        for env in group.runner.vector.get_sub_environments():
            assert env.tasks == [{"length": 5}]  # made again in the third iteration


@pytest.mark.representatives("True")
@pytest.mark.parametrize("saves_envs", [False, True])
def test_a_restored_run_continues_in_its_stage(saves_envs: bool, tmp_path: Path) -> None:
    """With and without an environment whose state a checkpoint has."""
    env: Any = "CartPole-v1" if saves_envs else OldCorridor
    stages: Any = [
        {"task": {"gravity": 5.0}, "until": 256},
        {"task": {"gravity": 15.0}, "until": {"training_iteration": 4}},
        {"task": {"gravity": 25.0}},
    ]
    config = staged(env=env, curriculum=stages if saves_envs else STAGES)
    config.env_runners(placement="host")
    with config.build() as algorithm:
        for _ in range(2):
            algorithm.train()
        saved = algorithm.save(tmp_path)
        seen = [algorithm.train()["curriculum"] for _ in range(3)]
        end = algorithm.get_state()["train_state"]
        algorithm.restore(saved)
        assert [algorithm.train()["curriculum"] for _ in range(3)] == seen
        if saves_envs:
            assert_equal(algorithm.get_state()["train_state"], end)
    with Algorithm.from_checkpoint(saved) as other:
        assert [other.train()["curriculum"] for _ in range(3)] == seen
        if saves_envs:
            assert_equal(other.get_state()["train_state"], end)
        else:
            group: Any = other.env_runner_group
            (env, *_) = group.runner.vector.get_sub_environments()
            assert env.corridor.tasks == [{"length": 5}, {"length": 9}]


def test_processes_of_copies_get_the_task() -> None:
    made = make(Corridor)
    vector = make_vector(made, num_envs=2, mode="async", timeout_s=60.0)
    try:
        vector.set_task({"length": 1})
        vector.reset()
        assert vector.step(np.zeros(2, np.int64)).terminated.all()
        assert vector.call_task_method("get_task") == {"length": 1}
        assert vector.call_task_method("sample_tasks", 1) == [{"length": 10}]
        with pytest.raises(
            EnvError, match=r"set_task\(\{'length': 0\}\) raised ValueError: no such"
        ):
            vector.set_task({"length": 0})
    finally:
        vector.close()


def test_a_task_that_an_environment_refuses_is_one_sentence() -> None:
    config = staged(curriculum=[STAGES[0], {"task": {"length": 0}}])
    with config.build() as algorithm:
        algorithm.train()
        algorithm.train()
        with pytest.raises(EnvError, match=r"set_task\(\{'length': 0\}\) raised ValueError"):
            algorithm.train()
    wrong = staged(curriculum=[{"task": {"length": 0}}])
    with pytest.raises(EnvError, match=r"set_task\(\{'length': 0\}\) raised ValueError"):
        wrong.build().train()


def test_a_method_that_an_environment_lacks_is_named() -> None:
    def choose(result: Any, env: Any, context: Any) -> Any:
        return env.sample_tasks(1)

    with (
        staged(env=OldCorridor, curriculum=None, env_task_fn=choose).build() as algorithm,
        pytest.raises(EnvError, match="has no method sample_tasks; define it there"),
    ):
        algorithm.train()


def test_the_outermost_layer_with_the_method_is_found() -> None:
    env = wrapped({})
    assert find_task_layer(env) is env.unwrapped
    assert find_task_layer(TaskSettableEnv()) is None
    assert find_task_layer(OldCorridor(), "get_task") is None


@pytest.mark.ray
def test_actors_have_the_task_also_after_a_restart() -> None:
    config = staged(wrapped).env_runners(num_env_runners=2, num_cpus_per_env_runner=0.5)
    config.training(train_batch_size=128).evaluation(evaluation_num_env_runners=1)
    with config.build() as algorithm:
        algorithm.train()
        group: Any = algorithm.env_runner_group
        assert group.foreach_env_runner(lengths_of) == [[2] * 4] * 2
        for _ in range(3):
            result = algorithm.train()
        assert result["curriculum"] == {"stage": 2, "task": {"length": 9}}
        assert group.foreach_env_runner(lengths_of) == [[9] * 4] * 2
        assert evaluated(algorithm) == 9
        group._fleet.backend.kill(group._fleet.members[0].handle)
        limit = time.monotonic() + 120.0
        while not result["fault_tolerance"]["num_env_runner_restarts"]:
            assert time.monotonic() < limit
            result = algorithm.train()
        algorithm.train()
        tasks = dict(
            group.foreach_env_runner_with_index(
                lambda _, runner: [e.unwrapped.tasks for e in runner.vector.get_sub_environments()]
            )
        )
        assert tasks[1] == [[{"length": 9}]] * 4  # never had another one
        assert tasks[2] == [[{"length": 2}, {"length": 5}, {"length": 9}]] * 4


@pytest.mark.slow
@pytest.mark.ray
def test_a_function_works_with_actors_and_is_refused_in_one_sentence() -> None:
    def choose(result: Any, env: Any, context: Any) -> Any:
        assert context.num_workers == 1
        if result["training_iteration"] == 1:
            return env.sample_tasks(1)[0]
        return None

    config = staged(Corridor, curriculum=None, env_task_fn=choose)
    config.env_runners(num_env_runners=1, num_cpus_per_env_runner=0.5)
    with config.build() as algorithm:
        algorithm.train()
        with pytest.raises(ConfigError, match="env_task_fn must return the task"):
            algorithm.train()
        group: Any = algorithm.env_runner_group
        assert group.foreach_env_runner(lengths_of) == [[10] * 4]


def test_kept_weights_do_not_keep_the_task() -> None:
    """With broadcast_interval, the task changes before the weights do."""
    config = small("IMPALA", env=Corridor).environment(curriculum=STAGES)
    config.env_runners(num_envs_per_env_runner=4).training(broadcast_interval=4)
    with config.debugging(loggers=[]).build() as algorithm:
        group: Any = algorithm.env_runner_group
        seen: list[Any] = []
        for _ in range(4):
            algorithm.train()
            seen.append((group.runner.weights_version, *set(lengths_of(group.runner))))
    assert seen == [(0, 2), (0, 2), (0, 5), (0, 9)]


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("num_env_runners", [0, 1])
def test_jax_environments_of_actors_have_the_parameters(num_env_runners: int) -> None:
    """Actors that train have the task, and so has one that evaluates a compiled run."""
    stages: Any = [{"task": {"force_mag": 10.0}, "until": 128}, {"task": {"force_mag": 2000.0}}]
    config = staged("CartPole-v1", curriculum=stages)
    config.env_runners(num_env_runners=num_env_runners, num_cpus_per_env_runner=0.5)
    config.evaluation(evaluation_num_env_runners=1 - num_env_runners)
    with config.build() as algorithm:
        before = evaluated(algorithm)
        results = [algorithm.train() for _ in range(3)]
        assert results[-1]["env_runners"]["episode_len_min"] <= 3
        assert evaluated(algorithm) <= 4 < before
