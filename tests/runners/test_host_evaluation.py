"""Evaluation in environments on the host: fixed quotas, the same figures again, an end in time."""

import dataclasses
import logging
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest

from jaxrl import Algorithm, Callbacks
from jaxrl.assembly.assemble import assemble
from jaxrl.errors import ConfigError, EnvError
from jaxrl.evaluation.evaluation import Evaluation
from jaxrl.evaluation.host import HostEvaluationPlan
from jaxrl.runners.metrics_logger import MetricsLogger
from jaxrl.runners.quotas import (
    CHUNK_STEPS,
    EvalShare,
    play_share,
    slice_for_runner,
    split_evenly,
    to_evaluation_result,
)
from jaxrl.training.report import compute_evaluation_metrics
from tests.helpers import assert_equal, small

# --- quotas ---


class Counting:
    """A runner whose environment i has episodes of `lengths[i]` steps and a return of i + 1."""

    def __init__(self, lengths: list[int], seconds: float = 0.0, masked: int | None = None) -> None:
        self.lengths, self.num_envs = np.array(lengths), len(lengths)
        self.seconds, self.masked = seconds, masked
        self.held = np.zeros(self.num_envs, bool)
        self.stepped = np.zeros(self.num_envs, int)
        self.started: list[Any] = []
        self.metrics, self.tracker = MetricsLogger(), None
        self.age = np.zeros(self.num_envs, int)

    def make_tally(self) -> None: ...

    def pause(self, held: Any) -> None:
        self.held = held

    def restart(self, seed: int, env_index: Any) -> None:
        self.started.append((seed, env_index.tolist()))
        self.age[:] = 0

    def sample_fragment(self, num_steps: int) -> Any:
        shape = (num_steps, self.num_envs)
        ended, length, mask = np.zeros(shape, bool), np.zeros(shape, int), np.zeros(shape, bool)
        fault = np.zeros(shape, int)
        for t in range(num_steps):
            time.sleep(self.seconds)
            for b in np.flatnonzero(~self.held):
                self.stepped[b] += 1
                if b == self.masked:
                    fault[t, b] = 1
                    continue
                self.age[b] += 1
                mask[t, b], length[t, b] = True, self.age[b]
                if self.age[b] == self.lengths[b]:
                    ended[t, b], self.age[b] = True, 0
        record = SimpleNamespace(
            ended=ended,
            episode_length=length,
            episode_return=np.broadcast_to(np.arange(self.num_envs) + 1.0, shape),
            fault=fault,
        )
        rollout = SimpleNamespace(mask=mask)
        return SimpleNamespace(record=record, rollout=rollout, faults=(), metrics={})


def share(**changes: Any) -> EvalShare:
    plain = EvalShare(seed=7, first_index=4, episodes=None, steps=(), timeout_s=60.0)
    return dataclasses.replace(plain, **changes)


def test_every_environment_plays_its_quota_however_long_its_episodes_are() -> None:
    runner = Counting([3, 40, 5])
    played = play_share(runner, share(episodes=(2, 3, 0), steps=(1000,) * 3))
    assert sorted(zip(played.episode_return, played.episode_length, strict=True)) == [
        (1.0, 3),
        (1.0, 3),
        *[(2.0, 40)] * 3,
    ]
    assert played.env_steps == 2 * 3 + 3 * 40
    assert (played.num_cut, played.num_nonfinite, played.timed_out) == (0, 0, False)
    assert runner.started == [(7, [4, 5, 6])]
    assert runner.stepped.tolist() == [CHUNK_STEPS, 8 * CHUNK_STEPS, 0]  # those that are done wait
    assert not runner.held.any()


def test_environments_that_cannot_wait_play_on_and_it_does_not_count() -> None:
    runner = Counting([3, 40])
    played = play_share(runner, share(episodes=(2, 1), steps=(1000,) * 2), can_pause=False)
    assert played.episode_length == (3, 3, 40)
    assert runner.stepped.tolist() == [48, 48]


