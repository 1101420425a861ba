"""Evaluation by actors: the figures of one process, beside training, whatever becomes of them."""

import dataclasses
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from jaxrl import Algorithm
from jaxrl.assembly.assemble import assemble
from jaxrl.errors import EnvRunnerError
from jaxrl.evaluation import on_ray as ray_evaluation
from jaxrl.evaluation.on_ray import RayEvaluation
from jaxrl.runners.fragment import Weights
from jaxrl.runners.hooks import NoHooks
from jaxrl.runners.quotas import CHUNK_STEPS, EvalEpisodes, EvalShare
from tests.helpers import small
from tests.runners.ray.seeded import Seeded

# --- without Ray: what becomes of what the runners answer ---


def played(share: EvalShare, **changes: Any) -> EvalEpisodes:
    episodes = sum(share.episodes or (1,))
    plain = EvalEpisodes(
        episode_return=(2.0,) * episodes,
        episode_length=(4,) * episodes,
        env_steps=4 * episodes if share.episodes else sum(share.steps),
        num_nonfinite=0,
        num_cut=0,
        num_sub_env_restarts=0,
        timed_out=False,
        seconds=1.0,
    )
    return dataclasses.replace(plain, **changes)


class Group:
    """Answers what it is told to, without any process."""

    def __init__(self, config: Any, assembly: Any, hooks: Any, shape: Any) -> None:
        self.shape = shape
        self.num_healthy_env_runners = shape.num_env_runners
        self.asked: list[list[EvalShare]] = []
        self.answers: Any = lambda place, share: played(share)
        self.waited: list[float] = []

    def evaluate_async(self, weights: Any, method: str, shares: Any) -> Any:
        assert method == "run_episodes"
        self.asked.append([share["share"] for share in shares])
        return Round(self, self.asked[-1])

    def get_metrics(self) -> Any:
        healthy = self.num_healthy_env_runners
        faults = {"num_healthy_env_runners": healthy, "num_env_runner_restarts": 3, "restarts": []}
        return {"fault_tolerance": {**faults, "num_env_steps_queued": 0}}


class Round:
    """Answers of a group to one evaluation."""

    def __init__(self, group: Group, shares: list[EvalShare]) -> None:
        self.group, self.shares = group, shares
        self.is_done = False

    def collect(self, timeout_s: float) -> list[EvalEpisodes]:
        answers = [self.group.answers(place, share) for place, share in enumerate(self.shares)]
        parts = [answer for answer in answers if answer is not None]
        self.is_done = len(parts) == len(answers)
        if not self.is_done:
            time.sleep(timeout_s)
        return parts


@pytest.fixture
def evaluation_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(ray_evaluation, "RayEnvRunnerGroup", Group)

    def make(**settings: Any) -> tuple[RayEvaluation, Any]:
        config = small().evaluation(
            **{"evaluation_num_env_runners": 2, "evaluation_duration": 6, **settings}
        )
        changed = config.get_evaluation_config_object()
        evaluation = RayEvaluation(changed, assemble(config), NoHooks())
        return evaluation, evaluation.runners

    return make


WEIGHTS: Any = Weights(version=1, actor=None)  # pyright: ignore[reportArgumentType]


def test_what_runners_played_is_put_together(evaluation_of: Any) -> None:
    evaluation, group = evaluation_of()
    result = evaluation.run(WEIGHTS, 5, None)
    assert result["env_runners"]["num_episodes"] == 6
    assert result["fault_tolerance"] == {
        "num_env_runners_late": 0,
        "num_sub_env_restarts": 0,
        "num_healthy_env_runners": 2,
        "num_env_runner_restarts": 3,
        "restarts": [],
        "num_consecutive_skips": 0,
    }
    assert [share.episodes for share in group.asked[0]] == [(1, 1, 1), (1, 1, 1)]
    assert evaluation.run(WEIGHTS, 5, 4)["env_runners"]["num_episodes"] == 4


