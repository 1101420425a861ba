"""Values of RLlib's settings that ask for nothing, or for what is done anyway.

RLlib's `to_dict()` and its `params.json` have every setting, most of them at a default that means
nothing outside of RLlib, such as `num_gpus=0` or `input="sampler"`. Such a value of a setting that
does not exist here is accepted without effect, so that RLlib's own configs work; all others are
refused by name, see `jaxrl.compat.rllib.settings`.
"""

import dataclasses
import enum
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from jaxrl.compat.rllib.attributes import ALL_HOOKS, REFUSED_HOOKS

ANY_VALUE = object()
"""Neutral value of a setting that RLlib itself does not read."""

_RLLIB_PACKAGE = "ray.rllib."
_REPR_PATTERN = re.compile(r"<(?:class '([\w.]+)'|function ([\w.<>]+) at 0x[0-9a-fA-F]+)>")


@dataclasses.dataclass(frozen=True)
class RllibObject:
    """Class, function or enum member of RLlib, as a pattern for values.

    Attributes:
        name: Qualified name within its module; `{algo}` stands for the name of the algorithm.
    """

    name: str


def get_rllib_name(value: object) -> str | None:
    """Return the qualified name of an object of RLlib, or None for any other value.

    Args:
        value: The object itself, its import path ("ray.rllib.callbacks.callbacks.RLlibCallback"),
            or the string that `params.json` has for it ("<class 'ray.rllib...'>").
    """
    if isinstance(value, enum.Enum):
        owner = type(value)
        name = f"{owner.__qualname__}.{value.name}"
        return name if owner.__module__.startswith(_RLLIB_PACKAGE) else None
    if isinstance(value, str):
        found = _REPR_PATTERN.fullmatch(value)
        if found is not None and found[2]:  # a function's repr does not have its module
            return found[2]
        path = found[1] if found is not None else value.replace(":", ".")
        is_member = re.fullmatch(r"[A-Z]\w+\.[A-Z_]+", path)  # an enum's member
        if is_member:
            return path
        return path.rpartition(".")[2] if path.startswith(_RLLIB_PACKAGE) else None
    module, name = (getattr(value, key, None) for key in ("__module__", "__qualname__"))
    is_rllibs = isinstance(module, str) and module.startswith(_RLLIB_PACKAGE)
    return name if is_rllibs and isinstance(name, str) else None


def is_neutral(value: object, neutral_values: Iterable[object], algo: str = "") -> bool:
    """Return whether a value equals one of the neutral ones.

    Lists, tuples and sets are compared by their items, and numbers by value, but 0 is not False.

    Args:
        value: Value as written by the user.
        neutral_values: Plain values, which may contain `RllibObject`s, or `ANY_VALUE`.
        algo: Name of the algorithm.
    """
    return any(_matches(value, neutral, algo) for neutral in neutral_values)


def _matches(value: object, neutral: object, algo: str) -> bool:
    if neutral is ANY_VALUE:
        return True
    if isinstance(neutral, RllibObject):
        return get_rllib_name(value) == neutral.name.replace("{algo}", algo)
    if isinstance(neutral, Mapping):
        expected = cast(Mapping[str, Any], neutral)
        return (
            isinstance(value, Mapping)
            and cast(Mapping[str, object], value).keys() == expected.keys()
            and all(
                _matches(cast(Mapping[str, object], value)[key], expected[key], algo)
                for key in expected
            )
        )
    if isinstance(neutral, list | tuple):
        items = _get_items(value)
        return (
            items is not None
            and len(items) == len(cast(list[Any], neutral))
            and all(map(_matches, items, cast(list[Any], neutral), [algo] * len(items)))
        )
    if isinstance(neutral, bool) or isinstance(value, bool):
        return value is neutral
    if isinstance(neutral, int | float) and isinstance(value, int | float):
        return value == neutral
    if isinstance(neutral, str):
        return isinstance(value, str) and value == neutral  # also a member of a StrEnum
    return type(value) is type(neutral) and value == neutral


