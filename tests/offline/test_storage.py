"""Recorded rows in host memory: the same as on the device, to the bit."""

import functools
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import Algorithm, DQNConfig, MARWILConfig
from jaxrl.assembly.offline import choose_storage, open_sources
from jaxrl.buffers.dataset import DatasetPosition
from jaxrl.connectors import FrameStacking, MeanStdFilter
from jaxrl.errors import ConfigError, DataError, UnknownNameError
from jaxrl.training.replay_updates import split_step_key
from tests.helpers import slow_but
from tests.recorded_data import ACTION_SPACE, OBS_SPACE, write_data

SMALL = {"fcnet_hiddens": [8]}
MEMORY = {**SMALL, "use_lstm": True, "max_seq_len": 4, "lstm_cell_size": 4}


def two_filters(*_: Any) -> list[MeanStdFilter]:
    return [MeanStdFilter(), MeanStdFilter()]


def stack_two(*_: Any) -> FrameStacking:
    return FrameStacking(num_frames=2)


def make_config(data: str, storage: str, algorithm: type = DQNConfig, **settings: Any) -> Any:
    config = algorithm().offline_data(input_=data, num_updates_per_iteration=7)
    config.offline_data(dataset_storage=storage)
    config.training(train_batch_size=16).rl_module(model_config=SMALL).debugging(seed=3)
    return config.update_from_dict(settings)


@pytest.fixture(name="data")
def make_data(tmp_path: Path) -> str:
    return write_data(tmp_path / "data")


def get_spaces(config: Any) -> Any:
    data = open_sources(config.offline_data_settings, config.environment_settings)[0]
    return data.observation_space, data.action_space


def get_state(algorithm: Algorithm) -> Any:
    state = algorithm.state
    parts = state.learner, state.progress, state.connectors, state.guard, state.buffer
    return jax.tree.map(np.asarray, parts)


def check_equal(one: Algorithm, other: Algorithm) -> None:
    jax.tree.map(np.testing.assert_array_equal, get_state(one), get_state(other))


EXACT: dict[str, tuple[type, dict[str, Any]]] = {
    "uniform": (DQNConfig, {"dataset_sampling": "uniform"}),
    "epochs": (DQNConfig, {"dataset_sampling": "epochs", "num_updates_per_iteration": 20}),
    "n_step": (DQNConfig, {"n_step": (2, 4), "gamma": 0.9}),
    "filter": (DQNConfig, {"observation_filter": "MeanStdFilter"}),
    "devices": (DQNConfig, {"num_devices": 4, "num_shards": 8, "n_step": 3}),
}
CLOSE: dict[str, tuple[type, dict[str, Any]]] = {
    "sequences": (DQNConfig, {"model_config": MEMORY, "burn_in_len": 2, "n_step": 3}),
    "sequences_in_epochs": (DQNConfig, {"model_config": MEMORY, "dataset_sampling": "epochs"}),
    "returns": (MARWILConfig, {"beta": 1.0, "gamma": 0.9}),
    "windows": (MARWILConfig, {"lambda_": 0.8, "window_length": 4}),
    "windows_with_memory": (MARWILConfig, {"lambda_": 0.8, "model_config": MEMORY}),
    "returns_with_memory": (MARWILConfig, {"model_config": MEMORY, "burn_in_len": 2}),
    "frame_stacks": (DQNConfig, {"env_to_module_connector": stack_two, "clip_rewards": 0.5}),
}
"""Runs of which the compiler may arrange the arithmetic otherwise; their rows are the same."""


def train_both(data: str, name: str) -> tuple[Algorithm, Algorithm]:
    algorithm, settings = (EXACT | CLOSE)[name]
    device, host = (
        make_config(data, storage, algorithm, **settings).build() for storage in ("device", "host")
    )
    for _ in range(2):
        device.train()
        host.train()
    return device, host


@pytest.mark.representatives("epochs")
@pytest.mark.parametrize("name", slow_but("epochs", "n_step", of=EXACT))
def test_host_memory_gives_the_same_learner_to_the_bit(data: str, name: str) -> None:
    check_equal(*train_both(data, name))