def test_steps_are_played_exactly_and_begun_episodes_are_cut() -> None:
    played = play_share(Counting([7, 10]), share(steps=(50, 49)))
    assert played.env_steps == 99
    assert played.episode_length.count(7) == 7
    assert played.episode_length.count(10) == 4
    assert played.num_cut == 2
    again = Counting([7, 10])
    first = play_share(again, share(steps=(32, 32)))
    second = play_share(again, share(steps=(18, 17), is_continuation=True))
    assert len(again.started) == 1
    assert sorted(first.episode_length + second.episode_length) == sorted(played.episode_length)


def test_rows_that_are_no_transitions_are_no_steps_and_end_some_time() -> None:
    played = play_share(Counting([5, 5], masked=1), share(episodes=(2, 2), steps=(20, 20)))
    assert played.env_steps == 10
    assert played.num_nonfinite > 20
    assert played.num_cut == 2


def test_time_ends_it_with_what_there_is() -> None:
    played = play_share(
        Counting([4, 10_000], seconds=0.002),
        share(episodes=(1, 1), steps=(10_000,) * 2, timeout_s=0.1),
    )
    assert played.timed_out
    assert played.episode_length == (4,)
    assert played.num_cut == 1


def test_quotas_differ_by_at_most_one_and_add_up() -> None:
    assert split_evenly(10, 4) == (3, 3, 2, 2)
    assert split_evenly(3, 5) == (1, 1, 1, 0, 0)
    assert slice_for_runner(split_evenly(10, 4), 1, 2) == (2, 2)


def test_parts_are_put_together_as_the_compiled_evaluation_reports_them() -> None:
    parts = [
        play_share(Counting([2]), share(episodes=(3,), steps=(99,))),
        play_share(Counting([4, 6]), share(episodes=(1, 1), steps=(99, 99))),
    ]
    metrics = compute_evaluation_metrics(to_evaluation_result(parts, 2))
    assert metrics["num_episodes"] == 5
    assert metrics["num_episodes_cut"] == 2
    assert metrics["num_env_steps_sampled"] == 3 * 2 + 4 + 6
    assert metrics["episode_len_mean"] == pytest.approx((3 * 2 + 4 + 6) / 5)
    assert metrics["episode_return_max"] == 2.0
    assert np.isnan(compute_evaluation_metrics(to_evaluation_result([]))["episode_return_mean"])


# --- how it is shared out ---


def plan_of(**settings: Any) -> HostEvaluationPlan:
    config = small(env="gymnasium:CartPole-v1").evaluation(**settings)
    limit = assemble(config).made.max_episode_steps
    return HostEvaluationPlan.from_settings(config.evaluation_settings, limit)


@pytest.mark.parametrize(
    ("settings", "runners", "envs"),
    [
        ({"evaluation_duration": 10}, 1, 5),
        ({"evaluation_duration": 7}, 1, 7),
        ({"evaluation_duration": 11}, 1, 1),
        ({"evaluation_duration": 10, "evaluation_num_envs": 2}, 1, 2),
        ({"evaluation_duration": 10, "evaluation_num_env_runners": 3}, 3, 4),
        ({"evaluation_duration": 12, "evaluation_num_env_runners": 3}, 3, 4),
        ({"evaluation_duration": 4000, "evaluation_duration_unit": "timesteps"}, 1, 2),
        ({"evaluation_duration": 900, "evaluation_duration_unit": "timesteps"}, 1, 1),
    ],
)
def test_how_many_environments_an_evaluation_has(
    settings: dict[str, Any], runners: int, envs: int
) -> None:
    plan = plan_of(**settings)
    assert (plan.num_runners, plan.num_envs) == (runners, envs)
    shares = plan.make_shares(3)
    counts = [n for one in shares for n in (one.episodes or one.steps)]
    assert sum(counts) == settings["evaluation_duration"]
    assert [one.first_index for one in shares] == [envs * place for place in range(len(shares))]


def test_runners_without_anything_to_do_are_left_out() -> None:
    plan = plan_of(evaluation_num_env_runners=3, evaluation_duration=12)
    assert [one.episodes for one in plan.with_num_episodes(5).make_shares(0)] == [
        (1, 1, 1, 1),
        (1, 0, 0, 0),
    ]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"evaluation_num_env_runners": 2, "evaluation_num_envs": 5},
            "evaluation_num_envs=5 must be a multiple of evaluation_num_env_runners=2.*use 6",
        ),
        ({"evaluation_parallel_to_training": True}, "got evaluation_num_env_runners=0; set it to"),
        (
            {
                "evaluation_parallel_to_training": True,
                "evaluation_num_env_runners": 1,
                "custom_evaluation_function": lambda algorithm: {},
            },
            "cannot be combined with a custom_evaluation_function",
        ),
    ],
)
def test_what_does_not_fit_is_refused(settings: dict[str, Any], words: str) -> None:
    config = small(env="gymnasium:CartPole-v1").evaluation(**settings)
    with pytest.raises(ConfigError, match=words):
        config.build()