def _get_items(value: object) -> list[Any] | None:
    if isinstance(value, list | tuple | set | frozenset):
        return list(cast(list[Any], value))
    return None


DEPRECATED_VALUE = -1
"""RLlib's value of settings that it no longer reads."""

DEPRECATED_NAMES = frozenset(
    (
        "_disable_execution_plan_api",
        "_enable_learner_api",
        "_enable_rl_module_api",
        "always_attach_evaluation_results",
        "auto_wrap_old_gym_envs",
        "custom_async_evaluation_function",
        "enable_async_evaluation",
        "enable_connectors",
        "env_task_fn",
        "max_requests_in_flight_per_aggregator_worker",
        "num_aggregation_workers",
        "policy_map_cache",
        "sgd_minibatch_size",
        "simple_optimizer",
        "synchronize_filters",
        "target_update_frequency",
        "use_critic",
        "use_state_preprocessor",
        "vf_share_layers",
        "worker_cls",
        "worker_side_prioritization",
    )
)
"""Settings whose `DEPRECATED_VALUE` means that they are not set."""

_DEFAULT_POLICY = "default_policy"
_NO_SPEC = (
    None,
    {},
    [None, None, None, None],
    [None, None, None, {}],
    "PolicySpec(policy_class=None, observation_space=None, action_space=None, config=None)",
)

NEUTRAL_VALUES_OF_SETTINGS: dict[str, tuple[object, ...]] = {
    "actions_in_input_normalized": (False,),
    "callbacks_class": (RllibObject("RLlibCallback"), RllibObject("DefaultCallbacks")),
    "env_runner_cls": (None, RllibObject("SingleAgentEnvRunner"), RllibObject("RolloutWorker")),
    "input_": (None,),
    "input_read_schema": (None,),
    "learner_class": (None, RllibObject("{algo}TorchLearner"), RllibObject("{algo}TfLearner")),
    "off_policy_estimation_methods": (None, {}),
    "offline_evaluation_type": (None,),
    "ope_split_batch_by_episode": (None,),
    "optimizer": ({}, None),
    "shuffle_buffer_size": (0,),
    "algorithm_config_overrides_per_module": (None,),
    "policies": (
        None,
        {},
        [_DEFAULT_POLICY],
        *({_DEFAULT_POLICY: spec} for spec in _NO_SPEC),
    ),
    "policies_to_train": (None,),
    "policy_mapping_fn": (
        None,
        RllibObject("AlgorithmConfig.DEFAULT_POLICY_MAPPING_FN"),
    ),
    "rl_module_spec": (
        None,
        RllibObject("Default{algo}TorchRLModule"),
        RllibObject("{algo}TorchRLModule"),
    ),
}
"""Values of settings that exist here which leave them at their default."""


def _neutral(names: str, *values: object) -> Iterator[tuple[str, tuple[object, ...]]]:
    for name in names.split():
        yield name, values


_HIDDENS = {"fcnet_hiddens": [256, 256], "fcnet_activation": "relu"}
_MODEL_OF_SAC = {
    **_HIDDENS,
    "post_fcnet_hiddens": [],
    "post_fcnet_activation": None,
    "custom_model": None,
    "custom_model_config": {},
}
_STATS_CLASSES = {
    "mean": RllibObject("MeanStats"),
    "ema": RllibObject("EmaStats"),
    "min": RllibObject("MinStats"),
    "max": RllibObject("MaxStats"),
    "sum": RllibObject("SumStats"),
    "lifetime_sum": RllibObject("LifetimeSumStats"),
    "percentiles": RllibObject("PercentilesStats"),
    "item": RllibObject("ItemStats"),
    "item_series": RllibObject("ItemSeriesStats"),
}
_TF_SESSION = {
    "intra_op_parallelism_threads": 2,
    "inter_op_parallelism_threads": 2,
    "gpu_options": {"allow_growth": True},
    "log_device_placement": False,
    "device_count": {"CPU": 1},
    "allow_soft_placement": True,
}

