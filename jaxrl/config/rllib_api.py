"""RLlib's methods, attributes, hooks and result keys, and what they are called here."""

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from jaxrl.config.synonyms import ATTRIBUTE_COUNTERPARTS, make_unknown_method_error
from jaxrl.errors import ConfigError

RENAMED_CONFIG_METHODS: Mapping[str, str] = {
    "rollouts": "env_runners",
    "exploration": "env_runners",
}
"""Methods of RLlib's configs under their current names; `config.rllib_names` has the settings."""

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

CALLED_METHODS = ("setup", "log_result", "save_checkpoint", "load_checkpoint", "cleanup")
"""Methods of RLlib's Trainable that an Algorithm calls, so that a subclass may override them."""
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


def refuse_uncalled_methods(cls: type) -> None:
    """Raise if a subclass of Algorithm overrides a method that RLlib calls and jaxrl does not.

    Raises:
        ConfigError: If it does; the message says what to write instead.
    """
    for name in UNCALLED_METHODS:
        owners = [base.__module__ for base in cls.__mro__ if name in vars(base)]
        is_known = any(
            module.startswith("jaxrl.") for module in owners
        )  # a class of jaxrl's calls it
        if owners and not is_known:
            raise ConfigError(
                f"{cls.__name__} overrides {name}(), which is not called here: "
                f"{METHOD_ADVICE['algorithm'][name]}."
            )


class FormerNames:
    """Base class of what RLlib's users call by names that are others here; see `get_former_attribute`.

    Attributes:
        _former_kind: Kind of object, as in `RENAMED_METHODS`.
    """

    _former_kind: ClassVar[str]

    if not TYPE_CHECKING:  # hidden from the type checker, which would accept any attribute

        def __getattr__(self, name: str) -> Any:
            return get_former_attribute(self, self._former_kind, name)


class FormerEpisode(FormerNames):
    """Base class of episodes, which callbacks of RLlib's older episodes read and write.

    Attributes:
        custom_data: Data of callbacks.
    """

    _former_kind = "episode"
    custom_data: dict[str, Any]

    @property
    def custom_metrics(self) -> dict[str, Any]:
        """Numbers by name, of which results have the mean, minimum and maximum over episodes."""
        return self.custom_data.setdefault("custom_metrics", {})

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            if name in REWRITTEN_EPISODE_ATTRIBUTES:
                instead = REWRITTEN_EPISODE_ATTRIBUTES[name].format("episode")
                raise AttributeError(f"{type(self).__name__} has no '{name}': {instead} is it.")
            return super().__getattr__(name)
