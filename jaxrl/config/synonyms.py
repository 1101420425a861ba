"""What Stable-Baselines3, CleanRL, PureJaxRL and Rejax call settings and methods, and what they are here."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from jaxrl.errors import did_you_mean

_STEPS = (
    'the stop criterion, algo.fit({"num_env_steps_sampled_lifetime": 100_000}), or jaxrl train '
    "with --steps 100000"
)
_WIDTHS = 'rl_module(model_config={"fcnet_hiddens": [64, 64]})'
_EPSILON = "a schedule, training(epsilon=[[0, 1.0], [10_000, 0.05]])"
_BUFFER = 'training(replay_buffer_config={"capacity": ...})'
_STARTS = "training(num_steps_sampled_before_learning_starts=...)"
_ROLLOUT = (
    "env_runners(rollout_fragment_length=...), and training(train_batch_size=...) is that times the "
    "environments"
)
_LOGGERS = "debugging(loggers=[...]), of 'console', 'json', 'csv', 'tensorboard' and 'wandb'"
_OPTIMIZER = 'training(optimizer={"name": "adam", "eps": 1e-5})'

_TABLE: Mapping[str, tuple[str, ...]] = {
    "learning_rate lr": ("training(actor_lr=...) with critic_lr", "training(lr=...)"),
    "policy_lr": ("training(actor_lr=...)",),
    "q_lr": ("training(critic_lr=...)",),
    "anneal_lr lr_linear_decay": ("a schedule, training(lr=[[0, 3e-4], [500_000, 0.0]])",),
    "total_timesteps total_steps num_updates": (_STEPS,),
    "num_envs n_envs": ("env_runners(num_envs_per_env_runner=...)",),
    "env_id env_name": ("environment(env=...)",),
    "env_kwargs": ("environment(env_config=...)",),
    "policy policy_kwargs net_arch hidden_sizes hidden_layer_sizes hidden_size hsize": (_WIDTHS,),
    "activation activation_fn": ('rl_module(model_config={"fcnet_activation": "tanh"})',),
    "max_grad_norm": ("training(grad_clip=...)",),
    "num_minibatches": (
        "training(minibatch_size=...), the rows of one: the train batch divided by their number",
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
        "training(vf_clip_param=...), which bounds the squared error and not how far a value moves",
    ),
    "ent_coef": (
        "training(initial_alpha=...), learned with alpha_lr",
        "training(entropy_coeff=...)",
    ),
    "alpha": ("training(initial_alpha=...)",),
    "autotune": ("training(alpha_lr=...), where 0 keeps initial_alpha",),
    "vf_coef": ("training(vf_loss_coeff=...)",),
    "target_kl": ("training(kl_target=...), which steers a KL term; no epoch is cut short",),
    "normalize_advantage norm_adv": ("training(normalize_advantages=...)",),
    "buffer_size buffer_capacity memory_size": (_BUFFER,),
    "learning_starts fill_buffer": (_STARTS,),
    "train_freq train_frequency training_interval": (
        "env_runners(rollout_fragment_length=...), steps of each environment between two updates",
    ),
    "gradient_steps utd_ratio": (
        "training(training_intensity=...), rows learned from for each environment step",
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
"""Names, and what they are here: the first answer whose settings an algorithm has."""

METHODS: Mapping[str, str] = {
    "learn": "fit(stop={...}) trains to a criterion, train() for one iteration",
    "predict": "compute_single_action(obs, explore=False), or compute_actions for many",
    "load": "Algorithm.from_checkpoint(path) makes a new one, restore(path) fills this one",
    "set_env": "build another with the config's environment(...), and restore(path) into it",
    "get_env": "the config has it: algo.config.env",
}
"""Methods of other libraries' algorithms, and what does the same here."""


def _answers() -> Iterator[tuple[str, tuple[str, ...]]]:
    for names, answers in _TABLE.items():
        for name in names.split():
            yield name, answers


SYNONYMS: Mapping[str, tuple[str, ...]] = dict(_answers())

_SETTING = re.compile(r"\b(\w+)\((\w+)=")


def needs(answer: str) -> list[tuple[str, str]]:
    """The methods of a config that an answer names, each with its first setting."""
    return _SETTING.findall(answer)


def called_here(name: str, methods_of: Mapping[str, Any]) -> str | None:
    """What another library's setting is here.

    Args:
        name: As the user wrote it, in PureJaxRL's capitals, too.
        methods_of: The method that changes each setting of the config at hand.

    Returns:
        A sentence, such as "Here it is training(lr=...)."; None for a name that is not known.
    """
    answers = SYNONYMS.get(name.lower())
    if answers is None:
        return None
    for answer in answers:
        if all(methods_of.get(setting) == method for method, setting in needs(answer)):
            return f"Here it is {answer}."
    return "This algorithm has no counterpart of it."


def unknown_method(owner: object, name: str) -> AttributeError:
    """The error for an attribute that an object does not have, with what may have been meant."""
    kind = type(owner).__name__
    if name in METHODS:
        return AttributeError(f"{kind} has no {name}(): {METHODS[name]}.")
    public = [known for known in dir(type(owner)) if not known.startswith("_")]
    return AttributeError(f"{kind} has no attribute '{name}'.{did_you_mean(name, public)}")