_FRAMEWORK = (
    *_neutral("eager_tracing", True),
    *_neutral("eager_max_retraces", 20, None),
    *_neutral("enable_tf1_exec_eagerly torch_compile_learner torch_compile_worker", False),
    *_neutral("torch_skip_nan_gradients", False),
    *_neutral("tf_session_args", {}, _TF_SESSION),
    *_neutral(
        "local_tf_session_args",
        {},
        {"intra_op_parallelism_threads": 8, "inter_op_parallelism_threads": 8},
    ),
    *_neutral("torch_ddp_kwargs", {}),
    *_neutral(
        "torch_compile_learner_what_to_compile",
        None,
        "forward_train",
        RllibObject("TorchCompileWhatToCompile.FORWARD_TRAIN"),
    ),
    *_neutral(
        "torch_compile_learner_dynamo_backend torch_compile_worker_dynamo_backend",
        None,
        "inductor",
        "onnxrt",
        "aot_eager",
    ),
    *_neutral(
        "torch_compile_learner_dynamo_mode torch_compile_worker_dynamo_mode",
        None,
        "reduce-overhead",
        "max-autotune",
    ),
    *_neutral("_torch_grad_scaler_class _torch_lr_scheduler_classes", None),
    *_neutral("_tf_policy_handles_more_than_one_loss", True, False),
)

_API_STACK = (
    *_neutral(
        "enable_rl_module_and_learner enable_env_runner_and_connector_v2 enable_connectors "
        "_enable_new_api_stack _enable_rl_module_api _enable_learner_api _validate_config "
        "_disable_execution_plan_api synchronize_filters synchronize_filter",
        True,
    ),
    *_neutral(
        "_disable_preprocessor_api _disable_action_flattening _dont_auto_sync_env_runner_states "
        "_disable_initialize_loss_from_dummy_batch",
        True,
        False,
    ),
    *_neutral("_use_msgpack_checkpoints simple_optimizer in_evaluation", False),
    *_neutral("_is_online", True),
    *_neutral("_env_runners_only _skip_learners", False),
    *_neutral("sample_collector", None, RllibObject("SimpleListCollector")),
    *_neutral("preprocessor_pref", None, "deepmind"),
    *_neutral("_prior_exploration_config", ANY_VALUE),
    *_neutral("model _model_config", {}, None),
    *_neutral(
        "_env_to_module_connector _learner_class _learner_connector _module_to_env_connector "
        "_rl_module_spec _train_batch_size_per_learner _is_atari",
        None,
    ),
)

_SAMPLING = (
    *_neutral("merge_env_runner_states", "training_only", True),
    *_neutral("use_worker_filter_stats update_worker_filter_stats", "training_only", True),
    *_neutral("broadcast_env_runner_states create_local_env_runner episodes_to_numpy", True),
    *_neutral("use_env_runner_state_server", False, True),
    *_neutral("env_runner_state_server_max_concurrency", 16),
    *_neutral("sync_filters_on_rollout_workers_timeout_s", 10.0, 60.0),
    *_neutral("create_env_on_local_worker create_env_on_driver sample_async", False),
    *_neutral("remote_worker_envs compress_observations", False),
    *_neutral("num_gpus_per_env_runner num_gpus_per_worker remote_env_batch_wait_ms", 0),
    *_neutral("sampler_perf_stats_ema_coef replay_sequence_length", None),
    *_neutral("metrics_episode_collection_timeout_s collect_metrics_timeout", 60.0, 180.0),
    *_neutral(
        "worker_cls", None, RllibObject("SingleAgentEnvRunner"), RllibObject("RolloutWorker")
    ),
    *_neutral("render_env soft_horizon no_done_at_end fake_sampler", False),
    *_neutral("horizon", None),
    *_neutral("auto_wrap_old_gym_envs", True, False),
)

