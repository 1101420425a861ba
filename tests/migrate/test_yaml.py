"""Experiments in YAML and JSON: edited in place, and loadable afterwards."""

import json
from pathlib import Path

import pytest

from jaxrl.config.load import load_experiment
from jaxrl.config.registry import find_shipped_configs
from jaxrl.errors import ConfigError
from jaxrl.migrate.report import Migration
from jaxrl.migrate.yaml_file import migrate_yaml

TUNED = """# Solves it in a minute.
cartpole-tuned:
    env: CartPole-v1
    run: PPO
    stop:
        sampler_results/episode_reward_mean: 150  # solved
        timesteps_total: 100000
    config:
        # Works with torch and tf.
        framework: torch  # the default
        gamma: 0.99
        num_workers: 0
        num_envs_per_worker: 8
        train_batch_size: 512
        "sgd_minibatch_size": 128
        num_sgd_iter: 6   # epochs
        lr: 3e-4
        lr_schedule: null
        model:
            fcnet_hiddens: [32]
            custom_model: null
        num_gpus: 0

    # the end
"""
MIGRATED = """# Solves it in a minute.
cartpole-tuned:
    env: CartPole-v1
    run: PPO
    stop:
        env_runners/episode_return_mean: 150  # solved
        num_env_steps_sampled_lifetime: 100000
    config:
        # Works with torch and tf.
        # the default
        gamma: 0.99
        num_env_runners: 0
        num_envs_per_env_runner: 8
        train_batch_size: 512
        "minibatch_size": 128
        num_epochs: 6   # epochs
        lr: 3e-4
        model_config:
            fcnet_hiddens: [32]

    # the end
"""


def migrate(text: str, path: str = "tuned.yaml") -> Migration:
    """The migration of a text, which must be final."""
    migration = migrate_yaml(text, Path(path))
    assert migrate_yaml(migration.new, Path(path)).new == migration.new
    return migration


def test_a_tuned_example_keeps_its_layout_and_loads(tmp_path: Path) -> None:
    migration = migrate(TUNED)
    assert migration.new == MIGRATED
    assert migration.by_hand == []
    assert migration.uses_rllib
    path = tmp_path / "tuned.yaml"
    path.write_text(migration.new)
    experiment = load_experiment(path)
    assert experiment.config.minibatch_size == 128
    assert experiment.config.notes == []
    assert experiment.stop == {
        "env_runners/episode_return_mean": 150,
        "num_env_steps_sampled_lifetime": 100_000,
    }


def test_flow_style_and_several_removals() -> None:
    text = (
        "a: {run: DQN, env: CartPole-v1, config: {num_gpus: 0, framework: tf, lr: 0.1, "
        "exploration_config: {epsilon_timesteps: 100}, num_gpus_per_worker: 0, framework_str: x}}\n"
    )
    assert migrate(text).new == (
        "a: {run: DQN, env: CartPole-v1, config: {lr: 0.1, epsilon: [[0, 1.0], [100, 0.02]]}}\n"
    )


def test_json() -> None:
    config = {"num_workers": 0, "framework": "torch", "use_huber": True, "num_gpus": 0}
    text = json.dumps({"a": {"run": "DQN", "env": "CartPole-v1", "config": config}}, indent=2)
    migration = migrate(text, "a.json")
    assert json.loads(migration.new)["a"]["config"] == {
        "num_env_runners": 0,
        "td_error_loss_fn": "huber",
    }
    assert migration.by_hand == []


def test_what_remains_is_listed_with_its_line() -> None:
    text = (
        "a:\n  run: AlphaStar\n  env: X\n  num_samples: 3\n  config:\n    replay_ratio: 2\n"
        "    multiagent: {policies: {}}\n    model:\n      custom_model: mine\n"
    )
    migration = migrate(text)
    assert migration.new.replace("model_config", "model") == text
    assert [(item.line, item.what) for item in migration.by_hand] == [
        (2, "AlphaStar"),
        (4, "num_samples"),
        (6, "replay_ratio"),
        (7, "multiagent"),
        (9, "custom_model"),
    ]
    assert "leagues" in migration.by_hand[0].advice


def test_sizes_that_do_not_divide_stay() -> None:
    text = (
        "a:\n  run: PPO\n  env: CartPole-v1\n  config: {train_batch_size: 4000, "
        "sgd_minibatch_size: 128}\n"
    )
    migration = migrate(text)
    assert migration.by_hand == []
    assert "train_batch_size: 4000, minibatch_size: 128" in migration.new


def test_experiments_may_take_their_algorithm_from_another_one() -> None:
    text = (
        "a: &base\n  run: PPO\n  env: CartPole-v1\n  config: {framework: torch, num_workers: 2}\n"
        "b:\n  <<: *base\n  env: Acrobot-v1\n  config: {num_workers: 3}\n"
    )
    migration = migrate(text)
    assert migration.by_hand == []
    assert "num_env_runners: 2" in migration.new
    assert "num_env_runners: 3" in migration.new
    assert "<<: *base" in migration.new


def test_other_files_are_no_experiments() -> None:
    for text in ("", "- 1\n", "jobs:\n  build:\n    steps: []\n", "a:\n  lr: 1\n"):
        migration = migrate(text)
        assert not migration.uses_rllib
        assert migration.new == text


@pytest.mark.slow
def test_shipped_configs_stay_as_they_are() -> None:
    for path in find_shipped_configs().values():
        text = path.read_text()
        migration = migrate_yaml(text, path)
        assert (migration.new, migration.by_hand) == (text, []), path


def test_invalid_yaml_is_refused_with_its_line() -> None:
    with pytest.raises(ConfigError, match="line 1: not valid YAML"):
        migrate_yaml("a: b: c\nd: 1\n", Path("x.yaml"))