@pytest.mark.slow
@pytest.mark.parametrize("name", CLOSE)
def test_host_memory_gives_the_same_learner(data: str, name: str) -> None:
    states = map(get_state, train_both(data, name))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6), *states)


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but("sequences_in_epochs", of=EXACT | CLOSE))
def test_the_rows_of_host_memory_are_those_that_the_program_draws(data: str, name: str) -> None:
    algorithm, settings = (EXACT | CLOSE)[name]
    device, host = (
        make_config(data, storage, algorithm, **settings).build() for storage in ("device", "host")
    )
    runner, state = device._assembly.offline_step, device.state
    sampler, dataset = runner.experience, device.learner_group.dataset
    dataset = jax.tree.map(jnp.asarray, jax.device_get(dataset))
    host.learner_group.source.seek(host.state)
    position = state.buffer if isinstance(state.buffer, DatasetPosition) else None
    returns = runner.bind(state, dataset).returns
    error = 2e-6 if "returns" in name else 0.0
    compare = functools.partial(np.testing.assert_allclose, rtol=error, atol=error)
    for batch in range(3):
        batch = host.learner_group.source.take(host.state)
        key = jax.random.fold_in(state.key, jnp.uint32(batch))
        for step in range(sampler.num_updates):
            row_key, _ = split_step_key(key, jnp.int32(step))
            draw_key, fold_key = jax.random.split(row_key)
            drawn = sampler.draw(dataset, position, draw_key, state.key)
            limits = sampler.draw_max_steps(fold_key)
            picked = sampler.pick(dataset, drawn, limits, returns)
            mine = jax.tree.map(lambda x, i=step: x[i], batch.picked)
            jax.tree.map(compare, picked, mine)
            position = sampler.advance(dataset, position)
    jax.tree.map(np.testing.assert_array_equal, position, batch.position)


@pytest.mark.representatives("uniform")
@pytest.mark.parametrize("sampling", ["uniform", "epochs"])
def test_a_run_goes_on_to_the_bit_in_either_memory(
    data: str, tmp_path: Path, sampling: str
) -> None:
    algorithm = make_config(data, "host", dataset_sampling=sampling).build()
    algorithm.train()
    path = algorithm.save(tmp_path / "checkpoint")
    algorithm.train()
    restored = Algorithm.from_checkpoint(path)
    assert restored.config.dataset_storage == "host"
    restored.train()
    check_equal(algorithm, restored)
    device = make_config(data, "device", dataset_sampling=sampling).build()
    device.restore(path)
    device.train()
    check_equal(algorithm, device)