def test_a_runner_that_is_not_heard_of_is_not_waited_for(
    evaluation_of: Any, caplog: pytest.LogCaptureFixture
) -> None:
    evaluation, group = evaluation_of(evaluation_sample_timeout_s=0.1)
    group.answers = lambda place, share: None if place else played(share)
    begin = time.monotonic()
    with caplog.at_level(logging.WARNING, "jaxrl"):
        result = evaluation.run(WEIGHTS, 5, None)
    assert 0.2 <= time.monotonic() - begin < 2.0
    assert result["env_runners"]["num_episodes"] == 3
    assert result["env_runners"]["num_episodes_cut"] == 3
    assert result["fault_tolerance"]["num_env_runners_late"] == 1
    assert "evaluation_num_env_runners=4" in caplog.text


def test_evaluations_that_nobody_can_do_are_skipped_and_counted(
    evaluation_of: Any, caplog: pytest.LogCaptureFixture
) -> None:
    evaluation, group = evaluation_of(evaluation_error_after_n_consecutive_skips=3)
    group.num_healthy_env_runners = 0
    group.answers = lambda place, share: None
    with caplog.at_level(logging.WARNING, "jaxrl"):
        for number in (1, 2):
            result = evaluation.run(WEIGHTS, 5, None)
            assert result["fault_tolerance"]["num_consecutive_skips"] == number
            assert result["fault_tolerance"]["num_env_runners_late"] == 0
            assert np.isnan(result["env_runners"]["episode_return_mean"])
    assert "2 consecutive skips" in caplog.text
    with pytest.raises(EnvRunnerError, match="evaluation_error_after_n_consecutive_skips=3"):
        evaluation.run(WEIGHTS, 5, None)
    group.num_healthy_env_runners = 2
    group.answers = lambda place, share: played(share)
    assert evaluation.run(WEIGHTS, 5, None)["fault_tolerance"]["num_consecutive_skips"] == 0


def test_runners_that_recover_are_waited_for_as_long_as_is_set(evaluation_of: Any) -> None:
    evaluation, group = evaluation_of(evaluation_unhealthy_workers_timeout_s=30.0)
    group.num_healthy_env_runners = 0
    begin = time.monotonic()

    def answer(place: int, share: EvalShare) -> EvalEpisodes | None:
        if time.monotonic() - begin < 0.3:
            return None
        group.num_healthy_env_runners = 2
        return played(share)

    group.answers = answer
    assert evaluation.run(WEIGHTS, 5, None)["env_runners"]["num_episodes"] == 6
    assert time.monotonic() - begin < 5.0


def test_beside_training_runners_go_on_until_it_is_done(evaluation_of: Any) -> None:
    evaluation, group = evaluation_of(
        evaluation_duration="auto",
        evaluation_parallel_to_training=True,
        evaluation_num_envs=4,
        evaluation_auto_duration_min_env_steps_per_sample=64,
        evaluation_auto_duration_max_env_steps_per_sample=320,
    )
    done = threading.Event()

    def answer(place: int, share: EvalShare) -> EvalEpisodes:
        if len(group.asked) == 3:
            done.set()
        return played(share, num_cut=2)

    group.answers = answer
    result = evaluation.run_parallel(WEIGHTS, 5, done)
    assert len(group.asked) == 3
    assert [[share.is_continuation for share in shares] for shares in group.asked] == [
        [False] * 2,
        [True] * 2,
        [True] * 2,
    ]
    assert [share.first_index for share in group.asked[0]] == [0, 2]
    steps = [shares[0].steps[0] for shares in group.asked]
    assert steps[0] == 32  # the least, over two environments
    assert steps[1] == steps[2] == 160  # the most: so quick are they
    assert all(number % CHUNK_STEPS == 0 for number in steps)
    assert result["env_runners"]["num_env_steps_sampled"] == 4 * sum(steps)
    assert result["env_runners"]["num_episodes"] == 6
    assert result["env_runners"]["num_episodes_cut"] == 4  # those of the last part


