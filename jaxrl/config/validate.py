"""What depends on several settings. Single values are checked when they are set."""

from typing import TYPE_CHECKING, Any

from jaxrl.config.modules import check_model_config
from jaxrl.config.plan import divisors, nearest
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
    _check_version_limits(config)
    _check_rewards(config)
    _check_evaluation(config)
    _check_checkpointing(config)
    check_model_config(config)
    config.plan()


def _check_version_limits(config: "AlgorithmConfig") -> None:
    runners = config.env_runners_settings
    if runners.num_env_runners > 0:
        raise ConfigError(
            f"num_env_runners must be 0, got {runners.num_env_runners}: Ray EnvRunners are not "
            "part of this version; raise num_envs_per_env_runner instead."
        )
    if runners.batch_mode != "truncate_episodes":
        raise ConfigError(
            f"batch_mode must be 'truncate_episodes', got {runners.batch_mode!r}: fragments of "
            "whole episodes are not part of this version."
        )
    if config.learners_settings.num_learners > 0:
        raise ConfigError(
            f"num_learners must be 0, got {config.learners_settings.num_learners}: learners in "
            "other processes are not part of this version; num_devices shares the work over the "
            "local devices."
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
    if envs != "auto" and duration % envs:
        raise ConfigError(
            f"evaluation_num_envs must divide evaluation_duration={duration}, so that every "
            f"environment gets an equal share, got {envs}; use "
            f"{nearest(divisors(duration), envs)} or 'auto'."
        )
    if evaluation.evaluation_config and not config.in_evaluation:
        _check_overrides(config, evaluation.evaluation_config)


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
