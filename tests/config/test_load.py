"""Experiments from YAML, JSON and Python files, the shipped ones among them."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl import JaxrlError, load_config
from jaxrl.cli.experiments import parse_json_object
from jaxrl.config.load import experiment_from_dict, load_experiment, load_experiments
from jaxrl.config.stop import (
    find_reached_criterion,
    parse_fit_criteria,
    parse_stop,
    warn_of_missing,
)
from jaxrl.config.sweep import make_lanes
from jaxrl.errors import ConfigError, UnknownNameError
from jaxrl.migrate.yaml_file import migrate_yaml
from tests.helpers import need_package

CONFIGS = Path(__file__).parents[2] / "configs"
SHIPPED = sorted(CONFIGS.rglob("*.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(CONFIGS)))
def test_shipped_config_loads(path: Path) -> None:
    experiment = load_experiment(path)
    need_package(experiment.config.env)
    config = make_lanes(experiment.config)[0].config  # a single run is a sweep of one
    config.validate()
    plan = config.plan()
    assert plan.notes == ()
    said = [note for note in experiment.config.notes if "as one team" not in note]
    assert said == []
    assert experiment.stop
    assert experiment.config.env is not None
    environment, _, algorithm = path.stem.rpartition("-")
    assert experiment.name == path.stem
    assert algorithm == experiment.config.algo_name.lower()
    env = experiment.config.env
    env = experiment.config.env_config["env"] if env == "jaxrl.envs:Trials" else env
    spelled = env.split(":")[-1].split("/")[-1].lower().replace("-minatar", "")
    spelled = spelled.rsplit("-v", 1)[0].removesuffix("-host").replace("-", "")
    assert re.sub("-(nosticky|lstm|gru|league|fast|c51|trials)$", "", environment) == spelled
    assert "https://" in path.read_text()


def test_there_is_a_config_for_every_environment() -> None:
    names = {str(path.relative_to(CONFIGS).with_suffix("")) for path in SHIPPED}
    classic = ("acrobot", "cartpole", "mountaincar", "mountaincarcontinuous", "pendulum")
    minatar = ("asterix", "breakout", "freeway", "seaquest", "spaceinvaders")
    assert {f"classic/{env}-ppo" for env in classic} <= names
    assert {f"minatar/{env}-ppo" for env in minatar} <= names


def test_there_is_a_config_for_every_algorithm() -> None:
    names = {str(path.relative_to(CONFIGS).with_suffix("")) for path in SHIPPED}
    for task in ("gymnasium/cartpole", "gymnasium/lunarlander", "atari/pong", "classic/cartpole"):
        assert {f"{task}-{algo}" for algo in ("ppo", "impala", "appo")} <= names
    assert {f"{place}/pendulum-appo" for place in ("gymnasium", "classic")} <= names
    assert "gymnasium/pendulum-ppo" in names


RLLIB = """
old-style:
  run: PPO
  env: CartPole-v1
  stop:
    episode_reward_mean: 150
    timesteps_total: 1e5
    env_runners: {num_episodes_lifetime: 10}
  checkpoint_freq: 5
  keep_checkpoints_num: 2
  config:
    framework: jax
    lr: 3e-4
    lambda: 0.95
    num_sgd_iter: 4
    train_batch_size_per_learner: 1_024
    model: {fcnet_hiddens: [32]}
