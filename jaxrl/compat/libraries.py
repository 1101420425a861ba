"""Counterparts of names of Stable-Baselines3, CleanRL, PureJaxRL and Rejax: settings and the like."""

import inspect
import re
from collections.abc import Iterator, Mapping

from jaxrl.config.settings.run import LOGGERS
from jaxrl.errors import did_you_mean

_STOP_CRITERION = (
    'the stop criterion, algo.fit({"num_env_steps_sampled_lifetime": 100_000}), or jaxrl train '
    "with --steps 100000"
)
_HIDDEN_LAYERS = 'rl_module(model_config={"fcnet_hiddens": [64, 64]})'
_EPSILON = "a schedule, training(epsilon=[[0, 1.0], [10_000, 0.05]])"
_BUFFER = 'training(replay_buffer_config={"capacity": ...})'
_LEARNING_STARTS = "training(num_steps_sampled_before_learning_starts=...)"
_ROLLOUT = (
    "env_runners(rollout_fragment_length=...), and training(train_batch_size=...) is that times "
    "the number of environments"
)
_LOGGERS = f"debugging(loggers=[...]), with {', '.join(map(repr, LOGGERS[:-1]))} or {LOGGERS[-1]!r}"
_OPTIMIZER = 'training(optimizer={"name": "adam", "eps": 1e-5})'

_COUNTERPARTS: Mapping[str, tuple[str, ...]] = {
    "learning_rate lr": ("training(actor_lr=...) with critic_lr", "training(lr=...)"),
    "policy_lr": ("training(actor_lr=...)",),
    "q_lr": ("training(critic_lr=...)",),
    "anneal_lr lr_linear_decay": ("a schedule, training(lr=[[0, 3e-4], [500_000, 0.0]])",),
    "total_timesteps total_steps num_updates": (_STOP_CRITERION,),
    "num_envs n_envs": ("env_runners(num_envs_per_env_runner=...)",),
    "env_id env_name": ("environment(env=...)",),
    "env_kwargs": ("environment(env_config=...)",),
    "policy policy_kwargs net_arch hidden_sizes hidden_layer_sizes hidden_size hsize num_layers "
    "n_layers num_hidden_layers": (_HIDDEN_LAYERS,),
    "activation activation_fn": ('rl_module(model_config={"fcnet_activation": "tanh"})',),
    "max_grad_norm": ("training(grad_clip=...)",),
    "num_minibatches": (
        "training(minibatch_size=...), the train batch size divided by the number of minibatches",
    ),
    "n_steps": ("training(n_step=...)", _ROLLOUT),
    "num_steps": (_ROLLOUT,),
    "update_epochs n_epochs": ("training(num_epochs=...)",),
    "batch_size buffer_batch_size": (
        "training(minibatch_size=...)",
        "training(train_batch_size=...)",
    ),
    "gae_lambda q_lambda": ("training(lambda_=...)",),
    "clip_range clip_coef clip_eps": ("training(clip_param=...)",),
    "clip_range_vf clip_vloss": (
        "training(vf_clip_param=...), which bounds the squared error, not the change of the value",
    ),
    "ent_coef": (
        "training(initial_alpha=...), learned with alpha_lr",
        "training(entropy_coeff=...)",
    ),
    "alpha": ("training(initial_alpha=...)",),
    "autotune": ("training(alpha_lr=...), where 0 keeps initial_alpha",),
    "vf_coef": ("training(vf_loss_coeff=...)",),
    "target_kl": (
        "training(kl_target=...), which adapts the weight of a KL term; no epoch is stopped early",
    ),
    "normalize_advantage norm_adv": ("training(normalize_advantages=...)",),
    "buffer_size buffer_capacity memory_size": (_BUFFER,),
    "learning_starts fill_buffer": (_LEARNING_STARTS,),
    "train_freq train_frequency training_interval": (
        "env_runners(rollout_fragment_length=...), steps of each environment between updates",
    ),
    "gradient_steps utd_ratio": (
        "training(training_intensity=...), rows trained on per environment step",
    ),
    "target_update_interval target_network_frequency target_update_freq": (
        "training(target_network_update_freq=...)",
    ),
    "polyak": ("training(tau=...)",),
    "exploration_fraction exploration_initial_eps exploration_final_eps start_e end_e eps_start "
    "eps_end eps_finish eps_decay epsilon_start epsilon_finish epsilon_anneal_time": (_EPSILON,),
    "policy_frequency": ("training(policy_delay=...)",),
    "action_noise std_min": ("training(exploration_sigma=...)",),
    "std_max": ("training(exploration_sigma_max=...)",),
    "policy_noise target_policy_noise": ("training(target_noise=...)",),
    "noise_clip": ("training(target_noise_clip=...)",),
    "use_sde sde_sample_freq": (),
    "normalize_observations normalize_obs norm_obs": (
        "env_runners(observation_filter='MeanStdFilter')",
    ),
    "norm_reward": ("env_runners(normalize_rewards=True)",),
    "normalize_env": ("env_runners(observation_filter='MeanStdFilter', normalize_rewards=True)",),
    "adam_eps eps rms_prop_eps use_rms_prop optimizer_class": (_OPTIMIZER,),
    "verbose tensorboard_log wandb_project_name wandb_mode track": (_LOGGERS,),
    "device cuda": ("learners(num_devices=...) and the environment variable JAX_PLATFORMS",),
    "capture_video": ("evaluation(record_video=True)",),
    "eval_freq": ("evaluation(evaluation_interval=...), in iterations",),
    "n_eval_episodes": ("evaluation(evaluation_duration=...)",),
    "save_freq": ("checkpointing(checkpoint_frequency=...), in iterations",),
    "num_seeds": ("sweep(seeds=...)",),
    "stats_window_size": ("reporting(metrics_num_episodes_for_smoothing=...)",),
}
"""Names of other libraries, with counterparts; the first that the algorithm has applies."""

