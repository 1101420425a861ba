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
    "lambda": Renamed("lambda_", quiet=True),
    "checkpoint_freq": Renamed("checkpoint_frequency", quiet=True),
    "num_to_keep": Renamed("max_to_keep", quiet=True),
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


def _spread(
    names: str, reason: str, *, accepts: tuple[Any, ...] = ()
) -> Iterator[tuple[str, Refused]]:
    for name in names.split():
        yield name, Refused(reason, accepts)


_STATES = "the learner updates statistics from the batch and sends them with the weights"
_LEARNERS = "a learner gets each batch from the process that drives the run, one at a time"
_TORCH = "the framework is JAX and everything is compiled"
_STACK = "there is one stack, with modules, learners and connectors always on"
_MULTI = "multi-agent training is not part of this version"
_OFFLINE = "training from recorded data is not part of this version"
_EXPLORATION = "exploration is the module's forward_exploration; explore=False switches it off"

_BATCHES = (
    "what is done to a batch is compiled; on_sample_end and on_train_result are called between the "
    "calls of the compiled program, and a Learner's prepare() sees the samples"
)
HOOKS_REFUSED: dict[str, str] = {
    "on_sub_environment_created": "on_environment_created is called with all of a runner's",
    "on_create_policy": "the module is built once; on_algorithm_init is called when all is built",
    "on_postprocess_trajectory": _BATCHES,
    "on_learn_on_batch": _BATCHES,
    "on_offline_eval_runners_recreated": _OFFLINE,
    "on_evaluate_offline_start": _OFFLINE,
    "on_evaluate_offline_end": _OFFLINE,
}
"""Hooks of RLlib's callbacks that are never called, and why."""

