"""RLlib's modules, classes, methods and result keys: the counterpart here, or what to write instead.

Names of settings are in `jaxrl.config.rllib_names`, result keys with one counterpart in
`jaxrl.metrics.RENAMED_KEYS`.
"""

import importlib
import warnings
from collections.abc import Mapping
from typing import Any

from jaxrl.config.synonyms import make_unknown_method_error
from jaxrl.core.algorithms import ALGORITHMS

RLLIB = "ray.rllib"

MOVED_NAMES: Mapping[str, str] = {
    "algorithms.algorithm.Algorithm": "jaxrl.Algorithm",
    "algorithms.algorithm_config.AlgorithmConfig": "jaxrl.AlgorithmConfig",
    "algorithms.callbacks.DefaultCallbacks": "jaxrl.callbacks.Callbacks",
    "algorithms.callbacks.MemoryTrackingCallbacks": "jaxrl.callbacks.MemoryTrackingCallbacks",
    "callbacks.callbacks.RLlibCallback": "jaxrl.callbacks.Callbacks",
    "connectors.env_to_module.FlattenObservations": "jaxrl.connectors.FlattenObservations",
    "connectors.env_to_module.FrameStackingEnvToModule": "jaxrl.connectors.FrameStacking",
    "connectors.env_to_module.MeanStdFilter": "jaxrl.connectors.MeanStdFilter",
    "connectors.env_to_module.PrevActionsPrevRewards": "jaxrl.connectors.PrevActionsPrevRewards",
    **{
        f"connectors.{package}.{name}": f"jaxrl.connectors.rllib_pieces.{name}"
        for package, names in {
            "env_to_module": (
                "AddObservationsFromEpisodesToBatch",
                "AddStatesFromEpisodesToBatch",
                "AddTimeDimToBatchAndZeroPad",
                "BatchIndividualItems",
                "NumpyToTensor",
                "SingleAgentObservationPreprocessor",
                "WriteObservationsToEpisodes",
            ),
            "learner": (
                "AddColumnsFromEpisodesToTrainBatch",
                "AddOneTsToEpisodesAndTruncate",
                "FrameStackingLearner",
            ),
            "module_to_env": (
                "GetActions",
                "ListifyDataForVectorEnv",
                "RemoveSingleTsTimeRankFromBatch",
                "TensorToNumpy",
                "UnBatchToIndividualItems",
            ),
        }.items()
        for name in names
    },
    "env.INPUT_ENV_SINGLE_SPACES": "jaxrl.connectors.rllib_pieces.INPUT_ENV_SINGLE_SPACES",
    "env.INPUT_ENV_SPACES": "jaxrl.connectors.rllib_pieces.INPUT_ENV_SPACES",
    "core.DEFAULT_MODULE_ID": "jaxrl.metrics.DEFAULT_MODULE",
    "core.rl_module.default_model_config.DefaultModelConfig": (
        "jaxrl.modules.model_config.DefaultModelConfig"
    ),
    "core.rl_module.rl_module.RLModule": "jaxrl.RLModule",
    "core.rl_module.rl_module.RLModuleSpec": "jaxrl.RLModuleSpec",
    "core.rl_module.rl_module.SingleAgentRLModuleSpec": "jaxrl.RLModuleSpec",
    "core.columns.Columns": "jaxrl.core.types.Columns",
    "env.apis.task_settable_env.TaskSettableEnv": "jaxrl.envs.TaskSettableEnv",
    "env.apis.task_settable_env.TaskType": "jaxrl.core.types.PyTree",
    "env.env_context.EnvContext": "jaxrl.EnvContext",
    "env.single_agent_episode.SingleAgentEpisode": "jaxrl.episodes.SingleAgentEpisode",
    "policy.sample_batch.DEFAULT_POLICY_ID": "jaxrl.metrics.DEFAULT_MODULE",
    "utils.replay_buffers.ReplayBuffer": "jaxrl.HostReplayBuffer",
    "utils.replay_buffers.replay_buffer.ReplayBuffer": "jaxrl.HostReplayBuffer",
    "utils.metrics.ENV_RUNNER_RESULTS": "jaxrl.metrics.ENV_RUNNERS",
    "utils.metrics.EPISODE_LEN_MAX": "jaxrl.metrics.EPISODE_LEN_MAX",
    "utils.metrics.EPISODE_LEN_MEAN": "jaxrl.metrics.EPISODE_LEN_MEAN",
    "utils.metrics.EPISODE_LEN_MIN": "jaxrl.metrics.EPISODE_LEN_MIN",
    "utils.metrics.EPISODE_RETURN_MAX": "jaxrl.metrics.EPISODE_RETURN_MAX",
    "utils.metrics.EPISODE_RETURN_MEAN": "jaxrl.metrics.EPISODE_RETURN_MEAN",
    "utils.metrics.EPISODE_RETURN_MIN": "jaxrl.metrics.EPISODE_RETURN_MIN",
    "utils.metrics.EVALUATION_RESULTS": "jaxrl.metrics.EVALUATION",
    "utils.metrics.FAULT_TOLERANCE_STATS": "jaxrl.metrics.FAULT_TOLERANCE",
    "utils.metrics.LEARNER_RESULTS": "jaxrl.metrics.LEARNERS",
    "utils.metrics.NUM_ENV_STEPS_SAMPLED_LIFETIME": "jaxrl.metrics.NUM_ENV_STEPS_SAMPLED_LIFETIME",
    "utils.metrics.NUM_EPISODES": "jaxrl.metrics.NUM_EPISODES",
    "utils.metrics.REPLAY_BUFFER_RESULTS": "jaxrl.metrics.REPLAY_BUFFER",
    "utils.metrics.TIMERS": "jaxrl.metrics.TIMERS",
}
"""Path below `ray.rllib` of a class, function or constant, mapped to its path here.

RLlib has moved most of them between packages, so that a name counts wherever it is imported from.
"""

