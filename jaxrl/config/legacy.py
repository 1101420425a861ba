"""Names that RLlib had or has: what they are called here, or why they are refused."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

DROP = object()
"""A renamed setting's transform returns it when nothing needs to be set."""


@dataclasses.dataclass(frozen=True)
class Renamed:
    """The same meaning under a new name: accepted at run time and answered with the new name."""

    new: str
    transform: Callable[[Any], Any] = lambda value: value
    quiet: bool = False
    """Whether the old name is current in RLlib and needs no answer."""


@dataclasses.dataclass(frozen=True)
class Refused:
    """Known from RLlib, but without effect here: refused, with what to do instead."""

    reason: str
    accepts: tuple[Any, ...] = ()
    """RLlib values that say what happens here anyway; they pass."""


def _unless_none(value: Any) -> Any:
    return DROP if value is None else value


RENAMED: dict[str, Renamed] = {
    # names that RLlib uses side by side with the ones here
    "train_batch_size_per_learner": Renamed("train_batch_size", quiet=True),
    "lambda": Renamed("lambda_", quiet=True),
    "checkpoint_freq": Renamed("checkpoint_frequency", quiet=True),
    "num_to_keep": Renamed("max_to_keep", quiet=True),
    # older names
    "model": Renamed("model_config"),
    "num_workers": Renamed("num_env_runners"),
    "num_rollout_workers": Renamed("num_env_runners"),
    "num_envs_per_worker": Renamed("num_envs_per_env_runner"),
    "num_learner_workers": Renamed("num_learners"),
    "num_sgd_iter": Renamed("num_epochs"),
    "sgd_minibatch_size": Renamed("minibatch_size"),
    "shuffle_sequences": Renamed("shuffle_batch_per_epoch"),
    "shuffle": Renamed("shuffle_batch_per_epoch"),
    "lr_schedule": Renamed("lr", _unless_none),
    "entropy_coeff_schedule": Renamed("entropy_coeff", _unless_none),
    "horizon": Renamed("max_episode_steps"),
    "callbacks": Renamed("callbacks_class"),
    "custom_eval_function": Renamed("custom_evaluation_function"),
    "evaluation_num_episodes": Renamed("evaluation_duration"),
    "metrics_smoothing_episodes": Renamed("metrics_num_episodes_for_smoothing"),
    "min_iter_time_s": Renamed("min_time_s_per_iteration"),
    "min_time_s_per_reporting": Renamed("min_time_s_per_iteration"),
    "timesteps_per_iteration": Renamed("min_sample_timesteps_per_iteration"),
    "min_sample_timesteps_per_reporting": Renamed("min_sample_timesteps_per_iteration"),
    "min_train_timesteps_per_reporting": Renamed("min_train_timesteps_per_iteration"),
    "eager_max_retraces": Renamed("max_retraces"),
    "torch_skip_nan_gradients": Renamed("on_nonfinite", lambda value: "skip" if value else "raise"),
    "keep_checkpoints_num": Renamed("max_to_keep"),
    "local_dir": Renamed("results_dir"),
    "storage_path": Renamed("results_dir"),
    **{
        f"callbacks_on_{hook}": Renamed(f"on_{hook}")
        for hook in (
            "algorithm_init",
            "train_result",
            "evaluate_start",
            "evaluate_end",
            "episode_end",
            "sample_end",
            "checkpoint_loaded",
        )
    },
}


def _spread(
    names: str, reason: str, *, accepts: tuple[Any, ...] = ()
) -> Iterator[tuple[str, Refused]]:
    for name in names.split():
        yield name, Refused(reason, accepts)


_RAY = "Ray actors are not part of this version; environments run inside the compiled program"
_ONE_PROCESS = "learning happens in this process; num_devices chooses its devices"
_TORCH = "the framework is JAX and everything is compiled"
_STACK = "there is one stack, with modules, learners and connectors always on"
_MULTI = "multi-agent training is not part of this version"
_OFFLINE = "training from recorded data is not part of this version"
_EXPLORATION = "exploration is the module's forward_exploration; explore=False switches it off"

_EPISODES = (
    "episodes run inside the compiled program, where no Python is called; on_episode_end is called "
    "for each episode after the dispatch in which it ended"
)
_ENVIRONMENTS = (
    "an environment is pure functions inside the compiled program, so none is created; "
    "on_algorithm_init is called when all is built"
)
_BATCHES = (
    "batches never leave the compiled program; on_sample_end and on_train_result are called between "
    "its dispatches, and a Learner's prepare() sees the samples"
)
HOOKS_REFUSED: dict[str, str] = {
    "on_episode_created": _EPISODES,
    "on_episode_start": _EPISODES,
    "on_episode_step": _EPISODES,
    "on_environment_created": _ENVIRONMENTS,
    "on_sub_environment_created": _ENVIRONMENTS,
    "on_create_policy": "the module is built once; on_algorithm_init is called when all is built",
    "on_postprocess_trajectory": _BATCHES,
    "on_learn_on_batch": _BATCHES,
    "on_env_runners_recreated": _RAY,
    "on_workers_recreated": _RAY,
    "on_offline_eval_runners_recreated": _RAY,
    "on_evaluate_offline_start": _OFFLINE,
    "on_evaluate_offline_end": _OFFLINE,
}
"""Hooks of RLlib's callbacks that cannot be called here, and why."""