_LEARNING = (
    *_neutral("num_gpus", 0),
    *_neutral("_fake_gpus", False),
    *_neutral("local_gpu_idx", 0),
    *_neutral("num_aggregator_actors_per_learner", 0),
    *_neutral("max_requests_in_flight_per_aggregator_actor", 3, 100),
    *_neutral("max_requests_in_flight_per_learner", 3),
    *_neutral("learner_config_dict", {}),
    *_neutral("lr_schedule entropy_coeff_schedule before_learn_on_batch", None),
    # settings of on-policy algorithms, which RLlib has in every config
    *_neutral("num_epochs", 1, None),
    *_neutral("minibatch_size sgd_minibatch_size", None),
    *_neutral("shuffle_batch_per_epoch", False),
    # IMPALA and APPO
    *_neutral("use_circular_buffer use_gae", True),
    *_neutral("simple_queue_size", 32, 16),
    *_neutral("learner_queue_timeout", 300),
    *_neutral("timeout_s_sampler_manager timeout_s_aggregator_manager replay_proportion", 0),
    *_neutral("num_gpu_loader_threads", 8),
    *_neutral("num_multi_gpu_tower_stacks", 1),
    *_neutral("replay_buffer_num_slots", 0, 100),
    *_neutral("minibatch_buffer_size", 0, 1),
    *_neutral("replay_ratio momentum num_aggregation_workers", 0),
    *_neutral("max_requests_in_flight_per_aggregator_worker", 2),
    *_neutral("opt_type", "adam"),
    *_neutral("decay", 0.99),
    *_neutral("epsilon", 0.1),
    *_neutral("_separate_vf_optimizer", False),
    *_neutral("_lr_vf", 0.0005),
    # DQN, SAC and TQC
    *_neutral("hiddens", [256]),
    *_neutral("adam_epsilon", 1e-8),
    *_neutral("categorical_distribution_temperature huber_threshold", 1),
    *_neutral("q_model_config policy_model_config", {}, _HIDDENS, _MODEL_OF_SAC),
    *_neutral(
        "optimization optimization_config",
        {},
        {
            "actor_learning_rate": 3e-4,
            "critic_learning_rate": 3e-4,
            "entropy_learning_rate": 3e-4,
        },
    ),
    *_neutral(
        "_deterministic_loss _use_beta_distribution use_state_preprocessor "
        "worker_side_prioritization",
        False,
    ),
    *_neutral("twin_q", True),
    *_neutral("l2_reg burn_in_len", 0),
    *_neutral("store_buffer_in_checkpoints", False),
)

_MULTI_AGENT = (
    *_neutral("policy_map_cache observation_fn", None),
    *_neutral("policy_states_are_swappable", False, True),
    *_neutral("multiagent _per_module_overrides", {}, None),
    *_neutral("replay_mode", "independent"),
)

_OFFLINE = (
    *_neutral("input", "sampler", None),
    *_neutral("input_evaluation", [], None, ["is", "wis"]),
    *_neutral(
        "input_config input_filesystem_kwargs input_read_method_kwargs "
        "iter_batches_kwargs map_batches_kwargs output_config "
        "output_filesystem_kwargs output_write_method_kwargs prelearner_buffer_kwargs "
        "custom_resources_per_offline_eval_runner",
        {},
        None,
    ),
    *_neutral(
        "offline_data_class input_filesystem input_read_batch_size dataset_num_iters_per_learner "
        "prelearner_buffer_class prelearner_class output_filesystem "
        "offline_eval_runner_class offline_loss_for_module_fn",
        None,
    ),
    *_neutral(
        "broadcast_offline_eval_runner_states "
        "ignore_offline_eval_runner_failures input_read_episodes "
        "input_read_sample_batches materialize_data offline_eval_rl_module_inference_only "
        "offline_evaluation_parallel_to_training offline_sampling output_write_remaining_data "
        "postprocess_inputs prelearner_use_recorded_module_states",
        False,
    ),
    *_neutral(
        "input_spaces_jsonable materialize_mapped_data output_write_episodes restart_failed_offline_eval_runners "
        "validate_offline_eval_runners_after_construction",
        True,
    ),
    *_neutral("input_read_method", "read_parquet"),
    *_neutral("output_write_method", "write_parquet"),
    *_neutral("input_compress_columns output_compress_columns", ["obs", "new_obs"], []),
    *_neutral("num_gpus_per_offline_eval_runner num_offline_eval_runners", 0),
    *_neutral("dataset_num_iters_per_eval_runner num_cpus_per_offline_eval_runner", 1),
    *_neutral("max_requests_in_flight_per_offline_eval_runner", 1),
    *_neutral("offline_evaluation_timeout_s", 120.0),
    *_neutral("offline_eval_runner_health_probe_timeout_s", 30.0),
    *_neutral("offline_eval_runner_restore_timeout_s", 1800.0),
    *_neutral("max_num_offline_eval_runner_restarts", 1000),
    *_neutral("prelearner_module_synch_period", 10),
)

