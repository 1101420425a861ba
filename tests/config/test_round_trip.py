"""Every setting can be set, and survives dictionaries, JSON and YAML."""

import json
from typing import Any

import numpy as np
import pytest
import yaml
from flax import linen
from gymnasium import spaces

from jaxrl import (
    AlphaZeroConfig,
    APPOConfig,
    ARSConfig,
    AWACConfig,
    BanditLinTSConfig,
    BanditLinUCBConfig,
    Callbacks,
    CQLConfig,
    DQNConfig,
    DreamerV3Config,
    DTConfig,
    ESConfig,
    IQLConfig,
    JaxEnv,
    MAPPOConfig,
    MARWILConfig,
    MuZeroConfig,
    PolicySpec,
    PopulationBasedTraining,
    PPOConfig,
    PQNConfig,
    QMIXConfig,
    RLModule,
    RLModuleSpec,
    SACConfig,
    SelfPlay,
    SlateQConfig,
    TD3Config,
    TQCConfig,
    loguniform,
)
from jaxrl.config import get_algorithm_config, list_algorithms
from jaxrl.config.imports import Trust
from jaxrl.config.load import experiment_from_dict
from jaxrl.config.serialize import deserialize_config, serialize_config, serialize_for_display
from jaxrl.errors import CheckpointError, ConfigError
from jaxrl.modules.model_config import DefaultModelConfig
from jaxrl.runners.env_runner import EnvRunner


def hook(**kwargs: Any) -> None:
    """Importable, so it can be saved."""


def evaluation(algorithm: Any) -> dict[str, Any]:
    """Importable too."""
    return {}


def transform(part: Any) -> Any:
    """Importable too."""


class Environment(JaxEnv[Any, Any]):
    """Importable too."""


class Runner(EnvRunner):
    """Importable too."""


class Hooks(Callbacks):
    """Importable too."""


MINE = Trust(everything=True)


BOX = spaces.Box(-1.0, 1.0, (2, 3), np.float32)

