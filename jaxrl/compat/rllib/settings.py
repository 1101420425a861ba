"""RLlib's settings that are not here under their names: the current name, or the reason."""

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, cast

from jaxrl.compat.rllib.attributes import CALLED_HOOKS, REFUSED_HOOKS
from jaxrl.compat.rllib.models import drop_merged_defaults
from jaxrl.compat.rllib.values import (
    ANY_VALUE,
    DEPRECATED_VALUE,
    NEUTRAL_VALUES_BY_ALGORITHM,
    NEUTRAL_VALUES_OF_SETTINGS,
    RllibObject,
    get_rllib_name,
    is_neutral,
)
from jaxrl.config.fields import format_value
from jaxrl.errors import ConfigError, did_you_mean


@dataclasses.dataclass(frozen=True, kw_only=True)
class RLlibSetting:
    """Setting of RLlib's that has another name here, or none.

    Attributes:
        new_name: Current name; None for a setting that has no effect here.
        reason: Reason why it has no effect, with the alternative.
        neutral: Values that ask for nothing or for what is done anyway, and are always accepted.
        transform: Function that returns the value of the current setting.
        is_quiet: Whether the name is current in RLlib, so that no note is needed.
    """

    new_name: str | None = None
    reason: str = ""
    neutral: tuple[object, ...] = ()
    transform: Callable[[Any], object] = lambda value: value
    is_quiet: bool = False


def _rename(
    new_name: str,
    *neutral: object,
    transform: Callable[[Any], object] = lambda value: value,
    is_quiet: bool = False,
) -> RLlibSetting:
    return RLlibSetting(new_name=new_name, neutral=neutral, transform=transform, is_quiet=is_quiet)


def _refuse(reason: str, *settings: tuple[Any, ...]) -> Iterator[tuple[str, RLlibSetting]]:
    """Yield settings that have no effect for one reason: tuples of names and their neutral values."""
    for names, *neutral in settings:
        for name in names.split():
            yield name, RLlibSetting(reason=reason, neutral=tuple(neutral))


def get_storage(is_in_memory: object) -> object:
    """Return the value of `dataset_storage` that a value of RLlib's `materialize_data` stands for."""
    match is_in_memory:
        case True:
            return "host"
        case False:
            return "stream"
        case _:
            return is_in_memory


def merge_settings(values: Mapping[str, object]) -> Mapping[str, object]:
    """Return settings without those that RLlib does not read because of others.

    RLlib keeps data in memory as they were read (`materialize_data`), as they are learned from
    (`materialize_mapped_data`), or neither; both are `dataset_storage` here. Its Dreamer counts
    sequences (`batch_size_B`), whose rows are `train_batch_size`.
    """
    sizes = [values.get(name) for name in ("batch_size_B", "batch_length_T")]
    if isinstance(sizes[0], int) and isinstance(sizes[1], int):
        others = {name: value for name, value in values.items() if name != "batch_size_B"}
        values = others | {"train_batch_size": sizes[0] * sizes[1]}
    if values.get("_model_config"):
        values = {name: value for name, value in values.items() if name != "model"}
    names = "materialize_data", "materialize_mapped_data"
    pair = [values[name] for name in names if name in values]
    if len(pair) < 2:
        return values
    others = {name: value for name, value in values.items() if name not in names}
    if pair == [False, False]:
        return others | {names[1]: "stream"}
    if pair[0] is True:
        return others | {names[0]: True}
    return others | {names[1]: pair[1]}


_FRAMEWORK = "the framework is JAX and everything is compiled"
_API_STACK = "there is a single API stack, which always uses modules, learners and connectors"
EXPLORATION_REASON = (
    "exploration is defined by the module's forward_exploration; explore=False disables it"
)

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

