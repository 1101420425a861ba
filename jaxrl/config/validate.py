"""Checks of constraints between settings; single values are checked when they are set."""

from typing import TYPE_CHECKING

from jaxrl.config.batch_plan import divisors, find_nearest, refuse_markers
from jaxrl.config.curriculum import check_curriculum
from jaxrl.config.modules import check_model_config
from jaxrl.config.multi_agent_checks import check_agents, check_single_agent
from jaxrl.config.offline import check_offline
from jaxrl.config.offline_evaluation import check_offline_evaluation
from jaxrl.config.placement import check_placement
from jaxrl.config.settings.actor_critic import check_critics
from jaxrl.config.settings.run import EvaluationSettings
from jaxrl.errors import ConfigError, JaxrlError
from jaxrl.metrics import check_key

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


EVALUATION_OVERRIDES = (
    "env",
    "env_config",
    "max_episode_steps",
    "explore",
    "evaluation_duration",
    "evaluation_duration_unit",
    "evaluation_num_envs",
)
"""Settings that `evaluation_config` may change; all others belong to the trained policy."""


def validate(config: "AlgorithmConfig") -> None:
    """Check the constraints between settings.

    Raises:
        ConfigError: If settings contradict each other.
    """
    refuse_markers(config)
    if config.is_multi_agent:
        check_agents(config)
    check_placement(config)
    check_offline(config)
    check_offline_evaluation(config)
    _check_num_envs_tuning(config)
    _check_runners_and_learners(config)
    _check_rewards(config)
    check_curriculum(config)
    _check_evaluation(config)
    _check_checkpointing(config)
    if not config.is_multi_agent:
        check_critics(config.training_settings, type(config).training_settings)
        check_single_agent(config)
        check_model_config(config)
    config.plan()


def _check_num_envs_tuning(config: "AlgorithmConfig") -> None:
    """Raise if num_envs is to be tuned without a compiled program in this process."""
    if config.env_runners_settings.num_envs_per_env_runner != "auto":
        return
    for name, value, allowed in (
        ("num_env_runners", config.env_runners_settings.num_env_runners, (0,)),
        ("placement", config.env_runners_settings.placement, ("auto", "in_graph")),
        ("num_learners", config.learners_settings.num_learners, (0,)),
        ("jit", config.debugging_settings.compiles, (True,)),
    ):
        if value not in allowed:
            raise ConfigError(
                "num_envs_per_env_runner='auto' measures the compiled program of this process, "
                f"got {name}={value!r}: set a number, or leave it out for the one nearest to 16."
            )


def check_sweep(config: "AlgorithmConfig") -> None:
    """Raise if a sweep is to tune its number of environments.

    All lanes must have the same shapes, which a measurement of a single run cannot determine.
    """
    if config.env_runners_settings.num_envs_per_env_runner == "auto":
        raise ConfigError(
            "num_envs_per_env_runner='auto' is measured for a single run, but this config is a "
            "sweep: set a number, or leave it out for the one nearest to 16."
        )


def _check_runners_and_learners(config: "AlgorithmConfig") -> None:
    learners, faults = config.learners_settings, config.fault_tolerance_settings
    if faults.ignore_env_runner_failures and (
        faults.restart_failed_env_runners and "restart_failed_env_runners" in config.explicit
    ):
        raise ConfigError(
            "ignore_env_runner_failures and restart_failed_env_runners are mutually exclusive, got "
            "True for both; set one of them to False."
        )
    index = learners.local_device_idx
    if index is None:
        return
    if learners.num_devices not in ("auto", 1):
        raise ConfigError(
            f"local_device_idx={index} selects one device, got num_devices={learners.num_devices} "
            "as well; set only one of them."
        )
    if learners.num_learners > 0:
        raise ConfigError(
            f"local_device_idx={index} requires a learner in this process, got num_learners="
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
            f"{find_nearest(divisors(duration), envs)} or 'auto'."
        )
    if evaluation.evaluation_parallel_to_training:
        _check_parallel(evaluation)
    if evaluation.evaluation_config and not config.in_evaluation:
        _check_overrides(config, evaluation.evaluation_config)


def _check_parallel(evaluation: EvaluationSettings) -> None:
    if evaluation.evaluation_num_env_runners == 0:
        raise ConfigError(
            "evaluation_parallel_to_training=True evaluates in separate actors while this "
            "process trains, got evaluation_num_env_runners=0; set it to 1 or more, or "
            "evaluation_parallel_to_training=False."
        )
    if evaluation.custom_evaluation_function is not None:
        raise ConfigError(
            "evaluation_parallel_to_training=True cannot be combined with a "
            "custom_evaluation_function, which would access the Algorithm during training; leave "
            "one of them out."
        )


def _check_auto_duration(evaluation: EvaluationSettings) -> None:
    if not evaluation.evaluation_parallel_to_training:
        raise ConfigError(
            "evaluation_duration='auto' lasts as long as the concurrent training, got "
            "evaluation_parallel_to_training=False; set it to True, or a number of "
            f"{evaluation.evaluation_duration_unit} as evaluation_duration."
        )
    min_steps = evaluation.evaluation_auto_duration_min_env_steps_per_sample
    max_steps = evaluation.evaluation_auto_duration_max_env_steps_per_sample
    if min_steps > max_steps:
        raise ConfigError(
            f"evaluation_auto_duration_min_env_steps_per_sample={min_steps} must be at most "
            f"evaluation_auto_duration_max_env_steps_per_sample, got {max_steps}; lower the first "
            "or raise the second."
        )


def _check_overrides(config: "AlgorithmConfig", overrides: dict[str, object]) -> None:
    try:
        for name, value in config.resolve(overrides).items():
            if name not in EVALUATION_OVERRIDES:
                raise ConfigError(
                    f"evaluation does not read {name} (got {value!r}); it can override "
                    f"{', '.join(EVALUATION_OVERRIDES)}."
                )
        evaluation_config = config.get_evaluation_config_object()
        if evaluation_config is not None:
            _check_evaluation(evaluation_config)
    except JaxrlError as error:
        raise type(error)(f"evaluation_config: {error}") from error


def _check_checkpointing(config: "AlgorithmConfig") -> None:
    attribute = config.checkpointing_settings.score_key
    if attribute is None:
        return
    check_key(attribute, "checkpoint_score_attribute")
    if attribute.startswith("evaluation/") and not config.evaluation_settings.evaluation_interval:
        raise ConfigError(
            f"checkpoint_score_attribute={attribute!r} requires evaluation, but "
            f"evaluation_interval is {config.evaluation_settings.evaluation_interval!r}; set "
            "evaluation_interval=1 or score by 'env_runners/episode_return_mean'."
        )