# A value for every setting that is not its default.
OTHER: dict[str, Any] = {
    "env": "CartPole-v1",
    "env_config": {"gravity": 9.0, "nested": {"a": [1, 2]}},
    "intrinsic_reward": {"type": "rnd", "lr": 1e-4},
    "intrinsic_reward_coeff": [[0.0, 1.0], [100.0, 0.1]],
    "curriculum": [{"task": {"gravity": 9.0}, "until": 1000}, {"task": {"gravity": 9.8}}],
    "env_task_fn": hook,
    "observation_space": spaces.Dict({"x": BOX, "n": spaces.Tuple([spaces.MultiBinary(3)])}),
    "action_space": spaces.Discrete(3, start=1),
    "clip_rewards": (-2.0, 2.0),
    "action_mask_key": "legal",
    "observe_state": True,
    "normalize_actions": False,
    "clip_actions": True,
    "disable_env_checking": True,
    "validate_env": hook,
    "is_atari": True,
    "max_episode_steps": 7,
    "reset_mode": "on_demand",
    "policies": {
        "p0": PolicySpec(config={"lr": 1e-3}),
        "p1": RLModuleSpec(),
        "p2": None,
        "p3": {"of": "p0", "num_simulations": 8, "search": {"type": "puct", "temperature": 1.0}},
    },
    "mapping": {"a": "p0", "b": "p1"},
    "policy_mapping_fn": hook,
    "policies_to_train": ["p0"],
    "policy_map_capacity": 4,
    "league": SelfPlay(win_rate=0.7),
    "count_steps_by": "agent_steps",
    "algorithm_config_overrides_per_module": {"p0": {"lr": 1e-4}},
    "observe_agent_id": True,
    "share_rewards": "team",
    "max_agents": 5,
    "num_env_runners": 1,
    "placement": "host",
    "gym_env_vectorize_mode": "async",
    "env_runner_cls": Runner,
    "num_cpus_per_env_runner": 0.5,
    "custom_resources_per_env_runner": {"rack": 1.0},
    "validate_env_runners_after_construction": False,
    "sample_timeout_s": 5.0,
    "learner_health_probe_timeout_s": 5.0,
    "max_requests_in_flight_per_env_runner": 2,
    "external_host": "localhost",
    "external_port": 0,
    "external_token_file": "token",
    "external_certificate_file": "certificate.pem",
    "external_private_key_file": "key.pem",
    "external_client_ca_file": "authorities.pem",
    "external_insecure": True,
    "max_clients": 3,
    "max_message_bytes": 2**20,
    "max_weights_lag": 2,
    "inference_window_s": 0.01,
    "input_": ["data/a", "data/b"],
    "input_read_schema": {"obs": "observation"},
    "actions_in_input_normalized": True,
    "ignore_final_observation": True,
    "input_transform": transform,
    "dataset_sampling": "epochs",
    "dataset_storage": "stream",
    "shuffle_buffer_size": 5000,
    "num_updates_per_iteration": 7,
    "max_dataset_bytes": 10**9,
    "output": "recorded",
    "output_max_file_size": 2**20,
    "output_max_rows_per_file": 100,
    "resume_window_s": 5.0,
    "idle_timeout_s": 7.0,
    "episode_lookback_horizon": 3,
    "num_envs_per_env_runner": 8,
    "rollout_fragment_length": 5,
    "batch_mode": "complete_episodes",
    "explore": False,
    "observation_filter": "MeanStdFilter",
    "flatten_observations": True,
    "normalize_rewards": True,
    "env_to_module_connector": hook,
    "module_to_env_connector": hook,
    "add_default_connectors_to_env_to_module_pipeline": False,
    "add_default_connectors_to_module_to_env_pipeline": False,
    "gamma": 0.5,
    "lr": [[0.0, 1e-3], [100.0, 0.0]],
    "grad_clip": 0.5,
    "grad_clip_by": "norm",
    "train_batch_size": 64,
    "train_batch_size_per_learner": 64,
    "optimizer": {"name": "adam", "eps": 1e-5},
    "num_epochs": 3,
    "minibatch_size": 16,
    "microbatch_size": 8,
    "shuffle_batch_per_epoch": False,
    "normalize_advantages": "minibatch",
    "num_learners": 1,
    "num_cpus_per_learner": 2.0,
    "num_gpus_per_learner": 1.0,
    "custom_resources_per_learner": {"rack": 1.0},
    "local_device_idx": 1,
    "num_devices": 2,
    "num_shards": 4,
    "learner_class": PPOConfig().get_default_learner_class(),
    "network": linen.Dense,
    "learner_connector": hook,
    "add_default_connectors_to_learner_pipeline": False,
    "rl_module_spec": RLModuleSpec(module_class=RLModule, action_space=BOX),
    "model_config": {"fcnet_hiddens": [8, 8]},
    "evaluation_interval": 3,
    "evaluation_duration": 4,
    "evaluation_duration_unit": "timesteps",
    "evaluation_config": {"explore": False},
    "custom_evaluation_function": evaluation,
    "evaluation_num_envs": 2,
    "evaluation_num_env_runners": 1,
    "evaluation_parallel_to_training": True,
    "evaluation_sample_timeout_s": 5.0,
    "evaluation_auto_duration_min_env_steps_per_sample": 10,
    "evaluation_auto_duration_max_env_steps_per_sample": 20,
    "evaluation_unhealthy_workers_timeout_s": 1.0,
    "evaluation_error_after_n_consecutive_skips": 2,
    "offline_evaluation_interval": 2,
    "offline_evaluation_type": "wis",
    "offline_evaluation_duration": 3,
    "offline_eval_batch_size_per_runner": 16,
    "offline_evaluation_split": 0.2,
    "off_policy_estimation_methods": {"mine": {"type": "dr", "num_updates": 50}},
    "ope_split_batch_by_episode": False,
    "record_video": 2,
    "always_attach_evaluation_results": False,
    "on_nonfinite": "raise",
    "seeds": [3, 1],
    "num_samples": 2,
    "scheduler": PopulationBasedTraining(
        hyperparam_mutations={"lr": loguniform(1e-5, 1e-2), "gamma": [0.9, 0.99]}
    ),
    "max_lanes_per_program": 3,
    "nonfinite_updates_tolerance": 2,
    "restart_failed_env_runners": False,
    "ignore_env_runner_failures": True,
    "max_num_env_runner_restarts": 3,
    "delay_between_env_runner_restarts_s": 0.0,
    "restart_failed_sub_environments": True,
    "num_consecutive_env_runner_failures_tolerance": 4,
    "env_runner_health_probe_timeout_s": 1.0,
    "env_runner_restore_timeout_s": 9.0,
    "placement_strategy": "STRICT_SPREAD",
    "num_cpus_for_main_process": 2.0,
    "custom_resources_for_main_process": {"rack": 1.0},
    "extra_python_environs_for_driver": {"OMP_NUM_THREADS": "1"},
    "extra_python_environs_for_worker": {"OMP_NUM_THREADS": "1"},
    "min_time_s_per_iteration": 1.5,
    "min_train_timesteps_per_iteration": 100,
    "min_sample_timesteps_per_iteration": 100,
    "metrics_num_episodes_for_smoothing": 5,
    "log_gradients": True,
    "checkpoint_frequency": 2,
    "checkpoint_interval_s": 60.0,
    "checkpoint_at_end": False,
    "max_to_keep": None,
    "checkpoint_score_attribute": "env_runners/episode_return_mean",
    "checkpoint_score_order": "min",
    "async_checkpointing": False,
    "seed": 3,
    "log_level": "DEBUG",
    "log_sys_usage": False,
    "loggers": ["json"],
    "results_dir": "elsewhere",
    "run_name": "mine",
    "max_retraces": 0,
    "jit": False,
    "compilation_cache_dir": "off",
    "callbacks_class": [Hooks],
    "on_algorithm_init": hook,
    "on_train_result": [hook, hook],
    "on_evaluate_start": hook,
    "on_evaluate_end": hook,
    "on_evaluate_offline_start": hook,
    "on_evaluate_offline_end": hook,
    "on_environment_created": hook,
    "on_episode_created": hook,
    "on_episode_start": hook,
    "on_episode_step": [hook],
    "on_env_runners_recreated": hook,
    "on_episode_end": hook,
    "on_sample_end": hook,
    "on_checkpoint_loaded": hook,
    # PPO's own
    "clip_param": 0.1,
    "lambda_": 0.9,
    "use_critic": False,
    "vf_loss_coeff": 0.25,
    "vf_clip_param": float("inf"),
    "huber_delta": 2.0,
    "normalize_values": True,
    "use_kl_loss": False,
    "kl_coeff": 0.3,
    "kl_target": 0.02,
    "entropy_coeff": [[0.0, 0.1], [10.0, 0.0]],
}


