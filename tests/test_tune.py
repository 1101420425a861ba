"""Algorithms as Trainables of Ray Tune: a grid is searched, and a trial goes on where it was."""

import json
import math
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import jaxrl
from jaxrl import Algorithm, Callbacks, JaxrlError, PPOConfig
from jaxrl.algorithm import TRAINABLE_METHODS
from jaxrl.config import list_algorithms
from jaxrl.envs.classic.cartpole import CartPole
from jaxrl.errors import ConfigError
from tests.helpers import small

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(scope="module")
def tune() -> Any:
    return pytest.importorskip("jaxrl.tune")


class OneDevice(Algorithm):
    """Reports the devices that its process has."""

    def train(self) -> dict[str, Any]:
        import jax

        return {**super().train(), "custom_metrics": {"devices": len(jax.devices())}}


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_a_grid_returns_the_best_checkpoint_which_evaluates(tmp_path: Path, tune: Any) -> None:
    from ray.tune import CheckpointConfig, RunConfig, TuneConfig, Tuner, grid_search

    jaxrl.register_env("cartpole-of-this-process", lambda context: CartPole())
    config = (
        PPOConfig(algo_class=OneDevice)
        .environment("cartpole-of-this-process")
        .env_runners(num_envs_per_env_runner=8, rollout_fragment_length=64)
        .training(lr=grid_search([1e-9, 5e-3]), minibatch_size=128, num_epochs=4)
        .rl_module(model_config={"fcnet_hiddens": [16]})
        .python_environment(extra_python_environs_for_driver={"XLA_FLAGS": ""})
    )
    found = Tuner(
        "PPO",
        param_space=config,
        tune_config=TuneConfig(metric="env_runners/episode_return_mean", mode="max"),
        run_config=RunConfig(
            name="grid",
            storage_path=str(tmp_path),
            stop={"training_iteration": 15},
            checkpoint_config=CheckpointConfig(checkpoint_at_end=True),
            verbose=0,
        ),
    ).fit()
    assert not found.errors
    assert {result.config["lr"] for result in found} == {1e-9, 5e-3}
    best = found.get_best_result()
    assert best.config["lr"] == 5e-3
    for result in found:
        assert result.metrics["custom_metrics"]["devices"] == 1  # of the eight that tests have
        assert result.metrics["training_iteration"] == 15
        assert result.metrics["timesteps_total"] == 15 * 512
        folder = Path(result.path) / tune.RUN_FOLDER_NAME
        lines = (folder / "result.json").read_text().splitlines()
        assert len(lines) == 15
        assert not list(folder.glob("events.out*"))
    with Algorithm.from_checkpoint(best.checkpoint.path) as algorithm:
        assert type(algorithm) is OneDevice
        assert algorithm.iteration == 15
        assert algorithm.evaluate(num_episodes=8)["env_runners"]["episode_return_mean"] > 40


def local(tune: Any, **settings: Any) -> Any:
    return tune.PPO(small().update_from_dict(settings).to_dict())


def lr_of(result: dict[str, Any]) -> float:
    return result["learners"]["default_policy"]["curr_lr"]


class OfScript(Callbacks):
    """Callbacks of a script, which a worker of Ray's does not run."""


OfScript.__module__ = "__main__"


def test_a_trial_goes_on_from_a_checkpoint_with_its_own_settings(tmp_path: Path, tune: Any) -> None:
    first = local(tune, lr=1e-3, callbacks_class=OfScript)
    first.train()
    before = first.train()
    first.save(str(tmp_path / "saved"))
    weights = first.algorithm.get_weights()["default_policy"]
    first.stop()

    second = local(tune, lr=1e-4, callbacks_class=OfScript)
    second.restore(str(tmp_path / "saved"))
    assert second.algorithm.config.callbacks_class is OfScript
    restored = second.algorithm.get_weights()["default_policy"]
    assert str(restored) == str(weights)
    result = second.train()
    second.stop()
    assert result["training_iteration"] == 3
    assert result["timesteps_total"] == 1.5 * before["timesteps_total"]
    assert lr_of(before) == pytest.approx(1e-3)
    assert lr_of(result) == pytest.approx(1e-4)


