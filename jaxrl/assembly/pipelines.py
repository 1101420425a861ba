"""From a config to its three pipelines: the default connectors, the user's among them, checked."""

from typing import TYPE_CHECKING, Any

import gymnasium
import jax
import jax.numpy as jnp

from jaxrl.config.modules import default_settings
from jaxrl.connectors.actions import default_action_connectors, fitted_action_pipeline
from jaxrl.connectors.base import ActionConnector, LearnerConnector, ObservationConnector
from jaxrl.connectors.builder import PipelineBuilder, with_users
from jaxrl.connectors.checks import (
    abstract_rollout,
    check_action_pipeline,
    check_learner_pipeline,
    check_observation_pipeline,
)
from jaxrl.connectors.learning import default_learner_connectors
from jaxrl.connectors.observations import (
    default_observation_connectors,
    fitted_observation_pipeline,
)
from jaxrl.connectors.pipelines import ActionPipeline, LearnerPipeline, ObservationPipeline
from jaxrl.connectors.temporal import PrevActionsPrevRewards
from jaxrl.core.hparams import abstract_values
from jaxrl.core.types import Columns
from jaxrl.errors import ConfigError
from jaxrl.modules.rl_module import ACTION_MASK, has_action_mask
from jaxrl.training.rollout import Acting

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

Rewards = bool | float | tuple[float, float] | None


def action_pipeline(
    config: "AlgorithmConfig", action_space: gymnasium.Space[Any]
) -> ActionPipeline:
    """From the module's actions to those of the environment's space."""
    settings, runners = config.environment_settings, config.env_runners_settings
    defaults: tuple[ActionConnector, ...] = ()
    if runners.add_default_connectors_to_module_to_env_pipeline:
        defaults = default_action_connectors(
            action_space,
            normalize_actions=settings.normalize_actions,
            clip_actions=settings.clip_actions,
        )
    else:
        _refuse_idle(
            config,
            "add_default_connectors_to_module_to_env_pipeline",
            normalize_actions=settings.normalize_actions,
            clip_actions=settings.clip_actions,
        )
    connectors = with_users(
        "module_to_env_connector",
        runners.module_to_env_connector,
        PipelineBuilder(ActionConnector, defaults),
        first=True,
    )
    pipeline = fitted_action_pipeline(connectors, action_space)
    check_action_pipeline(pipeline)
    return pipeline


def observation_pipeline(
    config: "AlgorithmConfig",
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
) -> ObservationPipeline:
    """From observations of the environment's space to the module's, which acts in `action_space`."""
    settings, runners = config.environment_settings, config.env_runners_settings
    defaults: tuple[ObservationConnector, ...] = ()
    if runners.add_default_connectors_to_env_to_module_pipeline:
        defaults = default_observation_connectors(
            runners.observation_filter,
            settings.action_mask_key,
            flatten_observations=runners.flatten_observations,
        ) + _previous(config)
    else:
        _refuse_idle(
            config,
            "add_default_connectors_to_env_to_module_pipeline",
            observation_filter=runners.observation_filter != "NoFilter",
            flatten_observations=runners.flatten_observations,
            action_mask_key=settings.action_mask_key not in (None, ACTION_MASK),
        )
        if _previous(config):
            raise ConfigError(
                "model_config asks for previous actions or rewards, which a default connector adds, "
                "but add_default_connectors_to_env_to_module_pipeline=False leaves it out; add "
                "PrevActionsPrevRewards to env_to_module_connector, or set only one of them."
            )
    connectors = with_users(
        "env_to_module_connector",
        runners.env_to_module_connector,
        PipelineBuilder(ObservationConnector, defaults),
        first=True,
    )
    pipeline = fitted_observation_pipeline(connectors, observation_space, action_space)
    check_observation_pipeline(pipeline, action_space)
    _check_mask_is_there(settings.action_mask_key, pipeline)
    if runners.flatten_observations and "FlattenObservations" not in pipeline.names:
        raise ConfigError(
            "flatten_observations=True has nothing to flatten: the module observes "
            f"{' '.join(str(pipeline.spaces[-1]).split())}; leave it out."
        )
    return pipeline


def _previous(config: "AlgorithmConfig") -> tuple[ObservationConnector, ...]:
    """Previous actions and rewards, if the model settings ask for them."""
    settings = default_settings(config)
    actions, rewards = (0, 0) if settings is None else settings.num_previous
    if actions == rewards == 0:
        return ()
    return (PrevActionsPrevRewards(n_prev_actions=actions, n_prev_rewards=rewards),)


def learner_pipeline(
    config: "AlgorithmConfig", acting: Acting, clip_rewards: Rewards
) -> LearnerPipeline:
    """What rollouts go through before the targets; `clip_rewards` is what the setting came to."""
    runners, learners = config.env_runners_settings, config.learners_settings
    defaults: tuple[LearnerConnector, ...] = ()
    if learners.add_default_connectors_to_learner_pipeline:
        defaults = default_learner_connectors(clip_rewards, runners.normalize_rewards)
    else:
        _refuse_idle(
            config,
            "add_default_connectors_to_learner_pipeline",
            clip_rewards=bool(config.environment_settings.clip_rewards),
            normalize_rewards=runners.normalize_rewards,
        )
    connectors = with_users(
        "learner_connector",
        learners.learner_connector,
        PipelineBuilder(LearnerConnector, defaults),
        first=False,
    )
    pipeline, plan = LearnerPipeline(connectors), config.plan()
    shape = plan.rollout_fragment_length, plan.num_envs
    extras = {
        Columns.ACTION_LOGP: jax.ShapeDtypeStruct(shape, jnp.float32),
        Columns.ACTION_DIST_INPUTS: jax.ShapeDtypeStruct(
            (*shape, acting.module.distribution.input_dim), jnp.float32
        ),
    }
    spaces = acting.module.observation_space, acting.module.action_space
    carry = jax.eval_shape(lambda: acting.initial_carry(shape[1]))
    rollout = abstract_rollout(*spaces, extras, shape, carry)
    check_learner_pipeline(pipeline, rollout, abstract_values(config.training_settings))
    return pipeline


def _refuse_idle(config: "AlgorithmConfig", switch: str, **wanted: bool) -> None:
    """Settings that only a default connector reads and that were set beside `switch=False`."""
    for name, is_wanted in wanted.items():
        if is_wanted and name in config.explicit:
            raise ConfigError(
                f"{name}={config[name]!r} is the work of a default connector, which {switch}=False "
                "leaves out; set only one of them."
            )


def _check_mask_is_there(action_mask_key: str | None, pipeline: ObservationPipeline) -> None:
    """A key other than the default must name a part; unmasked environments keep the default."""
    if action_mask_key in (None, ACTION_MASK) or has_action_mask(pipeline.spaces[-1]):
        return
    space = " ".join(str(pipeline.space).split())
    raise ConfigError(
        f"action_mask_key is {action_mask_key!r}, but the observation space {space} has no part of "
        "this name; name one, or leave action_mask_key out."
    )
