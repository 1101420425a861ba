"""RLlib's methods, attributes, hooks and result keys, and what they are called here."""

import inspect
import warnings
from collections.abc import Collection, Mapping

from jaxrl.callbacks import HOOKS
from jaxrl.compat.libraries import ATTRIBUTE_COUNTERPARTS, make_unknown_method_error
from jaxrl.compat.lookup import is_defined_by_user
from jaxrl.errors import ConfigError, LossError, ModuleError, locate_in_user_code
from jaxrl.metrics import DEFAULT_MODULE

RENAMED_CONFIG_METHODS: Mapping[str, str] = {
    "rollouts": "env_runners",
    "exploration": "env_runners",
}
"""Methods of RLlib's configs under their current names; `settings` has the settings."""

RENAMED_METHODS: Mapping[str, Mapping[str, str]] = {
    "algorithm": {
        "add_policy": "add_module",
        "remove_policy": "remove_module",
        "compute_action": "compute_single_action",
        "evaluation_workers": "eval_env_runner_group",
        "logdir": "run_dir",
        "restore_from_path": "restore",
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
    "policy": {"get_initial_state": "initial_state"},
}
"""Methods and attributes of RLlib's objects that have another name here."""

_FIXED_MODULES = "the compiled program has every module: name each in multi_agent(policies=...)"
METHOD_ADVICE: Mapping[str, Mapping[str, str]] = {
    "algorithm": {
        **ATTRIBUTE_COUNTERPARTS,
        "default_resource_request": (
            "jaxrl.PPO.default_resource_request(config) returns the resources of a trial"
        ),
        "eval_env_runner": "evaluate() evaluates, eval_env_runner_group has the runners on the host",
        "offline_data": "config.offline_data(input_=...) names the data, and learner_group.dataset has them",
        "from_state": "Algorithm.from_checkpoint(path) makes one, set_state(state) takes a state",
        "get_config": "read algorithm.config",
        "get_default_config": "write PPOConfig(), or PPOConfig(algo_class=...) for a class of one's own",
        "get_default_policy_class": "the module is config.get_default_rl_module_spec()",
        "local_replay_buffer": "add_to_buffer(batch) stores a batch and update() draws from it",
        "merge_algorithm_configs": "config.update_from_dict(other) merges settings",
        "merge_trainer_configs": "config.update_from_dict(other) merges settings",
        "reset_config": "build another algorithm from the changed config",
        "resource_help": "jaxrl.PPO.resource_help(config) describes the resources of a trial",
        "restore_env_runners": "runners restart by themselves, see fault_tolerance(...)",
        "step": "train() does one iteration; training_step() may be overridden",
        "train_buffered": "train() returns the result of one iteration",
        "validate_env": "environment(validate_env=function) checks each environment",
        "import_model": (
            "algorithm.set_weights(...) takes a pytree, jaxrl.interop.import_weights(algorithm, file, "
            "mapping=...) a file, and import_policy_model_from_h5(file) one that Keras wrote"
        ),
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
        "restore_offline_eval_runners": "evaluate_held_out() has no runners that could fail",
        "restore_workers": "runners restart by themselves, see fault_tolerance(...)",
        **dict.fromkeys(
            ("trial_name", "trial_resources"),
            "trials are those of Ray Tune, whose Trainables are jaxrl.PPO and so on",
        ),
        **dict.fromkeys(
            ("CLASS_AND_CTOR_ARGS_FILE_NAME", "METADATA_FILE_NAME", "STATE_FILE_NAME"),
            "the guide Checkpoints describes the files of a checkpoint",
        ),
    },
    "learner": {
        "add_module": _FIXED_MODULES,
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
        "remove_module": _FIXED_MODULES,
        "update_from_batch": "override update(state, batch, progress, key)",
    },
    "runner_group": {
        "foreach_env": "foreach_env_runner passes each runner, which has the environments",
        "foreach_policy": "algorithm.get_module() returns the module, get_weights() its weights",
        "local_env_runner": (
            "with num_env_runners actors there is none: use algorithm.get_weights(), get_module() "
            "or foreach_env_runner(...)"
        ),
        "sample": "algorithm.sample() returns a train batch for a training_step() of one's own",
        "remote_workers": "foreach_env_runner(...) calls a function on each",
        "stop": "algorithm.stop() stops the runners as well",
    },
    "compiled_runner": {
        "sample": "environments are part of the compiled program: train() samples and learns",
        "get_metrics": "train() returns the result",
        "get_state": "algorithm.get_state() is the state of the run",
        "set_state": "algorithm.set_state(state) sets the state of the run",
        "get_weights": "use algorithm.get_weights()",
        "set_weights": "use algorithm.set_weights(...)",
        "vector": "placement='host' steps environments from Python",
        "stop": "algorithm.stop() ends the run",
    },
    "env_runner": {"foreach_env": "env_runner.env.envs are the environments, to call in a loop"},
    "policy": {
        "compute_log_likelihoods": "use algorithm.get_module().action_dist(...).log_prob(action)",
        "config": "read algorithm.config",
        "export_checkpoint": "policy.export(folder) writes what NumPy runs",
        "export_model": "policy.export(folder) writes what NumPy runs",
        "set_weights": "use algorithm.set_weights(...)",
        "import_model_from_h5": "use algorithm.import_policy_model_from_h5(file)",
    },
    "model": {
        "parameters": "variables() returns copies of the parameters",
        "state_dict": "variables(as_dict=True) returns copies of the parameters",
        "load_state_dict": "use algorithm.set_weights(...)",
        "num_outputs": "policy.dist_class.required_input_dim() is the number of logits",
        "obs_space": "read algorithm.get_module().observation_space",
        "action_space": "read algorithm.get_module().action_space",
    },
    "model_part": {
        "get_weights": "read variables",
        "trainable_variables": "read variables",
        "load_weights": "algorithm.set_weights(...) takes parameters, import_weights reads files",
        "save_weights": (
            "numpy.savez(path, **policy.model.variables(as_dict=True)) writes the parameters"
        ),
    },
    "config": {
        "build_learner": "build() makes the learner, algorithm.learner_group holds it",
        "build_learner_group": "build() makes the learners, algorithm.learner_group holds them",
        "get_config_for_module": "get_module_config(module_id) returns the config of one of several",
        **dict.fromkeys(
            ("DEFAULT_AGENT_TO_MODULE_MAPPING_FN", "DEFAULT_POLICY_MAPPING_FN"),
            "without a mapping, 'default_policy' plays every agent",
        ),
        **dict.fromkeys(
            (
                "build_env_to_module_connector",
                "build_learner_connector",
                "build_module_to_env_connector",
            ),
            "build() makes the pipelines, see the guide Connectors",
        ),
        "get_marl_module_spec": (
            "get_multi_rl_module_spec() returns the specification of every module"
        ),
        "get_torch_compile_worker_config": "the framework is JAX and everything is compiled",
        "uses_new_env_runners": "there is a single API stack",
    },
    "episode": {
        "agent_rewards": "episode.get_rewards() are the rewards",
        "hist_data": "log with metrics_logger.log_value(name, value)",
        "last_info_for": "episode.get_infos(-1) is the last info",
        "last_observation_for": "episode.get_observations(-1) is the last observation",
        "last_action_for": "episode.get_actions(-1) is the last action",
        "media": "evaluation(record_video=True) writes videos",
    },
}
"""Methods and attributes without a counterpart under another name, with what to write instead."""

UNCALLED_METHODS = (
    *("default_resource_request", "get_auto_filled_metrics", "get_checkpointable_components"),
    *("get_ctor_args_and_kwargs", "get_default_config", "get_default_policy_class", "get_metadata"),
    *("reset_config", "resource_help", "restore_env_runners", "restore_workers", "step"),
    "validate_env",
)
"""Methods that RLlib's Algorithm calls, and an Algorithm here does not."""

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

_OFFLINE_EVALUATION_REASON = (
    "held-out episodes are evaluated in this process, in one compiled call, every "
    "offline_evaluation_interval iterations"
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
    "on_offline_eval_runners_recreated": _OFFLINE_EVALUATION_REASON,
}
"""Hooks of RLlib's callbacks that are not supported, with the reasons."""

CALLED_HOOKS = tuple(hook.removeprefix("on_") for hook in HOOKS)
ALL_HOOKS = (
    *CALLED_HOOKS,
    "workers_recreated",
    *(name.removeprefix("on_") for name in REFUSED_HOOKS),
)
"""All hooks of RLlib's, current and former, without `on_`."""

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


def make_hook_arguments(
    names: Collection[str], arguments: Mapping[str, object]
) -> dict[str, object]:
    """Return the arguments that RLlib's older hooks require, by their former names."""
    former = {
        name: arguments[RENAMED_HOOK_ARGUMENTS[name]]
        for name in names
        if RENAMED_HOOK_ARGUMENTS.get(name) in arguments
    }
    if "policies" in names and "rl_module" in arguments:
        former["policies"] = {DEFAULT_MODULE: arguments["rl_module"]}
    return former


REMOVED_RESULT_KEYS: Mapping[str, str] = {
    "agent_timesteps_total": "num_env_steps_sampled_lifetime counts the steps",
    "counters": "num_env_steps_sampled_lifetime and num_env_steps_trained_lifetime are counters",
    "hist_stats": "collect the values in an on_episode_end callback",
    "num_agent_steps_sampled": "num_env_steps_sampled_lifetime counts the steps",
    "num_agent_steps_trained": "num_env_steps_trained_lifetime counts the rows trained on",
    "num_agent_steps_sampled_lifetime": "num_env_steps_sampled_lifetime counts the steps",
    "policy_reward_max": (
        "it is env_runners/episode_return_max of one agent; of several, collect the values in an "
        "on_episode_end callback"
    ),
    "policy_reward_mean": (
        "it is env_runners/module_episode_returns_mean/<module> of several agents, and "
        "env_runners/episode_return_mean of one"
    ),
    "policy_reward_min": (
        "it is env_runners/episode_return_min of one agent; of several, collect the values in an "
        "on_episode_end callback"
    ),
}
"""Result keys of RLlib that no result has here."""

RENAMED_KEY_PREFIXES: Mapping[str, str] = {
    "info/learner": "learners",
}
"""Paths of nested results that have moved as a whole."""


def has_answer(kind: str, name: str) -> bool:
    """Return whether a name of RLlib's objects of a kind has a counterpart or an advice."""
    return name in RENAMED_METHODS.get(kind, {}) or name in METHOD_ADVICE.get(kind, {})


def get_attribute(owner: object, kind: str, name: str) -> object:
    """Return an attribute of an object by its name in RLlib, for `__getattr__`.

    Args:
        owner: Object whose attribute was read.
        kind: Kind of object, as in `RENAMED_METHODS` and `METHOD_ADVICE`.
        name: Name that the object does not have.

    Raises:
        AttributeError: If there is no counterpart; the message says what to write instead.
    """
    owner_name = type(owner).__name__
    current = RENAMED_METHODS.get(kind, {}).get(name)
    if current is not None:
        message = f"{owner_name}.{name} is {current} here"
        warnings.warn(message, DeprecationWarning, stacklevel=3)
        return getattr(owner, current)
    if kind == "episode" and name in REWRITTEN_EPISODE_ATTRIBUTES:
        instead = REWRITTEN_EPISODE_ATTRIBUTES[name].format("episode")
        raise AttributeError(f"{owner_name} has no '{name}': {instead} is it.")
    advice = METHOD_ADVICE.get(kind, {}).get(name)
    if advice is not None:
        raise AttributeError(f"{owner_name} has no '{name}': {advice}.")
    raise make_unknown_method_error(owner, name)


def refuse_uncalled_methods(cls: type) -> None:
    """Raise if a subclass of Algorithm overrides a method that RLlib calls and jaxrl does not.

    Raises:
        ConfigError: If it does; the message says what to write instead.
    """
    for name in UNCALLED_METHODS:
        owners = [base for base in cls.__mro__ if name in vars(base)]
        if owners and all(map(is_defined_by_user, owners)):  # a class of jaxrl's calls it
            raise ConfigError(
                f"{cls.__name__} overrides {name}(), which is not called here: "
                f"{METHOD_ADVICE['algorithm'][name]}."
            )


def refuse_learner_methods(learner: object) -> None:
    """Raise if a user's learner defines a method that RLlib calls.

    Raises:
        LossError: If it does; the message says what to write instead.
    """
    for name, advice in METHOD_ADVICE["learner"].items():
        if hasattr(type(learner), name):
            owner = type(learner).__name__
            raise LossError(f"{owner}.{name} is never called here: {advice}.")


def explain_learner_method(error: BaseException, learner: object) -> None:
    """Raise with advice if an error is that a learner has no method of RLlib's learners.

    Raises:
        LossError: If it is.
    """
    if isinstance(error, AttributeError) and type(error.obj) is type(learner):
        advice = METHOD_ADVICE["learner"].get(error.name or "")
        if advice is not None:
            raise LossError(
                f"{type(learner).__name__} has no '{error.name}': {advice}"
                f"{locate_in_user_code(error)}."
            ) from error


_GUIDE = "see the guide Custom modules"
_NEVER_CALLED = ("_forward_train", "_forward_inference", "_forward_exploration")
_FIRST_ARGUMENTS = ("_forward", "compute_values")


def check_module_methods(module_class: type, base: type) -> None:
    """Check that a module's methods are those that are called here.

    Args:
        module_class: Class of the module.
        base: Base class of all modules.

    Raises:
        ModuleError: If a method has RLlib's signature, or would never be called.
    """
    name = module_class.__name__
    for method in _NEVER_CALLED:
        if hasattr(module_class, method):
            raise ModuleError(
                f"{name}.{method} is never called here: all outputs are those of _forward(self, "
                f"params, obs), and forward_exploration may be overridden, {_GUIDE}."
            )
    for method in _FIRST_ARGUMENTS:
        own = getattr(module_class, method)
        if own is getattr(base, method):
            continue
        parameters = list(inspect.signature(own).parameters.values())
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        positional = [p.name for p in parameters if p.kind in kinds]
        takes_any = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
        if (len(positional) < 3 and not takes_any) or positional[1:2] == ["batch"]:
            raise ModuleError(
                f"{name}.{method}({', '.join(map(str, parameters))}) has RLlib's signature, without "
                f"parameters; modules are pure here: write {method}(self, params, obs), with the "
                f"network's parameters and the observations, {_GUIDE}."
            )