MOVED_RAY_NAMES: Mapping[str, str] = {
    "ray.tune.register_env": "jaxrl.register_env",
    "ray.tune.registry.register_env": "jaxrl.register_env",
    "ray.air.CheckpointConfig": "ray.tune.CheckpointConfig",
    "ray.air.FailureConfig": "ray.tune.FailureConfig",
    "ray.air.RunConfig": "ray.tune.RunConfig",
    "ray.air.config.CheckpointConfig": "ray.tune.CheckpointConfig",
    "ray.air.config.FailureConfig": "ray.tune.FailureConfig",
    "ray.air.config.RunConfig": "ray.tune.RunConfig",
    "ray.train.CheckpointConfig": "ray.tune.CheckpointConfig",
    "ray.train.FailureConfig": "ray.tune.FailureConfig",
    "ray.train.RunConfig": "ray.tune.RunConfig",
}
"""Names of Ray outside of RLlib that code for RLlib uses, mapped to their current paths."""

DECORATORS = (
    "DeveloperAPI",
    "OldAPIStack",
    "OverrideToImplementCustomLogic",
    "OverrideToImplementCustomLogic_CallToSuperRecommended",
    "PublicAPI",
    "override",
)
"""Decorators of `ray.rllib.utils.annotations`, which change nothing at run time."""

_OFFLINE_ALGORITHMS = ("BC", "CQL", "CRR", "DT", "IQL", "MARWIL")
_MULTI_AGENT_ALGORITHMS = ("AlphaStar", "MADDPG", "QMIX")
ALGORITHM_ADVICE: Mapping[str, str] = {
    **dict.fromkeys(
        _OFFLINE_ALGORITHMS, "training from offline data is not supported in this version"
    ),
    **dict.fromkeys(
        _MULTI_AGENT_ALGORITHMS, "multi-agent training is not supported in this version"
    ),
}
"""Algorithms of RLlib that need what is not here."""