# --- with an Algorithm ---


class Lottery(gymnasium.Env[Any, Any]):
    """Pays what its seed says at every step of a first episode of four steps, later ones more."""

    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    made = 0

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        type(self).made += 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.prize, self.age = self.np_random.uniform(), 0
        return np.full(2, self.prize, np.float32), {}

    def step(self, action: Any) -> Any:
        time.sleep(self.seconds)
        self.age += 1
        return np.full(2, self.age, np.float32), self.prize, self.age == 4, False, {}


def log_length(*, env_runner: Any, metrics_logger: Any, episode: Any, **_: Any) -> None:
    scale = 10 if env_runner.config.in_evaluation else 1
    metrics_logger.log_value("length", scale * len(episode), reduce="max")


@pytest.fixture(scope="module")
def algorithm() -> Iterator[Algorithm]:
    config = small(env=Lottery).env_runners(observation_filter="MeanStdFilter")
    config.environment(max_episode_steps=50)
    config.callbacks(on_episode_end=log_length)
    config.evaluation(evaluation_interval=2, evaluation_duration=6)
    with config.build() as built:
        yield built


def test_host_evaluation_repeats_itself_and_leaves_training_alone(algorithm: Algorithm) -> None:
    algorithm.train()
    before = algorithm.get_state()
    made = Lottery.made
    first = algorithm.evaluate()
    made_by_first = Lottery.made - made
    assert first == algorithm.evaluate()
    assert Lottery.made - made == made_by_first  # made once, and kept
    assert_equal(before["train_state"], algorithm.get_state()["train_state"])
    stats = first["env_runners"]
    assert (stats["num_episodes"], stats["num_env_steps_sampled"]) == (6, 24)
    assert stats["episode_return_std"] > 0.1
    assert stats["episode_len_mean"] == 4
    assert stats["length"] == 40  # what callbacks log is apart from what they log of training
    assert first["fault_tolerance"] == {"num_env_runners_late": 0, "num_sub_env_restarts": 0}
    result = algorithm.train()
    assert result["env_runners"]["length"] == 4
    # Of another iteration: other seeds.
    assert result["evaluation"]["env_runners"]["num_episodes"] == 6
    assert result["evaluation"]["env_runners"] != stats
    assert "evaluation_s" in result["timers"]


@pytest.mark.parametrize("mode", ["sync", "vector_entry_point"])
def test_hooks_see_the_evaluated_episodes_alone_and_whole(mode: str) -> None:
    ends: list[tuple[int, float]] = []
    sampled: list[list[int]] = []

    class Watch(Callbacks):
        def on_episode_end(
            self, *, env_runner: Any, metrics_logger: Any, episode: Any, prev_episode_chunks: Any
        ) -> None:
            assert not prev_episode_chunks
            ends.append((len(episode), episode.get_return()))
            metrics_logger.log_value("own", episode.get_return())

        def on_sample_end(self, *, samples: Any) -> None:
            sampled.append([len(episode) for episode in samples])

    config = small(env="gymnasium:CartPole-v1").callbacks(Watch)
    config.env_runners(gym_env_vectorize_mode=mode)
    config.evaluation(evaluation_duration=12, evaluation_num_envs=6)
    with config.build() as algorithm:
        stats = algorithm.evaluate()["env_runners"]
    assert len(ends) == stats["num_episodes"] == 12
    assert stats["own"] == pytest.approx(stats["episode_return_mean"])
    assert stats["episode_len_max"] == max(length for length, _ in ends) > CHUNK_STEPS
    assert sampled == [[length for length, _ in ends]]


