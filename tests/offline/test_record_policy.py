"""`Algorithm.record` and `jaxrl record`: a policy that no longer learns."""

from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

from jaxrl import Algorithm, BCConfig, DQNConfig, JaxEnv, PPOConfig, SACConfig, TD3Config, TimeStep
from jaxrl.cli.app import app
from jaxrl.errors import ConfigError, DataError, EnvError
from jaxrl.offline.recorded import RecordedData, open_data
from tests.recorded_data import write_data

SMALL = {"fcnet_hiddens": [8]}


def build(config_class: Any = PPOConfig, env: str = "CartPole-v1", **settings: Any) -> Algorithm:
    config = config_class().environment(env).rl_module(model_config=SMALL)
    config.debugging(loggers=[], seed=3)
    config.update_from_dict(settings)
    return config.build()


def join(data: RecordedData, name: str) -> np.ndarray:
    parts = list(data.iter_parts())
    get = {"obs": lambda p: p.obs[:-1], "action_logp": lambda p: p.extras["action_logp"]}
    return np.concatenate([get.get(name, lambda p: getattr(p, name))(part) for part in parts])


@pytest.mark.parametrize("env", ["CartPole-v1", "gymnasium:CartPole-v1"])
def test_actions_are_those_of_the_policy(tmp_path: Path, env: str) -> None:
    with build(env=env) as algorithm:
        before = algorithm.get_state()["train_state"]
        data = algorithm.record(str(tmp_path / "data"), num_steps=300, num_envs=4)
        after = algorithm.get_state()["train_state"]
        params = algorithm.state.learner.sgd.params
        module = algorithm.get_module()
    assert data.counts is not None
    assert data.counts.num_steps == 300
    assert data.counts.num_episodes >= 4
    assert data.has_density
    obs, action = join(data, "obs"), join(data, "action")
    inputs = module.forward_train(params, {"obs": obs})["action_dist_inputs"]
    want = np.asarray(jax.nn.log_softmax(inputs))[np.arange(len(action)), action]
    np.testing.assert_allclose(join(data, "action_logp"), want, atol=1e-5)
    assert 0.2 < action.mean() < 0.8
    for name, leaf in before.items():  # nothing of the run has changed
        np.testing.assert_array_equal(leaf, after[name], err_msg=name)


def test_a_recording_follows_its_seed(tmp_path: Path) -> None:
    with build() as algorithm:
        same, again, other = (
            join(algorithm.record(str(tmp_path / name), num_steps=64, seed=seed), "obs")
            for name, seed in (("a", 1), ("b", 1), ("c", 2))
        )
    np.testing.assert_array_equal(same, again)
    assert not np.array_equal(same, other)


def test_settings_of_the_evaluation_are_not_those_of_the_run(tmp_path: Path) -> None:
    with build(evaluation_config={"explore": False, "env_config": {}}) as algorithm:
        data = algorithm.record(str(tmp_path / "data"), num_steps=16)
    assert data.has_density


def test_what_is_appended_is_new(tmp_path: Path) -> None:
    folder = str(tmp_path / "data")
    with build() as algorithm:
        for _ in range(2):
            data = algorithm.record(folder, num_steps=64, num_envs=2)
    first, second = np.split(join(data, "obs"), 2)
    assert not np.array_equal(first, second)
    ids = [part.episode_id for part in data.iter_parts()]
    assert len(set(ids)) == len(ids)


def test_the_task_is_the_current_one(tmp_path: Path) -> None:
    """Poles fall faster after the first iteration."""
    speeds = []
    small = {"train_batch_size": 128, "minibatch_size": 128, "num_epochs": 1}
    with build(env_task_fn=lambda *_: {"gravity": 200.0}, **small) as algorithm:
        for name in "ab":
            data = algorithm.record(str(tmp_path / name), num_steps=200, num_envs=2, seed=1)
            speeds.append(np.abs(join(data, "obs")[:, 3]).max())
            algorithm.train()
    assert speeds[1] > 1.3 * speeds[0]