_REPORTING = (
    *_neutral("callbacks", None, *NEUTRAL_VALUES_OF_SETTINGS["callbacks_class"]),
    *_neutral(
        "custom_eval_function custom_async_evaluation_function logger_creator logger_config", None
    ),
    *_neutral("enable_async_evaluation keep_per_episode_custom_metrics", False),
    *_neutral("evaluation_force_reset_envs_before_iteration", True),
    *_neutral("custom_stats_cls_lookup stats_cls_lookup", None, {}, _STATS_CLASSES),
    *_neutral("export_native_model_files checkpoint_trainable_policies_only", False),
)

NEUTRAL_VALUES: dict[str, tuple[object, ...]] = dict(
    (
        *_FRAMEWORK,
        *_API_STACK,
        *_SAMPLING,
        *_LEARNING,
        *_MULTI_AGENT,
        *_OFFLINE,
        *_REPORTING,
        *((f"callbacks_on_{hook}", (None,)) for hook in ALL_HOOKS),
        *((hook, (None,)) for hook in REFUSED_HOOKS),
    )
)
"""Values that are accepted without effect, for names that are no settings here."""

_NO_SAMPLING: dict[str, tuple[object, ...]] = {
    "_is_online": (False,),
    "num_envs_per_env_runner": (1,),
}
"""RLlib's defaults of algorithms that learn from recorded data alone."""
_MARWIL: dict[str, tuple[object, ...]] = {
    **_NO_SAMPLING,
    "_set_off_policy_estimation_methods": (False,),
    "burnin_len": (0,),
    "materialize_data": (True,),
    "materialize_mapped_data": (False,),
    "postprocess_inputs": (True,),
    "rollout_fragment_length": (200,),
}
_ADVANTAGES: dict[str, tuple[object, ...]] = {
    "lambda": (1.0,),
    "lambda_": (1.0,),
    "vf_coeff": (1.0,),
    "moving_average_sqd_adv_norm_start": (100.0,),
    "moving_average_sqd_adv_norm_update_rate": (1e-8,),
}
"""RLlib's defaults of MARWIL, which its BC and IQL inherit without reading them."""
_BUFFER_OF_CQL = {
    "_enable_replay_buffer_api": True,
    "capacity": 1_000_000,
    "prioritized_replay": False,
    "prioritized_replay_alpha": 0.6,
    "prioritized_replay_beta": 0.4,
    "prioritized_replay_eps": 1e-6,
    "type": "MultiAgentPrioritizedReplayBuffer",
    "worker_side_prioritization": False,
}

_RMSPROP: dict[str, tuple[object, ...]] = {"optim_alpha": (0.99,), "optim_eps": (1e-5,)}
NEUTRAL_VALUES_BY_ALGORITHM: dict[str, dict[str, tuple[object, ...]]] = {
    # RLlib's default, which its new API stack does not read
    "IMPALA": {"num_gpus": (1,)},
    "APPO": {"num_gpus": (1,)},
    # RLlib's BC is its MARWIL with beta=0, in which the other settings have no effect
    "BC": {**_MARWIL, **_ADVANTAGES, "beta": (0.0,)},
    "MARWIL": _MARWIL,
    # those of QMIX's default optimizer
    "QMIX": _RMSPROP,
    "VDN": _RMSPROP,
    "IQL": {**_MARWIL, **_ADVANTAGES, "bc_logstd_coeff": (0.0,)},
    "CQL": {
        **_NO_SAMPLING,
        "lr": (3e-4,),  # which RLlib does not read: its parts have learning rates of their own
        "min_train_timesteps_per_iteration": (100,),
        "num_steps_sampled_before_learning_starts": (1500,),
        "replay_buffer_config": (_BUFFER_OF_CQL,),
        "store_buffer_in_checkpoints": (False,),
    },
}
"""Further values, for single algorithms."""

