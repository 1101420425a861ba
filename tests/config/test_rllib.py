"""RLlib's own configs go through whole; a value that asks for what is not here is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from jaxrl.algorithms.dqn import DQNConfig
from jaxrl.algorithms.ppo import PPOConfig
from jaxrl.algorithms.sac import SACConfig
from jaxrl.algorithms.slate_q import SlateQConfig
from jaxrl.algorithms.td3 import TD3Config
from jaxrl.compat.rllib.settings import SETTINGS
from jaxrl.compat.rllib.values import (
    NEUTRAL_VALUES_BY_ALGORITHM,
    NEUTRAL_VALUES_OF_SETTINGS,
    get_rllib_name,
)
from jaxrl.config.base import AlgorithmConfig, get_algorithm_config, get_algorithm_config_class
from jaxrl.config.load import load_experiment
from jaxrl.config.names import WITH_NEUTRAL_VALUES
from jaxrl.config.registry import list_algorithms
from jaxrl.errors import ConfigError, UnknownSettingError
from tests.recorded_data import write_data

FOLDER = Path(__file__).parent / "rllib"
FILES = {path.stem.upper(): path for path in sorted(FOLDER.glob("*.json"))}
ENVS = {"SAC": "Pendulum-v1", "TQC": "Pendulum-v1"}


def read(algo: str) -> dict[str, Any]:
    """All settings of RLlib's config of an algorithm, as `make.py` wrote them."""
    return json.loads(FILES[algo].read_text())


ACCEPTED_WHOLE = {"_prior_exploration_config"}
"""Settings that RLlib itself does not read."""


def make_rllib_class(name: str, module: str = "ray.rllib.somewhere") -> type[Any]:
    return type(name, (), {"__module__": module})


def test_the_configs_are_those_of_all_common_algorithms() -> None:
    want = {"APPO", "BC", "CQL", "DQN", "IMPALA", "IQL", "MARWIL", "PPO", "SAC", "TQC"}
    assert set(FILES) == want
    assert all(len(read(algo)) > 250 for algo in FILES)


@pytest.mark.parametrize("algo", FILES)
def test_rllibs_config_goes_through_whole(algo: str) -> None:
    data = read(algo)
    config = get_algorithm_config(algo).update_from_dict(data)
    config.environment(ENVS.get(algo, "CartPole-v1"))
    if config.requires_data:
        config.offline_data(input_="data")
    config.validate()
    assert config.notes[0] == "framework='torch': JAX computes here, as always."
    has_own_model = algo in ("PPO", "BC", "MARWIL", "IQL")  # not that of the default
    assert len(config.notes) == 1 + has_own_model + (algo == "IQL")  # on its beta
    for name in ("gamma", "train_batch_size", "num_env_runners", "grad_clip", "num_learners"):
        assert config[name] == data[name]
    copied = type(config).from_dict(data)
    if config.requires_data:
        copied.offline_data(input_="data")
    assert copied.to_dict() == {**config.to_dict(), "env": None}


@pytest.mark.parametrize("algo", FILES)
def test_every_setting_of_rllibs_config_is_accepted_alone(algo: str) -> None:
    for name, value in read(algo).items():
        config = get_algorithm_config(algo).update_from_dict({name: value})
        assert len(config.explicit) <= 1, name


def test_the_default_model_of_rllib_asks_for_nothing() -> None:
    assert "model_config" not in DQNConfig.from_dict(read("DQN")).explicit
    assert PPOConfig.from_dict(read("PPO")).model_config == {"vf_share_layers": False}
    changed = read("DQN")
    changed["model"]["fcnet_hiddens"] = [32]
    assert DQNConfig.from_dict(changed).model_config == {"fcnet_hiddens": [32]}
    written_by_hand = {"fcnet_hiddens": [256, 256], "fcnet_activation": "tanh", "dim": 84}
    config = DQNConfig().training(model=written_by_hand)
    assert config.get_rl_module_spec().model_config["fcnet_activation"] == "tanh"
    both = {**changed, "_model_config": {"fcnet_hiddens": [16]}}
    assert DQNConfig.from_dict(both).model_config == {"fcnet_hiddens": [16]}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("framestack", False),
        ("dim", 42),
        ("custom_model", "my_model"),
        ("custom_model_config", {"a": 1}),
        ("_time_major", True),
        ("no_final_linear", True),
        ("lstm_weights_initializer", "xavier_uniform_"),
        ("conv_transpose_bias_initializer", "zeros_"),
        ("attention_memory_training", 10),
        ("encoder_latent_dim", 8),
    ],
)
def test_model_settings_that_are_not_here_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"'{name}' \(got .*\) is not supported"):
        PPOConfig().rl_module(model_config={name: value}).validate()


