"""Errors of a config in one line: the setting, the value, and what would work."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import pytest

from jaxrl import DQNConfig, JaxrlError, PPOConfig, grid
from jaxrl.config.load import experiment_from_dict, load_experiment
from jaxrl.config.serialize import serialize_config
from jaxrl.config.stop import parse_stop
from jaxrl.errors import ConfigError

Case = tuple[str, Callable[[], Any], list[str]]


def ppo(**settings: Any) -> PPOConfig:
    return PPOConfig().update_from_dict(settings)


def replay(**settings: Any) -> Any:
    config = DQNConfig().environment("CartPole-v1").update_from_dict(settings)
    config.validate()


def buffer(**settings: Any) -> Any:
    replay(replay_buffer_config=settings)


def experiment(**changes: Any) -> Any:
    return experiment_from_dict("x", {"run": "PPO", "env": "CartPole-v1", **changes})


CASES: list[Case] = [
    (
        "unknown flat setting",
        lambda: ppo(entropy_coef=0.1),
        ["'entropy_coef'", "0.1", "Did you mean 'entropy_coeff'?"],
    ),
    (
        "setting of another group",
        lambda: PPOConfig().env_runners(clip_param=0.2),
        ["'clip_param'", "0.2", "is a setting of training(), not env_runners()"],
    ),
    (
        "typo that belongs to another group",
        lambda: PPOConfig().env_runners(evaluation_intervall=5),
        ["'evaluation_intervall'", "5", "'evaluation_interval' of evaluation()"],
    ),
    (
        "unknown setting of thousands of digits",
        lambda: ppo(gama=10**5000),
        ["'gama'", "a number of thousands of digits", "Did you mean 'gamma'?"],
    ),
    ("long value", lambda: ppo(gamma=10**400), ["gamma", f"got 1{'0' * 199}...."]),
    (
        "value of several lines",
        lambda: ppo(rl_module_spec=nn.Dense(3)).validate(),
        ["got Dense( # attributes features = 3", "rl_module(network=...)"],
    ),
    ("reading what is not there", lambda: ppo()["gama"], ["'gama'", "Did you mean 'gamma'?"]),
    ("bool for a number", lambda: ppo(gamma=True), ["gamma", "must be a number", "True"]),
    ("float for a count", lambda: ppo(num_epochs=2.5), ["num_epochs", "a whole number", "2.5"]),
    ("NaN", lambda: ppo(lr=float("nan")), ["lr", "must be a number", "nan"]),
    ("negative", lambda: ppo(clip_param=-0.2), ["clip_param", "must be above 0", "-0.2"]),
    ("zero steps", lambda: ppo(train_batch_size=0), ["train_batch_size", "at least 1", "0"]),
    (
        "wrong unit",
        lambda: ppo(evaluation_duration_unit="episode"),
        ["evaluation_duration_unit", "'episode'", "Did you mean 'episodes'?"],
    ),
    (
        "schedule that starts late",
        lambda: ppo(lr=[[100, 1e-3], [200, 0.0]]),
        ["lr", "start at timestep 0", "[[100.0", "put [0, 0.001] in front"],
    ),
    (
        "schedule out of order",
        lambda: ppo(entropy_coeff=[[0, 0.1], [9, 0.0], [5, 0.0]]),
        ["entropy_coeff", "ascending timesteps", "[9.0, 0.0]", "sort"],
    ),
    (
        "schedule without pairs",
        lambda: ppo(lr=[[0, 1e-3, 2]]),
        ["lr", "[timestep, value] pairs", "2.0"],
    ),
    (
        "unknown optimiser",
        lambda: ppo(optimizer="adm"),
        ["optimizer", "'adm'", "Did you mean 'adam'?"],
    ),
    (
        "unknown argument of the optimiser",
        lambda: ppo(optimizer={"name": "adam", "epsilon": 1e-5}),
        ["optimizer", "'epsilon'", "'eps'"],
    ),
    (
        "logger without a list",
        lambda: ppo(loggers="tensorboard"),
        ["loggers", "or objects with write and close, got", "Write ['tensorboard']."],
    ),
    (
        "unknown logger",
        lambda: ppo(loggers=["tensorbord"]),
        ["loggers", "'tensorbord'", "Did you mean 'tensorboard'?"],
    ),
    (
        "import path of nothing",
        lambda: ppo(on_train_result="no_such_module:hook"),
        ["on_train_result", "'module:name'", "'no_such_module:hook'"],
    ),
    (
        "path of a folder above",
        lambda: ppo(on_train_result="../.."),
        ["on_train_result", "'module:name'", "'../..'", "empty"],
    ),
    (
        "environments that do not fit the batch",
        lambda: ppo(train_batch_size=100, num_envs_per_env_runner=64, minibatch_size=None).plan(),
        ["train_batch_size=100", "num_envs_per_env_runner=64", "50 or 100", "64 or 128"],
    ),
    (
        "actors beside the compiled program",
        lambda: ppo(num_env_runners=2, placement="in_graph").validate(),
        ["placement='in_graph'", "num_env_runners=2", "placement='auto'"],
    ),
    (
        "whole episodes in the compiled program",
        lambda: (
            DQNConfig().env_runners(batch_mode="complete_episodes", placement="in_graph").validate()
        ),
        ["'batch_mode'", "'complete_episodes'", "fixed length", "placement='host'"],
    ),
    (
        "failures ignored and repaired",
        lambda: ppo(restart_failed_env_runners=True, ignore_env_runner_failures=True).validate(),
        ["ignore_env_runner_failures", "restart_failed_env_runners", "one of them to False"],
    ),
    (
        "one device of several",
        lambda: ppo(local_device_idx=1, num_devices=2).validate(),
        ["local_device_idx=1", "num_devices=2", "only one"],
    ),
    (
        "a device for learners elsewhere",
        lambda: ppo(local_device_idx=1, num_learners=2).validate(),
        ["local_device_idx=1", "num_learners=2"],
    ),
    (
        "duration of an evaluation beside nothing",
        lambda: ppo(evaluation_duration="auto").validate(),
        ["evaluation_duration='auto'", "evaluation_parallel_to_training=False", "set it to True"],
    ),
    (
        "bounds upside down",
        lambda: ppo(
            evaluation_duration="auto",
            evaluation_parallel_to_training=True,
            evaluation_auto_duration_min_env_steps_per_sample=5000,
        ).validate(),
        ["min_env_steps_per_sample=5000", "2000"],
    ),
    (
        "search marker",
        lambda: ppo(lr={"grid_search": [1e-3, 1e-4]}).validate(),
        ["lr is swept", "0.0001", "build()"],
    ),
    (
        "setting of RLlib's without effect",
        lambda: PPOConfig().env_runners(num_gpus_per_env_runner=0.5),
        ["'num_gpus_per_env_runner'", "0.5", "runners act on CPUs", "num_gpus_per_learner"],
    ),
    (
        "device setting of RLlib's without effect",
        lambda: PPOConfig().resources(_fake_gpus=True),
        ["'_fake_gpus'", "got True", "xla_force_host_platform_device_count"],
    ),
    (
        "setting of RLlib's group of several agents without effect",
        lambda: PPOConfig().multi_agent(policy_map_cache=5),
        ["'policy_map_cache' (got 5)", "all of which it holds"],
    ),
    (
        "another framework",
        lambda: ppo(framework="mxnet"),
        ["framework", "'mxnet'", "must be 'jax'"],
    ),
    (
        "one setting under two names",
        lambda: PPOConfig().training(num_epochs=3, num_sgd_iter=5),
        ["'num_epochs'", "'num_sgd_iter'", "3", "5", "set only num_epochs"],
    ),
    (
        "evaluation override",
        lambda: ppo(evaluation_config={"explor": False}).validate(),
        ["evaluation_config", "'explor'", "Did you mean 'explore'?"],
    ),
    (
        "evaluation override without effect",
        lambda: ppo(evaluation_config={"lr": 0.1}).validate(),
        ["evaluation_config", "does not read lr", "0.1", "env_config"],
    ),
    (
        "evaluation episodes that cannot be shared",
        lambda: ppo(evaluation_num_envs=20, evaluation_duration=10).validate(),
        ["evaluation_num_envs", "evaluation_duration=10", "20", "use 10"],
    ),
    (
        "score of nothing",
        lambda: ppo(checkpoint_score_attribute="env_runners/episode_retrn_mean").validate(),
        ["checkpoint_score_attribute", "episode_retrn_mean", "episode_return_mean"],
    ),
    (
        "score without evaluation",
        lambda: ppo(
            checkpoint_score_attribute="evaluation/env_runners/episode_return_mean"
        ).validate(),
        ["checkpoint_score_attribute", "evaluation_interval", "None", "evaluation_interval=1"],
    ),
    (
        "clip range upside down",
        lambda: ppo(clip_rewards=(1.0, -1.0)).validate(),
        ["clip_rewards", "(1.0, -1.0)", "(-1.0, 1.0)"],
    ),
    (
        "model setting",
        lambda: ppo(model={"fcnet_hidens": [64]}).validate(),
        ["'fcnet_hidens'", "Did you mean 'fcnet_hiddens'?"],
    ),
    (
        "a function that cannot be saved",
        lambda: serialize_config(ppo(on_train_result=lambda **kw: None)),
        ["on_train_result", "<lambda>", "at the top of a module"],
    ),
    (
        "explicit settings that are a number",
        lambda: ppo().update_from_dict({"explicit_settings": 5}),
        ["explicit_settings", "a list of names", "got 5"],
    ),
    (
        "explicit settings that are no names",
        lambda: ppo().update_from_dict({"explicit_settings": [[1]]}),
        ["explicit_settings", "a list of names", "got [[1]]"],
    ),
    (
        "unknown stop criterion",
        lambda: parse_stop({"env_runners/episode_return_men": 1}),
        ["stop", "episode_return_men", "Did you mean 'env_runners/episode_return_mean'?"],
    ),
    (
        "stop criterion that is no number",
        lambda: parse_stop({"training_iteration": "ten"}),
        ["stop", "'training_iteration'", "'ten'", "a finite number"],
    ),
    (
        "unknown key of an experiment",
        lambda: experiment(konfig={}),
        ["'konfig'", "{}", "Did you mean 'config'?"],
    ),
    (
        "unknown buffer",
        lambda: buffer(type="prioritised"),
        ["replay_buffer_config['type']", "'prioritised'", "Did you mean 'prioritized'?"],
    ),
    (
        "unknown setting of a buffer",
        lambda: buffer(prioritised_alpha=0.5),
        ["'prioritised_alpha'", "type, capacity, alpha, beta, storage"],
    ),
    (
        "capacity that is no number",
        lambda: buffer(capacity="50k"),
        ["replay_buffer_config['capacity']", "whole number", "'50k'"],
    ),
    (
        "capacity below a rollout",
        lambda: replay(
            replay_buffer_config={"capacity": 30},
            num_envs_per_env_runner=8,
            rollout_fragment_length=4,
        ),
        ["replay_buffer_config['capacity']=30", "8 environments x 4 steps", "at least 32"],
    ),
    (
        "learning that starts with more than the buffer holds",
        lambda: replay(
            replay_buffer_config={"capacity": 100},
            num_steps_sampled_before_learning_starts=150,
            num_envs_per_env_runner=8,
        ),
        ["learning_starts=150", "holds (96)", "lower it to 96", "['capacity'] to 152"],
    ),
    (
        "exponent out of range",
        lambda: buffer(alpha=1.5),
        ["replay_buffer_config['alpha']", "between 0 and 1", "1.5"],
    ),
    (
        "schedule of beta out of range",
        lambda: buffer(beta=[[0, 0.4], [1000, 2.0]]),
        ["replay_buffer_config['beta']", "between 0 and 1 or a schedule", "[1000, 2.0]"],
    ),
    (
        "schedule of beta that is none",
        lambda: buffer(beta=[[5, 0.4]]),
        ["replay_buffer_config['beta'] must start at timestep 0"],
    ),
    (
        "exponent without effect",
        lambda: buffer(type="EpisodeReplayBuffer", alpha=0.5),
        ["replay_buffer_config['alpha']=0.5 has no effect on uniform sampling", "'prioritized'"],
    ),
    (
        "unknown storage",
        lambda: buffer(storage="hosts"),
        ["replay_buffer_config['storage']", "'hosts'", "Did you mean 'host'?"],
    ),
    (
        "buffer in host memory for learners of their own",
        lambda: replay(replay_buffer_config={"storage": "host"}, num_learners=1),
        ["replay_buffer_config['storage']='host'", "num_learners=1", "num_learners=0"],
    ),
    ("no steps", lambda: replay(n_step=0), ["n_step", "0"]),
    ("too many steps", lambda: replay(n_step=33), ["n_step must be", "from 1 to 32", "33"]),
    ("steps that descend", lambda: replay(n_step=(5, 1)), ["n_step", "ascending pair", "(5, 1)"]),
    (
        "ratio of updates that is not whole",
        lambda: replay(training_intensity=3.0, rollout_fragment_length=8, train_batch_size=32),
        ["training_intensity=3.0", "0.75 updates", "to 4.0, or rollout_fragment_length to 32"],
    ),
    (
        "whole episodes for a buffer",
        lambda: replay(batch_mode="complete_episodes"),
        ["batch_mode='complete_episodes'", "replay buffer", "'truncate_episodes'"],
    ),
    (
        "rows that learners cannot share",
        lambda: replay(train_batch_size=33, num_learners=2, num_envs_per_env_runner=2),
        ["train_batch_size=33", "num_learners=2", "set it to 32"],
    ),
    (
        "environments that learners cannot share",
        lambda: replay(num_learners=2, num_envs_per_env_runner=3),
        ["3 environments", "num_learners=2", "num_envs_per_env_runner to 2"],
    ),
    (
        "shards that learners cannot share",
        lambda: replay(num_learners=2, num_shards=1, num_envs_per_env_runner=2),
        ["num_shards=1", "a multiple of num_learners=2", "set it to 2"],
    ),
    (
        "shards that do not divide the environments",
        lambda: replay(num_shards=4, num_envs_per_env_runner=6),
        ["num_shards=4 must divide 6 environments", "train_batch_size=32;", "set it to 2"],
    ),
    ("a number as a name", lambda: experiment(config={1: 2}), ["A setting has a name, got 1"]),
    ("a config that is a number", lambda: experiment(config=0), ["must be a mapping", "got 0"]),
    (
        "a sink without methods",
        lambda: PPOConfig().debugging(loggers=["json", 5]),
        ["loggers must be names", "write(result)", "5"],
    ),
    ("experiment without algorithm", lambda: experiment(run=None), ["run: PPO", "None"]),
    ("no such file", lambda: load_experiment("nowhere.yaml"), ["nowhere.yaml", "Cannot read"]),
    ("no such kind of file", lambda: load_experiment("a.toml"), ["a.toml", ".yaml"]),
]


@pytest.mark.parametrize(("make", "words"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_bad_input_is_told_in_one_line(make: Callable[[], Any], words: list[str]) -> None:
    with pytest.raises(JaxrlError) as caught:
        make()
    message = str(caught.value)
    for word in words:
        assert word in message
    assert "\n" not in message
    assert message.endswith((".", "?"))


@pytest.mark.parametrize(
    "settings",
    [
        {"lr": 1e39},
        {"lr": 1e-46},
        {"clip_param": 1e300},
        {"gamma": 1e-40},
        {"lr": 10**400},
        {"lr": 10**5000},
        {"lr": [[0, 1e-3], [10, 1e-46]]},
        {"clip_rewards": (-1e39, 1.0)},
        {"sample_timeout_s": 2**200},
        {"optimizer": {"name": "adam", "eps": 1e-50}},
        {"lr": grid([1e-3, 1e39])},
    ],
    ids=range(11),
)
def test_numbers_that_float32_does_not_hold_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(JaxrlError) as caught:
        ppo(**settings)
    said = str(caught.value)
    assert said.startswith(next(iter(settings)))
    assert "\n" not in said
    assert "between 1.2e-38 and 3.4e+38 in size" in said


def test_whole_numbers_of_any_size_are_numbers() -> None:
    assert ppo(lr=2**64).lr == 2.0**64
    assert ppo(grad_clip=2**63)["grad_clip"] == 2.0**63
    assert ppo(vf_clip_param=float("inf"))["vf_clip_param"] == float("inf")
    with pytest.raises(JaxrlError, match=r"lr must be at least 0, got inf\. It must be finite"):
        ppo(lr=float("inf"))


def test_a_wrong_value_changes_nothing() -> None:
    config = PPOConfig()
    before = config.to_dict()
    with pytest.raises(JaxrlError):
        config.training(lr=1e-4, gamma=2.0)
    assert config.to_dict() == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x: [1, 2\n", r"line 2: not valid YAML"),
        ("x:\n  run: PPO\n  run: A2C\n", r"line 3: not valid YAML: the key 'run' is given twice"),
        ("just words\n", r"must map an experiment's name to its settings, got 'just words'"),
    ],
)
def test_broken_yaml_has_a_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(JaxrlError, match=said):
        load_experiment(path)


def test_broken_json_has_a_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text('{"x": {"run": "PPO",\n}}')
    with pytest.raises(JaxrlError, match=r"line \d: not valid JSON"):
        load_experiment(path)


@pytest.mark.parametrize("given", [12345.678, "x", [("fcnet_hiddens", [8])]])
def test_model_settings_that_are_no_dictionary_are_refused(given: object) -> None:
    config = PPOConfig().environment("CartPole-v1").rl_module(model_config=given)
    with pytest.raises(ConfigError, match="model_config must be a DefaultModelConfig or a dict"):
        config.validate()


@pytest.mark.parametrize("threshold", [float("inf"), float("-inf"), float("nan"), [1], 10**400])
def test_a_stop_criterion_that_is_no_finite_number_is_refused(threshold: object) -> None:
    with pytest.raises(ConfigError, match="stop must give a finite number for 'training_it"):
        parse_stop({"training_iteration": threshold})