_RETURN_PIECES = "return a connector or a list of connectors, which precede the default ones"
NAME_ADVICE: Mapping[str, str] = {
    "ConnectorV2": (
        "subclass ObservationConnector, TemporalConnector, ActionConnector or LearnerConnector of "
        "jaxrl.connectors, which are pure functions of arrays, see the guide Connectors"
    ),
    **dict.fromkeys(
        (
            "ConnectorPipelineV2",
            "EnvToModulePipeline",
            "LearnerConnectorPipeline",
            "ModuleToEnvPipeline",
        ),
        _RETURN_PIECES,
    ),
    "AddInfosFromEpisodesToTrainBatch": (
        "infos are not recorded: add what the learner needs to the observation"
    ),
    "AddNextObservationsFromEpisodesToTrainBatch": (
        "a LearnerConnector finds the successor of every observation in rollout.final_obs"
    ),
    "AgentToModuleMapping": "multi-agent training is not supported in this version",
    "ComputeReturnsToGo": (
        "the learner computes them: training(lambda_=1.0) of PPO, or PG, whose targets are returns"
    ),
    "GeneralAdvantageEstimation": "the learner computes it: training(gamma=..., lambda_=...)",
    "ModuleToAgentUnmapping": "multi-agent training is not supported in this version",
    "NormalizeAndClipActions": "set environment(normalize_actions=..., clip_actions=...)",
    "get_preprocessor": (
        "connectors prepare observations: algorithm.compute_single_action(obs) takes them as the "
        "environment returns them"
    ),
    "make_multi_callbacks": "pass the classes as a list: callbacks([First, Second])",
    "ModelCatalog": "pass the network itself: rl_module(network=...), see the guide Custom modules",
    **dict.fromkeys(
        ("standardize_fields", "synchronous_parallel_sample"),
        "a training_step() of one's own calls self.sample(), see the guide Training steps",
    ),
    **dict.fromkeys(
        ("multi_gpu_train_one_step", "train_one_step"),
        "a training_step() of one's own calls self.update(batch), see the guide Training steps",
    ),
    **dict.fromkeys(
        (
            "EpisodeReplayBuffer",
            "MultiAgentReplayBuffer",
            "PrioritizedEpisodeReplayBuffer",
            "PrioritizedReplayBuffer",
        ),
        "name it, replay_buffer_config={'type': 'prioritized'}, or subclass jaxrl.ReplayBuffer or "
        "jaxrl.HostReplayBuffer, see the guide Training steps",
    ),
    **dict.fromkeys(
        (
            "sample_min_n_steps_from_buffer",
            "update_priorities_in_replay_buffer",
            "update_priorities_in_episode_replay_buffer",
        ),
        "update() draws from the buffer and updates its priorities, see the guide Training steps",
    ),
    "TFModelV2": "write the network with flax: rl_module(network=...)",
    "TorchModelV2": "write the network with flax: rl_module(network=...)",
    "TorchRLModule": "subclass jaxrl.RLModule, or pass a flax network: rl_module(network=...)",
    "TorchLearner": "subclass the algorithm's Learner, see the guide Custom losses",
    "PPOTorchLearner": "subclass jaxrl.algorithms.ppo.PPOLearner, see the guide Custom losses",
    "PPOTorchRLModule": "subclass jaxrl.RLModule, or pass a flax network: rl_module(network=...)",
    "try_import_tf": "the framework is JAX: import jax",
    "try_import_torch": "the framework is JAX: import jax",
    "SampleBatch": "a callback or Learner receives a batch as a dictionary of arrays",
    "Policy": "algorithm.get_policy() returns a jaxrl.Policy, which acts by act(obs)",
    "RolloutWorker": "callbacks receive the EnvRunner as env_runner",
    "Episode": "callbacks receive a jaxrl.episodes.SingleAgentEpisode",
    "Columns": "batches have the keys of the rollout: obs, actions, rewards, ...",
    "EnvRunnerGroup": "algorithm.env_runner_group has the runners of environments on the host",
    "MetricsLogger": "callbacks receive it as metrics_logger",
    "PPOCatalog": "set rl_module(model_config={...}), or pass a network: rl_module(network=...)",
    "EpisodeV2": "callbacks receive a jaxrl.episodes.SingleAgentEpisode",
    "BaseEnv": "callbacks receive the environments as env",
    "PPOTorchPolicy": "subclass the algorithm's Learner, see the guide Custom losses",
    "PPOTF2Policy": "subclass the algorithm's Learner, see the guide Custom losses",
    "pretty_print": "it is in Ray Tune: from ray.tune.logger import pretty_print",
}
"""Names of RLlib without a counterpart, with what to write instead."""

MULTI_AGENT_NAMES = ("MultiAgent", "PettingZoo", "make_multi_agent", "PolicySpec", "MultiRLModule")
"""Parts of the names that only multi-agent code uses."""

RENAMED_CONFIG_METHODS: Mapping[str, str] = {
    "rollouts": "env_runners",
    "exploration": "env_runners",
}
"""Methods of RLlib's configs under their current names; `config.rllib_names` has the settings."""

