"""Programs as in RLlib's documents, in other words and with the package renamed.

Versions 2.3 to the new API stack; sizes are small. Snippets for several agents, recorded data, export,
and GPUs are not here.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.helpers import assert_equal

QUIET: dict[str, Any] = {
    "loggers": [],
    "train_batch_size": 128,
    "minibatch_size": 64,
    "num_epochs": 1,
    "num_devices": 1,
    "num_envs_per_env_runner": 4,
}


OLD_NAMES = pytest.mark.filterwarnings("ignore:.* is .* here:DeprecationWarning")


@OLD_NAMES
def test_a_loop_of_the_old_stack(tmp_path: Path) -> None:
    from jaxrl.algorithms.ppo import PPOConfig

    config = (
        PPOConfig()
        .framework("torch")
        .rollouts(num_rollout_workers=0)
        .resources(num_gpus=0)
        .environment(env="CartPole-v1")
        .update_from_dict(QUIET)
    )
    algo = config.build()
    for iteration in range(2):
        result = algo.train()
        assert result["episode_reward_mean"] == result["env_runners"]["episode_return_mean"]
        if iteration == 1:
            saved = algo.save(str(tmp_path))
    path = saved.checkpoint.path  # pyright: ignore[reportAttributeAccessIssue]
    algo.stop()

    from jaxrl.algorithms.algorithm import Algorithm

    again = Algorithm.from_checkpoint(path)
    assert again.training_iteration == 2
    again.stop()


def test_the_class_of_an_algorithm(tmp_path: Path) -> None:
    from jaxrl.algorithms.ppo import PPO, PPOConfig

    first = PPO(config=PPOConfig().update_from_dict(QUIET), env="CartPole-v1")
    first.train()
    path = first.save(str(tmp_path))
    second = PPO(config=PPOConfig().update_from_dict(QUIET), env="CartPole-v1")
    second.restore(path)
    assert second.iteration == 1
    first.stop()
    second.stop()


def test_an_episode_of_single_actions() -> None:
    import gymnasium as gym

    from jaxrl.algorithms.ppo import PPOConfig

    env = gym.make("CartPole-v1")
    algo = PPOConfig().environment("CartPole-v1").update_from_dict(QUIET).build()
    total, (obs, _), is_over = 0.0, env.reset(seed=0), False
    while not is_over:
        action = algo.compute_single_action(obs)
        obs, reward, terminated, truncated, _ = env.step(action)
        total += float(reward)
        is_over = terminated or truncated
    assert total >= 8
    algo.stop()


def test_callbacks_of_the_old_stack() -> None:
    from jaxrl.algorithms.callbacks import DefaultCallbacks
    from jaxrl.algorithms.ppo import PPOConfig

    class Note(DefaultCallbacks):
        def on_train_result(self, *, algorithm: Any, result: dict[str, Any], **kwargs: Any) -> None:
            result["noted"] = algorithm.iteration

    config = PPOConfig().environment("CartPole-v1").callbacks(Note).resources(num_gpus=0)
    with config.update_from_dict(QUIET).build() as algo:
        assert algo.train()["noted"] == 1


@pytest.mark.slow
def test_defaults_as_a_dictionary() -> None:
    from jaxrl.algorithms.ppo import PPOConfig

    defaults = PPOConfig().to_dict()
    config = PPOConfig.from_dict({**defaults, **QUIET, "lr": 0.01})
    with config.build(env="Pendulum-v1") as algo:
        algo.train()
        assert algo.config.lr == 0.01


def test_defaults_of_an_algorithms_module() -> None:
    from jaxrl.algorithms.dqn.dqn import DEFAULT_CONFIG as DQN_DEFAULTS
    from jaxrl.algorithms.ppo import DEFAULT_CONFIG, PPOConfig

    DEFAULT_CONFIG["lr"] = 0.5  # every import has a dictionary of its own
    assert PPOConfig().lr != 0.5
    assert PPOConfig.from_dict(DEFAULT_CONFIG).lr == 0.5
    assert "double_q" in DQN_DEFAULTS
    with pytest.raises(ImportError, match="no counterpart"):
        exec("from jaxrl.algorithms.algorithm import DEFAULT_CONFIG")


@pytest.mark.slow
def test_taxi_on_the_host() -> None:
    from jaxrl.algorithms.ppo import PPOConfig

    config = (
        PPOConfig()
        .environment("Taxi-v4")
        .rollouts(num_rollout_workers=0)
        .framework("torch")
        .training(model={"fcnet_hiddens": [8, 8]})
        .evaluation(evaluation_num_workers=0, evaluation_interval=1, evaluation_duration=1)
    )
    with config.update_from_dict(QUIET).environment(max_episode_steps=20).build() as algo:
        result = algo.train()
        assert "evaluation" in result
        algo.evaluate()


def test_key_concepts_of_the_new_stack() -> None:
    from jaxrl.algorithms.ppo import PPOConfig
    from jaxrl.core.columns import Columns
    from jaxrl.core.rl_module.rl_module import RLModule

    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=4)
        .learners(num_learners=1, num_gpus_per_learner=1)
        .training(train_batch_size_per_learner=4000)
    )
    assert "num_env_runners = 4" in config.explain(platform="gpu", local_device_count=1)
    assert Columns.OBS == "obs"
    with PPOConfig().environment("CartPole-v1").update_from_dict(QUIET).build() as algo:
        assert isinstance(algo.get_module(), RLModule)


def test_a_gpu_that_is_not_there_is_told(caplog: pytest.LogCaptureFixture) -> None:
    from jaxrl.algorithms.ppo import PPOConfig
    from jaxrl.runtime import devices

    config = PPOConfig().environment("CartPole-v1").resources(num_gpus=0.25)
    devices._warn_once.cache_clear()
    with config.update_from_dict(QUIET).build():
        assert caplog.text.count("num_gpus_per_learner=0.25, but JAX has no GPU here") == 1


@OLD_NAMES
def test_runners_say_where_the_weights_are() -> None:
    from jaxrl.algorithms.dqn import DQNConfig

    config = DQNConfig().environment("CartPole-v1").update_from_dict({"loggers": []})
    for placement in ("in_graph", "host"):
        with config.copy().env_runners(placement=placement).build() as algo:
            with pytest.raises(AttributeError, match="foreach_env_runner_with_index passes"):
                algo.workers.foreach_worker_with_id(lambda index, _: index)
            with pytest.raises(AttributeError, match=r"algorithm.get_weights\(\)"):
                algo.workers.foreach_worker(lambda worker: worker.get_policy().get_weights())


def test_games_that_the_emulator_no_longer_has() -> None:
    from jaxrl.algorithms.ppo import PPOConfig
    from jaxrl.errors import UnknownNameError

    pytest.importorskip("ale_py")
    with pytest.raises(UnknownNameError, match="Did you mean 'ALE/Pong-v5'"):
        PPOConfig().environment("PongDeterministic-v4").build()


def test_weights_and_modules_say_what_to_write() -> None:
    from jaxrl.algorithms.ppo import PPOConfig

    with PPOConfig().environment("CartPole-v1").update_from_dict(QUIET).build() as algo:
        policy: Any = algo.get_policy()
        assert_equal(policy.get_weights(), algo.get_weights()["default_policy"])
        with pytest.raises(AttributeError, match=r"algorithm.get_module\(\)"):
            policy.model.base_model.summary()
        with pytest.raises(ImportError, match="no counterpart in jaxrl"):
            exec("from jaxrl.models.preprocessors import get_preprocessor")