# What APPO has beside that; IMPALA's settings are among them.
APPO_OTHER: dict[str, Any] = {
    "vtrace": False,
    "vtrace_clip_rho_threshold": 2.0,
    "vtrace_clip_pg_rho_threshold": 3.0,
    "broadcast_interval": 4,
    "learner_queue_size": 5,
    "circular_buffer_num_batches": 16,
    "circular_buffer_iterations_per_batch": 20,
    "use_kl_loss": True,
    "target_network_update_freq": 0.5,
    "tau": 0.5,
    "target_worker_clipping": 1.5,
    **{name: OTHER[name] for name in ("clip_param", "entropy_coeff", "lambda_", "vf_loss_coeff")},
    **{name: OTHER[name] for name in ("kl_coeff", "kl_target")},
}
# What algorithms have that learn from a replay buffer.
REPLAY_OTHER: dict[str, Any] = {
    "replay_buffer_config": {"type": "uniform", "capacity": 500},
    "num_steps_sampled_before_learning_starts": 200,
    "initial_random_timesteps": 300,
    "training_intensity": 2.0,
    "n_step": (1, 5),
    "target_network_update_freq": 7,
    "tau": 0.5,
    "burn_in_len": 4,
    "zero_init_states": True,
    "store_buffer_in_checkpoints": False,
    "max_buffer_bytes": 2**20,
}
# What DQN has beside that.
DQN_OTHER: dict[str, Any] = {
    "epsilon": [[0.0, 1.0], [50.0, 0.1]],
    "epsilon_ladder": 7.0,
    "double_q": False,
    "dueling": False,
    "num_atoms": 51,
    "v_min": -5.0,
    "v_max": 5.0,
    "num_quantiles": 32,
    "use_h_function": True,
    "h_function_epsilon": 0.01,
    "noisy": True,
    "sigma0": 0.1,
    "cql_alpha": 0.5,
    "margin_coeff": 1.0,
    "margin": 0.5,
    "td_error_loss_fn": "mse",
}
# What QMIX has beside that.
QMIX_OTHER: dict[str, Any] = {
    "mixer": "vdn",
    "mixing_embed_dim": 16,
    "hypernet_embed": 64,
    "obs_agent_id": False,
    "team_reward": "mean",
}
# What SlateQ has beside what it shares with DQN.
SLATEQ_OTHER: dict[str, Any] = {
    "fcnet_hiddens_per_candidate": [64],
    "lr_choice_model": [[0.0, 1e-3], [100.0, 0.0]],
    "use_huber": True,
    "huber_threshold": 0.5,
}
# What AlphaZero has beside what all have.
ALPHAZERO_OTHER: dict[str, Any] = {
    "num_simulations": 8,
    "search": {"type": "puct", "temperature": 1.0},
    "epsilon": 0.5,
    "lambda_": 0.5,
    "vf_loss_coeff": 0.5,
    "circular_buffer_num_batches": 4,
    "circular_buffer_iterations_per_batch": 2,
}
# What DreamerV3 has beside what all with a replay buffer have.
DREAMER_OTHER: dict[str, Any] = {
    "model_size": "nano",
    "batch_length_T": 16,
    "horizon_H": 5,
    "imagination_starts": 4,
    "gae_lambda": 0.8,
    "entropy_scale": 1e-2,
    "return_normalization_decay": 0.9,
    "world_model_lr": [[0.0, 1e-3], [100.0, 0.0]],
    "actor_lr": 1e-3,
    "critic_lr": 2e-3,
    "world_model_grad_clip_by_global_norm": None,
    "actor_grad_clip_by_global_norm": 10.0,
    "critic_grad_clip_by_global_norm": 20.0,
}
MUZERO_OTHER: dict[str, Any] = {
    **ALPHAZERO_OTHER,
    "unroll_steps": 3,
    "reward_loss_coeff": 0.5,
}
# What evolution and bandits have beside what all have.
ES_OTHER: dict[str, Any] = {"noise_stdev": 0.1, "action_noise_std": 0.2, "l2_coeff": 0.1}
ARS_OTHER: dict[str, Any] = {"rollouts_used": 4, "offset": 1.0}
LINUCB_OTHER: dict[str, Any] = {"lambda_": 0.5, "alpha": 2.0}
LINTS_OTHER: dict[str, Any] = {"noise_scale": 0.5}
# What PQN has beside the settings of epochs and minibatches.
PQN_OTHER: dict[str, Any] = {"lambda_": 0.9, "epsilon": [[0.0, 1.0], [50.0, 0.1]]}
# What SAC, TQC, TD3 and DDPG have beside the replay's, which is None for `lr` and nothing else.
ACTOR_CRITIC_OTHER: dict[str, Any] = {
    "actor_lr": [[0.0, 1e-3], [100.0, 0.0]],
    "critic_lr": 2e-3,
}
BOOTSTRAPPED_OTHER: dict[str, Any] = {"use_target_network": False, "policy_delay": 3}
SOFT_OTHER: dict[str, Any] = {"alpha_lr": 2e-3, "initial_alpha": 0.1, "target_entropy": -0.5}
ENSEMBLE_OTHER: dict[str, Any] = {
    "num_critics": 5,
    "num_target_critics": 3,
    "num_atoms": 51,
    "v_min": -3.0,
    "v_max": 30.0,
}
SAC_OTHER: dict[str, Any] = {"twin_q": False, "td_error_loss_fn": "mse", **ENSEMBLE_OTHER}
CQL_OTHER: dict[str, Any] = {
    "bc_iters": 10,
    "temperature": 0.5,
    "num_actions": 3,
    "min_q_weight": 1.0,
    "lagrangian": True,
    "lagrangian_thresh": -1.0,
    "deterministic_backup": False,
}
TWIN_OTHER: dict[str, Any] = {"twin_q": False, "num_critics": 3, "td_error_loss_fn": "huber"}
IQL_OTHER: dict[str, Any] = {"value_lr": 1e-2, "expectile": 0.9, "beta": 3.0}
AWAC_OTHER: dict[str, Any] = {
    "weight_type": "bin",
    "temperature": 0.5,
    "max_weight": 5.0,
    "advantage_type": "max",
    "n_action_sample": 2,
}
TQC_OTHER: dict[str, Any] = {
    "n_quantiles": 5,
    "n_critics": 3,
    "top_quantiles_to_drop_per_net": 1,
}
TD3_OTHER: dict[str, Any] = {
    **BOOTSTRAPPED_OTHER,
    **ENSEMBLE_OTHER,
    "twin_q": False,
    "smooth_target_policy": False,
    "target_noise": 0.3,
    "target_noise_clip": 0.4,
    "exploration_noise": "ou",
    "exploration_sigma": 0.3,
    "exploration_sigma_max": 0.6,
    "ou_theta": 0.2,
    "td_error_loss_fn": "huber",
    "bc_coeff": 2.5,
}
# What algorithms have that imitate recorded actions, beside what all have.
MARWIL_OTHER: dict[str, Any] = {
    "train_batch_size": 100,
    "bc_logstd_coeff": 0.1,
    "burn_in_len": 3,
    "window_length": 7,
    "beta": 0.0,
    "lambda_": 0.5,
    "vf_coeff": 0.5,
    "moving_average_sqd_adv_norm_start": 1.0,
    "moving_average_sqd_adv_norm_update_rate": 0.1,
}
DT_OTHER: dict[str, Any] = {"context_length": 7, "target_return": 3.0, "return_scale": 2.0}
MAPPO_OTHER: dict[str, Any] = {"critic_input": "joint"}
CASES = [
    (config, name, value)
    for config, values in {
        PPOConfig: OTHER,
        APPOConfig: APPO_OTHER,
        MAPPOConfig: MAPPO_OTHER,
        DQNConfig: REPLAY_OTHER | DQN_OTHER,
        QMIXConfig: QMIX_OTHER,
        SlateQConfig: SLATEQ_OTHER,
        AlphaZeroConfig: ALPHAZERO_OTHER,
        DreamerV3Config: DREAMER_OTHER,
        MuZeroConfig: MUZERO_OTHER,
        ESConfig: ES_OTHER,
        ARSConfig: ARS_OTHER,
        BanditLinUCBConfig: LINUCB_OTHER,
        BanditLinTSConfig: LINTS_OTHER,
        PQNConfig: PQN_OTHER,
        SACConfig: ACTOR_CRITIC_OTHER | BOOTSTRAPPED_OTHER | SOFT_OTHER | SAC_OTHER,
        TQCConfig: TQC_OTHER,
        TD3Config: TD3_OTHER,
        CQLConfig: CQL_OTHER,
        IQLConfig: TWIN_OTHER | IQL_OTHER,
        AWACConfig: AWAC_OTHER,
        MARWILConfig: MARWIL_OTHER,
        DTConfig: DT_OTHER,
    }.items()
    for name, value in values.items()
]


