"""Curricula in the compiled program: stages, `env_task_fn`, sweeps, checkpoints and bad input."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import Algorithm, JaxrlError, Population
from jaxrl.config.curriculum import to_task_data
from jaxrl.config.load import load_experiment
from jaxrl.errors import CheckpointError, ConfigError, EnvError, UnknownNameError
from tests.endless import Endless
from tests.helpers import assert_equal, small
from tests.runners.tasks import Corridor

STAGES: list[dict[str, Any]] = [
    {"task": {"gravity": 5.0}, "until": 256},
    {"task": {"force_mag": 20.0}, "until": {"training_iteration": 3}},
    {"task": {"gravity": 9.0, "half_length": 1.0}},
]


def staged(**settings: Any) -> Any:
    config = small().environment(curriculum=STAGES).debugging(loggers=[], max_retraces=0)
    return config.evaluation(evaluation_duration=4).environment(**settings)


def params_of(algorithm: Algorithm) -> tuple[float, float, float]:
    params = algorithm.env_params
    gravity, force, length = params.gravity, params.force_mag, params.half_length
    return round(float(gravity), 4), round(float(force), 4), round(float(length), 4)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Algorithm]:
    """A run of three stages, none of which compiles anything."""
    config = staged().debugging(results_dir=str(tmp_path_factory.mktemp("results")))
    with config.build() as algorithm:
        yield algorithm


def test_stages_follow_results_without_compiling(run: Algorithm, tmp_path: Path) -> None:
    assert params_of(run) == (5.0, 10.0, 0.5)
    seen: list[Any] = []
    for iteration in range(5):
        result = run.train()
        seen.append((result["curriculum"], params_of(run)))
        if iteration == 1:
            run.save(tmp_path)
    assert result["compile"]["train"]["num_compilations"] == 1
    first, second, third = (stage["task"] for stage in STAGES)
    assert [entry for entry, _ in seen] == [
        {"stage": 0, "task": first},
        {"stage": 0, "task": first},
        {"stage": 1, "task": second},
        {"stage": 2, "task": third},
        {"stage": 2, "task": third},
    ]
    # What a stage does not name has the value of env_config, not that of the stage before.
    fourth = (9.0, 10.0, 1.0)
    assert [now for _, now in seen] == [(5.0, 10.0, 0.5), (9.8, 20.0, 0.5), fourth, fourth, fourth]
    after, last = run.get_state(), run.evaluate()
    run.restore(tmp_path)
    assert params_of(run) == (9.8, 20.0, 0.5)
    again = [run.train()["curriculum"]["stage"] for _ in range(3)]
    assert again == [1, 2, 2]
    assert_equal(run.get_state()["train_state"], after["train_state"])
    assert run.evaluate() == last
    # In a new run, and there is no other state than the checkpoint's.
    with Algorithm.from_checkpoint(tmp_path) as other:
        assert [other.train()["curriculum"]["stage"] for _ in range(3)] == [1, 2, 2]
        assert_equal(other.get_state()["train_state"], after["train_state"])


def test_iterations_computed_ahead_decide_as_single_ones_do() -> None:
    """Eight iterations, of which fit() would compute several before it returns the first."""
    stages = [{"task": {"gravity": 5.0}, "until": {"training_iteration": 5}}, STAGES[1]]
    stages[1] = {"task": {"gravity": 15.0}}
    seen: list[int] = []
    config = staged(curriculum=stages).checkpointing(checkpoint_at_end=False)
    config.checkpointing(checkpoint_interval_s=None)
    with config.build() as ahead, config.copy(copy_frozen=False).build() as single:
        ahead.fit(
            {"training_iteration": 8},
            on_iteration=lambda result: seen.append(result["curriculum"]["stage"]),
        )
        for _ in range(8):
            single.train()
            assert single.state is not None  # reads it, so that nothing is computed ahead
        assert seen == [0] * 5 + [1] * 3
        assert_equal(ahead.get_state()["train_state"], single.get_state()["train_state"])


@pytest.mark.parametrize("placement", ["in_graph", "host"])
def test_what_a_callback_saves_goes_on_with_the_task_of_the_next_iteration(
    placement: str, tmp_path: Path
) -> None:
    """The decision is made once, before the checkpoint, from the result so far."""
    chosen: list[int] = []

    def choose(result: dict[str, Any], task: Any, context: Any) -> Any:
        chosen.append(result["training_iteration"])
        return {"gravity": 5.0 + result["training_iteration"]}

    def save(algorithm: Algorithm, result: dict[str, Any], **_: Any) -> None:
        if result["training_iteration"] == 2:
            algorithm.save(str(tmp_path))

    def make() -> Any:
        config = small().environment(env_task_fn=choose).env_runners(placement=placement)
        return config.debugging(loggers=[])

    with make().callbacks(on_train_result=save).build() as algorithm:
        for _ in range(3):
            algorithm.train()
        state = algorithm.get_state()["train_state"]
    assert chosen == [1, 2, 3]
    with make().build() as resumed:
        resumed.restore(tmp_path)
        resumed.train()
        assert_equal(resumed.get_state()["train_state"], state)


def test_a_function_chooses_from_the_result() -> None:
    calls: list[Any] = []

    def choose(train_results: Any, task_settable_env: Any, env_ctx: Any) -> Any:
        calls.append((task_settable_env.get_task()["gravity"], env_ctx.worker_index, dict(env_ctx)))
        assert not math.isnan(train_results["num_env_steps_sampled_lifetime"])
        iteration = train_results["training_iteration"]
        if iteration == 1:
            return {"gravity": np.float64(12.0)}
        if iteration == 2:
            return task_settable_env.get_task()
        return dataclasses.replace(algorithm.env_params, gravity=np.float32(3.0))

    config = staged(curriculum=None, env_task_fn=choose, env_config={"gravity": 8.0})
    with config.build() as algorithm:
        results = [algorithm.train() for _ in range(3)]
        gravity = [float(algorithm.env_params.gravity)]
        results.append(algorithm.train())
        gravity.append(float(algorithm.env_params.gravity))
        assert results[-1]["compile"]["train"]["num_compilations"] == 1
    first = results[0]["curriculum"]
    assert first == {"task": None}
    assert results[1]["curriculum"] == results[2]["curriculum"] == {"task": {"gravity": 12.0}}
    assert results[3]["curriculum"]["task"]["gravity"] == 3.0
    assert gravity == [3.0, 3.0]
    assert [call[0] for call in calls] == [8.0, 12.0, 12.0, 3.0]
    assert calls[0][1:] == (0, {"gravity": 8.0})


@pytest.mark.parametrize(
    ("choose", "error", "message"),
    [
        (lambda *_: None, ConfigError, "env_task_fn must return the task.*got None"),
        (lambda *_: {"gravty": 1.0}, UnknownNameError, "env_task_fn.*Did you mean 'gravity'"),
        (lambda *_: {"gravity": object()}, ConfigError, "task of env_task_fn must consist of"),
        (lambda *_: {"x_threshold": 9.0}, EnvError, "env_task_fn would make the observation space"),
        (lambda *_: 3, ConfigError, "env_task_fn must name parameters of CartPole-v1.*gravity"),
        (lambda _, env, ctx: env.set_task(1), ConfigError, "must return the task instead"),
        (lambda _, env, ctx: env.sample_tasks(1), ConfigError, r"no sample_tasks\(\) for a JAX"),
    ],
)
def test_a_wrong_task_of_a_function_is_one_sentence(
    choose: Any, error: Any, message: str, functional: Algorithm
) -> None:
    loop: Any = functional._loop
    loop.curriculum._function = choose
    with pytest.raises(error, match=message):
        functional.train()
    assert float(functional.env_params.gravity) == pytest.approx(9.8)


@pytest.fixture(scope="module")
def functional() -> Iterator[Algorithm]:
    with staged(curriculum=None, env_task_fn=lambda *_: {"gravity": 9.8}).build() as algorithm:
        yield algorithm


def test_evaluation_has_the_task_unless_it_has_an_environment_of_its_own() -> None:
    stages = [{"task": {"force_mag": 10.0}, "until": 128}, {"task": {"force_mag": 2000.0}}]
    with staged(curriculum=stages).build() as algorithm:
        before = algorithm.evaluate()["env_runners"]["episode_len_mean"]
        algorithm.train()
        assert algorithm.evaluate()["env_runners"]["episode_len_mean"] <= 4 < before
    own = staged(curriculum=stages).evaluation(evaluation_config={"env_config": {"gravity": 9.8}})
    with own.build() as algorithm:
        algorithm.train()
        assert algorithm.evaluate()["env_runners"]["episode_len_mean"] > 4


@pytest.mark.parametrize("key", ["episode_return_mean", "custom_metrics/mine"])
def test_only_episodes_of_the_stage_count(key: str) -> None:
    """Every mean has reached 1 long ago, but a stage needs a window of its own episodes."""

    def log(*, metrics_logger: Any, **_: Any) -> None:
        metrics_logger.log_value(("custom_metrics", "mine"), 1.0, window=100)

    one = {f"env_runners/{key}": 1.0}
    stages = [{"task": {"gravity": 5.0 + n}, "until": one} for n in range(3)]
    del stages[-1]["until"]
    with staged(curriculum=stages).callbacks(on_episode_end=log).build() as algorithm:
        results = [algorithm.train() for _ in range(45)]
    ended = [result["env_runners"]["num_episodes_lifetime"] for result in results]
    changes = [
        ended[i - 1]
        for i in range(1, 45)
        if results[i]["curriculum"]["stage"] != results[i - 1]["curriculum"]["stage"]
    ]
    assert len(changes) == 2
    assert changes[0] >= 100
    assert changes[1] - changes[0] >= 100
    assert 100 <= changes[0] < 130  # and no more than that


def test_only_new_evaluations_count() -> None:
    stages = [
        {"task": {"gravity": 5.0}, "until": {"evaluation/env_runners/episode_return_mean": 1}},
        {"task": {"gravity": 6.0}, "until": {"evaluation/env_runners/episode_return_mean": 1}},
        {"task": {"gravity": 7.0}},
    ]
    config = staged(curriculum=stages).evaluation(evaluation_interval=3)
    with config.build() as algorithm:
        assert [algorithm.train()["curriculum"]["stage"] for _ in range(7)] == [0] * 3 + [1] * 3 + [
            2
        ]


def level(algorithm: Algorithm, result: dict[str, Any], **_: Any) -> None:
    seed = algorithm.config.debugging_settings.run_seed
    result["custom_metrics"] = {"level": float(result["training_iteration"] > seed)}


@pytest.mark.slow
@pytest.mark.allow_key_reuse  # lanes' keys are batched, which its checker takes for a reuse
def test_lanes_have_stages_of_their_own(tmp_path: Path) -> None:
    """Each lane decides by its own result, and does what its run alone does."""
    until = {"custom_metrics/level": 1.0}
    stages = [{"task": {"gravity": 5.0}, "until": until}, {"task": {"force_mag": 12.0}}]

    config = staged(curriculum=stages, env_config={"half_length": 0.7})
    config.callbacks(on_train_result=level).debugging(results_dir=str(tmp_path))
    config.sweep(seeds=[1, 2])
    with config.build() as sweep:
        seen: list[list[int]] = []
        for _ in range(4):
            sweep.train()
            lanes = [sweep.lane(index) for index in range(2)]
            seen.append([lane.last_result["curriculum"]["stage"] for lane in lanes])
            if len(seen) == 2:
                saved = sweep.save()
        assert seen == [[0, 0], [0, 0], [1, 0], [1, 1]]
        for lane in lanes:
            assert params_of(lane) == (9.8, 12.0, 0.7)
        end = [lane.get_state()["train_state"] for lane in lanes]
        source, target = sweep._runs
        source._loop.curriculum._stage = 0
        target.exploit(source, {}, 1)
        assert target._loop.curriculum.describe()["curriculum"]["stage"] == 0
    with Population.from_checkpoint(saved) as again:
        for _ in range(2):
            again.train()
        assert [again.lane(n).last_result["curriculum"]["stage"] for n in range(2)] == [1, 1]
        for number in range(2):
            assert_equal(again.lane(number).get_state()["train_state"], end[number])


@pytest.mark.slow
def test_a_changed_curriculum_starts_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with staged().build() as algorithm:
        for _ in range(3):
            algorithm.train()
        saved = algorithm.save(tmp_path)
    changed = [{"task": {"gravity": 1.0}, "until": 1024}, {"task": {"gravity": 2.0}}]
    with Algorithm.from_checkpoint(saved, curriculum=changed) as other:
        assert "The curriculum has changed" in caplog.text
        assert params_of(other) == (1.0, 10.0, 0.5)
        assert other.train()["curriculum"]["stage"] == 0
    with Algorithm.from_checkpoint(saved, env_config={"force_mag": 11.0}) as other:
        assert params_of(other) == (9.0, 11.0, 1.0)
        assert other.train()["curriculum"]["stage"] == 2
    with Algorithm.from_checkpoint(saved, curriculum=None) as other:
        assert params_of(other) == (9.8, 10.0, 0.5)
        assert "curriculum" not in other.train()


def test_a_damaged_stage_is_refused(run: Algorithm) -> None:
    state = run.get_state()
    for entry in ({"stage": -1}, {"stages": 1}, {"task": None}, [1]):
        state["metadata"]["host"]["runner_counts"] = {"curriculum": entry}
        with pytest.raises(CheckpointError, match="curriculum"):
            run.set_state(state)


@pytest.mark.slow
@pytest.mark.allow_key_reuse  # a reset of one copy, whose checker sees the keys of all
def test_a_yaml_file_has_a_curriculum(tmp_path: Path) -> None:
    path = tmp_path / "lake.yaml"
    path.write_text(
        """