def test_another_number_of_episodes_is_played_in_the_same_environments(
    algorithm: Algorithm,
) -> None:
    made = Lottery.made
    algorithm.evaluate()
    for number in (1, 3, 17):
        stats = algorithm.evaluate(num_episodes=number)["env_runners"]
        assert (stats["num_episodes"], stats["num_env_steps_sampled"]) == (number, 4 * number)
    assert Lottery.made - made <= 6


def test_a_custom_function_gets_the_runner_with_the_weights_of_now() -> None:
    def evaluate(algorithm: Algorithm, eval_workers: Any) -> dict[str, Any]:
        assert eval_workers.num_healthy_env_runners == 1
        (played,) = eval_workers.foreach_env_runner(
            lambda runner: runner.run_episodes(
                share(first_index=0, episodes=(1,) * runner.num_envs, steps=(9,) * runner.num_envs)
            )
        )
        return {"custom": {"lengths": list(played.episode_length)}}

    config = small(env=Lottery).environment(max_episode_steps=50)
    config.evaluation(evaluation_duration=6, custom_evaluation_function=evaluate)
    with config.build() as algorithm:
        assert algorithm.evaluate() == {"custom": {"lengths": [4] * 6}}
        runners = algorithm.eval_env_runner_group
        assert runners is not None
        (runner,) = runners.foreach_env_runner(lambda runner: runner)
        before = runner.weights_version
        assert algorithm.eval_env_runner_group is runners
        assert runner.weights_version > before


def test_an_evaluation_that_takes_too_long_says_what_it_has(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = small(env=Lottery).environment(max_episode_steps=50)
    config.evaluation(
        evaluation_duration=40,
        evaluation_config={"env_config": {"seconds": 0.005}},
        evaluation_sample_timeout_s=0.2,
    )
    with config.build() as algorithm, caplog.at_level(logging.WARNING, "jaxrl"):
        result = algorithm.evaluate()
    stats = result["env_runners"]
    assert 0 < stats["num_episodes"] < 40
    assert stats["num_episodes"] + stats["num_episodes_cut"] == 40
    assert result["fault_tolerance"]["num_env_runners_late"] == 1
    (record,) = (r for r in caplog.records if "evaluation_sample_timeout_s" in r.getMessage())
    for word in ("timeout_s=0.2", "of 40 episodes", "evaluation_num_env_runners=2", "shorter"):
        assert word in record.getMessage()


class Broken(Lottery):
    """Its step is changed."""

    def step(self, action: Any) -> Any:
        return super().step(action)


@pytest.mark.slow
def test_an_environment_that_raises_ends_the_evaluation_and_the_next_is_made_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = small().evaluation(evaluation_duration=2, evaluation_config={"env": Broken})
    with pytest.raises(ConfigError, match="observation space"):
        Evaluation(config, assemble(config))
    config = small(env=Lottery).environment(max_episode_steps=50)
    config.evaluation(evaluation_duration=2, evaluation_config={"env": Broken})
    with config.build() as algorithm:
        fine = algorithm.evaluate()
        monkeypatch.setattr(Broken, "step", lambda self, action: 1 / 0)
        with pytest.raises(EnvError, match="step raised ZeroDivisionError"):
            algorithm.evaluate()
        monkeypatch.undo()
        assert algorithm.evaluate() == fine


# --- one environment trained in, another evaluated in ---


@pytest.mark.slow
def test_a_jax_environment_can_be_evaluated_in_gymnasiums() -> None:
    other = {"env": "gymnasium:CartPole-v1", "max_episode_steps": 30}
    config = small().evaluation(evaluation_duration=4, evaluation_config=other)
    with config.build() as algorithm:
        assert algorithm.env_runner_group.is_compiled
        assert algorithm.eval_env_runner_group is not None
        stats = algorithm.evaluate()["env_runners"]
        assert stats["num_episodes"] == 4
        assert stats["episode_len_max"] <= 30


@pytest.mark.slow
def test_training_on_the_host_evaluates_jax_environments_in_the_compiled_program() -> None:
    figures = []
    for placement in ("host", "in_graph"):
        config = small().env_runners(placement=placement).evaluation(evaluation_duration=4)
        with config.build() as algorithm:
            assert algorithm.eval_env_runner_group is None
            figures.append(algorithm.evaluate())
    assert figures[0] == figures[1]
    assert set(figures[0]) == {"env_runners"}
