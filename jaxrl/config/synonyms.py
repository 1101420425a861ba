"""Counterparts of settings and methods of Stable-Baselines3, CleanRL, PureJaxRL and Rejax."""

import re
from collections.abc import Iterator, Mapping

from jaxrl.config.loggers import LOGGERS
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
    "policy policy_kwargs net_arch hidden_sizes hidden_layer_sizes hidden_size hsize": (
        _HIDDEN_LAYERS,
    ),
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
    "action_noise": ("training(exploration_sigma=...)",),
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
    "learn": "fit(stop={...}) trains to a criterion, train() for one iteration",
    "predict": "compute_single_action(obs, explore=False), or compute_actions for many",
    "load": "Algorithm.from_checkpoint(path) makes a new one, restore(path) restores into this one",
    "set_env": "build another with the config's environment(...), and restore(path) into it",
    "get_env": "read it from the config: algo.config.env",
}
"""Methods of other libraries' algorithms, with their counterparts here."""


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


def make_unknown_method_error(owner: object, name: str) -> AttributeError:
    """Return an AttributeError for an unknown attribute, with a suggestion."""
    class_name = type(owner).__name__
    if name in METHOD_COUNTERPARTS:
        return AttributeError(f"{class_name} has no {name}(): {METHOD_COUNTERPARTS[name]}.")
    public = [known for known in dir(type(owner)) if not known.startswith("_")]
    return AttributeError(f"{class_name} has no attribute '{name}'.{did_you_mean(name, public)}")