lake:
  run: PPO
  env: frozen-lake-v0
  stop: {training_iteration: 2}
  config:
    train_batch_size: 128
    minibatch_size: 64
    num_envs_per_env_runner: 16
    loggers: []
    curriculum:
      - {task: {size: 3}, until: 128}
      - {task: {size: 12, slip_probability: 0.1}}
"""
    )
    experiment = load_experiment(path)
    with experiment.config.build() as algorithm:
        assert int(algorithm.env_params.size) == 3
        # The first lakes are those of the first stage, not of the environment's own size.
        assert not np.asarray(algorithm.state.env.env.inner.holes)[:, 2, 2].any()
        algorithm.train()
        assert int(algorithm.env_params.size) == 12
        assert algorithm.train()["curriculum"]["task"] == {"size": 12, "slip_probability": 0.1}


LAST = {"task": {"gravity": 9.0}}
RETURN = "env_runners/episode_return_mean"
WRONG: list[tuple[Any, type[JaxrlError], str]] = [
    ([], ConfigError, r"curriculum must have at least one stage, got \[\]"),
    ({"task": 1}, ConfigError, "curriculum must be a list of dictionaries or None"),
    ([{"until": 5}, LAST], ConfigError, "stage 1: it has no task"),
    ([{"task": {"gravity": 1.0}}, LAST], ConfigError, "stage 1: it has no until, which ends it"),
    ([LAST | {"until": 5}], ConfigError, "stage 1: no stage follows the last one"),
    ([{"tsk": 1}], UnknownNameError, "stage 1: a stage has no 'tsk'.*Did you mean 'task'"),
    ([{"env_config": {}}], UnknownNameError, "no 'env_config', only task and until. Write 'task'"),
    ([LAST | {"until": "5"}, LAST], ConfigError, "until must be criteria such as.*got '5'"),
    ([LAST | {"until": {}}, LAST], ConfigError, "until must be criteria such as"),
    ([LAST | {"until": {RETURN: "high"}}, LAST], ConfigError, "until must give a finite number"),
    (
        [LAST | {"until": {"env_runners/episode_retrn_mean": 1}}, LAST],
        UnknownNameError,
        "stage 1: until names 'env_runners/episode_retrn_mean'.*Did you mean",
    ),
    ([LAST | {"until": {"time_total_s": 9}}, LAST], ConfigError, "depends on the clock"),
    (
        [LAST | {"until": {f"evaluation/{RETURN}": 9}}, LAST],
        ConfigError,
        "requires evaluation, but evaluation_interval is not set",
    ),
    ([LAST | {"until": 9}, LAST | {"until": 9}, LAST], ConfigError, r"must increase.*\[9, 9\]"),
    ([{"task": {"gravity": {1, 2}}}], ConfigError, "task must consist of numbers"),
    ([{"task": {1: 2.0}}], ConfigError, "dictionaries with strings as keys"),
    ([{"task": {"gravity": math.inf}}], ConfigError, "finite numbers, got inf"),
    ([{"task": 3}], ConfigError, "stage 1: task must name parameters of CartPole-v1"),
    (
        [LAST | {"until": 9}, {"task": {"gravty": 1.0}}],
        UnknownNameError,
        r"no parameter 'gravty' \(given in curriculum, stage 2: task\).*Did you mean 'gravity'",
    ),
    ([{"task": {"gravity": "down"}}], EnvError, "'gravity' must be float32 of shape"),
    ([{"task": {"gravity": [1.0, 2.0]}}], EnvError, "'gravity' must be float32 of shape"),
    ([{"task": {"x_threshold": 3.0}}], EnvError, "stage 1: task would make the observation space"),
]


@pytest.mark.parametrize(("written", "error", "message"), WRONG)
def test_a_wrong_curriculum_is_one_sentence(
    written: Any, error: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jaxrl.runners.in_graph_group.InGraphLearnerGroup._build", None)
    with pytest.raises(error, match=message):
        small().environment(curriculum=written).build()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: small().environment(curriculum=STAGES, env_task_fn=lambda *_: 1),
            "curriculum and env_task_fn both choose",
        ),
        (
            lambda: small(env="gymnasium:CartPole-v1").environment(curriculum=STAGES),
            r"curriculum needs an environment with a method set_task\(task\)",
        ),
        (
            lambda: small(env="gymnasium:CartPole-v1").environment(env_task_fn=lambda *_: 1),
            r"env_task_fn needs an environment with a method set_task\(task\)",
        ),
        (
            lambda: (
                small(env=Corridor)
                .environment(curriculum=[{"task": {"length": 4}}])
                .env_runners(gym_env_vectorize_mode="vector_entry_point")
            ),
            "gym_env_vectorize_mode='vector_entry_point' steps all together",
        ),
    ],
)
def test_a_run_that_cannot_have_tasks_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make().build()


def test_an_environment_without_names_for_its_parameters_is_refused() -> None:
    class Unnamed(Endless):
        @property
        def default_params(self) -> Any:
            return (np.float32(1.0),)

    config = small(env=Unnamed).environment(curriculum=[{"task": {"a": 1.0}}])
    with pytest.raises(ConfigError, match=r"curriculum changes parameters.*Unnamed has none"):
        config.build()


def test_rllibs_names_are_where_rllib_has_them() -> None:
    from jaxrl.env.apis.task_settable_env import TaskType
    from jaxrl.envs import TaskSettableEnv
    from jaxrl.envs import TaskSettableEnv as Own

    assert TaskSettableEnv is Own
    assert TaskType is not None
    for method, argument in (("set_task", 1), ("sample_tasks", 1)):
        with pytest.raises(NotImplementedError, match=f"Own2 does not define {method}"):
            getattr(type("Own2", (Own,), {})(), method)(argument)
    config = small().environment(env_task_fn=None)
    assert config.notes == []


def test_tasks_are_stored_in_builtin_types() -> None:
    task = {"a": np.float32(0.2), "b": jnp.asarray([[1, 2]]), "c": (True, "x", None), "d": 1e300}
    assert to_task_data(task, "task") == {
        "a": 0.2,
        "b": [[1, 2]],
        "c": [True, "x", None],
        "d": 1e300,
    }
    numbers = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    assert np.array_equal(np.asarray(to_task_data(numbers, "task"), np.float32), numbers)
