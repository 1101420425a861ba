"""The word on settings whose updates make a run slow: from counts, once."""

import json
import types
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from jaxrl import APPOConfig
from jaxrl.cli import training
from jaxrl.cli.app import app
from jaxrl.config.base import get_algorithm_config
from jaxrl.config.load import load_experiment
from jaxrl.config.registry import find_shipped_configs, resolve_config_path
from jaxrl.config.sweep import is_sweep
from tests.helpers import need_package

CPU = [types.SimpleNamespace(platform="cpu")]
GPU = [types.SimpleNamespace(platform="gpu")]


def said(algo: str, env: str, devices: Any = CPU, **settings: Any) -> str | None:
    config = get_algorithm_config(algo).environment(env).update_from_dict(settings)
    return training.find_update_hint(config, devices)


def test_defaults_of_ppo_are_told_by_their_counts_and_the_shipped_file_is_named() -> None:
    words = said("PPO", "CartPole-v1")
    assert words is not None
    for part in (
        "960 of 125 rows for every 4,000 environment steps",
        "learned from 30 times",
        "num_epochs, minibatch_size and train_batch_size",
        "16 of 128 rows for every 512 environment steps, so each step is learned from 4 times",
    ):
        assert part in words, words
    name = words.rpartition("jaxrl train file ")[2]
    config = load_experiment(resolve_config_path(name)).config
    assert (config.algo_name, config.environment_settings.env) == ("PPO", "CartPole-v1")


def test_a_file_is_named_only_if_it_learns_less_from_each_step() -> None:
    fewer = said("TQC", "Pendulum-v1")
    assert fewer is not None
    assert "1 of 256 rows for each environment step" in fewer
    assert fewer.endswith("jaxrl train file classic/pendulum-tqc")
    for algo, env in (("SAC", "Pendulum-v1"), ("PPO", "MountainCar-v0x")):
        words = said(algo, env)
        assert words is not None
        assert "train file" not in words


@pytest.mark.parametrize(
    ("algo", "devices", "settings"),
    [
        ("PPO", GPU, {}),
        ("PPO", [], {}),
        ("PPO", CPU, {"num_epochs": 30}),
        ("SAC", CPU, {"training_intensity": 256}),
        ("IMPALA", CPU, {}),
    ],
    ids=["accelerator", "elsewhere", "passes set", "ratio set", "few"],
)
def test_nothing_is_said(algo: str, devices: Any, settings: dict[str, Any]) -> None:
    assert said(algo, "CartPole-v1", devices, **settings) is None


def test_times_learned_is_rows_over_steps() -> None:
    for config, times in (
        (get_algorithm_config("PPO").training(num_epochs=7), 7),
        (get_algorithm_config("DQN").training(train_batch_size=64), 64),
        (get_algorithm_config("DQN").training(train_batch_size=64, training_intensity=8), 8),
    ):
        assert training.compute_sample_reuse(config.environment("CartPole-v1").plan()) == times


def test_several_agents_that_replay_are_told_their_settings() -> None:
    config = get_algorithm_config("DQN").environment("MultiAgentCartPole-v0")
    hint = training.find_update_hint(config, CPU)
    assert hint is not None
    assert "training_intensity" in hint
    assert "learned from 16 times" in hint  # 32 rows of an update for the rows of two agents
    assert training.find_update_hint(config.training(training_intensity=64.0), CPU) is None


def test_the_chosen_reuse_of_train_batches_is_not_called_slow() -> None:
    config = APPOConfig().environment("CartPole-v1").training(num_epochs=40)
    assert training.find_update_hint(config, CPU) is None  # chosen
    config = APPOConfig().environment("CartPole-v1")
    config.training(circular_buffer_iterations_per_batch=40)
    assert training.find_update_hint(config, CPU) is None


@pytest.mark.parametrize("name", sorted(find_shipped_configs()))
def test_no_shipped_file_is_called_slow(name: str) -> None:
    config = load_experiment(resolve_config_path(name)).config
    need_package(config.env)
    if not is_sweep(config):
        assert training.find_update_hint(config, CPU) is None


@pytest.mark.slow
def test_it_is_said_once_after_the_first_iteration(tmp_path: Path) -> None:
    small = {
        "num_envs_per_env_runner": 4,
        "train_batch_size": 64,
        "minibatch_size": 64,
        "num_devices": 1,
        "model_config": {"fcnet_hiddens": [4]},
    }
    command = ["train", "--algo", "PPO", "--env", "CartPole-v1", "--config", json.dumps(small)]
    stop = ["--stop", '{"training_iteration": 2}', "--results-dir", str(tmp_path), "--name", "run"]
    done = CliRunner().invoke(app, [*command, *stop], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    starts = [line.partition("  ")[0].partition(":")[0] for line in done.output.splitlines()]
    assert starts.count("most of the time goes into updates") == 1
    first = starts.index("iteration 1")
    assert starts[first : first + 2] == ["iteration 1", "most of the time goes into updates"]
    later = ["resume", str(tmp_path / "run"), "--stop", '{"training_iteration": 3}']
    done = CliRunner().invoke(app, later, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "goes into updates" not in done.output


@pytest.mark.slow
@pytest.mark.allow_key_reuse  # taken for that of vmapped runs
def test_a_sweep_is_told_too(tmp_path: Path) -> None:
    small = {
        "num_envs_per_env_runner": 4,
        "train_batch_size": 64,
        "num_devices": 1,
        "model_config": {"fcnet_hiddens": [4]},
    }
    command = ["train", "--algo", "PPO", "--env", "CartPole-v1", "--config", json.dumps(small)]
    stop = ["--seeds", "2", "--stop", '{"training_iteration": 2}', "--results-dir", str(tmp_path)]
    done = CliRunner().invoke(app, [*command, *stop], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert done.output.count("most of the time goes into updates") == 1