REFUSED: dict[str, Refused] = {
    **{
        name: Refused(reason, (None,))
        for hook, reason in HOOKS_REFUSED.items()
        for name in (hook, f"callbacks_{hook}")
    },
    **dict(
        _spread(
            "env_runner_cls worker_cls create_local_env_runner gym_env_vectorize_mode "
            "num_cpus_per_env_runner num_gpus_per_env_runner custom_resources_per_env_runner "
            "num_cpus_per_worker num_gpus_per_worker custom_resources_per_worker "
            "validate_env_runners_after_construction validate_workers_after_construction "
            "sample_timeout_s max_requests_in_flight_per_env_runner "
            "max_requests_in_flight_per_sampler_worker merge_env_runner_states "
            "broadcast_env_runner_states use_env_runner_state_server "
            "env_runner_state_server_max_concurrency episodes_to_numpy remote_worker_envs "
            "remote_env_batch_wait_ms use_worker_filter_stats update_worker_filter_stats "
            "sampler_perf_stats_ema_coef placement_strategy num_cpus_for_main_process "
            "custom_resources_for_main_process num_cpus_for_local_worker num_cpus_for_driver "
            "restart_failed_env_runners recreate_failed_env_runners recreate_failed_workers "
            "ignore_env_runner_failures ignore_worker_failures max_num_env_runner_restarts "
            "max_num_worker_restarts delay_between_env_runner_restarts_s "
            "delay_between_worker_restarts_s num_consecutive_env_runner_failures_tolerance "
            "num_consecutive_worker_failures_tolerance env_runner_health_probe_timeout_s "
            "worker_health_probe_timeout_s env_runner_restore_timeout_s worker_restore_timeout_s "
            "evaluation_sample_timeout_s evaluation_unhealthy_workers_timeout_s "
            "evaluation_error_after_n_consecutive_skips metrics_episode_collection_timeout_s "
            "collect_metrics_timeout extra_python_environs_for_driver "
            "extra_python_environs_for_worker",
            _RAY,
        )
    ),
    **dict(
        _spread(
            "evaluation_num_env_runners evaluation_num_workers create_env_on_local_worker "
            "create_env_on_driver",
            _RAY,
            accepts=(0, False),
        )
    ),
    **dict(
        _spread(
            "num_cpus_per_learner num_gpus_per_learner custom_resources_per_learner "
            "num_cpus_per_learner_worker num_gpus_per_learner_worker local_gpu_idx "
            "num_aggregator_actors_per_learner max_requests_in_flight_per_aggregator_actor "
            "max_requests_in_flight_per_learner learner_config_dict",
            _ONE_PROCESS,
        )
    ),
    **dict(
        _spread(
            "eager_tracing tf_session_args local_tf_session_args torch_compile_learner "
            "torch_compile_learner_what_to_compile torch_compile_learner_dynamo_mode "
            "torch_compile_learner_dynamo_backend torch_compile_worker "
            "torch_compile_worker_dynamo_backend torch_compile_worker_dynamo_mode "
            "torch_ddp_kwargs enable_tf1_exec_eagerly",
            _TORCH + "; debugging(jit=False) runs it step by step",
        )
    ),
    **dict(
        _spread(
            "enable_rl_module_and_learner enable_env_runner_and_connector_v2 enable_connectors "
            "_enable_new_api_stack _enable_rl_module_api _enable_learner_api",
            _STACK,
            accepts=(True,),
        )
    ),
    **dict(
        _spread(
            "_disable_preprocessor_api _disable_action_flattening _validate_config "
            "_disable_initialize_loss_from_dummy_batch _disable_execution_plan_api "
            "synchronize_filters",
            _STACK,
            accepts=(True,),
        )
    ),
    **dict(
        _spread(
            "_use_msgpack_checkpoints simple_optimizer _dont_auto_sync_env_runner_states",
            _STACK,
            accepts=(False,),
        )
    ),
    **dict(
        _spread(
            "_torch_grad_scaler_class _torch_lr_scheduler_classes sample_collector "
            "preprocessor_pref",
            _STACK,
            accepts=(None,),
        )
    ),
    "_tf_policy_handles_more_than_one_loss": Refused(_TORCH, (True, False)),
    **dict(
        _spread(
            "policies policy_mapping_fn policies_to_train policy_map_capacity policy_map_cache "
            "policy_states_are_swappable observation_fn count_steps_by multiagent "
            "algorithm_config_overrides_per_module replay_mode",
            _MULTI,
        )
    ),
    **dict(
        _spread(
            "input_ input input_config offline_data_class input_read_method "
            "input_read_method_kwargs input_read_schema input_read_episodes "
            "input_read_sample_batches input_read_batch_size input_filesystem "
            "input_filesystem_kwargs input_compress_columns input_spaces_jsonable "
            "materialize_data materialize_mapped_data map_batches_kwargs iter_batches_kwargs "
            "ignore_final_observation prelearner_class prelearner_buffer_class "
            "prelearner_buffer_kwargs prelearner_module_synch_period "
            "prelearner_use_recorded_module_states dataset_num_iters_per_learner "
            "actions_in_input_normalized postprocess_inputs shuffle_buffer_size output "
            "output_config output_compress_columns output_max_file_size "
            "output_max_rows_per_file output_write_remaining_data output_write_method "
            "output_write_method_kwargs output_filesystem output_filesystem_kwargs "
            "output_write_episodes offline_sampling off_policy_estimation_methods "
            "ope_split_batch_by_episode input_evaluation offline_evaluation_interval "
            "num_offline_eval_runners offline_evaluation_type offline_eval_runner_class "
            "offline_loss_for_module_fn offline_evaluation_duration "
            "offline_eval_batch_size_per_runner",
            _OFFLINE,
        )
    ),
    **dict(_spread("exploration_config", _EXPLORATION)),
    "num_gpus": Refused("devices are chosen by learners(num_devices=...) and JAX_PLATFORMS"),
    "_fake_gpus": Refused(
        "set XLA_FLAGS=--xla_force_host_platform_device_count=8 before starting Python"
    ),
    "render_env": Refused(
        "a compiled environment has no window; call its render(state) for a picture", (False,)
    ),
    "env_task_fn": Refused(
        "call algorithm.set_env_params(...) in an on_train_result callback; it compiles nothing"
    ),
    "is_atari": Refused("Atari environments are not part of this version", (None, False)),
    "_is_atari": Refused("Atari environments are not part of this version", (None, False)),
    "auto_wrap_old_gym_envs": Refused("wrap old gym environments with shimmy yourself"),
    "soft_horizon": Refused("use max_episode_steps; time limits truncate", (False,)),
    "no_done_at_end": Refused("use max_episode_steps; time limits truncate", (False,)),
    "compress_observations": Refused("experience never leaves the device", (False,)),
    "episode_lookback_horizon": Refused(
        "connectors keep their own state; nothing looks back into episodes", (1,)
    ),
    "add_default_connectors_to_env_to_module_pipeline": Refused(
        "the default connectors are always there", (True,)
    ),
    "add_default_connectors_to_module_to_env_pipeline": Refused(
        "the default connectors are always there", (True,)
    ),
    "add_default_connectors_to_learner_pipeline": Refused(
        "the default connectors are always there; learner_connector adds to them", (True,)
    ),
    "evaluation_parallel_to_training": Refused(
        "evaluation runs between iterations in this version", (False,)
    ),
    "enable_async_evaluation": Refused(
        "evaluation runs between iterations in this version", (False,)
    ),
    "evaluation_auto_duration_min_env_steps_per_sample": Refused(
        "evaluation runs between iterations in this version"
    ),
    "evaluation_auto_duration_max_env_steps_per_sample": Refused(
        "evaluation runs between iterations in this version"
    ),
    "evaluation_force_reset_envs_before_iteration": Refused(
        "every evaluation starts from fresh environments", (True,)
    ),
    "restart_failed_sub_environments": Refused(
        "a compiled environment cannot crash; one with non-finite values is reset by itself"
    ),
    "keep_per_episode_custom_metrics": Refused(
        "collect what you need in an on_episode_end callback", (False,)
    ),
    "custom_stats_cls_lookup": Refused("add your own reductions in an on_train_result callback"),
    "export_native_model_files": Refused(
        "checkpoints hold the parameters; export is not part of this version", (False,)
    ),
    "checkpoint_trainable_policies_only": Refused(
        "there is one module, and checkpoints hold the whole run", (False,)
    ),
    "logger_creator": Refused("pass debugging(loggers=[...]) and results_dir"),
    "logger_config": Refused("pass logger objects with their own options as loggers=[...]"),
    "monitor": Refused("video recording is not part of this version", (False,)),
    "fake_sampler": Refused(
        "use an environment that costs next to nothing, such as 'jaxrl:probe-value-v0'", (False,)
    ),
    "burn_in_len": Refused("recurrent modules are not part of this version", (0,)),
    "store_buffer_in_checkpoints": Refused("checkpoints always hold the whole state of the run"),
}

GROUPS_REFUSED: dict[str, str] = {
    "resources": _RAY + "; devices are chosen by learners(num_devices=...)",
    "python_environment": _RAY,
    "multi_agent": _MULTI,
    "offline_data": _OFFLINE,
    "get_multi_rl_module_spec": _MULTI + "; get_rl_module_spec() is that of the one module",
    "get_marl_module_spec": _MULTI + "; get_rl_module_spec() is that of the one module",
    "get_multi_agent_setup": _MULTI,
}