METHOD_COUNTERPARTS: Mapping[str, str] = {
    "close": "stop() ends the run, and so does the end of a with block",
    "evaluate_policy": "evaluate(num_episodes=10) plays episodes with the current policy",
    "get_parameters": "get_weights() returns them",
    "learn": "fit(stop={...}) trains to a criterion, train() for one iteration",
    "plot": "fit(stop={...}) draws the learning curve, plots/learning_curve.png in algo.run_dir",
    "predict": "compute_single_action(obs, explore=False), or compute_actions for many",
    "load": "Algorithm.from_checkpoint(path) makes a new one, restore(path) restores into this one",
    "render": "evaluation(record_video=True) in the config, and evaluate() writes videos",
    "set_env": "build another with the config's environment(...), and restore(path) into it",
    "get_env": "read it from the config: algo.config.env",
    "set_parameters": "set_weights(...) takes them",
}
"""Methods of other libraries' algorithms, with their counterparts here."""

ATTRIBUTE_COUNTERPARTS: Mapping[str, str] = {
    "action_space": "get_policy().action_space is the environment's",
    "env": "algo.config.env is the one that the config was given",
    "logger": "algo.metrics.log_value(name, value) adds to the next result, which is logged",
    "num_timesteps": "results have it, result['num_env_steps_sampled_lifetime']",
    "observation_space": "get_policy().observation_space is the environment's",
    "policy": "get_policy() returns a copy, get_module() the network",
}
"""Attributes of other libraries' algorithms, with their counterparts here."""

_COPIES = "env_runners(num_envs_per_env_runner=8) steps copies of the config's environment"
_CALLBACKS = "subclass jaxrl.Callbacks, and pass the class to the config's callbacks(...)"
_EPISODES = "results have the returns and lengths of episodes, below 'env_runners'"
_PURE_RUN = (
    "algo.runner.init(key, env_params) and algo.runner.step(state) are the pure functions of a run, "
    "see the guide Pure functions"
)
_IMPORT_COUNTERPARTS: Mapping[str, str] = {
    "check_env": "from jaxrl.testing import check_env, or run jaxrl check-env",
    "make": "the config's environment(...) takes an id, and from jaxrl.envs import make makes one",
    "make_env make_vec_env make_atari_env VecEnv DummyVecEnv SubprocVecEnv": _COPIES,
    "VecNormalize NormalizeVecObservation NormalizeVecReward": (
        "env_runners(observation_filter='MeanStdFilter', normalize_rewards=True)"
    ),
    "VecFrameStack": "FrameStacking is a connector, see the guide Connectors",
    "VecMonitor Monitor LogWrapper FlattenObservationWrapper": _EPISODES,
    "AtariWrapper": "environments ALE/... have the usual preprocessing",
    "make_train": _PURE_RUN,
    "evaluate_policy": "algo.evaluate(num_episodes=10)",
    "set_random_seed": "debugging(seed=...)",
    "BaseCallback EventCallback ProgressBarCallback StopTrainingOnRewardThreshold": _CALLBACKS,
    "EvalCallback": "evaluation(evaluation_interval=...) in the config",
    "CheckpointCallback": "checkpointing(checkpoint_frequency=...) in the config",
    "ReplayBuffer": "from jaxrl import ReplayBuffer",
    "HerReplayBuffer": 'training(replay_buffer_config={"type": "hindsight"})',
}
"""Names that other libraries have in modules, with their counterparts here."""