def name_origin(config: Any, name: str) -> tuple[str, str]:
    """Return where a setting comes from: the group's class that is the first to have it."""
    groups = [getattr(config, name) for name in dir(config) if name.endswith("_settings")]
    (group,) = [type(x) for x in groups if name in getattr(type(x), "__dataclass_fields__", ())]
    has_it = [base for base in group.__mro__ if name in getattr(base, "__dataclass_fields__", ())]
    return has_it[-1].__name__, name


def test_the_tables_have_every_setting() -> None:
    tested = {name_origin(cls(), name) for cls, name, _ in CASES}
    for algo in list_algorithms():
        config = get_algorithm_config(algo)
        assert {name_origin(config, name) for name in config} <= tested, algo


@pytest.mark.parametrize(("cls", "name", "value"), CASES)
def test_setting_round_trips(cls: type[Any], name: str, value: Any) -> None:
    default = cls()
    config = cls().update_from_dict({name: value})
    assert config[name] == value != default[name]
    assert config.explicit == {name}

    assert cls.from_dict(config.to_dict()).to_dict() == config.to_dict()

    data = serialize_config(config)
    assert data == serialize_for_display(config)
    for plain in (
        json.loads(json.dumps(data, allow_nan=False)),
        yaml.safe_load(yaml.safe_dump(data)),
    ):
        again = deserialize_config(plain, trust=MINE)
        assert type(again) is cls
        assert again.to_dict() == config.to_dict()


