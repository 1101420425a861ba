"""What depends on several settings. Single values are checked when they are set."""

from typing import TYPE_CHECKING, Any

from jaxrl.config.batch_plan.arithmetic import divisors, nearest
from jaxrl.config.batch_plan.request import refuse_markers
from jaxrl.config.modules import check_model_config
from jaxrl.config.placement import check_placement
from jaxrl.config.settings.run import Evaluation
from jaxrl.errors import ConfigError, JaxrlError
from jaxrl.metrics import check_key

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


READ_BY_EVALUATION = (
    "env",
    "env_config",
    "max_episode_steps",
    "explore",
    "evaluation_duration",
    "evaluation_duration_unit",
    "evaluation_num_envs",
)
"""What `evaluation_config` may change; the rest is the trained policy's."""


def validate(config: "AlgorithmConfig") -> None:
    """Raises ConfigError for the first pair of settings that do not fit; changes nothing."""
    refuse_markers(config)
    check_placement(config)
    _check_measured_width(config)
    _check_processes(config)
    _check_rewards(config)
    _check_evaluation(config)
    _check_checkpointing(config)
    check_model_config(config)
    config.plan()


def _check_measured_width(config: "AlgorithmConfig") -> None:
    """Refuse a trial of something that is no compiled program in this process."""
    if config.env_runners_settings.num_envs_per_env_runner != "auto":
        return
    for name, group, wanted in (
        ("num_env_runners", config.env_runners_settings, (0,)),
        ("placement", config.env_runners_settings, ("auto", "in_graph")),
        ("num_learners", config.learners_settings, (0,)),
        ("jit", config.debugging_settings, (True,)),
    ):
        value = vars(group)[name]
        if value not in wanted:
            raise ConfigError(
                f"num_envs_per_env_runner='auto' measures the compiled program of this process, got "
                f"{name}={value!r}: set a number, or leave it out for the one nearest to 16."
            )


def refuse_measuring(config: "AlgorithmConfig") -> None:
    """Raises where a sweep asks for a trial: its lanes are of one shape, which one run cannot tell."""
    if config.env_runners_settings.num_envs_per_env_runner == "auto":
        raise ConfigError(
            "num_envs_per_env_runner='auto' is measured for a run by itself, and this config is a "
            "sweep: set a number, or leave it out for the one nearest to 16."
        )


def _check_processes(config: "AlgorithmConfig") -> None:
    learners, faults = config.learners_settings, config.fault_tolerance_settings
    if faults.ignore_env_runner_failures and (
        faults.restart_failed_env_runners and "restart_failed_env_runners" in config.explicit
    ):
        raise ConfigError(
            "ignore_env_runner_failures and restart_failed_env_runners exclude each other, got "
            "True for both; set one of them to False."
        )
    index = learners.local_device_idx
    if index is None:
        return
    if learners.num_devices not in ("auto", 1):
        raise ConfigError(
            f"local_device_idx={index} is one device, got num_devices={learners.num_devices} "
            "beside it; set only one of them."
        )
    if learners.num_learners > 0:
        raise ConfigError(
            f"local_device_idx={index} is for learning in this process, got num_learners="
            f"{learners.num_learners}, whose devices Ray chooses; leave it out or set "
            "num_learners=0."
        )


def _check_rewards(config: "AlgorithmConfig") -> None:
    clip = config.environment_settings.clip_rewards
    if isinstance(clip, tuple) and clip[0] >= clip[1]:
        raise ConfigError(
            f"clip_rewards must be a pair (low, high) with low below high, got {clip!r}; "
            f"did you mean {(clip[1], clip[0])!r}?"
        )


def _check_evaluation(config: "AlgorithmConfig") -> None:
    evaluation = config.evaluation_settings
    envs, duration = evaluation.evaluation_num_envs, evaluation.evaluation_duration
    if duration == "auto":
        _check_auto_duration(evaluation)
    elif envs != "auto" and duration % envs:
        raise ConfigError(
            f"evaluation_num_envs must divide evaluation_duration={duration}, so that every "
            f"environment gets an equal share, got {envs}; use "
            f"{nearest(divisors(duration), envs)} or 'auto'."
        )
    if evaluation.evaluation_parallel_to_training:
        _check_parallel(evaluation)
    if evaluation.evaluation_config and not config.in_evaluation:
        _check_overrides(config, evaluation.evaluation_config)


def _check_parallel(evaluation: Evaluation) -> None:
    if evaluation.evaluation_num_env_runners == 0:
        raise ConfigError(
            "evaluation_parallel_to_training=True evaluates in actors of its own while this "
            "process trains, got evaluation_num_env_runners=0; set it to 1 or more, or "
            "evaluation_parallel_to_training=False."
        )
    if evaluation.custom_evaluation_function is not None:
        raise ConfigError(
            "evaluation_parallel_to_training=True does not go with a custom_evaluation_function, "
            "which gets the Algorithm and would see it while it trains; leave one of them out."
        )


def _check_auto_duration(evaluation: Evaluation) -> None:
    if not evaluation.evaluation_parallel_to_training:
        raise ConfigError(
            "evaluation_duration='auto' is as long as the training beside it, got "
            "evaluation_parallel_to_training=False; set it to True, or a number of "
            f"{evaluation.evaluation_duration_unit} as evaluation_duration."
        )
    least = evaluation.evaluation_auto_duration_min_env_steps_per_sample
    most = evaluation.evaluation_auto_duration_max_env_steps_per_sample
    if least > most:
        raise ConfigError(
            f"evaluation_auto_duration_min_env_steps_per_sample={least} must be at most "
            f"evaluation_auto_duration_max_env_steps_per_sample, got {most}; lower the one or "
            "raise the other."
        )


def _check_overrides(config: "AlgorithmConfig", overrides: dict[str, Any]) -> None:
    try:
        changed = config.overrides(**overrides)
        for name in changed:
            if name not in READ_BY_EVALUATION:
                raise ConfigError(
                    f"evaluation does not read {name} (got {changed[name]!r}); it can have its own "
                    f"{', '.join(READ_BY_EVALUATION)}."
                )
        other = config.get_evaluation_config_object()
        if other is not None:
            _check_evaluation(other)
    except JaxrlError as error:
        raise type(error)(f"evaluation_config: {error}") from error


def _check_checkpointing(config: "AlgorithmConfig") -> None:
    attribute = config.checkpointing_settings.checkpoint_score_attribute
    if attribute is None:
        return
    check_key(attribute, "checkpoint_score_attribute")
    if attribute.startswith("evaluation/") and not config.evaluation_settings.evaluation_interval:
        raise ConfigError(
            f"checkpoint_score_attribute={attribute!r} needs evaluations, but evaluation_interval "
            f"is {config.evaluation_settings.evaluation_interval!r}; set evaluation_interval=1 or "
            "score by 'env_runners/episode_return_mean'."
        )