_RENAMED: Mapping[str, RLlibSetting] = {
    # current aliases in RLlib
    "lambda": _rename("lambda_", is_quiet=True),
    "training_ratio": _rename("training_intensity", is_quiet=True),
    "checkpoint_freq": _rename("checkpoint_frequency", is_quiet=True),
    "num_to_keep": _rename("max_to_keep", is_quiet=True),
    # attributes of RLlib's config that its own to_dict() has
    "_env_to_module_connector": _rename("env_to_module_connector", None, is_quiet=True),
    "_learner_class": _rename("learner_class", None, is_quiet=True),
    "_learner_connector": _rename("learner_connector", None, is_quiet=True),
    "_model_config": _rename("model_config", {}, None, is_quiet=True),
    "_module_to_env_connector": _rename("module_to_env_connector", None, is_quiet=True),
    "_rl_module_spec": _rename("rl_module_spec", None, is_quiet=True),
    "_train_batch_size_per_learner": _rename("train_batch_size_per_learner", None, is_quiet=True),
    "_per_module_overrides": _rename(
        "algorithm_config_overrides_per_module", {}, None, is_quiet=True
    ),
    "dataset_num_iters_per_learner": _rename("num_updates_per_iteration", None),
    "materialize_data": _rename("dataset_storage", False, transform=get_storage),
    "materialize_mapped_data": _rename("dataset_storage", True, transform=get_storage),
    # older names
    "input": _rename("input_", "sampler", None),
    "model": _rename("model_config", {}, None, transform=drop_merged_defaults),
    "num_gpus": _rename("num_gpus_per_learner", 0),
    "num_workers": _rename("num_env_runners"),
    "num_rollout_workers": _rename("num_env_runners"),
    "num_envs_per_worker": _rename("num_envs_per_env_runner"),
    "worker_cls": _rename(
        "env_runner_cls",
        None,
        RllibObject("SingleAgentEnvRunner"),
        RllibObject("RolloutWorker"),
        DEPRECATED_VALUE,
    ),
    "num_cpus_per_worker": _rename("num_cpus_per_env_runner"),
    "custom_resources_per_worker": _rename("custom_resources_per_env_runner"),
    "validate_workers_after_construction": _rename("validate_env_runners_after_construction"),
    "max_requests_in_flight_per_sampler_worker": _rename("max_requests_in_flight_per_env_runner"),
    "num_learner_workers": _rename("num_learners"),
    "num_cpus_per_learner_worker": _rename("num_cpus_per_learner"),
    "num_gpus_per_learner_worker": _rename("num_gpus_per_learner"),
    "local_gpu_idx": _rename("local_device_idx", 0),
    "num_cpus_for_local_worker": _rename("num_cpus_for_main_process"),
    "num_cpus_for_driver": _rename("num_cpus_for_main_process"),
    "recreate_failed_env_runners": _rename("restart_failed_env_runners"),
    "recreate_failed_workers": _rename("restart_failed_env_runners"),
    "ignore_worker_failures": _rename("ignore_env_runner_failures"),
    "max_num_worker_restarts": _rename("max_num_env_runner_restarts"),
    "delay_between_worker_restarts_s": _rename("delay_between_env_runner_restarts_s"),
    "num_consecutive_worker_failures_tolerance": _rename(
        "num_consecutive_env_runner_failures_tolerance"
    ),
    "worker_health_probe_timeout_s": _rename("env_runner_health_probe_timeout_s"),
    "worker_restore_timeout_s": _rename("env_runner_restore_timeout_s"),
    "evaluation_num_workers": _rename("evaluation_num_env_runners"),
    "_is_atari": _rename("is_atari", None),
    "monitor": _rename("record_video"),
    "grad_norm_clipping": _rename("grad_clip"),
    "target_update_frequency": _rename("target_network_update_freq", DEPRECATED_VALUE),
    "use_huber": _rename("td_error_loss_fn", transform=lambda value: "huber" if value else "mse"),
    "num_sgd_iter": _rename("num_epochs"),
    "stepsize": _rename("lr"),
    "sgd_stepsize": _rename("lr"),
    "episodes_per_batch": _rename("num_envs_per_env_runner"),
    "num_rollouts": _rename(
        "num_envs_per_env_runner",
        transform=lambda value: 2 * value if isinstance(value, int) else value,
    ),
    "sgd_minibatch_size": _rename("minibatch_size", None, DEPRECATED_VALUE),
    "shuffle_sequences": _rename("shuffle_batch_per_epoch"),
    "shuffle": _rename("shuffle_batch_per_epoch"),
    "lr_schedule": _rename("lr", None),
    "entropy_coeff_schedule": _rename("entropy_coeff", None),
    "horizon": _rename("max_episode_steps", None),
    "callbacks": _rename("callbacks_class", None, *NEUTRAL_VALUES_OF_SETTINGS["callbacks_class"]),
    "custom_eval_function": _rename("custom_evaluation_function", None),
    "evaluation_num_episodes": _rename("evaluation_duration"),
    "metrics_smoothing_episodes": _rename("metrics_num_episodes_for_smoothing"),
    "min_iter_time_s": _rename("min_time_s_per_iteration"),
    "min_time_s_per_reporting": _rename("min_time_s_per_iteration"),
    "timesteps_per_iteration": _rename("min_sample_timesteps_per_iteration"),
    "min_sample_timesteps_per_reporting": _rename("min_sample_timesteps_per_iteration"),
    "min_train_timesteps_per_reporting": _rename("min_train_timesteps_per_iteration"),
    "eager_max_retraces": _rename("max_retraces", 20, None),
    "torch_skip_nan_gradients": _rename(
        "on_nonfinite", False, transform=lambda value: "skip" if value else "raise"
    ),
    "keep_checkpoints_num": _rename("max_to_keep"),
    "local_dir": _rename("results_dir"),
    "storage_path": _rename("results_dir"),
    "on_workers_recreated": _rename("on_env_runners_recreated"),
    "callbacks_on_workers_recreated": _rename("on_env_runners_recreated", None),
    **{f"callbacks_on_{hook}": _rename(f"on_{hook}", None) for hook in CALLED_HOOKS},
}

