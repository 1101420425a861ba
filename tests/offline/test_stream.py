"""Recorded rows that Ray Data streams: every row once in an epoch, whatever happens to a task."""

import dataclasses
import logging
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import ray.data

from jaxrl import Algorithm, DQNConfig, MARWILConfig
from jaxrl.assembly.assemble import assemble
from jaxrl.assembly.offline import load_dataset, open_sources
from jaxrl.buffers.dataset import DrawnRows, PickedRows, compute_returns_to_go
from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import ConfigError, DataError
from jaxrl.runners.ray.offline import READER_THREAD
from tests.recorded_data import ACTION_SPACE, OBS_SPACE, make_part, write_data

pytestmark = pytest.mark.ray

NUM_ROWS = 20_000
MEMORY = {"fcnet_hiddens": [8], "use_lstm": True, "max_seq_len": 4, "lstm_cell_size": 4}


@pytest.fixture(name="data", scope="module")
def make_data(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two files of 10,000 rows: 100 episodes of 100 steps that end in every way."""
    folder = tmp_path_factory.mktemp("stream")
    for file in range(2):
        ends = [("terminated", "truncated", "is_cut")[i % 3] for i in range(100)]
        parts = [
            make_part(1000 * file + i, 100, **({} if end == "is_cut" else {end: True}))
            for i, end in enumerate(ends)
        ]
        write_data(folder / f"{file}", parts)
    return [str(folder / "0"), str(folder / "1")]


def make_config(data: list[str], algorithm: type = DQNConfig, **settings: Any) -> Any:
    config = algorithm().offline_data(input_=data, dataset_storage="stream")
    config.offline_data(num_updates_per_iteration=20).training(train_batch_size=100)
    config.rl_module(model_config={"fcnet_hiddens": [8]}).debugging(seed=3, loggers=[])
    return config.update_from_dict(settings)


def as_table(rows: list[PickedRows]) -> np.ndarray:
    """Return rows as numbers, sorted: equal tables have the same rows equally often."""
    leaves = [[np.asarray(x) for x in jax.tree.leaves(each)] for each in rows]
    columns = [np.concatenate(each) for each in zip(*leaves, strict=True)]
    table = np.concatenate([x.reshape(len(x), -1).astype(np.float64) for x in columns], axis=1)
    return table[np.lexsort(table.T)]


def pick_all(config: Any) -> np.ndarray:
    """Return the table of the rows that a dataset on the device has."""
    assembly = assemble(config)
    runner = assembly.offline_step
    data = open_sources(config.offline_data_settings, config.environment_settings)
    dataset = load_dataset(
        config,
        data,
        runner.policy_step,
        runner.learner_pipeline,
        runner.experience,
        assembly.episode_split,
    )
    first = np.arange(dataset.num_rows, dtype=np.int32)
    drawn = DrawnRows(rows=first, learns=np.ones(len(first), np.bool_))
    limits = np.full(len(first), runner.experience.n_step[1], np.int32)
    returns = None
    if runner.experience.needs_returns:
        gamma = np.float32(config.training_settings.gamma)
        returns = np.asarray(compute_returns_to_go(dataset, gamma))
    return as_table([runner.experience.pick(dataset, drawn, limits, returns)])


def take_epoch(algorithm: Algorithm, num_rows: int = NUM_ROWS) -> list[PickedRows]:
    """Take the rows of the first epoch, and check that the next one begins there."""
    source = algorithm.learner_group.source
    source.seek(algorithm.state)
    taken = [source.take(algorithm.state) for _ in range(num_rows // 2000)]
    assert int(taken[-1].position.offset) + num_rows * int(taken[-1].position.epoch) == num_rows
    return [jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), each.picked) for each in taken]


def get_thread_names() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def test_an_epoch_has_every_row_of_the_device_once_and_a_run_resumes(
    data: list[str], tmp_path: Path
) -> None:
    config = make_config(data, n_step=3, shuffle_buffer_size=3000)
    algorithm = config.build()
    try:
        rows = take_epoch(algorithm)
        np.testing.assert_array_equal(as_table(rows), pick_all(config))
        in_order = rows[0].obs[:-1] == pick_all(config)[: len(rows[0].obs) - 1, :2]
        assert not in_order.all()
        algorithm.state = algorithm.state  # the stream begins anew
        for _ in range(11):  # 22,000 rows
            result = algorithm.train()
        assert result["dataset"]["epoch"] == 1
        assert result["dataset"]["num_rows_of_epoch"] == 2000
        assert result["timers"]["rows_wait_s"] > 0.0
        path = algorithm.save(tmp_path / "checkpoint")
    finally:
        algorithm.stop()
    restored = Algorithm.from_checkpoint(path)
    try:
        result = restored.train()
        assert result["dataset"]["epoch"] == 1
        assert result["dataset"]["num_rows_of_epoch"] == 4000
        assert READER_THREAD in get_thread_names()
    finally:
        restored.stop()
    assert READER_THREAD not in get_thread_names()  # or else Ray's end is that of the process


@pytest.mark.slow
@pytest.mark.parametrize("name", ["returns", "clipped", "transformed"])
def test_targets_are_those_of_the_device(data: list[str], name: str) -> None:
    settings: dict[str, Any] = {
        "returns": {"gamma": 0.9},
        "clipped": {"clip_rewards": 0.5},
        "transformed": {"input_transform": double, "ignore_final_observation": True},
    }[name]
    algorithm = MARWILConfig if name == "returns" else DQNConfig
    config = make_config(data, algorithm, **settings)
    expected = pick_all(config)
    built = config.build()
    try:
        stream = built.learner_group.source._stream
        stream._batch_size = len(expected)
        table = as_table([stream.take()])
        np.testing.assert_allclose(table, expected, rtol=1e-6, atol=2e-6)
        assert int(stream.position.offset) == len(expected)
    finally:
        built.stop()


def double(part: EpisodePart) -> EpisodePart:
    return dataclasses.replace(part, reward=2.0 * part.reward)


@pytest.mark.slow
def test_a_killed_reader_changes_no_rows(
    data: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = str(tmp_path / "killed")

    def kill_once(part: EpisodePart) -> EpisodePart:
        if part.episode_id == "1050" and not os.path.exists(marker):
            Path(marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return part

    monkeypatch.setattr("jaxrl.runners.ray.offline.CHUNK_BYTES", 20_000)  # about 8 episodes
    monkeypatch.setattr(ray.data.DataContext.get_current(), "target_max_block_size", 20_000)
    config = make_config(data, n_step=3)
    expected = pick_all(config)
    algorithm = config.offline_data(input_transform=kill_once).build()
    try:
        rows = take_epoch(algorithm)
        assert os.path.exists(marker)
        np.testing.assert_array_equal(as_table(rows), expected)
        algorithm.state = algorithm.state
        assert np.isfinite(algorithm.train()["learners"]["default_policy"]["total_loss"])
    finally:
        algorithm.stop()


@pytest.mark.slow
def test_two_learners_share_an_epoch_and_have_equal_weights(data: list[str]) -> None:
    config = make_config(data, num_learners=2, observation_filter="MeanStdFilter")
    algorithm = config.build()
    try:
        halves = algorithm.learner_group.foreach_learner(
            lambda learner: [learner._stream.take() for _ in range(NUM_ROWS // 2000)]
        )
        assert all(sum(len(x.learns) for x in half) == NUM_ROWS // 2 for half in halves)
        rows = [each for half in halves for each in half]
        np.testing.assert_array_equal(as_table(rows), pick_all(config))
        seen = np.concatenate([each.obs for each in rows])
        found = jax.tree.leaves(jax.tree.map(np.asarray, algorithm.state.connectors.obs))
        means = [leaf for leaf in found if leaf.shape == (2,)]
        assert any(np.allclose(leaf, seen.mean(axis=0), atol=1e-4) for leaf in means)
        for _ in range(2):
            result = algorithm.train()
        assert result["num_env_steps_trained_lifetime"] == 4000
        weights = algorithm.learner_group.foreach_learner(
            lambda learner: jax.tree.map(
                lambda x: np.asarray(x.addressable_data(0)), learner._state.learner.sgd.params
            )
        )
        jax.tree.map(np.testing.assert_array_equal, *weights)
    finally:
        algorithm.stop()


@pytest.mark.slow
def test_two_learners_resume_where_they_were(data: list[str], tmp_path: Path) -> None:
    with make_config(data, num_learners=2).build() as algorithm:
        algorithm.train()
        path = algorithm.save(tmp_path / "checkpoint")
        algorithm.train()
        algorithm.restore(path)
        assert algorithm.train()["dataset"]["num_rows_of_epoch"] == 4000
    with Algorithm.from_checkpoint(path) as restored:
        assert restored.train()["dataset"]["num_rows_of_epoch"] == 4000


@pytest.mark.slow
def test_learners_without_their_data_are_restored_to_act(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = Path(write_data(tmp_path / "data", [make_part(0, 400, terminated=True)]))
    config = make_config([str(folder)], num_learners=2)
    config.environment(observation_space=OBS_SPACE, action_space=ACTION_SPACE)
    with config.build() as algorithm:
        algorithm.train()
        path = algorithm.save(tmp_path / "checkpoint")
        weights = algorithm.get_weights()
    folder.rename(tmp_path / "moved")
    with Algorithm.from_checkpoint(path) as restored:
        assert "The policy is restored, but it cannot be trained" in caplog.text
        jax.tree.map(np.testing.assert_array_equal, restored.get_weights(), weights)
        with pytest.raises(DataError, match="No file matches"):
            restored.train()


@pytest.mark.slow
def test_sequences_begin_with_their_file_and_are_learned_from(data: list[str]) -> None:
    config = make_config(data, model_config=MEMORY, burn_in_len=2)
    algorithm = config.build()
    try:
        source = algorithm.learner_group.source
        sequences = [source.take(algorithm.state).picked for _ in range(NUM_ROWS // 2000)]
        rewards = np.concatenate([each.rewards.reshape(-1) for each in sequences])
        table = pick_rewards(config)
        np.testing.assert_array_equal(np.sort(rewards), np.sort(table))
        algorithm.state = algorithm.state
        assert np.isfinite(algorithm.train()["learners"]["default_policy"]["total_loss"])
    finally:
        algorithm.stop()


def pick_rewards(config: Any) -> np.ndarray:
    return np.concatenate(
        [
            part.reward
            for source in open_sources(config.offline_data_settings, config.environment_settings)
            for part in source.iter_parts()
        ]
    )


@pytest.mark.slow
def test_learners_that_leave_no_cpu_for_reading_are_refused(data: list[str]) -> None:
    config = make_config(data, num_learners=2, num_cpus_per_learner=1000)
    with pytest.raises(ConfigError, match=r"num_learners=2 leave -\d+ of Ray's \d+ CPUs"):
        config.build()


@pytest.mark.slow
def test_a_damaged_file_is_named(data: list[str], tmp_path: Path) -> None:
    parts = [make_part(i, 100, terminated=True) for i in range(20)]
    parts[7].obs[3, 1] = np.nan
    folder = write_damaged(tmp_path / "bad", parts)
    algorithm = make_config([folder]).build()
    try:
        with pytest.raises(DataError, match=r"episode '7': obs is nan at t=3"):
            algorithm.train()
    finally:
        algorithm.stop()


def write_damaged(folder: Path, parts: list[EpisodePart]) -> str:
    """Write parts that the writer would refuse."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jaxrl.offline.checks.PartChecker.check", lambda *_: None)
        return write_data(folder, parts)


@pytest.mark.slow
def test_a_stall_says_how_many_rows_came_and_what_it_waits_for(
    data: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    algorithm = make_config(data, input_transform=wait).build()
    try:
        algorithm.learner_group.source._stream._watch._limit_s = 0.5
        with caplog.at_level(logging.WARNING, "jaxrl"):
            algorithm.train()
    finally:
        algorithm.stop()
    assert "0 rows/s for 0.5 seconds, after 0 rows of epoch 0" in caplog.text
    assert "waits for reading files, by tasks of one CPU each" in caplog.text


def wait(part: EpisodePart) -> EpisodePart:
    time.sleep(0.1)
    return part
