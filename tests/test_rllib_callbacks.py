"""Callbacks with RLlib's signatures, old and new, the metrics logger of a run, and its runners."""

import functools
from typing import Any

import pytest

from jaxrl import Algorithm, Callbacks
from jaxrl.callbacks import CallbackList
from jaxrl.errors import CheckpointError, ConfigError
from jaxrl.runners.compiled_runner import CompiledEnvRunner
from jaxrl.runners.env_runner import EnvRunner
from tests.helpers import assert_equal, small

PLACEMENTS = ("in_graph", "host")


class AllHooks(Callbacks):
    """RLlib's signatures, with every argument required."""

    calls: list[str] = []
    seen: dict[str, Any] = {}

    def on_algorithm_init(self, *, algorithm: Any, metrics_logger: Any, **kwargs: Any) -> None:
        self.calls.append("init")
        metrics_logger.log_value("mine/started", 1, reduce="lifetime_sum")

    def on_environment_created(
        self, *, env_runner: Any, metrics_logger: Any, env: Any, env_context: Any, **kwargs: Any
    ) -> None:
        self.calls.append("environment")
        self.seen["worker_index"] = env_context.worker_index
        self.seen["env"] = type(env.unwrapped.envs[0]).__name__, len(env.envs), env.num_envs

    def on_episode_end(
        self,
        *,
        episode: Any,
        prev_episode_chunks: Any,
        env_runner: Any,
        metrics_logger: Any,
        env: Any,
        env_index: int,
        rl_module: Any,
        **kwargs: Any,
    ) -> None:
        total = sum(part.get_return() for part in (*prev_episode_chunks, episode))
        metrics_logger.log_value("custom_metrics/longest", total, reduce="max")
        metrics_logger.log_value("number", 1, reduce="lifetime_sum")
        metrics_logger.log_value(("smooth", "total"), total, window=3)
        self.seen["module"] = type(rl_module).__name__
        assert 0 <= env_index < env.num_envs == env_runner.num_envs

    def on_sample_end(
        self, *, env_runner: Any, metrics_logger: Any, samples: Any, **kwargs: Any
    ) -> None:
        metrics_logger.log_value("num_samples", 1, reduce="sum")
        self.seen["lr"] = env_runner.config.lr

    def on_train_result(
        self, *, algorithm: Any, metrics_logger: Any, result: dict[str, Any], **kwargs: Any
    ) -> None:
        assert metrics_logger is algorithm.metrics
        metrics_logger.log_value("mine/iterations", 1, reduce="lifetime_sum")

    def on_evaluate_start(self, *, algorithm: Any, metrics_logger: Any, **kwargs: Any) -> None:
        metrics_logger.log_value("mine/evaluations", 1, reduce="lifetime_sum")

    def on_evaluate_end(
        self,
        *,
        algorithm: Any,
        metrics_logger: Any,
        evaluation_metrics: dict[str, Any],
        **kwargs: Any,
    ) -> None:
        metrics_logger.log_value(
            "mine/evaluated", evaluation_metrics["env_runners"]["num_episodes"]
        )


def make_config(placement: str) -> Any:
    config = small().environment(max_episode_steps=6).env_runners(placement=placement)
    config.evaluation(evaluation_interval=1, evaluation_duration=2)
    return config.callbacks(AllHooks)


@pytest.mark.representatives("host")
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_argument_of_rllibs_hooks_is_passed_and_what_they_log_is_in_results(
    placement: str, tmp_path: Any
) -> None:
    AllHooks.calls.clear()
    AllHooks.seen.clear()
    config = make_config(placement).debugging(results_dir=str(tmp_path))
    with config.build() as algorithm:
        assert AllHooks.calls.count("environment") >= 1
        assert AllHooks.calls[-1] == "init"
        first, second = algorithm.train(), algorithm.train()
        for number, result in ((0, first), (1, second)):
            assert result["mine"] == {
                "started": 1,
                "evaluations": number + 1,
                "evaluated": 2,
                **({"iterations": number} if number else {}),
            }
        runners = second["env_runners"]
        assert runners["custom_metrics"]["longest"] == runners["episode_return_max"] == 6.0
        assert runners["number"] == runners["num_episodes_lifetime"] > 0
        assert 0 < runners["smooth"]["total"] <= 6.0
        assert runners["num_samples"] == 1
        assert AllHooks.seen["module"] == "ActorCriticModule"
        assert AllHooks.seen["lr"] == algorithm.config.lr
        assert AllHooks.seen["env"][1:] == (16, 16)
        path = algorithm.save()
    with Algorithm.from_checkpoint(path) as again:
        third = again.train()
        assert third["mine"]["iterations"] == 2
        assert third["mine"]["evaluations"] == 3
        assert third["env_runners"]["number"] == third["env_runners"]["num_episodes_lifetime"]