_REFUSED = (
    *_refuse(
        "the learner updates the statistics from each batch and sends them with the weights: "
        "leave it out",
        (
            "merge_env_runner_states use_worker_filter_stats update_worker_filter_stats",
            "training_only",
            True,
        ),
        ("sync_filters_on_rollout_workers_timeout_s", 10.0, 60.0),
        ("broadcast_env_runner_states", True),
        ("use_env_runner_state_server", False, True),
        ("env_runner_state_server_max_concurrency", 16),
    ),
    *_refuse(
        "this process has a runner with num_env_runners=0, and none in addition to actors",
        ("create_local_env_runner", True),
    ),
    *_refuse(
        "this process creates an environment to determine its spaces, and steps none if there "
        "are actors",
        ("create_env_on_local_worker create_env_on_driver", False),
    ),
    *_refuse(
        "runners act on CPUs; in the compiled program environments act on the learner's devices, "
        "which learners(num_gpus_per_learner=...) sets",
        ("num_gpus_per_env_runner num_gpus_per_worker", 0),
    ),
    *_refuse(
        "IMPALA and APPO sample concurrently with updates",
        ("sample_async", False),
    ),
    *_refuse(
        "gym_env_vectorize_mode='async' steps each environment in a separate process",
        ("remote_worker_envs", False),
    ),
    *_refuse(
        "with gym_env_vectorize_mode='async' a step waits for all environments of a runner; "
        "IMPALA and APPO do not wait for other runners",
        ("remote_env_batch_wait_ms", 0),
    ),
    *_refuse(
        "timers measure one iteration each and are not smoothed",
        ("sampler_perf_stats_ema_coef", None),
    ),
    *_refuse(
        "episodes always hold NumPy arrays",
        ("episodes_to_numpy", True),
    ),
    *_refuse(
        "fragments are views of shared memory, and recorded files are compressed: leave it out",
        ("compress_observations", False),
    ),
    *_refuse(
        "metrics arrive with the fragments, whose timeout is sample_timeout_s",
        ("metrics_episode_collection_timeout_s collect_metrics_timeout", 60.0, 180.0),
    ),
    *_refuse(
        "each learner receives its batches from the main process, one at a time",
        ("num_aggregator_actors_per_learner", 0),
        ("max_requests_in_flight_per_aggregator_actor", 3, 100),
        ("max_requests_in_flight_per_learner", 3),
    ),
    *_refuse(
        "circular_buffer_num_batches=1 and circular_buffer_iterations_per_batch=1 disable the "
        "buffer",
        ("use_circular_buffer", True),
    ),
    *_refuse(
        "advantages are of lambda-returns (in IMPALA and APPO, without vtrace); lambda_=1.0 "
        "makes them plain returns, and use_critic=False of PPO leaves the values out",
        ("use_gae", True),
    ),
    *_refuse(
        "learner_queue_size limits the train batches that wait for the learner, and "
        "sample_timeout_s the time that a runner may take",
        ("simple_queue_size", 32, 16),
        ("learner_queue_timeout", 300),
        ("timeout_s_sampler_manager timeout_s_aggregator_manager", 0),
        ("num_gpu_loader_threads", 8),
        ("num_aggregation_workers", 0, DEPRECATED_VALUE),
        ("max_requests_in_flight_per_aggregator_worker", 2, DEPRECATED_VALUE),
        ("num_multi_gpu_tower_stacks", 1),
    ),
    *_refuse(
        "circular_buffer_num_batches and circular_buffer_iterations_per_batch control the reuse "
        "of batches",
        ("replay_proportion replay_ratio", 0),
        ("replay_buffer_num_slots", 0, 100),
        ("minibatch_buffer_size", 0, 1),
    ),
    *_refuse(
        "optimizer takes the name of the optimizer and its arguments, e.g. {'name': 'rmsprop', "
        "'decay': 0.99, 'eps': 0.1}",
        ("opt_type", "adam"),
        ("decay", 0.99),
        ("momentum", 0),
        ("epsilon", 0.1),
        ("optim_alpha optim_eps rmsprop_epsilon",),
        ("_separate_vf_optimizer", False),
        ("_lr_vf", 0.0005),
    ),
    *_refuse(
        "values are rescaled within each search, so rewards of a single player need no ranking: "
        "leave it out",
        ("ranked_rewards", {"enable": False}),
    ),
    *_refuse(
        "noise is computed where it is needed, and no table of it is kept",
        ("noise_size", 250_000_000, 25_000_000),
        ("tf_single_threaded", True),
    ),
    *_refuse(
        "train_batch_size is the number of rows; give batch_length_T in the same call, and the product "
        "of both is set",
        ("batch_size_B",),
    ),
    *_refuse(
        "world model, policy and critic are trained together; algorithm.get_module() has them all, and "
        "a learning rate of 0 keeps a part as it is",
        ("train_actor train_critic", True),
    ),
    *_refuse(
        "everything but images is symlogged; normalize observations in a connector or the environment",
        ("symlog_obs", "auto"),
    ),
    *_refuse(
        "computation is in float32",
        ("use_float16", False),
    ),
    *_refuse(
        "environment(intrinsic_reward={'type': 'rnd'}) adds a bonus to the rewards of any algorithm",
        ("use_curiosity", False),
        ("intrinsic_rewards_scale", 0.1),
    ),
    *_refuse(
        "results have the means of all losses; imagine with the module itself, "
        "algorithm.get_module()",
        ("report_individual_batch_item_stats report_dream_data report_images_and_videos", False),
        ("gc_frequency_train_steps", 100),
    ),
    *_refuse(
        "results have the mean over the latest metrics_num_episodes_for_smoothing episodes",
        ("report_length", 10),
    ),
    *_refuse(
        "evaluation(evaluation_interval=...) evaluates the unperturbed policy",
        ("eval_prob", 0.0, 0.003, 0.03),
    ),
    *_refuse(
        "set the heads' hidden layers by rl_module(model_config={'head_fcnet_hiddens': [...]})",
        ("hiddens", [256]),
    ),
    *_refuse(
        "set optimizer={'name': 'adam', 'eps': ...}",
        ("adam_epsilon", 1e-8),
    ),
    *_refuse(
        "DQN's actions are greedy, or random with probability epsilon, and other algorithms' are "
        "drawn from the policy's own probabilities",
        ("categorical_distribution_temperature", 1),
    ),
    *_refuse(
        "target_network_update_freq counts environment steps or rows trained on: set it to the "
        "number of updates times train_batch_size",
        ("target_update_grad_intervals",),
    ),
    *_refuse(
        REFUSED_HOOKS["on_learn_on_batch"],
        ("before_learn_on_batch", None),
    ),
    *_refuse(
        "MADDPG's critics see all agents; DDPG with a policy for each agent has critics of what "
        "that agent observes",
        ("use_local_critic",),
    ),
    *_refuse(
        "MADDPG trains all agents of one team; opponents are part of the environment's rules, or "
        "policies of an algorithm such as PPO",
        ("good_policy adv_policy",),
    ),
    *_refuse(
        "the policies' loss has no penalty of large outputs",
        ("actor_feature_reg",),
    ),
    *_refuse(
        "rl_module(model_config={'fcnet_hiddens': [...], 'fcnet_activation': ...}) applies to "
        "the policy and the critics, and 'critic_fcnet_hiddens': [...] to these alone",
        ("q_model_config policy_model_config", {}, _HIDDENS, _MODEL_OF_SAC),
        ("actor_hiddens actor_hidden_activation critic_hiddens critic_hidden_activation",),
    ),
    *_refuse(
        "actor_lr, critic_lr and alpha_lr are the learning rates",
        (
            "optimization optimization_config",
            {},
            {
                "actor_learning_rate": 3e-4,
                "critic_learning_rate": 3e-4,
                "entropy_learning_rate": 3e-4,
            },
        ),
    ),
    *_refuse(
        "actions are sampled from a squashed Gaussian, and the learner updates priorities",
        ("_deterministic_loss _use_beta_distribution", False),
        ("use_state_preprocessor worker_side_prioritization", False, DEPRECATED_VALUE),
    ),
    *_refuse(
        "the Huber loss becomes linear at 1",
        ("huber_threshold", 1),
    ),
    *_refuse(
        "set optimizer={'name': 'adamw', 'weight_decay': ...}",
        ("l2_reg", 0),
    ),
    *_refuse(
        "a Learner reads the settings of training(), to which a config subclass can add others: "
        "class MyConfig(PPOConfig): my_coeff: float = 0.1",
        ("learner_config_dict", {}),
    ),
    *_refuse(
        _FRAMEWORK + "; debugging(jit=False) runs operation by operation",
        ("eager_tracing", True),
        ("tf_session_args", {}, _TF_SESSION),
        (
            "local_tf_session_args",
            {},
            {"intra_op_parallelism_threads": 8, "inter_op_parallelism_threads": 8},
        ),
        ("torch_compile_learner torch_compile_worker enable_tf1_exec_eagerly", False),
        (
            "torch_compile_learner_what_to_compile",
            None,
            "forward_train",
            RllibObject("TorchCompileWhatToCompile.FORWARD_TRAIN"),
        ),
        (
            "torch_compile_learner_dynamo_mode torch_compile_worker_dynamo_mode",
            None,
            "reduce-overhead",
            "max-autotune",
        ),
        (
            "torch_compile_learner_dynamo_backend torch_compile_worker_dynamo_backend",
            None,
            "inductor",
            "onnxrt",
            "aot_eager",
        ),
        ("torch_ddp_kwargs", {}),
    ),
    *_refuse(
        _API_STACK,
        (
            (
                "enable_rl_module_and_learner enable_env_runner_and_connector_v2 "
                "_enable_new_api_stack synchronize_filter"
            ),
            True,
        ),
        (
            (
                "enable_connectors _enable_rl_module_api _enable_learner_api "
                "_disable_execution_plan_api synchronize_filters"
            ),
            True,
            DEPRECATED_VALUE,
        ),
        (
            (
                "_disable_preprocessor_api _disable_action_flattening "
                "_disable_initialize_loss_from_dummy_batch _dont_auto_sync_env_runner_states"
            ),
            True,
            False,
        ),
        ("in_evaluation _env_runners_only _skip_learners _use_msgpack_checkpoints", False),
        ("simple_optimizer", False, DEPRECATED_VALUE),
        ("_torch_grad_scaler_class _torch_lr_scheduler_classes", None),
        ("sample_collector", None, RllibObject("SimpleListCollector")),
        ("preprocessor_pref", None, "deepmind"),
    ),
    *_refuse(
        _FRAMEWORK,
        ("_tf_policy_handles_more_than_one_loss", True, False),
    ),
    *_refuse(
        "modules are arrays of the compiled program, all of which it holds",
        ("policy_map_cache", None, DEPRECATED_VALUE),
        ("policy_states_are_swappable", False, True),
    ),
    *_refuse(
        "return what each agent observes from the environment, or use a connector",
        ("observation_fn", None),
    ),
    *_refuse(
        "each module replays its own rows; jaxrl.envs.group_agents makes one agent of a team, "
        "whose rows stay together",
        ("replay_mode", "independent"),
    ),
    *_refuse(
        "give its settings to multi_agent(...)",
        ("multiagent", {}, None),
    ),
    *_refuse(
        "recorded data are read by input_, and kept where dataset_storage says; input_transform "
        "changes them",
        (
            (
                "input_config input_read_method_kwargs input_filesystem_kwargs map_batches_kwargs "
                "iter_batches_kwargs prelearner_buffer_kwargs"
            ),
            {},
            None,
        ),
        (
            (
                "offline_data_class input_read_batch_size input_filesystem prelearner_class "
                "prelearner_buffer_class"
            ),
            None,
        ),
        ("input_read_method", "read_parquet"),
        (
            (
                "input_read_episodes input_read_sample_batches prelearner_use_recorded_module_states "
                "postprocess_inputs offline_sampling"
            ),
            False,
        ),
        ("input_compress_columns", ["obs", "new_obs"], []),
        ("input_spaces_jsonable _is_online", True),
        ("prelearner_module_synch_period", 10),
    ),
    *_refuse(
        "output names a folder of Parquet files, each row a part of an episode",
        ("output_config output_write_method_kwargs output_filesystem_kwargs", {}, None),
        ("output_compress_columns", ["obs", "new_obs"], []),
        ("output_write_remaining_data", False),
        ("output_write_method", "write_parquet"),
        ("output_filesystem", None),
        ("output_write_episodes", True),
    ),
    *_refuse(
        REFUSED_HOOKS["on_offline_eval_runners_recreated"],
        ("num_offline_eval_runners num_gpus_per_offline_eval_runner", 0),
        ("offline_eval_runner_class", None),
        (
            (
                "broadcast_offline_eval_runner_states ignore_offline_eval_runner_failures "
                "offline_eval_rl_module_inference_only offline_evaluation_parallel_to_training"
            ),
            False,
        ),
        ("custom_resources_per_offline_eval_runner", {}, None),
        ("max_num_offline_eval_runner_restarts", 1000),
        ("max_requests_in_flight_per_offline_eval_runner num_cpus_per_offline_eval_runner", 1),
        ("offline_eval_runner_health_probe_timeout_s", 30.0),
        ("offline_eval_runner_restore_timeout_s", 1800.0),
        ("offline_evaluation_timeout_s", 120.0),
        (
            "restart_failed_offline_eval_runners validate_offline_eval_runners_after_construction",
            True,
        ),
    ),
    *_refuse(
        "evaluation(off_policy_estimation_methods={'is': {'type': 'is'}}) names the estimates, "
        "every offline_evaluation_interval iterations",
        ("input_evaluation", [], None, ["is", "wis"]),
    ),
    *_refuse(
        "offline_evaluation_type='eval_loss' has the losses of the learner, which learner_class "
        "may override",
        ("offline_loss_for_module_fn", None),
    ),
    *_refuse(
        "offline_evaluation_duration is the number of batches",
        ("dataset_num_iters_per_eval_runner", 1),
    ),
    *_refuse(
        EXPLORATION_REASON,
        ("exploration_config",),
        ("_prior_exploration_config", ANY_VALUE),
    ),
    *_refuse(
        "settings are always validated, before anything is compiled: leave it out",
        ("_validate_config", True),
    ),
    *_refuse(
        "set XLA_FLAGS=--xla_force_host_platform_device_count=8 before starting Python",
        ("_fake_gpus", False),
    ),
    *_refuse(
        "rendering to a window is not supported; evaluation(record_video=True) writes videos",
        ("render_env", False),
    ),
    *_refuse(
        "wrap old gym environments with shimmy",
        ("auto_wrap_old_gym_envs", True, False, DEPRECATED_VALUE),
    ),
    *_refuse(
        "use max_episode_steps; time limits truncate",
        ("soft_horizon no_done_at_end", False),
    ),
    *_refuse(
        "set evaluation_parallel_to_training=True and evaluation_duration='auto'",
        ("enable_async_evaluation", False, DEPRECATED_VALUE),
    ),
    *_refuse(
        "every evaluation starts from fresh environments",
        ("evaluation_force_reset_envs_before_iteration", True),
    ),
    *_refuse(
        "collect what you need in an on_episode_end callback",
        ("keep_per_episode_custom_metrics", False),
    ),
    *_refuse(
        "add your own reductions in an on_train_result callback",
        ("custom_stats_cls_lookup stats_cls_lookup", None, {}, _STATS_CLASSES),
    ),
    *_refuse(
        "set custom_evaluation_function, or evaluation_parallel_to_training=True",
        ("custom_async_evaluation_function", None, DEPRECATED_VALUE),
    ),
    *_refuse(
        "checkpoints contain the parameters; algorithm.export(folder) writes a policy that NumPy "
        "runs",
        ("export_native_model_files", False),
    ),
    *_refuse(
        "checkpoints contain the whole run; from_checkpoint(path, policy_ids=[...]) restores "
        "modules of it",
        ("checkpoint_trainable_policies_only", False),
    ),
    *_refuse(
        "pass debugging(loggers=[...]) and results_dir",
        ("logger_creator", None),
    ),
    *_refuse(
        "pass logger objects with their own options as loggers=[...]",
        ("logger_config", None),
    ),
    *_refuse(
        "use an environment of negligible cost, such as 'jaxrl:probe-value-v0'",
        ("fake_sampler", False),
    ),
    *_refuse(
        "every update samples its own train_batch_size rows from the replay buffer",
        ("num_epochs", 1, None),
        ("minibatch_size", None),
        ("shuffle_batch_per_epoch", False),
    ),
    *_refuse(
        "n_critics is the number of critics",
        ("twin_q", True),
    ),
    *_refuse(
        "the module has a value function",
        ("use_critic", DEPRECATED_VALUE),
    ),
    *_refuse(
        "rl_module(model_config={'vf_share_layers': True}) is where values share the policy's encoder, "
        "and False where they have their own",
        ("vf_share_layers", DEPRECATED_VALUE),
    ),
    *_refuse(
        "rl_module(model_config={'max_seq_len': ...}) is the length",
        ("replay_sequence_length", None),
    ),
    *_refuse(
        "only sequences of a replay buffer have a burn-in",
        ("burn_in_len", 0),
    ),
    *_refuse(
        "checkpoints always contain the whole state of the run",
        ("store_buffer_in_checkpoints", False),
    ),
    *(
        refused
        for hook, reason in REFUSED_HOOKS.items()
        for refused in _refuse(reason, (f"{hook} callbacks_{hook}", None))
    ),
)