_ARGUMENT_COUNTERPARTS: Mapping[tuple[str, str], str] = {
    ("fit", "total_timesteps"): (
        'write fit({"num_env_steps_sampled_lifetime": N}), which counts from the start of the run'
    ),
    ("fit", "num_iterations"): 'write fit({"training_iteration": N})',
    ("fit", "callback"): "on_iteration is called with each result, and callbacks(...) has hooks",
    ("fit", "progress_bar"): f"progress is printed anyway, or not: {_LOGGERS}",
    ("train", ""): "it runs one iteration; fit(stop={...}) trains to a criterion",
    ("evaluate", "n_eval_episodes"): "write evaluate(num_episodes=N)",
    ("evaluate", ""): "write evaluate(num_episodes=N)",
}
"""Arguments that other libraries' methods have; the name "" stands for any."""


def _expand_names() -> Iterator[tuple[str, tuple[str, ...]]]:
    for names, answers in _COUNTERPARTS.items():
        for name in names.split():
            yield name, answers


SYNONYMS: Mapping[str, tuple[str, ...]] = dict(_expand_names())

_SETTING_PATTERN = re.compile(r"\b(\w+)\((\w+)=")


def find_required_settings(answer: str) -> list[tuple[str, str]]:
    """Return the config methods in an answer, each with its first setting."""
    return _SETTING_PATTERN.findall(answer)


def describe_counterpart(name: str, method_by_setting: Mapping[str, str]) -> str | None:
    """Return the counterpart of another library's setting.

    Args:
        name: Name as written by the user, also in upper case as in PureJaxRL.
        method_by_setting: Method that changes each setting of the config.

    Returns:
        A sentence, such as "Here it is training(lr=...).", or None for an unknown name.
    """
    answers = SYNONYMS.get(name.lower())
    if answers is None:
        return None
    for answer in answers:
        if all(
            method_by_setting.get(setting) == method
            for method, setting in find_required_settings(answer)
        ):
            return f"Here it is {answer}."
    return "This algorithm has no counterpart of it."


def advise_on_import(name: str) -> str | None:
    """Return what to write instead of importing a name of another library; None if it has none."""
    return next(
        (text for names, text in _IMPORT_COUNTERPARTS.items() if name in names.split()), None
    )


def make_unknown_method_error(owner: object, name: str) -> AttributeError:
    """Return an AttributeError for an unknown attribute, with a suggestion."""
    class_name = type(owner).__name__
    if name in METHOD_COUNTERPARTS:
        return AttributeError(f"{class_name} has no {name}(): {METHOD_COUNTERPARTS[name]}.")
    public = [known for known in dir(type(owner)) if not known.startswith("_")]
    return AttributeError(f"{class_name} has no attribute '{name}'.{did_you_mean(name, public)}")


def describe_arguments(
    method: str, signature: inspect.Signature, given: Mapping[str, object], error: TypeError
) -> str:
    """Return a sentence on arguments that a method does not take.

    Args:
        method: Name of the method.
        signature: Arguments that it takes.
        given: Arguments that were given by name.
        error: Error that calling it raised.
    """
    unknown = next((argument for argument in given if argument not in signature.parameters), None)
    counterpart = _ARGUMENT_COUNTERPARTS.get((method, unknown or ""))
    if unknown is None:
        return f"{method}(): {error}{f'; {counterpart}' if counterpart else ''}."
    if counterpart is not None:
        return f"{method}() has no argument '{unknown}': {counterpart}."
    known = [argument for argument in signature.parameters if argument != "self"]
    return f"{method}() has no argument '{unknown}'.{did_you_mean(unknown, known)}"
