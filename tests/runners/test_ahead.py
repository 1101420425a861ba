"""Iterations that are computed ahead: how many, and that nobody can tell."""

import threading
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl import DQNConfig, PPOConfig
from jaxrl.loggers.sinks import read_results
from jaxrl.runners.in_graph_group import Pace
from jaxrl.runs.checkpoint import fetch_leaves
from tests.helpers import assert_equal, small, without_times


class TestPace:
    def taking(self, pace: Pace, rows: int, seconds: float = 0.001) -> None:
        pace.record_duration(seconds)
        for row in range(rows):
            pace.record_taken(is_last=row == rows - 1)

    def test_the_first_dispatch_is_one_row_and_the_next_ones_are_doubled(self) -> None:
        pace, lengths = Pace(64), []
        for _ in range(8):
            lengths.append(pace.choose_num_rows(1000))
            self.taking(pace, lengths[-1])
        assert lengths == [1, 2, 4, 8, 16, 32, 64, 64]

    def test_a_dispatch_is_bounded_in_time(self) -> None:
        pace = Pace(64, seconds=0.5)
        for _ in range(8):
            self.taking(pace, pace.choose_num_rows(1000), seconds=0.1)
        assert pace.choose_num_rows(1000) == 5
        pace.record_duration(2.0)
        assert pace.choose_num_rows(1000) == 1

    def test_the_time_of_a_short_dispatch_is_that_of_its_batches(self) -> None:
        pace = Pace(64, seconds=0.5)
        for _ in range(8):
            self.taking(pace, pace.choose_num_rows(1000, num_batches=1), seconds=0.2)
        assert pace.choose_num_rows(1000, num_batches=1) == 2
        assert pace.choose_num_rows(1000, num_batches=4) == 1
        assert pace.choose_num_rows_ahead(0, 1000, num_batches=4) == 0
        pace.record_duration(0.4, num_batches=4)
        assert pace.choose_num_rows(1000, num_batches=1) == 5

    def test_no_more_than_is_wanted(self) -> None:
        pace = Pace(64)
        for _ in range(8):
            self.taking(pace, pace.choose_num_rows(1000))
        assert pace.choose_num_rows(3) == 3

    def test_it_ends_where_the_state_was_looked_at_before(self) -> None:
        pace = Pace(64)
        for _ in range(5):
            self.taking(pace, pace.choose_num_rows(1000))
        pace.record_state_read(has_wasted_rows=False)  # after 31 rows
        taken = 0
        while taken < 31:
            rows = pace.choose_num_rows(1000)
            assert taken + rows <= 31
            self.taking(pace, rows)
            taken += rows
        pace.record_state_read(has_wasted_rows=False)

    def test_who_looks_every_time_has_nothing_computed_in_vain(self) -> None:
        pace = Pace(64)
        self.taking(pace, pace.choose_num_rows(1000))
        for _ in range(20):
            pace.record_state_read(has_wasted_rows=False)
            assert pace.choose_num_rows(1000) == 1
            self.taking(pace, 1)

    def test_it_goes_further_again_when_looks_stop(self) -> None:
        pace = Pace(64)
        self.taking(pace, 1)
        pace.record_state_read(has_wasted_rows=True)
        for _ in range(12):
            self.taking(pace, pace.choose_num_rows(1000))
        assert pace.choose_num_rows(1000) == 64


def test_a_group_counts_the_train_batches_of_its_dispatches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with config_of("PPO", tmp_path).build() as algorithm:
        group: Any = algorithm.learner_group
        monkeypatch.setattr(group, "_pace", Pace(64, seconds=1e9))
        group.run_batches(3, lambda phase: None)
        alone = group._window.seconds / 3
        assert group._pace._seconds_per_batch == pytest.approx(alone)
        group._pace._seconds = 3.5 * alone
        group.run_batches(2, lambda phase: None, max_iterations=8)
        assert group._window.num_rows == 1


def config_of(kind: str, folder: Path) -> Any:
    if kind == "PPO":
        config: Any = small()
    else:
        config = DQNConfig().environment("CartPole-v1")
        config.env_runners(num_envs_per_env_runner=2)
        config.training(
            train_batch_size=16,
            num_steps_sampled_before_learning_starts=64,
            replay_buffer_config={"capacity": 512},
        )
        config.reporting(min_sample_timesteps_per_iteration=32)
        config.rl_module(model_config={"fcnet_hiddens": [8]})
    return config.debugging(results_dir=str(folder), log_sys_usage=False)