SETTINGS: Mapping[str, RLlibSetting] = {**_RENAMED, **dict(_REFUSED)}
"""Settings of RLlib's that are not here under their names, of its current and former versions."""


def asks_for_nothing(name: str, value: object, algo: str, *, is_setting: bool = False) -> bool:
    """Return whether a value of a setting asks for nothing, or for what is done anyway.

    Args:
        name: Name of the setting.
        value: Its value.
        algo: Name of the algorithm.
        is_setting: Whether the algorithm has a setting of this name.
    """
    if is_setting:
        general = NEUTRAL_VALUES_OF_SETTINGS.get(name, ())
    else:
        general = SETTINGS[name].neutral if name in SETTINGS else ()
    own = NEUTRAL_VALUES_BY_ALGORITHM.get(algo, {}).get(name, ())
    return is_neutral(value, (*general, *own), algo)


def selects_machinery(name: str) -> bool:
    """Return whether a refused setting only selects a framework or a stack, of which there is one.

    Without the setting, a run does the same.
    """
    return name in SETTINGS and SETTINGS[name].reason.startswith((_FRAMEWORK, _API_STACK))


@dataclasses.dataclass(frozen=True)
class Translation:
    """Settings here that stand for one of RLlib's, by their current names.

    Attributes:
        settings: Values by name; empty for a value that asks for nothing.
        is_quiet: Whether the name is current in RLlib, so that no note is needed.
    """

    settings: Mapping[str, object]
    is_quiet: bool = False