REFUSED: dict[str, Refused] = {
    **{
        name: Refused(reason, (None,))
        for hook, reason in HOOKS_REFUSED.items()
        for name in (hook, f"callbacks_{hook}")
    },
    **dict(
        _spread(
            "merge_env_runner_states use_worker_filter_stats update_worker_filter_stats",
            _STATES,
            accepts=("training_only", True),
        )
    ),
    "broadcast_env_runner_states": Refused(_STATES, (True,)),
    "use_env_runner_state_server": Refused(_STATES, (False,)),
    "env_runner_state_server_max_concurrency": Refused(_STATES),
    "create_local_env_runner": Refused(
        "there is a runner in this process with num_env_runners=0, and none beside actors", (True,)
    ),
    **dict(
        _spread(
            "create_env_on_local_worker create_env_on_driver",
            "this process makes an environment to learn its spaces, and steps none beside actors",
            accepts=(False,),
        )
    ),
    **dict(
        _spread(
            "num_gpus_per_env_runner num_gpus_per_worker",
            "runners see no accelerator; the learner's are chosen by learners(num_devices=...)",
            accepts=(0, 0.0),
        )
    ),
    "sample_async": Refused("IMPALA and APPO sample while they learn", (False,)),
    "remote_worker_envs": Refused(
        "gym_env_vectorize_mode='async' steps each environment in a process of its own", (False,)
    ),
    "remote_env_batch_wait_ms": Refused(
        "with gym_env_vectorize_mode='async' a step waits for all environments", (0,)
    ),
    "sampler_perf_stats_ema_coef": Refused("timers are of one iteration each, not smoothed"),
    "episodes_to_numpy": Refused("episodes hold NumPy arrays", (True,)),
    "compress_observations": Refused(
        "fragments are shared memory on one node, and sent as they are between nodes", (False,)
    ),
    **dict(
        _spread(
            "metrics_episode_collection_timeout_s collect_metrics_timeout",
            "metrics come with the fragments, which sample_timeout_s limits",
        )
    ),
    "num_aggregator_actors_per_learner": Refused(_LEARNERS, (0,)),
    "max_requests_in_flight_per_aggregator_actor": Refused(_LEARNERS),
    "max_requests_in_flight_per_learner": Refused(_LEARNERS),
    # IMPALA's and APPO's
    "use_circular_buffer": Refused(
        "circular_buffer_num_batches=1 and circular_buffer_iterations_per_batch=1 are no buffer",
        (True,),
    ),
    "use_gae": Refused("without vtrace, targets are lambda-returns; lambda_ is theirs", (True,)),
    **dict(
        _spread(
            "simple_queue_size learner_queue_timeout timeout_s_sampler_manager "
            "timeout_s_aggregator_manager num_gpu_loader_threads num_aggregation_workers "
            "max_requests_in_flight_per_aggregator_worker",
            "learner_queue_size bounds what waits for the learner, and sample_timeout_s how long a "
            "runner may take",
        )
    ),
    **dict(
        _spread(
            "replay_proportion replay_buffer_num_slots replay_ratio minibatch_buffer_size",
            "circular_buffer_num_batches and circular_buffer_iterations_per_batch say which batches "
            "are learned from again",
            accepts=(0, 0.0),
        )
    ),
    **dict(
        _spread(
            "opt_type decay momentum epsilon _separate_vf_optimizer _lr_vf",
            "optimizer names the optimiser with its arguments, e.g. {'name': 'rmsprop', "
            "'decay': 0.99, 'eps': 0.1}",
        )
    ),
    # DQN's and SAC's
    "hiddens": Refused(
        "the heads' hidden layers are rl_module(model_config={'head_fcnet_hiddens': [...]})"
    ),
    "adam_epsilon": Refused("set optimizer={'name': 'adam', 'eps': ...}", (1e-8,)),
    "categorical_distribution_temperature": Refused(
        "actions are the best ones, or random with the probability epsilon", (1.0,)
    ),
    "before_learn_on_batch": Refused(_BATCHES, (None,)),
    **dict(
        _spread(
            "q_model_config policy_model_config actor_hiddens actor_hidden_activation "
            "critic_hiddens critic_hidden_activation",
            "rl_module(model_config={'fcnet_hiddens': [...], 'fcnet_activation': ...}) shapes the "
            "policy and the critics alike",
        )
    ),
    **dict(
        _spread(
            "optimization optimization_config",
            "actor_lr, critic_lr and alpha_lr are the learning rates",
        )
    ),
    **dict(
        _spread(
            "_deterministic_loss _use_beta_distribution use_state_preprocessor "
            "worker_side_prioritization",
            "actions are sampled, and from a squashed Gaussian; the learner renews priorities",
            accepts=(False,),
        )
    ),
    "huber_threshold": Refused("the Huber loss turns linear at 1", (1, 1.0)),
    "l2_reg": Refused("set optimizer={'name': 'adamw', 'weight_decay': ...}", (0, 0.0)),
    "learner_config_dict": Refused(
        "a Learner reads the settings of training(), to which a config subclass adds its own: "
        "class MyConfig(PPOConfig): my_coeff: float = 0.1",
        ({},),
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
    "num_gpus": Refused(
        "devices are chosen by learners(num_devices=...) and JAX_PLATFORMS; "
        "learners(num_gpus_per_learner=...) reserves them with Ray"
    ),
    "_fake_gpus": Refused(
        "set XLA_FLAGS=--xla_force_host_platform_device_count=8 before starting Python"
    ),
    "render_env": Refused(
        "there is no window; evaluation(record_video=True) writes videos", (False,)
    ),
    "env_task_fn": Refused(
        "call algorithm.set_env_params(...) in an on_train_result callback; it compiles nothing"
    ),
    "auto_wrap_old_gym_envs": Refused("wrap old gym environments with shimmy yourself"),
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
        "checkpoints hold the parameters; export is not part of this version", (False,)
    ),
    "checkpoint_trainable_policies_only": Refused(
        "there is one module, and checkpoints hold the whole run", (False,)
    ),
    "logger_creator": Refused("pass debugging(loggers=[...]) and results_dir"),
    "logger_config": Refused("pass logger objects with their own options as loggers=[...]"),
    "fake_sampler": Refused(
        "use an environment that costs next to nothing, such as 'jaxrl:probe-value-v0'", (False,)
    ),
    "burn_in_len": Refused("only sequences of a replay buffer have a burn-in", (0,)),
    "store_buffer_in_checkpoints": Refused("checkpoints always hold the whole state of the run"),
}

GROUPS_REFUSED: dict[str, str] = {
    "multi_agent": _MULTI,
    "offline_data": _OFFLINE,
    "get_multi_rl_module_spec": _MULTI + "; get_rl_module_spec() is that of the one module",
    "get_marl_module_spec": _MULTI + "; get_rl_module_spec() is that of the one module",
    "get_multi_agent_setup": _MULTI,
}