def one_by_one(algorithm: Any) -> Any:
    algorithm.learner_group._pace = Pace(1)
    return algorithm


def leaves(algorithm: Any) -> dict[str, np.ndarray]:
    return fetch_leaves(algorithm.state)


@pytest.mark.representatives("PPO")
@pytest.mark.parametrize("kind", ["PPO", "DQN"])
def test_nobody_can_tell(kind: str, tmp_path: Path) -> None:
    """Rows, states in between, evaluations and checkpoints are those of single dispatches."""
    looks = {2, 9, 10, 17}

    def play(algorithm: Any) -> tuple[list[Any], list[Any]]:
        rows, states = [], []
        with algorithm:
            for i in range(20):
                rows.append(without_times(algorithm.train()))
                if i in looks:
                    states.append(leaves(algorithm))
            rows.append(algorithm.evaluate(num_episodes=2)["env_runners"])
            states.append(leaves(algorithm))
            written = [without_times(row) for row in read_results(algorithm.run_folder.result_file)]
        assert len(written) == 20
        return rows + written, states

    ahead = config_of(kind, tmp_path / "a").build()
    pace = ahead.learner_group._pace
    lengths: list[int] = []
    ran = pace.choose_num_rows
    ran_after = pace.choose_num_rows_ahead
    pace.choose_num_rows = lambda *given: lengths.append(ran(*given)) or lengths[-1]
    pace.choose_num_rows_ahead = lambda *given: lengths.append(ran_after(*given)) or lengths[-1]
    pace._seconds = 1e9  # a busy machine changes nothing
    rows, states = play(ahead)
    wanted, wanted_states = play(one_by_one(config_of(kind, tmp_path / "b").build()))
    assert max(lengths) > 1, "nothing was computed ahead"
    assert sum(lengths) > 20, "nothing was computed in vain, so nothing was computed again"
    assert rows == wanted
    for state, other in zip(states, wanted_states, strict=True):
        assert_equal(state, other)


@pytest.mark.slow
def test_fit_ends_where_it_should(tmp_path: Path) -> None:
    """At a return in the middle of a dispatch, with evaluations where they are due."""

    def play(algorithm: Any, stop: dict[str, float]) -> tuple[Any, ...]:
        seen: list[Any] = []
        with algorithm:
            last = algorithm.fit(stop, on_iteration=seen.append)
            return (
                algorithm.iteration,
                without_times(last),
                [without_times(row) for row in seen],
                leaves(algorithm),
            )

    def config(name: str) -> PPOConfig:
        made = config_of("PPO", tmp_path / name)
        made.evaluation(evaluation_interval=7, evaluation_duration=1)
        return made.checkpointing(checkpoint_frequency=5)

    with one_by_one(config("probe").build()) as probe:
        values = [probe.train()["env_runners"].get("num_episodes_lifetime", 0) for _ in range(12)]
    stop = {"env_runners/num_episodes_lifetime": float(values[10])}
    ahead = config("a").build()
    ahead.learner_group._pace._seconds = 1e9
    found = play(ahead, stop)
    wanted = play(one_by_one(config("b").build()), stop)
    assert found[:3] == wanted[:3]
    assert found[0] < 20
    assert_equal(found[3], wanted[3])
    saved = [sorted(p.name for p in (tmp_path / n).glob("*/checkpoints/*")) for n in "ab"]
    assert saved[0] == saved[1] != []


def test_a_state_that_is_set_is_gone_on_from(tmp_path: Path) -> None:
    algorithm = config_of("PPO", tmp_path).build()
    algorithm.learner_group._pace._seconds = 1e9
    with algorithm:
        for _ in range(4):
            algorithm.train()
        saved = algorithm.get_state()
        first = [without_times(algorithm.train()) for _ in range(6)]
        algorithm.set_state(saved)
        again = [without_times(algorithm.train()) for _ in range(6)]
    assert first == again