class Broken(JaxEnv[Any, Any]):
    """Environment whose rewards are never finite."""

    @property
    def default_params(self) -> Any:
        return ()

    def observation_space(self, params: Any) -> Any:
        return gymnasium.spaces.Box(-1.0, 1.0, (2,))

    def action_space(self, params: Any) -> Any:
        return gymnasium.spaces.Discrete(2)

    def reset(self, key: Any, params: Any) -> Any:
        return jnp.zeros(()), jnp.zeros(2)

    def step(self, key: Any, state: Any, action: Any, params: Any) -> Any:
        reward = jnp.float32(jnp.nan)
        return state, TimeStep(obs=jnp.zeros(2), reward=reward, terminated=jnp.bool_(False))


def test_an_environment_without_valid_steps_ends(tmp_path: Path) -> None:
    with (
        build(env=lambda context: Broken()) as algorithm,
        pytest.raises(EnvError, match="made no valid step in 8 steps of 2 environments"),
    ):
        algorithm.record(str(tmp_path / "data"), num_steps=16, num_envs=2)


def test_without_exploring_the_best_actions_are_taken(tmp_path: Path) -> None:
    with build(DQNConfig) as algorithm:
        data = algorithm.record(str(tmp_path / "data"), num_steps=64, explore=False)
        params, module = algorithm.state.learner.sgd.params, algorithm.get_module()
    assert not data.has_density
    values = module.forward_train(params, {"obs": join(data, "obs")})["action_dist_inputs"]
    np.testing.assert_array_equal(join(data, "action"), np.argmax(values, axis=-1))


@pytest.mark.slow
@pytest.mark.parametrize("config_class", [SACConfig, TD3Config])
def test_other_algorithms_are_recorded_and_learned_from(tmp_path: Path, config_class: Any) -> None:
    folder = str(tmp_path / "data")
    with build(config_class, "Pendulum-v1") as algorithm:
        algorithm.record(folder, num_steps=100, num_envs=2)
        algorithm.record(folder, num_steps=100, num_envs=2, seed=9)
    data = open_data(folder)
    assert data.counts is not None
    assert data.counts.num_steps == 200  # appended
    config = BCConfig().offline_data(input_=folder, num_updates_per_iteration=2)
    with config.training(train_batch_size=16).debugging(loggers=[]).build() as learner:
        learner.train()


def test_memories_are_followed(tmp_path: Path) -> None:
    with build(model_config={**SMALL, "use_lstm": True, "lstm_cell_size": 8}) as algorithm:
        data = algorithm.record(str(tmp_path / "data"), num_steps=400, num_envs=2)
        report = algorithm.evaluate_offline(str(tmp_path / "data"), ["wis"], gamma=1.0)
    assert data.counts is not None
    assert report.effective_size == pytest.approx(report.num_episodes, rel=1e-3)


def test_an_offline_run_is_recorded_in_its_environment(tmp_path: Path) -> None:
    with build() as algorithm:
        source = str(tmp_path / "source")
        algorithm.record(source, num_steps=100)
    config = BCConfig().offline_data(input_=source).training(train_batch_size=16)
    with config.environment("CartPole-v1").debugging(loggers=[]).build() as learner:
        data = learner.record(str(tmp_path / "data"), num_steps=50)
        assert data.counts is not None
        assert data.counts.num_steps >= 50


def test_wrong_numbers_and_folders_of_other_spaces_are_one_sentence(tmp_path: Path) -> None:
    folder = str(tmp_path / "data")
    with build() as algorithm:
        for name in ("num_steps", "num_envs"):
            with pytest.raises(ConfigError, match=f"{name} must be at least 1"):
                algorithm.record(folder, **{name: 0})
        assert not (tmp_path / "data").exists()
        write_data(tmp_path / "data")
        with pytest.raises(DataError, match="space"):
            algorithm.record(folder, num_steps=16)


def test_command(tmp_path: Path) -> None:
    with build(results_dir=str(tmp_path)) as algorithm:
        path = algorithm.save(str(tmp_path / "checkpoint"))
    arguments = ["record", str(path), "--output", str(tmp_path / "data"), "--num-steps", "64"]
    done = CliRunner().invoke(app, [*arguments, "--no-explore", "--seed", "5"], prog_name="jaxrl")
    assert done.exit_code == 0, done.output
    assert "64 steps, " in done.stdout
    assert str(tmp_path / "data") in done.stdout
    assert not open_data(str(tmp_path / "data")).has_density