RENAMED_METHODS: Mapping[str, Mapping[str, str]] = {
    "algorithm": {
        "cleanup": "stop",
        "compute_action": "compute_single_action",
        "evaluation_workers": "eval_env_runner_group",
        "load_checkpoint": "restore",
        "logdir": "run_dir",
        "restore_from_path": "restore",
        "save_checkpoint": "save",
        "save_to_path": "save",
        "training_iteration": "iteration",
        "workers": "env_runner_group",
    },
    "runner_group": {
        "foreach_worker": "foreach_env_runner",
        "num_healthy_remote_workers": "num_healthy_env_runners",
    },
    "config": {"from_state": "from_dict", "get_state": "to_dict", "serialize": "to_dict"},
    "episode": {"user_data": "custom_data"},
}
"""Methods and attributes of RLlib's objects that have another name here."""

_POLICY_OF_RUNNER = "algorithm.get_weights() are the weights that every runner acts with"
METHOD_ADVICE: Mapping[str, Mapping[str, str]] = {
    "algorithm": {
        "add_module": "multi-agent training is not supported in this version",
        "add_policy": "multi-agent training is not supported in this version",
        "default_resource_request": (
            "jaxrl.PPO.default_resource_request(config) returns the resources of a trial"
        ),
        "eval_env_runner": "evaluate() evaluates, eval_env_runner_group has the runners on the host",
        "evaluate_offline": "training from offline data is not supported in this version",
        "offline_data": "training from offline data is not supported in this version",
        "from_state": "Algorithm.from_checkpoint(path) makes one, set_state(state) takes a state",
        "get_config": "read algorithm.config",
        "get_default_config": "write PPOConfig()",
        "get_default_policy_class": "the module is config.get_default_rl_module_spec()",
        "local_replay_buffer": "add_to_buffer(batch) stores a batch and update() draws from it",
        "log_result": "the on_train_result callback receives every result",
        "merge_algorithm_configs": "config.update_from_dict(other) merges settings",
        "remove_module": "multi-agent training is not supported in this version",
        "reset_config": "build another algorithm from the changed config",
        "resource_help": "jaxrl.PPO.resource_help(config) describes the resources of a trial",
        "restore_env_runners": "runners restart by themselves, see fault_tolerance(...)",
        "setup": "override get_default_learner_class() and training_step(), or write callbacks",
        "step": "train() does one iteration; training_step() may be overridden",
        "train_buffered": "train() returns the result of one iteration",
        "validate_env": "environment(validate_env=function) checks each environment",
        "export_model": "algorithm.save(path) writes a checkpoint",
        "export_policy_checkpoint": "algorithm.save(path) writes a checkpoint",
        "export_policy_model": "algorithm.save(path) writes a checkpoint",
        "import_model": "algorithm.set_weights(...) takes parameters as a pytree of arrays",
        "import_policy_model_from_h5": "algorithm.set_weights(...) takes a pytree of arrays",
        "local_evaluator": "read the algorithm itself: get_weights(), get_module()",
        "optimizer": "the optimizer's state is in algorithm.state",
        "get_auto_filled_metrics": "train() returns a result with these entries",
        "get_checkpointable_components": (
            "restore(path, component=...) restores 'rl_module', 'learner' or 'connectors'"
        ),
        "get_ctor_args_and_kwargs": "algorithm.config has what it was built from",
        "get_current_ip_pid": "results have the hostname and the pid",
        "get_metadata": "get_state()['metadata'] is the metadata of a checkpoint",
        "is_actor": "an Algorithm is an object of this process",
        "reset": "build another algorithm from the changed config",
        "restore_offline_eval_runners": "training from offline data is not supported in this version",
        "restore_workers": "runners restart by themselves, see fault_tolerance(...)",
        **dict.fromkeys(
            ("trial_id", "trial_name", "trial_resources"),
            "trials are those of Ray Tune, whose Trainables are jaxrl.PPO and so on",
        ),
        **dict.fromkeys(
            ("CLASS_AND_CTOR_ARGS_FILE_NAME", "METADATA_FILE_NAME", "STATE_FILE_NAME"),
            "the guide Checkpoints describes the files of a checkpoint",
        ),
        "remove_policy": "multi-agent training is not supported in this version",
    },
    "learner": {
        "add_module": "multi-agent training is not supported in this version",
        "apply_gradients": "override update(state, batch, progress, key) for another gradient step",
        "compute_gradients": "jax.grad computes them of compute_loss, which may be overridden",
        "compute_loss_for_module": "override compute_loss(params, batch, values, key)",
        "compute_losses": "override compute_loss(params, batch, values, key)",
        "configure_optimizers": (
            "override configure_optimizers_for_module(module_id, values), which returns them"
        ),
        "get_optimizer": "algorithm.state.learner.sgd.opt_state is the optimizer's state",
        "get_optimizers_for_module": "algorithm.state.learner.sgd.opt_state is their state",
        "get_parameters": "algorithm.get_weights() returns them; compute_loss receives params",
        "get_param_ref": "parameters have paths: label_params(params) returns a label for each",
        "postprocess_gradients": "chain an optax transformation in configure_optimizers_for_module",
        "postprocess_gradients_for_module": (
            "chain an optax transformation in configure_optimizers_for_module"
        ),
        "register_optimizer": (
            "return the optax transformation from configure_optimizers_for_module(module_id, "
            "values), or a dictionary of them for the labels that label_params(params) returns"
        ),
        "remove_module": "multi-agent training is not supported in this version",
        "update_from_batch": "override update(state, batch, progress, key)",
    },
    "runner_group": {
        "foreach_worker_with_id": (
            "foreach_env_runner_with_index passes (index, env_runner) and returns pairs of the "
            "index and the result"
        ),
        "foreach_worker_with_index": "foreach_env_runner_with_index passes (index, env_runner)",
        "foreach_env": "foreach_env_runner passes each runner, which has the environments",
        "foreach_policy": "algorithm.get_module() returns the module, get_weights() its weights",
        "local_env_runner": (
            "with num_env_runners actors there is none: use algorithm.get_weights(), get_module() "
            "or foreach_env_runner(...)"
        ),
        "local_worker": "use algorithm.get_weights(), get_module() or foreach_env_runner(...)",
        "sample": "algorithm.sample() returns a train batch for a training_step() of one's own",
        "remote_workers": "foreach_env_runner(...) calls a function on each",
        "stop": "algorithm.stop() stops the runners as well",
    },
    "compiled_runner": {
        "get_policy": _POLICY_OF_RUNNER,
        "policy_map": _POLICY_OF_RUNNER,
        "sample": "environments are part of the compiled program: train() samples and learns",
        "get_metrics": "train() returns the result",
        "get_state": "algorithm.get_state() is the state of the run",
        "set_state": "algorithm.set_state(state) sets the state of the run",
        "get_weights": "use algorithm.get_weights()",
        "set_weights": "use algorithm.set_weights(...)",
        "vector": "placement='host' steps environments from Python",
        "stop": "algorithm.stop() ends the run",
    },
    "env_runner": {"get_policy": _POLICY_OF_RUNNER, "policy_map": _POLICY_OF_RUNNER},
    "policy": {
        "compute_actions": "algorithm.compute_actions(observations) takes several observations",
        "compute_log_likelihoods": "use algorithm.get_module().action_dist(...).log_prob(action)",
        "compute_single_action": (
            "policy.act(obs) returns the action alone and keeps the state until policy.reset()"
        ),
        "config": "read algorithm.config",
        "dist_class": "use algorithm.get_module().action_dist",
        "export_checkpoint": "algorithm.save(path) writes a checkpoint",
        "export_model": "algorithm.save(path) writes a checkpoint",
        "get_initial_state": "policy.initial_state() returns the state, policy.reset() resets it",
        "get_weights": "use algorithm.get_weights()",
        "model": "use algorithm.get_module()",
        "observation_space": "read algorithm.get_module().observation_space",
        "action_space": "read algorithm.get_module().action_space",
        "set_weights": "use algorithm.set_weights(...)",
    },
    "config": {
        "get_multi_agent_setup": "multi-agent training is not supported in this version",
        "build_learner": "build() makes the learner, algorithm.learner_group holds it",
        "build_learner_group": "build() makes the learners, algorithm.learner_group holds them",
        "get_config_for_module": "there is one module, whose settings are the config's",
        **dict.fromkeys(
            ("DEFAULT_AGENT_TO_MODULE_MAPPING_FN", "DEFAULT_POLICY_MAPPING_FN"),
            "there is one module, 'default_policy'",
        ),
        **dict.fromkeys(
            (
                "build_env_to_module_connector",
                "build_learner_connector",
                "build_module_to_env_connector",
            ),
            "build() makes the pipelines, see the guide Connectors",
        ),
        "get_torch_compile_worker_config": "the framework is JAX and everything is compiled",
        "is_offline": "every run samples: training from offline data is not supported",
        "is_online": "every run samples: training from offline data is not supported",
        "uses_new_env_runners": "there is a single API stack",
    },
    "episode": {
        "agent_rewards": "episode.get_rewards() are the rewards",
        "custom_metrics": "log with metrics_logger.log_value(name, value)",
        "hist_data": "log with metrics_logger.log_value(name, value)",
        "last_info_for": "episode.get_infos(-1) is the last info",
        "last_observation_for": "episode.get_observations(-1) is the last observation",
        "last_action_for": "episode.get_actions(-1) is the last action",
        "media": "evaluation(record_video=True) writes videos",
    },
}
"""Methods and attributes without a counterpart under another name, with what to write instead."""