class OldHooks(Callbacks):
    """Signatures of RLlib's older versions."""

    seen: list[Any] = []

    def on_trainer_init(self, *, trainer: Any, **kwargs: Any) -> None:
        self.seen.append(("init", type(trainer).__name__))

    def on_episode_end(
        self, *, worker: Any, base_env: Any, policies: Any, episode: Any, env_index: int
    ) -> None:
        env = base_env.get_sub_environments()[env_index]
        self.seen.append((type(worker).__name__, type(env).__name__, sorted(policies)))
        episode.custom_metrics["steps"] = episode.length
        with pytest.raises(AttributeError, match=r"get_return\(\) is it"):
            _ = episode.total_reward

    def on_workers_recreated(
        self, *, algorithm: Any, worker_set: Any, worker_ids: Any, is_evaluation: bool
    ) -> None:
        self.seen.append((worker_set, worker_ids, is_evaluation))


@pytest.mark.representatives("host")
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_hooks_with_former_names_and_arguments_are_called(placement: str) -> None:
    OldHooks.seen.clear()
    config = small().environment(max_episode_steps=6).env_runners(placement=placement)
    with config.callbacks(OldHooks).debugging(loggers=[]).build() as algorithm:
        result = algorithm.fit({"custom_metrics/steps_max": 6, "training_iteration": 3})
    runners = result["env_runners"]
    assert result["training_iteration"] == 1
    assert result["custom_metrics"] is runners["custom_metrics"]
    for each in ("mean", "min", "max"):
        assert runners["custom_metrics"][f"steps_{each}"] == runners[f"episode_len_{each}"]
    runner = "EnvRunner" if placement == "host" else "CompiledEnvRunner"
    assert OldHooks.seen[0] == ("init", "Algorithm")
    assert OldHooks.seen[1][0] == runner
    assert OldHooks.seen[1][2] == ["default_policy"]


def test_a_former_name_is_passed_only_where_it_is_required() -> None:
    got: list[Any] = []

    def ends(*, episode: Any, worker: Any = None, env_runner: Any = None) -> None:
        got.append((worker, env_runner))

    hooks = CallbackList(small().callbacks(on_episode_end=ends).callbacks_settings)
    hooks.call("on_episode_end", episode=1, env_runner=2)
    assert got == [(None, 2)]
    recreated = CallbackList(small().callbacks(OldHooks).callbacks_settings)
    OldHooks.seen.clear()
    recreated.call(
        "on_env_runners_recreated",
        algorithm=None,
        env_runner_group="G",
        env_runner_indices=[1],
        is_evaluation=False,
    )
    assert OldHooks.seen == [("G", [1], False)]


def test_a_function_that_makes_callbacks_may_be_given() -> None:
    class Counts(Callbacks):
        def __init__(self, start: int) -> None:
            super().__init__()
            self.count = start

        def on_train_result(self, *, algorithm: Any, result: dict[str, Any]) -> None:
            result["count"] = self.count

    result: dict[str, Any] = {}
    hooks = CallbackList(small().callbacks(functools.partial(Counts, 3)).callbacks_settings)
    hooks.call("on_train_result", algorithm=None, result=result)
    assert result == {"count": 3}
    with pytest.raises(ConfigError, match="must be a subclass of jaxrl"):
        CallbackList(small().callbacks(lambda: 3).callbacks_settings)


# --- the metrics logger of a run ---


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    config = small().debugging(results_dir=str(tmp_path_factory.mktemp("results")))
    with config.build() as algorithm:
        algorithm.train()
        yield algorithm


def test_values_of_a_runs_logger_are_in_the_next_result(trained: Algorithm) -> None:
    metrics = trained.metrics
    metrics.log_value("loss_of_mine", 1.0)
    metrics.log_value("loss_of_mine", 3.0)
    metrics.log_dict({"a": 1, "b": {"c": 2}}, key="group", reduce="sum")
    with metrics.log_time(("timers", "mine_s")):
        pass
    metrics.log_value("env_runners/num_episodes", 1e9)
    assert metrics.peek("loss_of_mine") == 2.0
    before = trained.last_result["env_runners"]["num_env_steps_sampled"]
    assert metrics.peek(("env_runners", "num_env_steps_sampled")) == before
    result = trained.train()
    assert result["loss_of_mine"] == 2.0
    assert result["group"] == {"a": 1, "b": {"c": 2}}
    assert 0 <= result["timers"]["mine_s"] < 1
    assert "training_step_s" in result["timers"]
    assert result["env_runners"]["num_episodes"] < 1e9  # entries of the result have precedence
    assert "loss_of_mine" not in trained.train()
    assert metrics.reduce() == {}