@pytest.mark.representatives("PPO")
@pytest.mark.parametrize("algo", ["PPO", "DQN"])
def test_rllibs_config_trains(algo: str, tmp_path: Path) -> None:
    check_that_it_trains(algo, tmp_path, num_env_runners=0)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["BC", "MARWIL", "CQL", "IQL"])
def test_rllibs_config_learns_from_recorded_data(algo: str, tmp_path: Path) -> None:
    config = get_algorithm_config(algo).update_from_dict(read(algo))
    config.offline_data(input_=write_data(tmp_path / "data"), num_updates_per_iteration=2)
    config.training(train_batch_size=32, train_batch_size_per_learner=32).debugging(loggers=[])
    config.reporting(min_time_s_per_iteration=None, min_train_timesteps_per_iteration=0)
    with config.build() as algorithm:
        assert algorithm.train()["learners"]["default_policy"]["num_updates_lifetime"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["SAC", "TQC"])
def test_rllibs_config_of_other_algorithms_trains(algo: str, tmp_path: Path) -> None:
    check_that_it_trains(algo, tmp_path, num_steps_sampled_before_learning_starts=64)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("algo", ["PPO", "IMPALA", "APPO"])
def test_rllibs_config_trains_with_its_processes(algo: str, tmp_path: Path) -> None:
    sizes = {"min_time_s_per_iteration": None, "min_sample_timesteps_per_iteration": 3000}
    check_that_it_trains(algo, tmp_path, **sizes)


def check_that_it_trains(algo: str, results: Path, **changes: object) -> None:
    config = get_algorithm_config(algo).update_from_dict(read(algo)).update_from_dict(changes)
    config.environment(ENVS.get(algo, "CartPole-v1"))
    config.rl_module(model_config={"fcnet_hiddens": [16]}).debugging(
        results_dir=str(results), loggers=["json"]
    )
    if algo == "PPO":
        config.training(num_epochs=2)  # of 30
    with config.build() as algorithm:
        result = algorithm.train()
    learned = result["learners"]["default_policy"]
    expected = {"PPO": 63, "DQN": 1}.get(algo, 1)  # 2 x 4000 / 128
    assert learned["num_updates_lifetime"] >= expected
    if algo == "PPO":
        assert learned["num_updates_lifetime"] == expected
        assert result["num_env_steps_sampled_lifetime"] == 4000


@pytest.mark.parametrize(
    "values",
    [
        {"num_gpus": 0.0, "_fake_gpus": False, "num_gpus_per_worker": 0},
        {"optimizer": {}},
        {"input_": None, "output_config": None, "off_policy_estimation_methods": {}},
        {"policies": {"default_policy"}, "policies_to_train": None},
        {"policies": {"default_policy": [None, None, None, {}]}, "policy_mapping_fn": None},
        {"exploration_config": {}},
        {"exploration_config": {"type": "StochasticSampling"}},
        {"exploration_config": {"type": make_rllib_class("StochasticSampling")}},
        {"render_env": False, "fake_sampler": False, "keep_per_episode_custom_metrics": False},
        {"callbacks": make_rllib_class("RLlibCallback")},
        {"callbacks_class": "ray.rllib.algorithms.callbacks.DefaultCallbacks"},
        {"env_runner_cls": "<class 'ray.rllib.env.single_agent_env_runner.SingleAgentEnvRunner'>"},
        {"learner_class": make_rllib_class("PPOTorchLearner")},
        {"rl_module_spec": make_rllib_class("DefaultPPOTorchRLModule")},
        {"sample_collector": make_rllib_class("SimpleListCollector")},
        {"logger_creator": None, "logger_config": None, "env_task_fn": -1},
        {"torch_compile_learner": False, "torch_compile_worker_dynamo_backend": "onnxrt"},
        {
            "synchronize_filter": True,
            "sgd_minibatch_size": -1,
            "always_attach_evaluation_results": -1,
        },
    ],
)
def test_values_that_ask_for_nothing_mean_nothing(values: dict[str, Any]) -> None:
    config = PPOConfig().update_from_dict(values)
    assert config.explicit == set()
    assert config.notes == []
    assert config.to_dict() == PPOConfig().to_dict()