def is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(is_plain(item) for item in value)
    return isinstance(value, bool | int | float | str)


@pytest.mark.parametrize(
    ("algo", "name", "value"),
    [
        *(("PPO", name, value) for name, value in sorted(OTHER.items()) if is_plain(value)),
        *(("DQN", name, value) for name, value in (REPLAY_OTHER | DQN_OTHER).items()),
    ],
)
def test_setting_can_be_written_in_yaml(algo: str, name: str, value: Any) -> None:
    written = list(value) if isinstance(value, tuple) else value
    text = yaml.safe_dump({"run": algo, "config": {name: written}})
    assert experiment_from_dict("x", yaml.safe_load(text)).config[name] == value


def test_objects_are_written_as_import_paths() -> None:
    config = PPOConfig().update_from_dict(
        {"on_train_result": "json:dumps", "callbacks_class": ["jaxrl.callbacks:Callbacks"]}
    )
    assert config.on_train_result is json.dumps
    assert config.callbacks_class == [Callbacks]


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("callbacks_class", "subprocess:Popen"),
        ("env_runner_cls", "subprocess:Popen"),
        ("learner_class", "subprocess:Popen"),
        ("loggers", ["subprocess:Popen"]),
        ("rl_module_spec", "subprocess:Popen"),
    ],
)
def test_a_class_of_another_kind_is_refused_before_it_is_called(name: str, path: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} must be a .*subprocess:Popen"):
        PPOConfig().update_from_dict({name: path})