def translate_setting(
    name: str, value: object, known: Collection[str], algo: str
) -> Translation | None:
    """Return the settings that stand for one that does not exist here; None if RLlib has none either.

    Args:
        name: Name of RLlib's setting.
        value: Its value.
        known: Names of the algorithm's settings.
        algo: Name of the algorithm.

    Raises:
        ConfigError: If the setting has no effect here.
    """
    setting = SETTINGS.get(name)
    if asks_for_nothing(name, value, algo):
        return Translation({})
    if setting is not None and asks_for_nothing(name, setting.transform(value), algo):
        return Translation({})
    if name == "exploration_config":
        return Translation(translate_exploration(value, known))
    if "search" in known:
        if name == "mcts_config":
            return Translation(translate_mcts(value))
        setting = _SETTINGS_OF_SEARCH.get(name, setting)
    if setting is None:
        return None
    if setting.new_name is None:
        raise ConfigError(
            f"'{name}' (got {format_value(value)}) has no effect here: {setting.reason}."
        )
    if setting.new_name not in known:
        return None
    return Translation({setting.new_name: setting.transform(value)}, setting.is_quiet)


_SETTINGS_OF_SEARCH: dict[str, RLlibSetting] = dict(
    [
        *_refuse(
            "circular_buffer_num_batches is the number of train batches that are kept, and "
            "circular_buffer_iterations_per_batch how often each is learned from",
            ("replay_buffer_config",),
        ),
        *_refuse(
            "learning begins with the first train batch, of train_batch_size rows",
            ("num_steps_sampled_before_learning_starts",),
        ),
    ]
)
"""Settings of RLlib's AlphaZero that only algorithms with a replay buffer have here."""
_MCTS_KEYS = (
    *("num_simulations", "puct_coefficient", "temperature", "dirichlet_epsilon", "dirichlet_noise"),
    *("argmax_tree_policy", "add_dirichlet_noise"),
)
"""Keys of RLlib's `mcts_config`."""