@pytest.mark.parametrize(
    ("before", "neutral", "names"),
    [
        ({"optimizer": {"name": "sgd"}}, {"optimizer": None}, ["optimizer"]),
        ({"policies": {"a"}, "policies_to_train": ["a"]}, {"policies": None}, ["policies"]),
        ({"policies_to_train": ["a"]}, {"policies_to_train": None}, ["policies_to_train"]),
        # RLlib's own classes leave both as they are; num_gpus is a setting of its older API stack
        ({"num_gpus_per_learner": 1}, {"num_gpus": 0}, []),
        ({"minibatch_size": 64}, {"sgd_minibatch_size": -1}, []),  # RLlib no longer reads it
        ({"minibatch_size": 64}, {"sgd_minibatch_size": None}, []),
        ({"lr": 1e-3, "entropy_coeff": 0.1}, {"lr_schedule": None}, []),
        ({"lr": 1e-3, "entropy_coeff": 0.1}, {"entropy_coeff_schedule": None}, []),
        ({"model": {"fcnet_hiddens": [8]}}, {"model": {}}, []),  # merged
    ],
)
def test_values_that_ask_for_nothing_replace_others(
    before: dict[str, Any], neutral: dict[str, Any], names: list[str]
) -> None:
    config = PPOConfig().update_from_dict(before)
    explicit = set(config.explicit)
    config.update_from_dict(neutral)
    assert explicit - config.explicit == set(names)
    for name in names:
        assert config[name] == PPOConfig()[name]
    both = PPOConfig().update_from_dict({**neutral, **before})
    assert both.explicit == explicit  # of one dict, what asks for something counts


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"_fake_gpus": True}, "'_fake_gpus' (got True) has no effect here: set XLA_FLAGS"),
        ({"num_gpus_per_worker": 0.5}, "'num_gpus_per_worker' (got 0.5)"),
        ({"output_config": {"a": 1}}, "'output_config' (got {'a': 1})"),
        ({"input_evaluation": ["dr"]}, "off_policy_estimation_methods"),
        ({"num_offline_eval_runners": 1}, "in one compiled call"),
        ({"policy_map_cache": 3}, "'policy_map_cache' (got 3)"),
        ({"count_steps_by": "steps"}, "count_steps_by must be 'env_steps' or 'agent_steps'"),
        ({"render_env": True}, "record_video=True"),
        ({"fake_sampler": True}, "jaxrl:probe-value-v0"),
        ({"torch_compile_learner": True}, "'torch_compile_learner' (got True)"),
        ({"enable_env_runner_and_connector_v2": False}, "a single API stack"),
        ({"exploration_config": {"type": "Random"}}, "'exploration_config'"),
        ({"num_gpus": -1}, "num_gpus_per_learner must be at least 0"),
        ({"hiddens": [64]}, "head_fcnet_hiddens"),
        ({"sync_filters_on_rollout_workers_timeout_s": 3}, "statistics"),
        ({"_fake_gpus": 0}, "'_fake_gpus' (got 0)"),
    ],
)
def test_values_that_ask_for_what_is_not_here_are_refused(
    values: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        PPOConfig().update_from_dict(values)
    assert said in str(caught.value)


def test_other_values_than_neutral_ones_are_refused() -> None:
    refused = {name for name, setting in SETTINGS.items() if setting.new_name is None}
    for name in refused - {*PPOConfig()} - ACCEPTED_WHOLE:
        with pytest.raises(ConfigError, match=rf"'{name}' \(got 'something else'\)"):
            PPOConfig().update_from_dict({name: "something else"})


def test_settings_with_neutral_values_are_listed() -> None:
    algorithms = {
        algo: get_algorithm_config_class(algo).get_name_table().group_by_setting
        for algo in list_algorithms()
    }
    settings = set().union(*algorithms.values())
    listed = NEUTRAL_VALUES_OF_SETTINGS.keys() & settings
    listed |= {
        algo for algo, own in NEUTRAL_VALUES_BY_ALGORITHM.items() if algorithms[algo].keys() & own
    }
    assert listed == WITH_NEUTRAL_VALUES


def test_groups_for_what_is_not_here_take_neutral_values() -> None:
    config = PPOConfig().multi_agent(policies=None, policy_map_cache=None)
    config.offline_data(input_=None, output_config=None, shuffle_buffer_size=0)
    config.offline_data(output_compress_columns=[], input_compress_columns=[])
    config.exploration(explore=False, exploration_config={"type": "StochasticSampling"})
    config.rollouts(num_rollout_workers=2, rollout_fragment_length=50)
    assert config.explicit == {"explore", "num_env_runners", "rollout_fragment_length"}
    with pytest.raises(ConfigError, match="'observation_fn'"):
        config.multi_agent(observation_fn=print)
    with pytest.raises(ConfigError, match="'output_config'"):
        config.offline_data(output_config={"format": "json"})
    with pytest.raises(UnknownSettingError, match="inputt_"):
        config.offline_data(inputt_="sampler")


@pytest.mark.parametrize("framework", ["torch", "tf2", "tf"])
def test_a_framework_is_noted_once(framework: str, caplog: pytest.LogCaptureFixture) -> None:
    config = PPOConfig().framework(framework, eager_tracing=True).framework(framework)
    config.update_from_dict({"framework": framework})
    config.prepare()
    assert caplog.messages == [f"framework={framework!r}: JAX computes here, as always."]
    assert caplog.messages[0] in config.explain()
    with pytest.raises(ConfigError, match="Did you mean 'torch'"):
        PPOConfig().framework("troch")


def test_reading_what_is_not_here_is_answered_with_the_reason() -> None:
    config = PPOConfig()
    for name in ("multiagent", "observation_fn", "exploration_config", "input_config"):
        for read_value in (lambda name=name: getattr(config, name), lambda name=name: config[name]):
            with pytest.raises((AttributeError, KeyError)) as caught:
                read_value()
            assert f"no setting '{name}': {SETTINGS[name].reason}." in str(caught.value)
            assert "Did you mean" not in str(caught.value)


def test_old_gpus_are_those_of_the_learner() -> None:
    config = PPOConfig().resources(num_gpus=1)
    assert config.num_gpus_per_learner == 1
    assert "'num_gpus' is now learners(num_gpus_per_learner=...)" in config.notes[0]


@pytest.mark.parametrize(
    ("config", "exploration", "expected"),
    [
        (DQNConfig(), {"type": "EpsilonGreedy"}, {"epsilon": [[0, 1.0], [10_000, 0.02]]}),
        (
            DQNConfig(),
            {"initial_epsilon": 0.5, "final_epsilon": 0.1, "epsilon_timesteps": 200},
            {"epsilon": [[0, 0.5], [200, 0.1]]},
        ),
        (
            DQNConfig(),
            {"type": "EpsilonGreedy", "warmup_timesteps": 100, "epsilon_timesteps": 200},
            {"epsilon": [[0, 1.0], [100, 1.0], [300, 0.02]]},
        ),
        (
            SlateQConfig(),
            {"type": "SlateEpsilonGreedy", "warmup_timesteps": 100, "epsilon_timesteps": 200},
            {"epsilon": [[0, 1.0], [100, 1.0], [300, 0.01]]},
        ),
        (
            SlateQConfig(),
            {"final_epsilon": 0.1},
            {"epsilon": [[0, 1.0], [20_000, 1.0], [270_000, 0.1]]},
        ),
        (
            SACConfig(),
            {"type": "StochasticSampling", "random_timesteps": 500},
            {"initial_random_timesteps": 500},
        ),
        (
            TD3Config(),
            {"type": "ray.rllib.utils.exploration.GaussianNoise", "stddev": 0.3},
            {
                "exploration_noise": "gaussian",
                "exploration_sigma": 0.3,
                "initial_random_timesteps": 10_000,
            },
        ),
    ],
)
def test_exploration_is_translated(
    config: AlgorithmConfig, exploration: dict[str, Any], expected: dict[str, Any]
) -> None:
    config.env_runners(exploration_config=exploration)
    assert {name: config[name] for name in config.explicit} == expected
    assert "'exploration_config' is now training(" in config.notes[0]


@pytest.mark.parametrize(
    ("config", "exploration"),
    [
        (DQNConfig(), {"type": "SoftQ"}),
        (DQNConfig(), {"type": "SlateEpsilonGreedy"}),
        (SlateQConfig(), {"type": "SlateSoftQ"}),
        (DQNConfig(), {"type": "EpsilonGreedy", "temperature": 1.0}),
        (PPOConfig(), {"type": "StochasticSampling", "random_timesteps": 5}),
        (PPOConfig(), {"type": "EpsilonGreedy"}),
        (TD3Config(), {"type": "GaussianNoise", "final_scale": 0.02}),
        (TD3Config(), {"type": "OrnsteinUhlenbeckNoise", "ou_sigma": 0.3}),
        (PPOConfig(), "StochasticSampling"),
        (DQNConfig(), {"type": "EpsilonGreedy", "epsilon_timesteps": "10000"}),
        (TD3Config(), {"type": "GaussianNoise", "stddev": [0.1]}),
    ],
)
def test_other_exploration_is_refused(config: AlgorithmConfig, exploration: object) -> None:
    with pytest.raises(ConfigError, match="'exploration_config'"):
        config.update_from_dict({"exploration_config": exploration})
    assert config.explicit == set()


def test_objects_of_rllib_are_known_by_name() -> None:
    assert (
        get_rllib_name("<class 'ray.rllib.env.x.SingleAgentEnvRunner'>") == "SingleAgentEnvRunner"
    )
    assert get_rllib_name("<class 'my.module.SingleAgentEnvRunner'>") is None
    assert get_rllib_name("ray.rllib.env.x:SingleAgentEnvRunner") == "SingleAgentEnvRunner"
    assert get_rllib_name(make_rllib_class("A", "mine")) is None
    assert get_rllib_name("sampler") is None
    assert get_rllib_name(3) is None


def test_a_seed_of_none_is_drawn_for_each_run(caplog: pytest.LogCaptureFixture) -> None:
    config = PPOConfig().debugging(seed=None)
    copies = [config.copy() for _ in range(8)]
    for copy in copies:
        copy.prepare()
    seeds = [copy.seed for copy in copies]
    assert config.seed is None
    assert len(set(seeds)) > 1
    assert all(isinstance(seed, int) for seed in seeds)
    assert f"seed=None: {seeds[0]} was drawn" in caplog.messages[0]
    assert f"seed={seeds[0]} to repeat" in copies[0].explain()
    with pytest.raises(ConfigError, match="seed is None: build"):
        str(config.debugging_settings.run_seed)


def test_a_drawn_seed_is_recorded(tmp_path: Path) -> None:
    config = PPOConfig().environment("CartPole-v1").debugging(seed=None, results_dir=str(tmp_path))
    config.debugging(loggers=["json"]).training(train_batch_size=64, num_epochs=1)
    config.rl_module(model_config={"fcnet_hiddens": [4]})
    with config.build() as algorithm:
        first = algorithm.train()
        path = algorithm.save()
        seed = algorithm.config.seed
    assert config.seed is None
    folder = next(tmp_path.iterdir())
    assert json.loads((folder / "params.json").read_text())["settings"]["seed"] == seed
    with type(algorithm).from_checkpoint(path) as restored:
        assert restored.config.seed == seed
    with config.copy().debugging(seed=seed).build() as again:
        second = again.train()
    assert first["learners"] == second["learners"]


def test_params_json_of_a_trial_is_an_experiment(tmp_path: Path) -> None:
    trial = tmp_path / "PPO_CartPole-v1_1a2b3_00000_0_2026-01-01_00-00-00"
    trial.mkdir()
    (trial / "params.json").write_text(json.dumps({**read("PPO"), "env": "CartPole-v1"}))
    experiment = load_experiment(trial / "params.json")
    assert type(experiment.config) is PPOConfig
    assert experiment.config.env == "CartPole-v1"
    assert experiment.name == trial.name
    other = tmp_path / "params.json"
    other.write_text(json.dumps({**read("DQN"), "env": "CartPole-v1"}))
    with pytest.raises(ConfigError, match=r"not its algorithm.*--algo"):
        load_experiment(other)
    assert type(load_experiment(other, algo="DQN").config) is DQNConfig


TUNED = """
cartpole-ppo:
    env: CartPole-v1
    run: PPO
    stop:
        sampler_results/episode_reward_mean: 150
        timesteps_total: 100000
    config:
        framework: torch
        gamma: 0.99
        lr: 0.0003
        num_workers: 1
        num_gpus: 0
        observation_filter: MeanStdFilter
        num_sgd_iter: 6
        vf_loss_coeff: 0.01
        model:
            fcnet_hiddens: [32]
            fcnet_activation: linear
            vf_share_layers: true
        enable_connectors: true
        exploration_config: {}
"""
"""In the form of RLlib's tuned examples, with names of RLlib 2.3."""


def test_a_tuned_example_is_an_experiment(tmp_path: Path) -> None:
    path = tmp_path / "cartpole-ppo.yaml"
    path.write_text(TUNED)
    experiment = load_experiment(path)
    experiment.config.validate()
    assert experiment.config.num_epochs == 6
    assert experiment.config.num_env_runners == 1
    assert experiment.stop == {
        "env_runners/episode_return_mean": 150,
        "num_env_steps_sampled_lifetime": 100_000,
    }
    assert len(experiment.config.notes) == 2


def test_the_score_of_checkpoints_may_have_an_old_key() -> None:
    config = PPOConfig().checkpointing(checkpoint_score_attribute="episode_reward_mean")
    config.validate()
    assert config.checkpointing_settings.score_key == "env_runners/episode_return_mean"
