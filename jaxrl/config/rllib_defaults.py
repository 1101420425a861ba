"""Neutral values of RLlib's settings: accepted without effect, so that RLlib's own configs work.

They are RLlib's defaults, of its current and former versions, where these ask for nothing or for
what is done anyway. All other values of a setting that does not exist here are refused by name,
see `jaxrl.config.rllib_names`.
"""

from collections.abc import Iterator

from jaxrl.config.rllib_names import HOOKS, REFUSED_HOOKS
from jaxrl.core.neutral import ANY_VALUE, RllibObject

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
        *((f"callbacks_on_{hook}", (None,)) for hook in HOOKS),
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