def translate_mcts(value: object) -> dict[str, object]:
    """Return the settings of AlphaZero that RLlib's `mcts_config` stands for.

    Raises:
        ConfigError: If it is no dictionary, or has another key.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(f"mcts_config must be a dictionary, got {format_value(value)}.")
    given = dict(cast(Mapping[str, Any], value))
    for key in given:
        if key not in _MCTS_KEYS:
            raise ConfigError(
                f"mcts_config has no key {key!r}.{did_you_mean(key, _MCTS_KEYS)} It has "
                f"{', '.join(_MCTS_KEYS)}."
            )
    number = given.pop("num_simulations", 30)
    if not given.pop("add_dirichlet_noise", True):
        given["dirichlet_epsilon"] = 0.0
    return {"num_simulations": number, "search": {"type": "puct", **given}}


_EPSILON_DEFAULTS = {
    "initial_epsilon": 1.0,
    "final_epsilon": 0.02,
    "warmup_timesteps": 0,
    "epsilon_timesteps": 10_000,
}
"""Those of RLlib's DQN."""
_SLATE_EPSILON_DEFAULTS = {
    "initial_epsilon": 1.0,
    "final_epsilon": 0.01,
    "warmup_timesteps": 20_000,
    "epsilon_timesteps": 250_000,
}
"""Those of RLlib's SlateQ."""
_GAUSSIAN_DEFAULTS = {
    "stddev": 0.1,
    "random_timesteps": 10_000,
    "initial_scale": 1.0,
    "final_scale": 1.0,
    "scale_timesteps": 1,
}
"""Those of RLlib's TD3, whose noise does not decay."""


