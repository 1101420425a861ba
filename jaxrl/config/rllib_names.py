"""RLlib's names of settings that differ here: the current name, or the reason for refusing them."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

DROP = object()
"""Sentinel that `Renamed.transform` returns if there is nothing to set."""


@dataclasses.dataclass(frozen=True)
class Renamed:
    """Setting with another name here: accepted at run time, with a note on the current name."""

    new_name: str
    transform: Callable[[Any], object] = lambda value: value
    is_quiet: bool = False
    """Whether the name is current in RLlib, so that no note is needed."""


@dataclasses.dataclass(frozen=True)
class Refused:
    """Setting of RLlib that would have no effect here: refused, with the alternative."""

    reason: str
    accepted_values: tuple[object, ...] = ()
    """Values that describe the behavior here, and are accepted without effect."""


def _unless_none(value: object) -> object:
    return DROP if value is None else value


RENAMED: dict[str, Renamed] = {
    # current aliases in RLlib
    "lambda": Renamed("lambda_", is_quiet=True),
    "checkpoint_freq": Renamed("checkpoint_frequency", is_quiet=True),
    "num_to_keep": Renamed("max_to_keep", is_quiet=True),
    # older names
    "model": Renamed("model_config"),
    "num_workers": Renamed("num_env_runners"),
    "num_rollout_workers": Renamed("num_env_runners"),
    "num_envs_per_worker": Renamed("num_envs_per_env_runner"),
    "worker_cls": Renamed("env_runner_cls"),
    "num_cpus_per_worker": Renamed("num_cpus_per_env_runner"),
    "custom_resources_per_worker": Renamed("custom_resources_per_env_runner"),
    "validate_workers_after_construction": Renamed("validate_env_runners_after_construction"),
    "max_requests_in_flight_per_sampler_worker": Renamed("max_requests_in_flight_per_env_runner"),
    "num_learner_workers": Renamed("num_learners"),
    "num_cpus_per_learner_worker": Renamed("num_cpus_per_learner"),
    "num_gpus_per_learner_worker": Renamed("num_gpus_per_learner"),
    "local_gpu_idx": Renamed("local_device_idx"),
    "num_cpus_for_local_worker": Renamed("num_cpus_for_main_process"),
    "num_cpus_for_driver": Renamed("num_cpus_for_main_process"),
    "recreate_failed_env_runners": Renamed("restart_failed_env_runners"),
    "recreate_failed_workers": Renamed("restart_failed_env_runners"),
    "ignore_worker_failures": Renamed("ignore_env_runner_failures"),
    "max_num_worker_restarts": Renamed("max_num_env_runner_restarts"),
    "delay_between_worker_restarts_s": Renamed("delay_between_env_runner_restarts_s"),
    "num_consecutive_worker_failures_tolerance": Renamed(
        "num_consecutive_env_runner_failures_tolerance"
    ),
    "worker_health_probe_timeout_s": Renamed("env_runner_health_probe_timeout_s"),
    "worker_restore_timeout_s": Renamed("env_runner_restore_timeout_s"),
    "evaluation_num_workers": Renamed("evaluation_num_env_runners"),
    "_is_atari": Renamed("is_atari"),
    "monitor": Renamed("record_video"),
    "target_update_frequency": Renamed("target_network_update_freq"),
    "use_huber": Renamed("td_error_loss_fn", lambda value: "huber" if value else "mse"),
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
            "environment_created",
            "episode_created",
            "episode_start",
            "episode_step",
            "episode_end",
            "sample_end",
            "env_runners_recreated",
            "checkpoint_loaded",
        )
    },
    "on_workers_recreated": Renamed("on_env_runners_recreated"),
    "callbacks_on_workers_recreated": Renamed("on_env_runners_recreated"),
}


def _refuse_each(
    names: str, reason: str, *, accepts: tuple[object, ...] = ()
) -> Iterator[tuple[str, Refused]]:
    for name in names.split():
        yield name, Refused(reason, accepts)


_FILTER_STATES_REASON = (
    "the learner updates the statistics from each batch and sends them with the weights"
)
_LEARNERS_REASON = "each learner receives its batches from the main process, one at a time"
_FRAMEWORK_REASON = "the framework is JAX and everything is compiled"
_API_STACK_REASON = (
    "there is a single API stack, which always uses modules, learners and connectors"
)
_MULTI_AGENT_REASON = "multi-agent training is not supported in this version"
_OFFLINE_DATA_REASON = "training from offline data is not supported in this version"
_EXPLORATION_REASON = (
    "exploration is defined by the module's forward_exploration; explore=False disables it"
)

_BATCH_HOOKS_REASON = (
    "batches are processed inside the compiled program; on_sample_end and on_train_result are "
    "called between its calls, and a Learner's prepare() receives the samples"
)
REFUSED_HOOKS: dict[str, str] = {
    "on_sub_environment_created": "on_environment_created covers all environments of a runner",
    "on_create_policy": "the module is built once; on_algorithm_init is called afterwards",
    "on_postprocess_trajectory": _BATCH_HOOKS_REASON,
    "on_learn_on_batch": _BATCH_HOOKS_REASON,
    "on_offline_eval_runners_recreated": _OFFLINE_DATA_REASON,
    "on_evaluate_offline_start": _OFFLINE_DATA_REASON,
    "on_evaluate_offline_end": _OFFLINE_DATA_REASON,
}
"""Hooks of RLlib's callbacks that are not supported, with the reasons."""

