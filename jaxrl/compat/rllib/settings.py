"""RLlib's names of settings that differ here: the current name, or the reason for refusing them.

Values that ask for nothing are accepted under any name, see `jaxrl.compat.rllib.values`.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, cast

from jaxrl.compat.rllib.attributes import CALLED_HOOKS, REFUSED_HOOKS
from jaxrl.compat.rllib.values import asks_for_nothing, drop_merged_defaults, get_rllib_name
from jaxrl.config.fields import format_value
from jaxrl.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Renamed:
    """Setting with another name here: accepted at run time, with a note on the current name."""

    new_name: str
    transform: Callable[[Any], object] = lambda value: value
    is_quiet: bool = False
    """True if the name is current in RLlib, so that no note is needed."""


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
    (`materialize_mapped_data`), or neither; both are `dataset_storage` here.
    """
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


RENAMED: dict[str, Renamed] = {
    # current aliases in RLlib
    "lambda": Renamed("lambda_", is_quiet=True),
    "checkpoint_freq": Renamed("checkpoint_frequency", is_quiet=True),
    "num_to_keep": Renamed("max_to_keep", is_quiet=True),
    # attributes of RLlib's config that its own to_dict() has
    "_env_to_module_connector": Renamed("env_to_module_connector", is_quiet=True),
    "_learner_class": Renamed("learner_class", is_quiet=True),
    "_learner_connector": Renamed("learner_connector", is_quiet=True),
    "_model_config": Renamed("model_config", is_quiet=True),
    "_module_to_env_connector": Renamed("module_to_env_connector", is_quiet=True),
    "_rl_module_spec": Renamed("rl_module_spec", is_quiet=True),
    "_train_batch_size_per_learner": Renamed("train_batch_size_per_learner", is_quiet=True),
    "_per_module_overrides": Renamed("algorithm_config_overrides_per_module", is_quiet=True),
    "dataset_num_iters_per_learner": Renamed("num_updates_per_iteration"),
    "materialize_data": Renamed("dataset_storage", get_storage),
    "materialize_mapped_data": Renamed("dataset_storage", get_storage),
    # older names
    "input": Renamed("input_"),
    "model": Renamed("model_config", drop_merged_defaults),
    "num_gpus": Renamed("num_gpus_per_learner"),
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
    "grad_norm_clipping": Renamed("grad_clip"),
    "target_update_frequency": Renamed("target_network_update_freq"),
    "use_huber": Renamed("td_error_loss_fn", lambda value: "huber" if value else "mse"),
    "num_sgd_iter": Renamed("num_epochs"),
    "sgd_minibatch_size": Renamed("minibatch_size"),
    "shuffle_sequences": Renamed("shuffle_batch_per_epoch"),
    "shuffle": Renamed("shuffle_batch_per_epoch"),
    "lr_schedule": Renamed("lr"),
    "entropy_coeff_schedule": Renamed("entropy_coeff"),
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
    **{f"callbacks_on_{hook}": Renamed(f"on_{hook}") for hook in CALLED_HOOKS},
    "on_workers_recreated": Renamed("on_env_runners_recreated"),
    "callbacks_on_workers_recreated": Renamed("on_env_runners_recreated"),
}


def _refuse_each(names: str, reason: str) -> Iterator[tuple[str, str]]:
    for name in names.split():
        yield name, reason


_FILTER_STATES_REASON = "the learner updates the statistics from each batch and sends them with the weights: leave it out"
_LEARNERS_REASON = "each learner receives its batches from the main process, one at a time"
_FRAMEWORK_REASON = "the framework is JAX and everything is compiled"
_API_STACK_REASON = (
    "there is a single API stack, which always uses modules, learners and connectors"
)
_DATASET_REASON = (
    "recorded data are read by input_, and kept where dataset_storage says; input_transform changes "
    "them"
)
_OUTPUT_REASON = "output names a folder of Parquet files, each row a part of an episode"
EXPLORATION_REASON = (
    "exploration is defined by the module's forward_exploration; explore=False disables it"
)

_OFFLINE_EVALUATION_REASON = REFUSED_HOOKS["on_offline_eval_runners_recreated"]