def translate_exploration(value: object, known: Collection[str]) -> dict[str, object]:
    """Return the settings that describe the exploration of a config of RLlib's.

    Args:
        value: `exploration_config`, a dictionary with the `type` and its arguments. Without a type
            it is that of the algorithm.
        known: Names of the algorithm's settings.

    Returns:
        Settings by name; empty for what the algorithm does anyway.

    Raises:
        ConfigError: If no setting describes it.
    """
    if value is None or value == {}:
        return {}
    if not isinstance(value, Mapping):
        raise _make_error(value, "it must be a dictionary with a 'type'")
    arguments = dict(cast(Mapping[str, Any], value))
    kind = arguments.pop("type", None)
    name = get_rllib_name(kind) or kind
    if name in ("Curiosity", "RE3"):
        return _translate_curiosity(value, name, arguments, known)
    if "lr_choice_model" in known and name in (None, "SlateEpsilonGreedy"):
        return _translate_epsilon_greedy(value, _SLATE_EPSILON_DEFAULTS | arguments)
    if "epsilon" in known and name in (None, "EpsilonGreedy"):
        return _translate_epsilon_greedy(value, arguments)
    if "exploration_noise" in known and name in (None, "GaussianNoise"):
        return _translate_gaussian_noise(value, arguments)
    if (
        "epsilon" in known
        or "exploration_noise" in known
        or name
        not in (
            None,
            "StochasticSampling",
        )
    ):
        raise _make_error(value, _describe_alternative(known))
    timesteps = arguments.pop("random_timesteps", 0)
    if arguments or (timesteps and "initial_random_timesteps" not in known):
        raise _make_error(value, EXPLORATION_REASON)
    return {"initial_random_timesteps": timesteps} if timesteps else {}


_CURIOSITY_NEUTRAL: Mapping[str, object] = {
    "inverse_net_activation": "relu",
    "forward_net_activation": "relu",
    "beta_schedule": "constant",
    "rho": 0.1,
    "random_timesteps": 0,
    "framework": None,
}
"""Arguments of RLlib's curiosity that describe what is done here anyway."""