LEARNER_HOOKS: Mapping[str, str] = {
    "configure_optimizers_for_module": (
        "it takes (module_id, values) and returns an optax transformation, or a dictionary of them "
        "for the labels that label_params(params) returns; values['lr'] is the learning rate"
    ),
    "before_gradient_based_update": (
        "it takes (state, progress) and returns the new state; progress.env_steps are the timesteps"
    ),
    "after_gradient_based_update": (
        "it takes (state, metrics, progress) and returns the new state; progress.env_steps are the "
        "timesteps"
    ),
}
"""Methods of RLlib's learners that exist here as pure functions, with what they take and return."""

REWRITTEN_EPISODE_ATTRIBUTES: Mapping[str, str] = {
    "length": "len({})",
    "total_reward": "{}.get_return()",
    "episode_id": "{}.id_",
}
"""Attributes of RLlib's older episodes, as an expression of the episode."""

RENAMED_HOOKS: Mapping[str, str] = {
    "on_trainer_init": "on_algorithm_init",
    "on_workers_recreated": "on_env_runners_recreated",
}
RENAMED_HOOK_ARGUMENTS: Mapping[str, str] = {
    "base_env": "env",
    "trainer": "algorithm",
    "worker": "env_runner",
    "worker_ids": "env_runner_indices",
    "worker_set": "env_runner_group",
}
"""Names of hooks, and of their arguments, that differ here."""