@pytest.mark.slow
def test_a_trial_that_was_restarted_writes_to_its_folder(
    tmp_path: Path, tune: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune.PPO, "logdir", str(tmp_path))
    first = local(tune)
    first.train()
    first.save(str(tmp_path / "saved"))
    first.train()
    folder = Path(first.algorithm.run_dir)
    assert folder == tmp_path / "jaxrl"
    first.stop()
    del first
    second = local(tune)
    second.restore(str(tmp_path / "saved"))
    second.train()
    assert Path(second.algorithm.run_dir) == folder
    second.stop()
    rows = [json.loads(line) for line in (folder / "result.json").read_text().splitlines()]
    assert [row["training_iteration"] for row in rows] == [1, 2]


def test_checkpoints_when_the_config_says(tune: Any) -> None:
    trial = local(tune, checkpoint_frequency=2)
    due = [bool(trial.train().get("should_checkpoint")) for _ in range(4)]
    trial.stop()
    assert due == [False, True, False, True]


def test_tune_prints_alone(tune: Any, capfd: pytest.CaptureFixture[str]) -> None:
    trial = local(tune, loggers=["console", "json"])
    trial.train()
    assert trial.algorithm.config.loggers == ["json"]
    trial.stop()
    assert capfd.readouterr().out == ""


def test_another_librarys_call_says_how_to_train_without_tune(tune: Any) -> None:
    for make in (
        lambda: tune.PPO("MlpPolicy", "CartPole-v1", verbose=1),
        lambda: tune.PPO("CartPole-v1"),
    ):
        with pytest.raises(ConfigError, match=r"PPOConfig\(\).environment\(.*\).build\(\)"):
            make()


def test_the_class_of_an_algorithm_builds_one_as_in_rllib(tune: Any) -> None:
    settings = small().to_dict()
    for algorithm in (
        tune.PPO(small()),
        tune.PPO(config=small(), env="Acrobot-v1"),
        tune.PPO({name: settings[name] for name in ("loggers", "num_devices")}, env="CartPole-v1"),
    ):
        with algorithm:
            assert type(algorithm) is Algorithm
    assert algorithm.config.loggers == ["json"]


@pytest.mark.slow
def test_a_return_is_always_there(tune: Any) -> None:
    """Tune ends with an error where the metric of a search is missing."""
    trial = local(tune, env="Pendulum-v1", normalize_advantages=True)
    result = trial.train()
    trial.stop()
    assert result["env_runners"]["num_episodes"] == 0
    assert math.isnan(result["env_runners"]["episode_return_mean"])


@pytest.mark.parametrize(
    ("settings", "bundles"),
    [
        ({}, [{"CPU": 1.0}]),
        ({"num_cpus_for_main_process": 2, "num_cpus_per_learner": 3}, [{"CPU": 3.0}]),
        ({"num_gpus_per_learner": 0.5}, [{"CPU": 1.0, "GPU": 0.5}]),
        (
            {"num_env_runners": 2, "num_cpus_per_env_runner": 0.5},
            [{"CPU": 1.0}, {"CPU": 0.5}, {"CPU": 0.5}],
        ),
        (
            {"num_env_runners": 1, "evaluation_num_env_runners": 1, "evaluation_interval": 1},
            [{"CPU": 1.0}, {"CPU": 1.0}, {"CPU": 1.0}],
        ),
        ({"evaluation_num_env_runners": 1}, [{"CPU": 1.0}]),
        (
            {"num_learners": 2, "custom_resources_per_learner": {"rack": 1}},
            [{"CPU": 1.0}, {"CPU": 1.0, "rack": 1.0}, {"CPU": 1.0, "rack": 1.0}],
        ),
        (
            {"num_learners": 1, "num_gpus_per_learner": 1, "num_cpus_for_main_process": 0.5},
            [{"CPU": 0.5}, {"GPU": 1.0}],
        ),
        (
            {"num_env_runners": 1, "custom_resources_per_env_runner": {"arm": 1}},
            [{"CPU": 1.0}, {"CPU": 1.0, "arm": 1.0}],
        ),
    ],
)
def test_what_a_trial_reserves(
    tune: Any, settings: dict[str, Any], bundles: list[dict[str, float]]
) -> None:
    config = PPOConfig().update_from_dict({**settings, "placement_strategy": "SPREAD"})
    for given in (config, config.to_dict()):
        request = tune.PPO.default_resource_request(given)
        assert request.bundles == bundles
        assert request.strategy == "SPREAD"
        assert str(bundles) in tune.PPO.resource_help(given)