def test_a_state_too_large_to_be_copied_is_not_gone_ahead_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jaxrl.runners.in_graph_group.MAX_COPY_BYTES", 1)
    algorithm = config_of("PPO", tmp_path).build()
    with algorithm:
        for _ in range(5):
            algorithm.train()
        assert algorithm.learner_group._window.num_rows == 1


def test_what_is_interrupted_before_it_is_given_out_did_not_happen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = config_of("PPO", tmp_path).build()
    algorithm.learner_group._pace._seconds = 1e9
    with algorithm:
        for _ in range(3):
            algorithm.train()
        before = leaves(algorithm)

        def interrupted(tree: Any) -> Any:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr("jaxrl.runners.in_graph_group.jax.device_get", interrupted)
            with pytest.raises(KeyboardInterrupt):
                algorithm.train()
        assert_equal(leaves(algorithm), before)


def train_for_long(algorithm: Any) -> None:
    for _ in range(10):
        algorithm.train()


@pytest.mark.parametrize("fails_in", ["the program", "the copy to the host"])
def test_what_fails_beside_training_is_raised_and_did_not_happen(
    fails_in: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with one_by_one(config_of("PPO", tmp_path / "a").build()) as wanted:
        states = [leaves(wanted)]
        for _ in range(12):
            wanted.train()
            states.append(leaves(wanted))

    def in_thread(real: Any) -> Any:
        def call(*args: Any) -> Any:
            if threading.current_thread().name.startswith("jaxrl-ahead"):
                raise RuntimeError("no memory")
            return real(*args)

        return call

    with config_of("PPO", tmp_path / "b").build() as algorithm:
        group = algorithm.learner_group
        group._pace._seconds = 1e9
        for _ in range(2):
            algorithm.train()
        _ = algorithm.state
        with monkeypatch.context() as patched:
            if fails_in == "the program":
                for signature, compiled in group._main._compiled.items():
                    patched.setitem(group._main._compiled, signature, in_thread(compiled))
            else:
                name = "jaxrl.runners.in_graph_group.jax.device_get"
                patched.setattr(name, in_thread(jax.device_get))
            with pytest.raises(RuntimeError, match="no memory"):
                train_for_long(algorithm)
        assert algorithm.iteration < 12
        assert_equal(leaves(algorithm), states[algorithm.iteration])
        algorithm.train()
        assert_equal(leaves(algorithm), states[algorithm.iteration])


def test_what_is_computed_beside_is_not_counted_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with config_of("PPO", tmp_path).build() as algorithm:
        group, dispatch = algorithm.learner_group, algorithm._loop.run_batches
        found: list[Any] = []

        def noted(*args: Any) -> Any:
            found.append(dispatch(*args))
            return found[-1]

        def until_all_are_given_out(least: int) -> int:
            followed = number = 0
            while number < least or group._window.num_taken < group._window.num_rows:
                algorithm.train()
                followed += group._following is not None
                number += 1
            return followed

        until_all_are_given_out(4)
        monkeypatch.setattr(algorithm._loop, "run_batches", noted)
        assert until_all_are_given_out(100) > 0
    assert any(dispatched.ahead_seconds > 0 for dispatched in found)
    assert sum(dispatched.ahead_seconds for dispatched in found) <= 0.0


def test_dispatches_of_an_iteration_by_the_clock_take_no_less_than_the_clock_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with small().reporting(min_time_s_per_iteration=0.1).build() as algo:
        found: list[Any] = []
        dispatch = algo._loop.run_batches

        def noted(*args: Any) -> Any:
            found.append(dispatch(*args))
            return found[-1]

        monkeypatch.setattr(algo._loop, "run_batches", noted)
        algo.train()
        result = algo.train()
    assert len(found) > 2
    assert [dispatched.ahead_seconds for dispatched in found] == [0.0] * len(found)
    assert result["time_this_iter_s"] >= 0.1


@pytest.mark.slow
def test_nothing_is_computed_ahead_of_the_first_updates(tmp_path: Path) -> None:
    config = config_of("DQN", tmp_path)
    config.training(num_steps_sampled_before_learning_starts=320)
    algo = config.build()
    lengths = []
    for _ in range(14):
        algo.train()
        lengths.append(algo.learner_group._window.num_rows)
    assert lengths[:10] == [1] * 10, "iterations without updates are faster than those that follow"
    assert max(lengths) > 1, "those with updates are computed ahead"
    algo.stop()