def count_episode(*, metrics_logger: Any, **_: Any) -> None:
    metrics_logger.log_value("episodes_so_far", 1, reduce="lifetime_sum")


def test_what_hooks_log_in_evaluations_goes_on_after_a_restore() -> None:
    config = small(env="gymnasium:CartPole-v1").callbacks(on_episode_end=count_episode)
    config.evaluation(evaluation_interval=1, evaluation_duration=2).debugging(loggers=[])

    def read(algorithm: Algorithm) -> float:
        return algorithm.train()["evaluation"]["env_runners"]["episodes_so_far"]

    with config.copy().build() as algorithm:
        first = read(algorithm)
        state = algorithm.get_state()
    logged = state["metadata"]["host"]["logged_in_evaluations"]
    assert logged["episodes_so_far"]["data"] == [first]
    with config.build() as resumed:
        resumed.set_state(state)
        assert resumed.get_state()["metadata"]["host"]["logged_in_evaluations"] == logged
        assert read(resumed) >= first + 2


def test_a_key_that_is_nowhere_is_an_error(trained: Algorithm) -> None:
    with pytest.raises(KeyError, match="Nothing was logged as 'env_runners/nothing'"):
        trained.metrics.peek(("env_runners", "nothing"))
    assert trained.metrics.peek("nothing", default=3) == 3
    with pytest.raises(ConfigError, match=r"reduce='meen'.* Did you mean 'mean'"):
        trained.metrics.log_value("x", 1, reduce="meen")  # pyright: ignore


def test_logged_values_of_a_checkpoint_are_checked(trained: Algorithm) -> None:
    trained.metrics.log_value("kept", 2, reduce="lifetime_sum")
    state = trained.get_state()
    trained.metrics.log_value("kept", 2, reduce="lifetime_sum")
    trained.set_state(state)
    assert trained.metrics.peek("kept") == 2
    for name in ("logged", "logged_in_evaluations"):
        state = trained.get_state()
        state["metadata"]["host"][name] = {"kept": {"reduce": "sum"}}
        with pytest.raises(CheckpointError, match=rf"host.{name} has .* not data of a logger"):
            trained.set_state(state)
    trained.metrics.delete("kept")


# --- runners ---


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_runners_are_read_on_every_placement(placement: str) -> None:
    config = small().env_runners(placement=placement).debugging(loggers=[])
    with config.build() as algorithm:
        group: Any = algorithm.env_runner_group
        assert group.is_compiled == (placement == "in_graph")
        (found,) = group.foreach_env_runner(
            lambda runner: (runner.num_envs, runner.env.num_envs, runner.config.lr, runner.module)
        )
        assert found[:3] == (16, 16, algorithm.config.lr)
        assert found[3].action_space.n == 2
        assert group.foreach_env_runner_with_index(lambda i, runner: i) == [(0, 0)]
        ((spaces),) = group.foreach_env_runner("get_spaces")
        assert spaces["__env_single__"][0].shape == (4,)
        assert spaces["__env__"][0].shape == (16, 4)
        assert spaces["default_policy"][1].n == 2
        scaled = group.foreach_env_runner(lambda runner, by: runner.num_envs * by, kwargs={"by": 2})
        assert scaled == [32]
        runner: Any = algorithm.env_runner  # pyright: ignore[reportAttributeAccessIssue]
        assert isinstance(runner, EnvRunner if placement == "host" else CompiledEnvRunner)
        assert group.local_env_runner is runner
        assert group.num_healthy_env_runners == 1


def test_a_compiled_runner_says_what_it_cannot_do(trained: Algorithm) -> None:
    group: Any = trained.env_runner_group
    for name, words in (
        ("sample", r"train\(\) samples and learns"),
        ("set_weights", r"algorithm.set_weights"),
        ("nothing", "no setting or method|no attribute|has no 'nothing'"),
    ):
        with pytest.raises(AttributeError, match=words):
            group.foreach_env_runner(name)
    found = group.local_worker().get_policy().get_weights()
    assert_equal(found, trained.get_weights()["default_policy"])