def test_every_algorithm_is_a_trainable(tune: Any) -> None:
    from ray.tune.registry import get_trainable_cls

    assert set(jaxrl.TRAINABLES) == set(list_algorithms())
    for name in jaxrl.TRAINABLES:
        trainable = getattr(jaxrl, name)
        assert trainable.get_default_config().algo_name == name
        assert get_trainable_cls(name) is trainable
        assert name in dir(jaxrl)


class MineConfig(PPOConfig):
    """An algorithm of a user's."""

    algo_name = "Mine"


def test_an_algorithm_of_ones_own(tune: Any) -> None:
    from ray.tune.registry import get_trainable_cls

    trainable = tune.as_trainable(MineConfig)
    assert trainable.__name__ == "Mine"
    assert get_trainable_cls("Mine").config_class is MineConfig
    assert tune.as_trainable(MineConfig, "Other").__name__ == "Other"


@pytest.mark.parametrize("name", TRAINABLE_METHODS)
def test_what_tune_calls_is_refused_without_tune(tune: Any, name: str) -> None:
    own = type("Own", (tune.PPO,), {name: lambda self, *args: None})
    with pytest.raises(ConfigError, match=rf"overrides {name}\(\).*PPOConfig\(algo_class=Own\)"):
        own(env="CartPole-v1")
    assert issubclass(own, tune.PPO)


def test_mistakes_are_found_before_a_trial_starts(tune: Any) -> None:
    with pytest.raises(JaxrlError, match="Did you mean 'gamma'"):
        tune.PPO.default_resource_request({"gama": 0.9})
    with pytest.raises(ConfigError, match="minibatch_size=200 is more than"):
        tune.PPO({"env": "CartPole-v1", "train_batch_size": 100, "minibatch_size": 200})
    buffer = {"type": "prioritized", "prioritized_replay_eps": 3e-6}
    with pytest.raises(ConfigError, match="'prioritized_replay_eps'] can only be 1e-06"):
        tune.DQN.default_resource_request({"replay_buffer_config": buffer})
    lock = threading.Lock()
    jaxrl.register_env("locked", lambda context: lock)
    with pytest.raises(ConfigError, match="creator of 'locked' cannot be sent"):
        tune.PPO.default_resource_request({"env": "locked"})


@pytest.mark.slow
def test_missing_packages_are_named() -> None:
    code = """
import sys
sys.modules["pyarrow"] = None
try:
    from jaxrl import PPO
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(
        "ConfigError jaxrl.PPO and the other algorithms are Trainables of Ray Tune"
    )
    assert "pip install 'jaxrl[tune]'" in done.stdout


REGISTRATION = """
import sys
{first}
config = PPOConfig().environment("CartPole-v1")
assert ("ray" in sys.modules) == {is_imported}
from ray import tune
config.training(lr=tune.grid_search([1e-4, 1e-3]))
from ray.tune.registry import get_trainable_cls
from ray.tune.tune import _Config
assert isinstance(config, _Config)
assert get_trainable_cls("PPO").__module__ == "jaxrl.tune"
assert config.to_dict()["lr"] == {{"grid_search": [1e-4, 1e-3]}}
"""


@pytest.mark.parametrize(
    ("first", "is_imported"),
    [
        pytest.param("from jaxrl import PPOConfig", False, marks=pytest.mark.slow),
        ("from ray import tune\nfrom jaxrl import PPOConfig", True),
    ],
)
def test_tune_knows_the_algorithms_once_there_is_a_config(first: str, is_imported: bool) -> None:
    pytest.importorskip("ray.tune")
    script = REGISTRATION.format(first=first, is_imported=is_imported)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_old_keys_stop_and_rank_trials(tmp_path: Path) -> None:
    from ray.tune import RunConfig, TuneConfig, Tuner

    found = Tuner(
        "PPO",
        param_space=small(),
        tune_config=TuneConfig(metric="episode_reward_mean", mode="max"),
        run_config=RunConfig(
            name="old", storage_path=str(tmp_path), stop={"episode_reward_mean": 5}, verbose=0
        ),
    ).fit()
    assert not found.errors
    best = found.get_best_result("sampler_results/episode_reward_mean", "max")
    assert best.metrics["episode_reward_mean"] >= 5
    assert best.metrics["training_iteration"] < 5
    assert (
        best.metrics["episode_reward_mean"] == (best.metrics["env_runners"]["episode_return_mean"])
    )