REMOVED_RESULT_KEYS: Mapping[str, str] = {
    "agent_timesteps_total": "num_env_steps_sampled_lifetime counts the steps",
    "counters": "num_env_steps_sampled_lifetime and num_env_steps_trained_lifetime are counters",
    "hist_stats": "collect the values in an on_episode_end callback",
    "num_agent_steps_sampled": "num_env_steps_sampled_lifetime counts the steps",
    "num_agent_steps_trained": "num_env_steps_trained_lifetime counts the rows trained on",
    "num_agent_steps_sampled_lifetime": "num_env_steps_sampled_lifetime counts the steps",
    "policy_reward_max": "there is one policy: env_runners/episode_return_max",
    "policy_reward_mean": "there is one policy: env_runners/episode_return_mean",
    "policy_reward_min": "there is one policy: env_runners/episode_return_min",
}
"""Result keys of RLlib that no result has here."""

RENAMED_KEY_PREFIXES: Mapping[str, str] = {
    "info/learner/default_policy/learner_stats": "learners/default_policy",
    "info/learner/default_policy": "learners/default_policy",
    "info/learner": "learners",
}
"""Paths of nested results that have moved as a whole, the longer ones first."""


def is_former_attribute(kind: str, name: str) -> bool:
    """Return whether RLlib's objects of a kind have an attribute that is explained here."""
    return name in RENAMED_METHODS.get(kind, {}) or name in METHOD_ADVICE.get(kind, {})