"""


def test_rllib_style(tmp_path: Path) -> None:
    path = tmp_path / "old.yaml"
    path.write_text(RLLIB)
    experiment = load_experiment(path)
    config = experiment.config
    assert (config.lr, config.lambda_, config.num_epochs) == (3e-4, 0.95, 4)
    assert config.plan().train_batch_size == config.train_batch_size_per_learner == 1024
    assert (config.checkpoint_frequency, config.max_to_keep) == (5, 2)
    assert experiment.stop == {
        "env_runners/episode_return_mean": 150.0,
        "num_env_steps_sampled_lifetime": 1e5,
        "env_runners/num_episodes_lifetime": 10.0,
    }


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"run": "PPO", "algo": "DQN"}, "run: PPO and algo: DQN, which are the same"),
        (
            {"run": "PPO", "env": "CartPole-v1", "config": {"env": "Pendulum-v1"}},
            "env: CartPole-v1, and env: Pendulum-v1 in its config: leave one out",
        ),
        (
            {"run": "PPO", "env": "CartPole-v1", "config": {"model": {1: 2}}},
            "names of model settings to values",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(body: dict[str, Any], sentence: str) -> None:
    with pytest.raises(JaxrlError, match=sentence):
        experiment_from_dict("mine", body).config.validate()


def test_what_is_given_twice_alike_is_taken() -> None:
    body = {"run": "PPO", "algo": "ppo", "env": "CartPole-v1", "config": {"env": "CartPole-v1"}}
    assert experiment_from_dict("mine", body).config.env == "CartPole-v1"


def test_json(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"x": {"run": "PPO", "env": "CartPole-v1", "config": {"lr": 0.1}}}))
    assert load_config(path).lr == 0.1


def test_python(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from jaxrl.algorithms.ppo import PPOConfig\n"
        "config = PPOConfig().environment('CartPole-v1')\nstop = {'training_iteration': 3}\n"
    )
    experiment = load_experiment(path)
    assert experiment.name == "mine"
    assert experiment.stop == {"training_iteration": 3.0}
    path.write_text("config = 3\n")
    with pytest.raises(ConfigError, match="must define config, an AlgorithmConfig, got 3"):
        load_experiment(path)


def test_a_shipped_file_is_loaded_by_its_id() -> None:
    config = load_config("classic/cartpole-ppo")
    assert config.to_dict() == load_config(CONFIGS / "classic" / "cartpole-ppo.yaml").to_dict()
    with pytest.raises(ConfigError, match=r"got 'classic/cartpole-pp'. Did you mean 'classic/cart"):
        load_config("classic/cartpole-pp")


def test_several_experiments(tmp_path: Path) -> None:
    path = tmp_path / "two.yaml"
    path.write_text("a: {run: PPO, env: X}\nb: {run: A2C, env: Y}\n")
    assert [e.config.algo_name for e in load_experiments(path)] == ["PPO", "A2C"]
    assert load_experiment(path, "b").config.env == "Y"
    with pytest.raises(ConfigError, match=r"2 experiments \(a, b\): load_experiment"):
        load_experiment(path)
    with pytest.raises(UnknownNameError, match="no experiment 'c'"):
        load_experiment(path, "c")


@pytest.mark.parametrize("text", ["", "# nothing yet\n"])
def test_an_empty_file_is_said_to_be_empty(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"x.yaml is empty: write an experiment"):
        load_experiment(tmp_path / "x.yaml")


def test_a_file_without_a_name_says_what_to_indent(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("run: PPO\nenv: CartPole-v1\n")
    with pytest.raises(ConfigError, match=r"has run and env at its top: indent .* 'mine:'"):
        load_experiment(tmp_path / "mine.yaml")


def test_samples_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("a: {run: PPO, env: X, num_samples: 3}\n")
    with pytest.raises(JaxrlError, match=r"'num_samples' \(got 3\)"):
        load_experiment(path)


def test_stop_criteria() -> None:
    stop = parse_stop({"training_iteration": 5, "learners/default_policy/entropy": 0.5})
    assert find_reached_criterion({"training_iteration": 4}, stop) is None
    reason = find_reached_criterion({"training_iteration": 5}, stop)
    assert reason == "training_iteration = 5 has reached 5"
    nested = {"training_iteration": 1, "learners": {"default_policy": {"entropy": 0.6}}}
    assert "entropy" in str(find_reached_criterion(nested, stop))
    assert find_reached_criterion({"training_iteration": None}, stop) is None
    assert parse_stop(None) == {}
    with pytest.raises(ConfigError, match=r"should_stop must be a function .* got 5"):
        parse_fit_criteria(stop, 5, None, is_offline=False)
    written = parse_stop({"custom_metrics": {"a/b": 2}})  # a key may have a slash of its own
    assert find_reached_criterion({"custom_metrics": {"a/b": 2}}, written) is not None


def test_a_criterion_that_no_result_has_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    result = {"learners": {"p": {"entropy": 1.0}}, "custom_metrics": {"a": float("nan")}}
    later = ("evaluation/env_runners/episode_return_mean", "timers/x", "learners/q/entropy")
    keys = ("learners/p/entropy", "custom_metrics/a", *later)
    warn_of_missing(result, dict.fromkeys(keys, 1.0))
    assert not caplog.messages
    warn_of_missing(result, {"learners/p/entropi": 1.0})
    (message,) = caplog.messages
    assert "stop names 'learners/p/entropi'" in message
    assert "Did you mean 'learners/p/entropy'" in message


@pytest.mark.parametrize("value", ["x", np.zeros(3), {"b": 1.0}, object()])
def test_a_criterion_on_what_is_no_number_is_one_sentence(value: object) -> None:
    with pytest.raises(ConfigError, match=r"^'custom_metrics/a' of the result (is|holds)"):
        find_reached_criterion({"custom_metrics": {"a": value}}, {"custom_metrics/a": 1.0})


# Each alias holds the one before ten times.
LAUGHS = "\n".join(
    f"{name}: &{name} [{', '.join([f'*{before}' if before else '1'] * 10)}]"
    for before, name in zip(["", *"abcdef"], "abcdefg", strict=True)
)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("x.yaml", "a: &x\n  run: PPO\n  config: *x\n", "contains itself by an alias"),
        ("x.yaml", "a: &x {<<: *x, run: PPO}\n", "x.yaml, line 1: it contains itself by an alias"),
        ("x.yaml", "a: &x\n  run: PPO\n  config: {<<: [*x]}\n", "contains itself by an alias"),
        ("x.yaml", LAUGHS, "more than 100,000 values"),
        ("x.yaml", "[" * 5000 + "]" * 5000, "nested too deep"),
        (
            "x.yaml",
            "x:\n  run: PPO\n  config: {[1, 2]: 3}\n",
            "line 3.*a key must be a single word",
        ),
        ("x.yaml", "? {a: 1}\n: 2\n", "a key must be a single word"),
        ("x.yaml", "a: " + "9" * 5000, "5000 digits"),
        ("x.yaml", "a: 2020-99-99\n", "month must be in 1..12"),
        ("x.json", "[" * 100_000 + "]" * 100_000, "nested too deep"),
        ("x.json", '{"a":' * 70 + "1" + "}" * 70, "more than 64 levels"),
        ("x.json", '{"a": ' + "9" * 5000 + "}", "5000 digits"),
    ],
)
def test_documents_that_are_no_settings_are_one_sentence(
    name: str, text: str, expected: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=expected) as caught:
        load_config(tmp_path / name)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    with pytest.raises(ConfigError, match=expected):
        migrate_yaml(text, Path(name))


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": ' + "9" * 5000 + "}", '{"a": 1e400}'])
def test_options_that_are_no_settings_are_one_sentence(text: str) -> None:
    with pytest.raises(JaxrlError) as caught:
        parse_stop(parse_json_object("--stop", text))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600