_LAYERS = ("fcnet", "conv", "conv_transpose", "post_fcnet", "lstm")
MODEL_DEFAULTS: Mapping[str, Any] = {
    **{
        f"{layers}_{part}_initializer{suffix}": None
        for layers in _LAYERS
        for part in ("kernel", "weights", "bias")
        for suffix in ("", "_config")
    },
    "fcnet_hiddens": [256, 256],
    "fcnet_activation": "tanh",
    "conv_filters": None,
    "conv_activation": "relu",
    "post_fcnet_hiddens": [],
    "post_fcnet_activation": "relu",
    "free_log_std": False,
    "log_std_clip_param": 20.0,
    "no_final_linear": False,
    "vf_share_layers": True,
    "use_lstm": False,
    "max_seq_len": 20,
    "lstm_cell_size": 256,
    "lstm_use_prev_action": False,
    "lstm_use_prev_reward": False,
    "lstm_use_prev_action_reward": -1,
    "_time_major": False,
    "use_attention": False,
    "attention_num_transformer_units": 1,
    "attention_dim": 64,
    "attention_num_heads": 1,
    "attention_head_dim": 32,
    "attention_memory_inference": 50,
    "attention_memory_training": 50,
    "attention_position_wise_mlp_dim": 32,
    "attention_init_gru_gate_bias": 2.0,
    "attention_use_n_prev_actions": 0,
    "attention_use_n_prev_rewards": 0,
    "framestack": True,
    "dim": 84,
    "grayscale": False,
    "zero_mean": True,
    "custom_model": None,
    "custom_model_config": {},
    "custom_action_dist": None,
    "custom_preprocessor": None,
    "encoder_latent_dim": None,
    "always_check_shapes": False,
    "_use_default_native_models": -1,
    "_disable_preprocessor_api": False,
    "_disable_action_flattening": False,
}
_KEYS_OF_MERGED = {"_time_major", "custom_model", "custom_action_dist", "framestack", "zero_mean"}


def has_default(name: str, value: object) -> bool:
    """Return whether a model setting has RLlib's default."""
    return name in MODEL_DEFAULTS and is_neutral(value, (MODEL_DEFAULTS[name],))


def drop_merged_defaults(model: object) -> object:
    """Remove RLlib's defaults from a dictionary that RLlib has merged with all of them.

    RLlib's `config.model` has every setting of `MODEL_DEFAULTS`, so that a default there says no
    more than the setting's absence. A shorter dictionary was written by the user, and is returned
    unchanged, as is any other value.
    """
    if not isinstance(model, Mapping):
        return model
    settings = cast(Mapping[str, Any], model)
    if not settings.keys() >= _KEYS_OF_MERGED:
        return settings
    return {name: value for name, value in settings.items() if not has_default(name, value)}


def asks_for_nothing(name: str, value: object, algo: str, *, is_setting: bool = False) -> bool:
    """Return whether a value of a setting asks for nothing, or for what is done anyway.

    Args:
        name: Name of the setting.
        value: Its value.
        algo: Name of the algorithm.
        is_setting: Whether the algorithm has a setting of this name.
    """
    if name in DEPRECATED_NAMES and is_neutral(value, (DEPRECATED_VALUE,)):
        return True
    general = NEUTRAL_VALUES_OF_SETTINGS if is_setting else NEUTRAL_VALUES
    own = NEUTRAL_VALUES_BY_ALGORITHM.get(algo, {})
    return is_neutral(value, (*general.get(name, ()), *own.get(name, ())), algo)