def test_a_run_without_its_data_is_restored_to_act(
    data: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = make_config(data, "host", observation_filter="MeanStdFilter")
    config.environment(observation_space=OBS_SPACE, action_space=ACTION_SPACE)
    algorithm = config.build()
    path = algorithm.save(tmp_path / "checkpoint")
    Path(data).rename(tmp_path / "moved")
    restored = Algorithm.from_checkpoint(path)
    assert "The policy is restored, but it cannot be trained" in caplog.text
    check_equal(algorithm, restored)
    with pytest.raises(DataError, match="No file matches"):
        restored.train()


def test_the_first_place_that_data_fit_into_is_chosen(
    data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(data, "auto")
    assert "on the devices" in config.build().explain()
    small = config.copy().offline_data(max_dataset_bytes=1000)
    algorithm = small.build()
    assert "dataset_storage='host': 135 steps of" in algorithm.explain()
    assert "max_dataset_bytes allows 0.00 MiB" in algorithm.explain()
    assert algorithm.train()["timers"]["rows_wait_s"] > 0.0
    monkeypatch.setattr("jaxrl.assembly.offline.get_host_limit", lambda: 2000)
    chosen = choose_storage(small, get_spaces(small))
    assert chosen.name == "stream"
    assert "half of the host's memory is 0.00 MiB" in chosen.reason
    monkeypatch.setattr("jaxrl.assembly.offline.find_missing_package", lambda: "pandas")
    with pytest.raises(ConfigError, match=r"is too large: .* pip install 'jaxrl\[offline\]'"):
        small.build()


def test_a_stream_without_its_packages_names_the_extra(
    data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jaxrl.assembly.offline.find_missing_package", lambda: "pandas")
    with pytest.raises(ConfigError, match=r"needs pandas: pip install 'jaxrl\[offline\]'"):
        make_config(data, "stream").build()


def test_data_larger_than_the_hosts_memory_are_refused(
    data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jaxrl.assembly.offline.get_host_limit", lambda: 2000)
    with pytest.raises(ConfigError, match=r"half of the host's memory is 0.00 MiB: name fewer"):
        make_config(data, "host").build()


@pytest.mark.parametrize("storage", ["device", "host"])
def test_the_size_of_files_that_do_not_say_it_is_counted_as_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, storage: str
) -> None:
    path, number = tmp_path / "a.npz", 500
    np.savez_compressed(  # smaller on disk than in memory
        path,
        observations=np.zeros((number, 2), np.float32),
        actions=np.zeros(number, np.int64),
        rewards=np.zeros(number),
        terminals=np.arange(number) % 10 == 9,
    )
    config = make_config(str(path), storage)
    config.environment(observation_space=OBS_SPACE, action_space=ACTION_SPACE)
    config.offline_data(ignore_final_observation=True)
    if storage == "host":
        monkeypatch.setattr("jaxrl.assembly.offline.get_host_limit", lambda: 6000)
    else:
        config.offline_data(max_dataset_bytes=6000)
    with pytest.raises(
        ConfigError, match=r"has more than 0.01 MiB of steps, and .* 0.01 MiB: name"
    ):
        config.build()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"dataset_storage": "hosts"}, "Did you mean 'host'"),
        ({"dataset_storage": "host", "num_learners": 2}, "num_learners=2 learn in others: set"),
        (
            {"dataset_storage": "device", "shuffle_buffer_size": 9},
            "shuffle_buffer_size=9 has no effect with dataset_storage='device'",
        ),
        (
            {"dataset_storage": "auto", "shuffle_buffer_size": 9},
            "has no effect with dataset_storage='auto', which is 'device' here",
        ),
        (
            {"dataset_storage": "stream", "dataset_sampling": "uniform"},
            "dataset_sampling='uniform' is not supported with dataset_storage='stream'",
        ),
        (
            {"dataset_storage": "auto", "num_learners": 2, "dataset_sampling": "uniform"},
            "with dataset_storage='auto', which is 'stream' here (num_learners=2)",
        ),
        (
            {"dataset_storage": "stream", "env_to_module_connector": stack_two},
            "looks back in the episode, which dataset_storage='stream' does not support",
        ),
        (
            {"dataset_storage": "stream", "env_to_module_connector": two_filters},
            "has statistics of all rows after those of another filter, which dataset_storage='stream'",
        ),
        (
            {"dataset_storage": "host", "max_dataset_bytes": 10**6},
            "is the limit of a dataset on a device, and has no effect with dataset_storage='host'",
        ),
        (
            {"num_learners": 2, "max_dataset_bytes": 10**6},
            "has no effect with dataset_storage='auto', which is 'stream' here (num_learners=2)",
        ),
        ({"dataset_storage": "stream", "seeds": 2}, "A sweep is not supported"),
        (
            {"dataset_storage": "device", "materialize_mapped_data": False},
            "'dataset_storage' and 'materialize_mapped_data' are the same setting",
        ),
        (
            {"dataset_storage": "host", "input_": {"sampler": 0.5, "data": 0.5}},
            "dataset_storage='host' is not supported with input_=",
        ),
    ],
)
def test_settings_that_contradict_a_storage_are_one_sentence(
    data: str, settings: dict[str, Any], said: str
) -> None:
    config = DQNConfig().offline_data(input_=data).training(train_batch_size=16)
    with pytest.raises((ConfigError, UnknownNameError), match=re.escape(said)):
        config.update_from_dict(settings).build()


def test_shares_are_no_stream(data: str, tmp_path: Path) -> None:
    shares = {data: 0.5, write_data(tmp_path / "other"): 0.5}
    with pytest.raises(ConfigError, match="shares are of rows that are all there"):
        make_config(data, "stream", input_=shares).build()


@pytest.mark.parametrize(
    ("settings", "storage"),
    [
        ({"materialize_data": True}, "host"),
        ({"materialize_mapped_data": False}, "stream"),
        ({"materialize_data": True, "materialize_mapped_data": False}, "host"),
        ({"materialize_data": False, "materialize_mapped_data": False}, "stream"),
        ({"materialize_data": False, "materialize_mapped_data": True}, "auto"),
        ({}, "auto"),
    ],
)
def test_rllibs_settings_say_where_rows_are(settings: dict[str, Any], storage: str) -> None:
    config = DQNConfig().offline_data(**settings)
    assert config.dataset_storage == storage
    names = {"materialize_data", "materialize_mapped_data"} & config.old_names.keys()
    assert all("offline_data(dataset_storage=...)" in config.old_names[name] for name in names)


def test_rllibs_own_defaults_of_marwil_ask_for_nothing() -> None:
    config = MARWILConfig().offline_data(materialize_data=True, materialize_mapped_data=False)
    assert config.dataset_storage == "auto"
    config.offline_data(materialize_data=False, materialize_mapped_data=False)
    assert config.dataset_storage == "stream"