def get_former_attribute(owner: object, kind: str, name: str) -> Any:
    """Return an attribute of an object by its name in RLlib, for `__getattr__`.

    Args:
        owner: Object whose attribute was read.
        kind: Kind of object, as in `RENAMED_METHODS` and `METHOD_ADVICE`.
        name: Name that the object does not have.

    Raises:
        AttributeError: If there is no counterpart; the message says what to write instead. It is
            the name alone for one that begins with an underscore, which RLlib's users do not read,
            but IPython, `copy` and `pickle` ask for.
    """
    if name.startswith("_"):
        raise AttributeError(name)
    if (kind, name) == ("algorithm", "env_runner"):
        return owner.env_runner_group.local_env_runner  # pyright: ignore
    owner_name = type(owner).__name__
    current = RENAMED_METHODS.get(kind, {}).get(name)
    if current is not None:
        message = f"{owner_name}.{name} is {current} here"
        warnings.warn(message, DeprecationWarning, stacklevel=3)
        return getattr(owner, current)
    advice = METHOD_ADVICE.get(kind, {}).get(name)
    if advice is not None:
        raise AttributeError(f"{owner_name} has no '{name}': {advice}.")
    raise make_unknown_method_error(owner, name)


def list_algorithm_names() -> frozenset[str]:
    """Return the names of the algorithms here and in RLlib, for which RLlib has classes."""
    return frozenset((*_ALGORITHM_BY_CLASS, *ALGORITHM_ADVICE))


def find_counterpart(path: str) -> str | None:
    """Return the path here of a class, function or constant of RLlib or Ray, None if it has none.

    Args:
        path: Path as imported, such as `ray.rllib.algorithms.ppo.PPOConfig`.
    """
    if path in MOVED_RAY_NAMES:
        return MOVED_RAY_NAMES[path]
    if not path.startswith(f"{RLLIB}."):
        return None
    name = path.rpartition(".")[2]
    algorithm = _ALGORITHM_BY_CLASS.get(name.removesuffix("Config").removesuffix("Trainer"))
    if algorithm is not None:
        config = ALGORITHMS[algorithm].config.rpartition(":")[2]
        return f"jaxrl.{config if name.endswith('Config') else algorithm}"
    return _MOVED_BY_NAME.get(name)


_ALGORITHM_BY_CLASS = {
    **{
        entry.config.rpartition(":")[2].removesuffix("Config"): name
        for name, entry in ALGORITHMS.items()
    },
    **{name: name for name in ALGORITHMS},
    "Apex": "APEX",
    "Impala": "IMPALA",
}
"""Algorithms by the names of RLlib's classes, without `Config` and `Trainer`."""
_ALGORITHM_BY_MODULE = {name.lower(): name for name in ALGORITHMS}


_MOVED_BY_NAME = {path.rpartition(".")[2]: new for path, new in MOVED_NAMES.items()}


def load_counterpart(path: str) -> object:
    """Import the counterpart of a name of RLlib, for a module that stands in for RLlib's.

    Raises:
        ImportError: If the name has no counterpart; the message says what to use instead.
    """
    new = find_counterpart(path)
    algorithm = _ALGORITHM_BY_MODULE.get(path.rpartition(".")[0].rpartition(".")[2])
    if new is None and path.endswith(".DEFAULT_CONFIG") and algorithm is not None:
        config = find_counterpart(f"{RLLIB}.{algorithm}Config")
        assert config is not None
        return _load(config)().to_dict()
    if new is None:
        raise ImportError(f"{path} has no counterpart in jaxrl: {advise_on_name(path)}.")
    return _load(new)


def _load(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def advise_on_name(path: str) -> str:
    """Return what to write instead of a name of RLlib without a counterpart."""
    name = path.rpartition(".")[2]
    algorithm = name.removesuffix("Config").removesuffix("Trainer")
    module = next((each for each in ALGORITHMS if each.lower() == name), None)
    if module is not None:
        return f"import the class of its config: from jaxrl import {module}Config"
    if algorithm in ALGORITHM_ADVICE:
        return ALGORITHM_ADVICE[algorithm]
    if name in NAME_ADVICE:
        return NAME_ADVICE[name]
    if any(part in name for part in MULTI_AGENT_NAMES):
        return "multi-agent training is not supported in this version"
    if ".offline" in path:
        return "training from offline data is not supported in this version"
    if ".examples" in path:
        return "copy what you need from RLlib's examples"
    if f"{RLLIB}.algorithms." in path and name.endswith("Config"):
        return f"the algorithms are {', '.join(ALGORITHMS)}"
    if name == "*":
        return "import the names that the file uses, one by one"
    return "it is part of RLlib's internals"
