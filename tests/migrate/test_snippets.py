"""Programs as RLlib's users write them: once migrated, they run."""

import textwrap
from pathlib import Path
from typing import Any

import pytest

import jaxrl
from jaxrl.migrate.python_file import migrate_python

SMALL = """.training(
    train_batch_size=64,
    sgd_minibatch_size=32,
    num_sgd_iter=1,
    model={"fcnet_hiddens": [8], "fcnet_activation": "relu"},
)"""

LOOP = f"""
from ray.rllib.algorithms.ppo import PPOConfig
from ray.tune.logger import pretty_print

algo = (
    PPOConfig()
    .rollouts(num_rollout_workers=0, num_envs_per_worker=8)
    .resources(num_gpus=0)
    .framework("torch")
    .environment(env="CartPole-v1")
    {SMALL}
    .build()
)
for i in range(2):
    result = algo.train()
    text = pretty_print(result)
    if i % 5 == 0:
        checkpoint_dir = algo.save().checkpoint.path
mean = result["episode_reward_mean"]
loss = result["info"]["learner"]["default_policy"]["learner_stats"]["total_loss"]
steps = result["timesteps_total"]
algo.stop()
"""

CHECKPOINTS = f"""
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.ppo import PPO, PPOConfig

config = PPOConfig().environment("CartPole-v1").rollouts(num_envs_per_worker=8){SMALL}
first = PPO(config=config)
first.train()
path = first.save().checkpoint.path
second = Algorithm.from_checkpoint(path)
third = PPO(config=config, env="CartPole-v1")
third.restore(path)
weights = [algo.get_weights() for algo in (first, second, third)]
for algo in (first, second, third):
    algo.cleanup()
"""

ACTIONS = f"""
import gymnasium as gym
from ray.rllib.algorithms.ppo import PPOConfig

env = gym.make("CartPole-v1")
algo = PPOConfig().environment("CartPole-v1").rollouts(num_envs_per_worker=8){SMALL}.build()
obs, info = env.reset(seed=0)
episode_reward = 0.0
terminated = truncated = False
while not terminated and not truncated:
    action = algo.compute_single_action(obs)
    obs, reward, terminated, truncated, info = env.step(action)
    episode_reward += reward
algo.stop()
"""

OLD_DICTIONARY = """
import ray.rllib.agents.dqn as dqn

config = dqn.DEFAULT_CONFIG.copy()
config["num_gpus"] = 0
config["num_workers"] = 0
config["framework"] = "torch"
config["model"] = {"fcnet_hiddens": [8]}
config["train_batch_size"] = 8
config["exploration_config"] = {"type": "EpsilonGreedy", "final_epsilon": 0.1}
trainer = dqn.DQNTrainer(config=config, env="CartPole-v1")
result = trainer.train()
reward = result["episode_reward_mean"]
trainer.stop()
"""

CALLBACKS = f"""
from ray.rllib.algorithms.callbacks import DefaultCallbacks
from ray.rllib.algorithms.ppo import PPOConfig

seen = []

class Mine(DefaultCallbacks):
    def on_train_result(self, *, algorithm, result, **kwargs):
        seen.append(result["episode_reward_mean"])

    def on_episode_end(self, *, worker, base_env, policies, episode, env_index, **kwargs):
        seen.append((episode.length, episode.total_reward))

config = PPOConfig().environment("CartPole-v1").rollouts(num_envs_per_worker=8){SMALL}
config.callbacks(Mine)
algo = config.build()
for _ in range(6):
    algo.train()
algo.stop()
"""

ENVIRONMENT = f"""
import gymnasium as gym
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.env.env_context import EnvContext
from ray.tune.registry import register_env

class Corridor(gym.Env):
    def __init__(self, config: EnvContext):
        self.end = config["length"]
        self.action_space = gym.spaces.Discrete(2)
        self.observation_space = gym.spaces.Box(0.0, self.end, (1,), "float32")

    def reset(self, *, seed=None, options=None):
        self.place = 0.0
        return self.observe(), {{}}

    def observe(self):
        return self.observation_space.low + self.place

    def step(self, action):
        self.place = min(self.place + 1.0, self.end)
        done = self.place >= self.end
        return self.observe(), 1.0, done, False, {{}}

register_env("corridor", lambda config: Corridor(config))
config = PPOConfig().environment("corridor", env_config={{"length": 5}})
config.rollouts(num_envs_per_worker=8){SMALL}
algo = config.build()
result = algo.train()
length = result["sampler_results"]["episode_len_mean"]
algo.stop()
"""

TUNE = """
from ray import air, tune
from ray.rllib.algorithms.ppo import PPOConfig

config = (
    PPOConfig()
    .environment("CartPole-v1")
    .framework("torch")
    .rollouts(num_rollout_workers=0, num_envs_per_worker=8)
    .training(
        lr=tune.grid_search([0.01, 0.001]), train_batch_size=64, sgd_minibatch_size=32,
        num_sgd_iter=1, model={"fcnet_hiddens": [8]},
    )
    .resources(num_gpus=0)
)
results = tune.Tuner(
    "PPO",
    param_space=config.to_dict(),
    run_config=air.RunConfig(
        stop={"episode_reward_mean": 1.0, "training_iteration": 4},
        checkpoint_config=air.CheckpointConfig(checkpoint_at_end=True),
        storage_path=folder,
    ),
).fit()
best = results.get_best_result(metric="episode_reward_mean", mode="max")
reward = best.metrics["episode_reward_mean"]
iterations = best.metrics["training_iteration"]
"""


def run(code: str, **names: object) -> dict[str, Any]:
    """The variables of migrated code, of which nothing may remain by hand, after it has run."""
    migration = migrate_python(textwrap.dedent(code))
    assert migration.by_hand == []
    assert "rllib" not in migration.new
    namespace: dict[str, Any] = {"__name__": "migrated", **names}
    exec(compile(migration.new, "migrated.py", "exec"), namespace)
    return namespace


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def test_training_loop() -> None:
    found = run(LOOP)
    assert found["mean"] >= 8
    assert found["steps"] == 128
    assert isinstance(found["loss"], float)
    assert Path(found["checkpoint_dir"]).is_dir()


def test_checkpoints() -> None:
    first, second, third = run(CHECKPOINTS)["weights"]
    import jax
    import numpy as np

    jax.tree.map(np.testing.assert_array_equal, first, second)
    jax.tree.map(np.testing.assert_array_equal, first, third)


def test_actions() -> None:
    assert run(ACTIONS)["episode_reward"] >= 8


@pytest.mark.slow
def test_dictionary_of_the_oldest_api() -> None:
    found = run(OLD_DICTIONARY)
    assert found["config"]["epsilon"] == [[0, 1.0], [10_000, 0.1]]
    assert "reward" in found


def test_callbacks() -> None:
    seen = run(CALLBACKS)["seen"]
    episodes = [entry for entry in seen if isinstance(entry, tuple)]
    assert episodes
    assert all(length == total for length, total in episodes)
    assert len(seen) - len(episodes) == 6


@pytest.mark.slow
def test_registered_environment() -> None:
    assert run(ENVIRONMENT)["length"] == 5


@pytest.mark.slow
@pytest.mark.ray
def test_tuner(tmp_path: Path) -> None:
    found = run(TUNE, folder=str(tmp_path / "results"))
    assert len(found["results"]) == 2
    assert found["reward"] >= 8
    assert found["iterations"] < 4
    assert jaxrl.PPO is not None