REFUSED: dict[str, Refused] = {
    **{
        name: Refused(reason, (None,))
        for hook, reason in REFUSED_HOOKS.items()
        for name in (hook, f"callbacks_{hook}")
    },
    **dict(
        _refuse_each(
            "merge_env_runner_states use_worker_filter_stats update_worker_filter_stats",
            _FILTER_STATES_REASON,
            accepts=("training_only", True),
        )
    ),
    "broadcast_env_runner_states": Refused(_FILTER_STATES_REASON, (True,)),
    "use_env_runner_state_server": Refused(_FILTER_STATES_REASON, (False,)),
    "env_runner_state_server_max_concurrency": Refused(_FILTER_STATES_REASON),
    "create_local_env_runner": Refused(
        "this process has a runner with num_env_runners=0, and none in addition to actors", (True,)
    ),
    **dict(
        _refuse_each(
            "create_env_on_local_worker create_env_on_driver",
            "this process creates an environment to determine its spaces, and steps none if there "
            "are actors",
            accepts=(False,),
        )
    ),
    **dict(
        _refuse_each(
            "num_gpus_per_env_runner num_gpus_per_worker",
            "runners use no accelerator; the learner's are set by learners(num_devices=...)",
            accepts=(0, 0.0),
        )
    ),
    "sample_async": Refused("IMPALA and APPO sample concurrently with updates", (False,)),
    "remote_worker_envs": Refused(
        "gym_env_vectorize_mode='async' steps each environment in a separate process", (False,)
    ),
    "remote_env_batch_wait_ms": Refused(
        "with gym_env_vectorize_mode='async' a step waits for all environments", (0,)
    ),
    "sampler_perf_stats_ema_coef": Refused(
        "timers measure one iteration each and are not smoothed"
    ),
    "episodes_to_numpy": Refused("episodes always hold NumPy arrays", (True,)),
    "compress_observations": Refused(
        "fragments use shared memory on a node, and are sent uncompressed between nodes", (False,)
    ),
    **dict(
        _refuse_each(
            "metrics_episode_collection_timeout_s collect_metrics_timeout",
            "metrics arrive with the fragments, whose timeout is sample_timeout_s",
        )
    ),
    "num_aggregator_actors_per_learner": Refused(_LEARNERS_REASON, (0,)),
    "max_requests_in_flight_per_aggregator_actor": Refused(_LEARNERS_REASON),
    "max_requests_in_flight_per_learner": Refused(_LEARNERS_REASON),
    # IMPALA and APPO
    "use_circular_buffer": Refused(
        "circular_buffer_num_batches=1 and circular_buffer_iterations_per_batch=1 disable the "
        "buffer",
        (True,),
    ),
    "use_gae": Refused(
        "without vtrace, targets are lambda-returns with the setting lambda_", (True,)
    ),
    **dict(
        _refuse_each(
            "simple_queue_size learner_queue_timeout timeout_s_sampler_manager "
            "timeout_s_aggregator_manager num_gpu_loader_threads num_aggregation_workers "
            "max_requests_in_flight_per_aggregator_worker",
            "learner_queue_size limits the train batches that wait for the learner, and "
            "sample_timeout_s the time that a runner may take",
        )
    ),
    **dict(
        _refuse_each(
            "replay_proportion replay_buffer_num_slots replay_ratio minibatch_buffer_size",
            "circular_buffer_num_batches and circular_buffer_iterations_per_batch control the "
            "reuse of batches",
            accepts=(0, 0.0),
        )
    ),
    **dict(
        _refuse_each(
            "opt_type decay momentum epsilon _separate_vf_optimizer _lr_vf",
            "optimizer takes the name of the optimizer and its arguments, e.g. {'name': 'rmsprop', "
            "'decay': 0.99, 'eps': 0.1}",
        )
    ),
    # DQN and SAC
    "hiddens": Refused(
        "set the heads' hidden layers by rl_module(model_config={'head_fcnet_hiddens': [...]})"
    ),
    "adam_epsilon": Refused("set optimizer={'name': 'adam', 'eps': ...}", (1e-8,)),
    "categorical_distribution_temperature": Refused(
        "actions are greedy, or random with probability epsilon", (1.0,)
    ),
    "before_learn_on_batch": Refused(_BATCH_HOOKS_REASON, (None,)),
    **dict(
        _refuse_each(
            "q_model_config policy_model_config actor_hiddens actor_hidden_activation "
            "critic_hiddens critic_hidden_activation",
            "rl_module(model_config={'fcnet_hiddens': [...], 'fcnet_activation': ...}) applies to "
            "the policy and the critics",
        )
    ),
    **dict(
        _refuse_each(
            "optimization optimization_config",
            "actor_lr, critic_lr and alpha_lr are the learning rates",
        )
    ),
    **dict(
        _refuse_each(
            "_deterministic_loss _use_beta_distribution use_state_preprocessor "
            "worker_side_prioritization",
            "actions are sampled from a squashed Gaussian, and the learner updates priorities",
            accepts=(False,),
        )
    ),
    "huber_threshold": Refused("the Huber loss becomes linear at 1", (1, 1.0)),
    "l2_reg": Refused("set optimizer={'name': 'adamw', 'weight_decay': ...}", (0, 0.0)),
    "learner_config_dict": Refused(
        "a Learner reads the settings of training(), to which a config subclass can add others: "
        "class MyConfig(PPOConfig): my_coeff: float = 0.1",
        ({},),
    ),
    **dict(
        _refuse_each(
            "eager_tracing tf_session_args local_tf_session_args torch_compile_learner "
            "torch_compile_learner_what_to_compile torch_compile_learner_dynamo_mode "
            "torch_compile_learner_dynamo_backend torch_compile_worker "
            "torch_compile_worker_dynamo_backend torch_compile_worker_dynamo_mode "
            "torch_ddp_kwargs enable_tf1_exec_eagerly",
            _FRAMEWORK_REASON + "; debugging(jit=False) runs operation by operation",
        )
    ),
    **dict(
        _refuse_each(
            "enable_rl_module_and_learner enable_env_runner_and_connector_v2 enable_connectors "
            "_enable_new_api_stack _enable_rl_module_api _enable_learner_api",
            _API_STACK_REASON,
            accepts=(True,),
        )
    ),
    **dict(
        _refuse_each(
            "_disable_preprocessor_api _disable_action_flattening _validate_config "
            "_disable_initialize_loss_from_dummy_batch _disable_execution_plan_api "
            "synchronize_filters",
            _API_STACK_REASON,
            accepts=(True,),
        )
    ),
    **dict(
        _refuse_each(
            "_use_msgpack_checkpoints simple_optimizer _dont_auto_sync_env_runner_states",
            _API_STACK_REASON,
            accepts=(False,),
        )
    ),
    **dict(
        _refuse_each(
            "_torch_grad_scaler_class _torch_lr_scheduler_classes sample_collector "
            "preprocessor_pref",
            _API_STACK_REASON,
            accepts=(None,),
        )
    ),
    "_tf_policy_handles_more_than_one_loss": Refused(_FRAMEWORK_REASON, (True, False)),
    **dict(
        _refuse_each(
            "policies policy_mapping_fn policies_to_train policy_map_capacity policy_map_cache "
            "policy_states_are_swappable observation_fn count_steps_by multiagent "
            "algorithm_config_overrides_per_module replay_mode",
            _MULTI_AGENT_REASON,
        )
    ),
    **dict(
        _refuse_each(
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
            _OFFLINE_DATA_REASON,
        )
    ),
    **dict(_refuse_each("exploration_config", _EXPLORATION_REASON)),
    "num_gpus": Refused(
        "devices are set by learners(num_devices=...) and JAX_PLATFORMS; "
        "learners(num_gpus_per_learner=...) reserves them with Ray"
    ),
    "_fake_gpus": Refused(
        "set XLA_FLAGS=--xla_force_host_platform_device_count=8 before starting Python"
    ),
    "render_env": Refused(
        "rendering to a window is not supported; evaluation(record_video=True) writes videos",
        (False,),
    ),
    "env_task_fn": Refused(
        "call algorithm.set_env_params(...) in an on_train_result callback; it does not recompile"
    ),
    "auto_wrap_old_gym_envs": Refused("wrap old gym environments with shimmy"),
    "soft_horizon": Refused("use max_episode_steps; time limits truncate", (False,)),
    "no_done_at_end": Refused("use max_episode_steps; time limits truncate", (False,)),
    "enable_async_evaluation": Refused(
        "set evaluation_parallel_to_training=True and evaluation_duration='auto'", (False,)
    ),
    "evaluation_force_reset_envs_before_iteration": Refused(
        "every evaluation starts from fresh environments", (True,)
    ),
    "keep_per_episode_custom_metrics": Refused(
        "collect what you need in an on_episode_end callback", (False,)
    ),
    "custom_stats_cls_lookup": Refused("add your own reductions in an on_train_result callback"),
    "export_native_model_files": Refused(
        "checkpoints contain the parameters; export is not supported in this version", (False,)
    ),
    "checkpoint_trainable_policies_only": Refused(
        "there is one module, and checkpoints contain the whole run", (False,)
    ),
    "logger_creator": Refused("pass debugging(loggers=[...]) and results_dir"),
    "logger_config": Refused("pass logger objects with their own options as loggers=[...]"),
    "fake_sampler": Refused(
        "use an environment of negligible cost, such as 'jaxrl:probe-value-v0'", (False,)
    ),
    "burn_in_len": Refused("only sequences of a replay buffer have a burn-in", (0,)),
    "store_buffer_in_checkpoints": Refused("checkpoints always contain the whole state of the run"),
}

REFUSED_METHODS: dict[str, str] = {
    "multi_agent": _MULTI_AGENT_REASON,
    "offline_data": _OFFLINE_DATA_REASON,
    "get_multi_rl_module_spec": _MULTI_AGENT_REASON
    + "; get_rl_module_spec() returns the spec of the single module",
    "get_marl_module_spec": _MULTI_AGENT_REASON
    + "; get_rl_module_spec() returns the spec of the single module",
    "get_multi_agent_setup": _MULTI_AGENT_REASON,
}