def _translate_curiosity(
    value: object, name: str, arguments: dict[str, Any], known: Collection[str]
) -> dict[str, object]:
    """Return the intrinsic reward of RLlib's `Curiosity` or `RE3`, and what they explore with."""
    explores = translate_exploration(arguments.pop("sub_exploration", None), known)
    for key, neutral in _CURIOSITY_NEUTRAL.items():
        given = arguments.pop(key, neutral)
        if given == neutral:
            continue
        if key == "beta_schedule":
            raise _make_error(
                value,
                "a bonus that decays is intrinsic_reward_coeff=[[0, 0.2], [1_000_000, 0.0]], over "
                "environment steps",
            )
        raise _make_error(value, f"{key} is {neutral!r}")
    scale, default = ("eta", 1.0) if name == "Curiosity" else ("beta", 0.2)
    coeff = arguments.pop(scale, default)
    _check_numbers(value, {scale: coeff})
    bonus = {"type": "icm" if name == "Curiosity" else "re3", **arguments}
    return {"intrinsic_reward": bonus, "intrinsic_reward_coeff": coeff, **explores}


def _translate_epsilon_greedy(value: object, arguments: dict[str, Any]) -> dict[str, object]:
    """Return the schedule of epsilon: constant during the warm-up, then linear."""
    merged = {**_EPSILON_DEFAULTS, **arguments}
    if merged.keys() != _EPSILON_DEFAULTS.keys():
        raise _make_error(value, _describe_alternative(("epsilon",)))
    _check_numbers(value, merged)
    first, last, warmup, timesteps = merged.values()
    start = [[0, first], [warmup, first]] if warmup else [[0, first]]
    return {"epsilon": [*start, [warmup + max(1, timesteps), last]]}


def _translate_gaussian_noise(value: object, arguments: dict[str, Any]) -> dict[str, object]:
    merged = {**_GAUSSIAN_DEFAULTS, **arguments}
    if merged.keys() == _GAUSSIAN_DEFAULTS.keys():
        _check_numbers(value, merged)
    is_constant = merged["initial_scale"] == merged["final_scale"] == 1
    if merged.keys() != _GAUSSIAN_DEFAULTS.keys() or not is_constant:
        raise _make_error(value, _describe_alternative(("exploration_noise",)))
    return {
        "exploration_noise": "gaussian",
        "exploration_sigma": merged["stddev"],
        "initial_random_timesteps": merged["random_timesteps"],
    }


def _check_numbers(value: object, arguments: Mapping[str, object]) -> None:
    for name, argument in arguments.items():
        if isinstance(argument, bool) or not isinstance(argument, int | float):
            raise ConfigError(
                f"{name} of 'exploration_config' must be a number, got {argument!r} in {value!r}."
            )


def _describe_alternative(known: Collection[str]) -> str:
    if "epsilon" in known:
        return "training(epsilon=...) is the probability of a random action, or its schedule"
    if "exploration_noise" in known:
        return (
            "training(exploration_noise=..., exploration_sigma=...) is the noise, whose scale is "
            "constant"
        )
    return EXPLORATION_REASON


def _make_error(value: object, reason: str) -> ConfigError:
    return ConfigError(f"'exploration_config' (got {value!r}) has no effect here: {reason}.")


_BUFFER_KEYS = {"prioritized_replay_alpha": "alpha", "prioritized_replay_beta": "beta"}
"""Keys of replay_buffer_config, by the names of RLlib's former configs."""
_NEUTRAL_BUFFER_KEYS = {
    "prioritized_replay_eps": 1e-6,
    "replay_sequence_length": 1,
    "replay_burn_in": 0,
    "replay_mode": "independent",
    "storage_unit": "timesteps",
    "worker_side_prioritization": False,
}
"""Keys of RLlib's former configs that have no counterpart, and the values that need none."""
_MOVED_BUFFER_KEYS = {
    "learning_starts": "training(num_steps_sampled_before_learning_starts=...)",
    "min_size_for_sampling": "training(num_steps_sampled_before_learning_starts=...)",
    "replay_sequence_length": "model_config's max_seq_len",
    "replay_burn_in": "training(burn_in_len=...)",
    "replay_zero_init_states": "training(zero_init_states=...)",
}
"""Settings that keys of RLlib's former configs are now."""


def rename_buffer_keys(user_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a `replay_buffer_config`, of which RLlib's former keys are renamed or left out.

    Raises:
        ConfigError: If a former key is given twice, or with a value that has no counterpart.
    """
    renamed: dict[str, Any] = {}
    for key, value in user_config.items():
        if key in _NEUTRAL_BUFFER_KEYS and value == _NEUTRAL_BUFFER_KEYS[key]:
            continue
        if key in _MOVED_BUFFER_KEYS:
            instead = _MOVED_BUFFER_KEYS[key]
            raise ConfigError(f"replay_buffer_config[{key!r}]={value!r} is now {instead}.")
        name = _BUFFER_KEYS.get(key, key)
        if name != key and name in user_config:
            raise ConfigError(f"replay_buffer_config has {key!r} and {name!r}; set only {name!r}.")
        renamed[name] = value
    return renamed


def check_buffer_key(key: str, value: object) -> None:
    """Raise if an unknown key of `replay_buffer_config` is one of RLlib's with a single value."""
    if key in _NEUTRAL_BUFFER_KEYS:
        raise ConfigError(
            f"replay_buffer_config[{key!r}] can only be {_NEUTRAL_BUFFER_KEYS[key]!r}, got "
            f"{value!r}: leave it out."
        )