def test_objects_inside_values_survive() -> None:
    config = PPOConfig().rl_module(
        model_config=DefaultModelConfig(fcnet_hiddens=[8], log_std_clip_param=float("inf"))
    )
    config.environment(Environment).training(optimizer=hook)
    again = deserialize_config(json.loads(json.dumps(serialize_config(config))), trust=MINE)
    assert again.model_config == config.model_config
    assert again.env is Environment
    assert again.optimizer is hook


@pytest.mark.parametrize("value", [lambda: None, object()], ids=["lambda", "instance"])
def test_what_cannot_be_saved_is_named(value: Any) -> None:
    config = PPOConfig().environment(env=value)
    with pytest.raises(ConfigError, match=r"env cannot be saved.*register_env"):
        serialize_config(config)
    assert serialize_for_display(config)["settings"]["env"] == repr(value)


def test_what_cannot_be_saved_can_be_supplied() -> None:
    def creator(context: Any) -> None:
        del context

    data = serialize_for_display(PPOConfig().environment(creator).training(lr=1e-4))
    again = deserialize_config(data, overrides={"env": creator})
    assert again.env is creator
    assert again.lr == 1e-4
    assert again.explicit == {"env", "lr"}


@pytest.mark.parametrize("data", [None, [], {"algo": "PPO"}, {"settings": {}}])
def test_foreign_data_are_no_config(data: Any) -> None:
    with pytest.raises(CheckpointError, match="not a saved config"):
        deserialize_config(data)