REFUSED: dict[str, str] = {
    **{
        name: reason
        for hook, reason in REFUSED_HOOKS.items()
        for name in (hook, f"callbacks_{hook}")
    },
    **dict(
        _refuse_each(
            "merge_env_runner_states use_worker_filter_stats update_worker_filter_stats "
            "sync_filters_on_rollout_workers_timeout_s",
            _FILTER_STATES_REASON,
        )
    ),
    "broadcast_env_runner_states": _FILTER_STATES_REASON,
    "use_env_runner_state_server": _FILTER_STATES_REASON,
    "env_runner_state_server_max_concurrency": _FILTER_STATES_REASON,
    "create_local_env_runner": (
        "this process has a runner with num_env_runners=0, and none in addition to actors"
    ),
    **dict(
        _refuse_each(
            "create_env_on_local_worker create_env_on_driver",
            "this process creates an environment to determine its spaces, and steps none if there "
            "are actors",
        )
    ),
    **dict(
        _refuse_each(
            "num_gpus_per_env_runner num_gpus_per_worker",
            "runners act on CPUs; in the compiled program environments act on the learner's devices, "
            "which learners(num_gpus_per_learner=...) sets",
        )
    ),
    "sample_async": "IMPALA and APPO sample concurrently with updates",
    "remote_worker_envs": (
        "gym_env_vectorize_mode='async' steps each environment in a separate process"
    ),
    "remote_env_batch_wait_ms": (
        "with gym_env_vectorize_mode='async' a step waits for all environments of a runner; IMPALA and "
        "APPO do not wait for other runners"
    ),
    "sampler_perf_stats_ema_coef": "timers measure one iteration each and are not smoothed",
    "episodes_to_numpy": "episodes always hold NumPy arrays",
    "compress_observations": (
        "fragments are views of shared memory, and recorded files are compressed: leave it out"
    ),
    **dict(
        _refuse_each(
            "metrics_episode_collection_timeout_s collect_metrics_timeout",
            "metrics arrive with the fragments, whose timeout is sample_timeout_s",
        )
    ),
    "num_aggregator_actors_per_learner": _LEARNERS_REASON,
    "max_requests_in_flight_per_aggregator_actor": _LEARNERS_REASON,
    "max_requests_in_flight_per_learner": _LEARNERS_REASON,
    # IMPALA and APPO
    "use_circular_buffer": (
        "circular_buffer_num_batches=1 and circular_buffer_iterations_per_batch=1 disable the "
        "buffer"
    ),
    "use_gae": (
        "advantages are of lambda-returns (in IMPALA and APPO, without vtrace); lambda_=1.0 makes "
        "them plain returns, and use_critic=False of PPO leaves the values out"
    ),
    **dict(
        _refuse_each(
            "simple_queue_size learner_queue_timeout timeout_s_sampler_manager "
            "timeout_s_aggregator_manager num_gpu_loader_threads num_aggregation_workers "
            "max_requests_in_flight_per_aggregator_worker num_multi_gpu_tower_stacks",
            "learner_queue_size limits the train batches that wait for the learner, and "
            "sample_timeout_s the time that a runner may take",
        )
    ),
    **dict(
        _refuse_each(
            "replay_proportion replay_buffer_num_slots replay_ratio minibatch_buffer_size",
            "circular_buffer_num_batches and circular_buffer_iterations_per_batch control the "
            "reuse of batches",
        )
    ),
    **dict(
        _refuse_each(
            "opt_type decay momentum epsilon optim_alpha optim_eps _separate_vf_optimizer _lr_vf",
            "optimizer takes the name of the optimizer and its arguments, e.g. {'name': 'rmsprop', "
            "'decay': 0.99, 'eps': 0.1}",
        )
    ),
    # DQN and SAC
    "hiddens": (
        "set the heads' hidden layers by rl_module(model_config={'head_fcnet_hiddens': [...]})"
    ),
    "adam_epsilon": "set optimizer={'name': 'adam', 'eps': ...}",
    "categorical_distribution_temperature": (
        "DQN's actions are greedy, or random with probability epsilon, and other algorithms' are "
        "drawn from the policy's own probabilities"
    ),
    "target_update_grad_intervals": (
        "target_network_update_freq counts environment steps or rows trained on: set it to the number "
        "of updates times train_batch_size"
    ),
    "before_learn_on_batch": REFUSED_HOOKS["on_learn_on_batch"],
    "use_local_critic": (
        "MADDPG's critics see all agents; DDPG with a policy for each agent has critics of what that "
        "agent observes"
    ),
    **dict(
        _refuse_each(
            "good_policy adv_policy",
            "MADDPG trains all agents of one team; opponents are part of the environment's rules, or "
            "policies of an algorithm such as PPO",
        )
    ),
    "actor_feature_reg": "the policies' loss has no penalty of large outputs",
    **dict(
        _refuse_each(
            "q_model_config policy_model_config actor_hiddens actor_hidden_activation "
            "critic_hiddens critic_hidden_activation",
            "rl_module(model_config={'fcnet_hiddens': [...], 'fcnet_activation': ...}) applies to "
            "the policy and the critics, and 'critic_fcnet_hiddens': [...] to these alone",
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
        )
    ),
    "huber_threshold": "the Huber loss becomes linear at 1",
    "l2_reg": "set optimizer={'name': 'adamw', 'weight_decay': ...}",
    "learner_config_dict": (
        "a Learner reads the settings of training(), to which a config subclass can add others: "
        "class MyConfig(PPOConfig): my_coeff: float = 0.1"
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
        )
    ),
    **dict(
        _refuse_each(
            "_disable_preprocessor_api _disable_action_flattening "
            "_disable_initialize_loss_from_dummy_batch _disable_execution_plan_api "
            "synchronize_filters synchronize_filter in_evaluation _env_runners_only _skip_learners",
            _API_STACK_REASON,
        )
    ),
    **dict(
        _refuse_each(
            "_use_msgpack_checkpoints simple_optimizer _dont_auto_sync_env_runner_states",
            _API_STACK_REASON,
        )
    ),
    **dict(
        _refuse_each(
            "_torch_grad_scaler_class _torch_lr_scheduler_classes sample_collector "
            "preprocessor_pref",
            _API_STACK_REASON,
        )
    ),
    "_tf_policy_handles_more_than_one_loss": _FRAMEWORK_REASON,
    **dict(
        _refuse_each(
            "policy_map_cache policy_states_are_swappable",
            "modules are arrays of the compiled program, all of which it holds",
        )
    ),
    "observation_fn": "return what each agent observes from the environment, or use a connector",
    "replay_mode": (
        "each module replays its own rows; jaxrl.envs.group_agents makes one agent of a team, whose "
        "rows stay together"
    ),
    "multiagent": "give its settings to multi_agent(...)",
    **dict(
        _refuse_each(
            "input_config offline_data_class input_read_method "
            "input_read_method_kwargs input_read_episodes input_read_sample_batches "
            "input_read_batch_size input_filesystem input_filesystem_kwargs "
            "input_compress_columns input_spaces_jsonable map_batches_kwargs iter_batches_kwargs "
            "prelearner_class prelearner_buffer_class prelearner_buffer_kwargs "
            "prelearner_module_synch_period prelearner_use_recorded_module_states "
            "postprocess_inputs offline_sampling _is_online",
            _DATASET_REASON,
        )
    ),
    **dict(
        _refuse_each(
            "output_config output_compress_columns output_write_remaining_data "
            "output_write_method output_write_method_kwargs output_filesystem "
            "output_filesystem_kwargs output_write_episodes",
            _OUTPUT_REASON,
        )
    ),
    **dict(
        _refuse_each(
            "num_offline_eval_runners offline_eval_runner_class "
            "broadcast_offline_eval_runner_states "
            "custom_resources_per_offline_eval_runner ignore_offline_eval_runner_failures "
            "max_num_offline_eval_runner_restarts "
            "max_requests_in_flight_per_offline_eval_runner "
            "num_cpus_per_offline_eval_runner num_gpus_per_offline_eval_runner "
            "offline_eval_rl_module_inference_only "
            "offline_eval_runner_health_probe_timeout_s "
            "offline_eval_runner_restore_timeout_s "
            "offline_evaluation_parallel_to_training offline_evaluation_timeout_s "
            "restart_failed_offline_eval_runners "
            "validate_offline_eval_runners_after_construction",
            _OFFLINE_EVALUATION_REASON,
        )
    ),
    "input_evaluation": (
        "evaluation(off_policy_estimation_methods={'is': {'type': 'is'}}) names the estimates, every "
        "offline_evaluation_interval iterations"
    ),
    "offline_loss_for_module_fn": (
        "offline_evaluation_type='eval_loss' has the losses of the learner, which learner_class may "
        "override"
    ),
    "dataset_num_iters_per_eval_runner": "offline_evaluation_duration is the number of batches",
    **dict(_refuse_each("exploration_config _prior_exploration_config", EXPLORATION_REASON)),
    "_validate_config": "settings are always validated, before anything is compiled: leave it out",
    "_fake_gpus": "set XLA_FLAGS=--xla_force_host_platform_device_count=8 before starting Python",
    "render_env": (
        "rendering to a window is not supported; evaluation(record_video=True) writes videos"
    ),
    "auto_wrap_old_gym_envs": "wrap old gym environments with shimmy",
    "soft_horizon": "use max_episode_steps; time limits truncate",
    "no_done_at_end": "use max_episode_steps; time limits truncate",
    "enable_async_evaluation": (
        "set evaluation_parallel_to_training=True and evaluation_duration='auto'"
    ),
    "evaluation_force_reset_envs_before_iteration": (
        "every evaluation starts from fresh environments"
    ),
    "keep_per_episode_custom_metrics": "collect what you need in an on_episode_end callback",
    **dict(
        _refuse_each(
            "custom_stats_cls_lookup stats_cls_lookup",
            "add your own reductions in an on_train_result callback",
        )
    ),
    "custom_async_evaluation_function": (
        "set custom_evaluation_function, or evaluation_parallel_to_training=True"
    ),
    "export_native_model_files": (
        "checkpoints contain the parameters; algorithm.export(folder) writes a policy that NumPy "
        "runs"
    ),
    "checkpoint_trainable_policies_only": (
        "checkpoints contain the whole run; from_checkpoint(path, policy_ids=[...]) restores modules of it"
    ),
    "logger_creator": "pass debugging(loggers=[...]) and results_dir",
    "logger_config": "pass logger objects with their own options as loggers=[...]",
    "fake_sampler": "use an environment of negligible cost, such as 'jaxrl:probe-value-v0'",
    **dict(
        _refuse_each(
            "num_epochs minibatch_size shuffle_batch_per_epoch",
            "every update samples its own train_batch_size rows from the replay buffer",
        )
    ),
    "twin_q": "n_critics is the number of critics",
    **dict(
        _refuse_each(
            "use_critic vf_share_layers",
            "the module has a value function; rl_module(model_config={'vf_share_layers': True}) "
            "shares its encoder with the policy",
        )
    ),
    "replay_sequence_length": "rl_module(model_config={'max_seq_len': ...}) is the length",
    "burn_in_len": "only sequences of a replay buffer have a burn-in",
    "store_buffer_in_checkpoints": "checkpoints always contain the whole state of the run",
}


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
    renamed = RENAMED.get(name)
    if not asks_for_nothing(name, value, algo) and renamed is not None:
        value = renamed.transform(value)
    if asks_for_nothing(name, value, algo):
        return Translation({})
    if name == "exploration_config":
        return Translation(translate_exploration(value, known))
    if renamed is not None and renamed.new_name in known:
        return Translation({renamed.new_name: value}, renamed.is_quiet)
    if name in REFUSED:
        raise ConfigError(
            f"'{name}' (got {format_value(value)}) has no effect here: {REFUSED[name]}."
        )
    return None


def selects_machinery(name: str) -> bool:
    """Return whether a refused setting only selects a framework or a stack, of which there is one.

    Without the setting, a run does the same.
    """
    return REFUSED.get(name, "").startswith((_FRAMEWORK_REASON, _API_STACK_REASON))


_EPSILON_DEFAULTS = {
    "initial_epsilon": 1.0,
    "final_epsilon": 0.02,
    "warmup_timesteps": 0,
    "epsilon_timesteps": 10_000,
}
"""Those of RLlib's DQN."""
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