def test_beside_training_there_is_one_part_at_least(evaluation_of: Any) -> None:
    evaluation, group = evaluation_of(
        evaluation_duration="auto", evaluation_parallel_to_training=True
    )
    done = threading.Event()
    done.set()
    assert evaluation.run_parallel(WEIGHTS, 5, done)["env_runners"]["num_episodes"] == 2
    group.answers = lambda place, share: None
    group.num_healthy_env_runners = 0
    skipped = evaluation.run_parallel(WEIGHTS, 5, threading.Event())
    assert skipped["fault_tolerance"]["num_consecutive_skips"] == 1


# --- with Ray ---

with_ray = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


def config_for(**evaluation: Any) -> Any:
    config = small(env=Seeded).environment(max_episode_steps=50)
    config.env_runners(num_cpus_per_env_runner=0.5)
    return config.evaluation(evaluation_num_envs=4, evaluation_duration=12, **evaluation)


@pytest.fixture(scope="module")
def algorithm(ray_cluster: None) -> Iterator[Algorithm]:
    """Evaluates beside its training."""
    config = config_for(
        evaluation_num_env_runners=2,
        evaluation_interval=1,
        evaluation_parallel_to_training=True,
    )
    config.callbacks(
        on_evaluate_start=lambda *, algorithm: TOLD.append(("start", algorithm.iteration)),
        on_evaluate_end=lambda *, algorithm, evaluation_metrics: TOLD.append(
            ("end", algorithm.iteration)
        ),
    )
    with config.build() as built:
        yield built


TOLD: list[Any] = []


class TestWithActors:
    """One group of two actors."""

    pytestmark = with_ray

    def test_actors_play_what_one_runner_here_plays(self, algorithm: Algorithm) -> None:
        with config_for().build() as local:
            wanted = local.evaluate()["env_runners"]
        got = algorithm.evaluate()["env_runners"]
        assert got == pytest.approx(wanted, rel=1e-6)
        assert got["num_episodes"] == 12
        assert got["episode_return_std"] > 1

    @pytest.mark.slow
    def test_results_beside_training_are_of_the_weights_before_it(
        self, algorithm: Algorithm
    ) -> None:
        before = algorithm.evaluate()["env_runners"]
        TOLD.clear()
        result = algorithm.train()
        assert result["evaluation"]["env_runners"] == before
        assert algorithm.evaluate()["env_runners"] != before
        assert TOLD[:2] == [("start", algorithm.iteration - 1), ("end", algorithm.iteration)]

    def test_what_a_killed_actor_owes_is_played_by_another(self, algorithm: Algorithm) -> None:
        before = algorithm.evaluate()
        runners = algorithm.eval_env_runner_group
        assert runners is not None
        pids = runners.foreach_env_runner(lambda runner: os.getpid())
        assert len(set(pids)) == 2
        assert os.getpid() not in pids
        os.kill(pids[0], signal.SIGKILL)
        after = algorithm.evaluate()
        assert after["env_runners"] == before["env_runners"]
        assert any("died" in text for text in after["fault_tolerance"]["restarts"])


class TestBesideTraining:
    """As long as training takes."""

    pytestmark = with_ray

    @pytest.mark.slow
    def test_evaluation_lasts_as_long_as_training(self) -> None:
        config = config_for(
            evaluation_num_env_runners=1,
            evaluation_interval=1,
            evaluation_parallel_to_training=True,
        )
        config.evaluation(
            evaluation_duration="auto",
            evaluation_num_envs=2,
            evaluation_config={"env_config": {"seconds": 0.002}},
        )
        config.reporting(min_time_s_per_iteration=3.0)
        with config.build() as algorithm:
            algorithm.train()  # in which everything is compiled
            result = algorithm.train()
            stats = result["evaluation"]["env_runners"]
            assert stats["num_env_steps_sampled"] > 300
            assert stats["num_episodes"] > 10
            assert result["timers"]["evaluation_s"] < result["timers"]["training_step_s"]
            assert np.isfinite(stats["episode_return_mean"])
            by_itself = algorithm.evaluate()["env_runners"]
            assert by_itself["num_episodes"] == 10
