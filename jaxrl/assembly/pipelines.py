"""Pipelines of a config, made of default and user connectors and checked."""

from typing import TYPE_CHECKING, Any

import gymnasium
import jax
import jax.numpy as jnp

from jaxrl.compat import lookup
from jaxrl.config.modules import resolve_default_model_config
from jaxrl.connectors.actions import default_action_connectors, fit_action_pipeline
from jaxrl.connectors.base import ActionConnector, LearnerConnector, ObservationConnector
from jaxrl.connectors.checks import (
    check_action_pipeline,
    check_learner_pipeline,
    check_observation_pipeline,
    make_abstract_rollout,
)
from jaxrl.connectors.curiosity import make_intrinsic_reward
from jaxrl.connectors.learning import default_learner_connectors
from jaxrl.connectors.observations import (
    FlattenObservations,
    default_observation_connectors,
    fit_observation_pipeline,
)
from jaxrl.connectors.pipelines import (
    ActionPipeline,
    LearnerPipeline,
    ObservationPipeline,
    Offers,
    PipelineBuilder,
    merge_user_connectors,
)
from jaxrl.connectors.temporal import FrameStacking, PrevActionsPrevRewards
from jaxrl.core.hparams import get_abstract_values
from jaxrl.core.types import Columns
from jaxrl.errors import ConfigError
from jaxrl.modules.rl_module import ACTION_MASK, has_action_mask
from jaxrl.training.rollout import PolicyStep

if TYPE_CHECKING:
    from jaxrl.config.config import Config

ClipRewardsSetting = bool | float | tuple[float, float] | None


def make_action_pipeline(
    config: "Config", action_space: gymnasium.Space[Any], offers: Offers | None = None
) -> ActionPipeline:
    """Make the pipeline from the module's actions to the environment's actions.

    Args:
        config: Config of the run.
        action_space: Action space of the environment.
        offers: Arguments for a function with RLlib's signature; None for none.
    """
    settings, runners = config.environment_settings, config.env_runners_settings
    defaults: tuple[ActionConnector, ...] = ()
    if runners.add_default_connectors_to_module_to_env_pipeline:
        defaults = default_action_connectors(
            action_space,
            normalize_actions=settings.normalize_actions,
            clip_actions=settings.clip_actions,
        )
    else:
        _raise_if_unused(
            config,
            "add_default_connectors_to_module_to_env_pipeline",
            normalize_actions=settings.normalize_actions,
            clip_actions=settings.clip_actions,
        )
    connectors = merge_user_connectors(
        "module_to_env_connector",
        runners.module_to_env_connector,
        PipelineBuilder(ActionConnector, defaults),
        should_prepend=True,
        offers=offers,
        agents=config.module_agents,
    )
    pipeline = fit_action_pipeline(connectors, action_space)
    check_action_pipeline(pipeline)
    return pipeline


def make_observation_pipeline(
    config: "Config",
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    offers: Offers | None = None,
) -> ObservationPipeline:
    """Make the pipeline from the environment's observations to the module's.

    Args:
        config: Config of the run.
        observation_space: Observation space of the environment.
        action_space: Action space of the module.
        offers: Arguments for a function with RLlib's signature; None for none.
    """
    settings, runners = config.environment_settings, config.env_runners_settings
    defaults: tuple[ObservationConnector, ...] = ()
    if runners.add_default_connectors_to_env_to_module_pipeline:
        defaults = default_observation_connectors(
            runners.observation_filter,
            settings.action_mask_key,
            flatten_observations=runners.flatten_observations,
        ) + _prev_connectors(config)
    else:
        _raise_if_unused(
            config,
            "add_default_connectors_to_env_to_module_pipeline",
            observation_filter=runners.observation_filter != "NoFilter",
            flatten_observations=runners.flatten_observations,
            action_mask_key=settings.action_mask_key not in (None, ACTION_MASK),
        )
        if _prev_connectors(config):
            raise ConfigError(
                "model_config requests previous actions or rewards, which a default connector "
                "adds, but add_default_connectors_to_env_to_module_pipeline=False leaves it out; "
                "add PrevActionsPrevRewards to env_to_module_connector, or set only one of them."
            )
    connectors = merge_user_connectors(
        "env_to_module_connector",
        runners.env_to_module_connector,
        PipelineBuilder(ObservationConnector, defaults),
        should_prepend=True,
        offers=offers,
        agents=config.module_agents,
    )
    pipeline = fit_observation_pipeline(connectors, observation_space, action_space)
    check_observation_pipeline(pipeline, action_space)
    _check_mask_key(settings.action_mask_key, pipeline)
    if runners.flatten_observations and "FlattenObservations" not in pipeline.names:
        raise ConfigError(
            "flatten_observations=True has nothing to flatten: the module observes "
            f"{' '.join(str(pipeline.spaces[-1]).split())}; leave it out."
        )
    return pipeline


def _prev_connectors(config: "Config") -> tuple[ObservationConnector, ...]:
    """Return the connector for previous actions and rewards, if the model settings need it."""
    settings = resolve_default_model_config(config)
    actions, rewards = (0, 0) if settings is None else settings.num_prev_actions_and_rewards
    if actions == rewards == 0:
        return ()
    return (PrevActionsPrevRewards(n_prev_actions=actions, n_prev_rewards=rewards),)


def make_learner_pipeline(
    config: "Config", policy_step: PolicyStep, clip_rewards: ClipRewardsSetting
) -> LearnerPipeline:
    """Make the pipeline that recorded rollouts pass through before learning.

    Args:
        config: Config of the run.
        policy_step: Module and its other pipelines.
        clip_rewards: Resolved value of the setting.
    """
    runners, learners = config.env_runners_settings, config.learners_settings
    defaults: tuple[LearnerConnector, ...] = ()
    if learners.add_default_connectors_to_learner_pipeline:
        defaults = default_learner_connectors(clip_rewards, runners.normalize_rewards)
        if (intrinsic := config.training_settings.intrinsic_reward) is not None:
            module = policy_step.module
            spaces = module.observation_space, module.action_space
            defaults = (*defaults, make_intrinsic_reward(intrinsic, *spaces))
    else:
        _raise_if_unused(
            config,
            "add_default_connectors_to_learner_pipeline",
            clip_rewards=bool(config.environment_settings.clip_rewards),
            normalize_rewards=runners.normalize_rewards,
            intrinsic_reward=config.training_settings.intrinsic_reward is not None,
        )
    connectors = merge_user_connectors(
        "learner_connector",
        learners.learner_connector,
        PipelineBuilder(LearnerConnector, defaults),
        should_prepend=False,
        offers={
            "input_observation_space": lambda: policy_step.obs_pipeline.space,
            "input_action_space": lambda: policy_step.module.action_space,
        },
        agents=config.module_agents,
        accept=lambda piece: _is_done_by_runners(piece, policy_step.obs_pipeline),
    )
    pipeline, plan = LearnerPipeline(connectors), config.plan()
    shape = plan.rollout_fragment_length, plan.num_envs
    extras = {
        Columns.ACTION_LOGP: jax.ShapeDtypeStruct(shape, jnp.float32),
        Columns.ACTION_DIST_INPUTS: jax.ShapeDtypeStruct(
            (*shape, policy_step.module.distribution.input_dim), jnp.float32
        ),
    }
    spaces = policy_step.module.observation_space, policy_step.module.action_space
    carry = jax.eval_shape(lambda: policy_step.initial_carry(shape[1]))
    rollout = make_abstract_rollout(*spaces, extras, shape, carry)
    check_learner_pipeline(pipeline, rollout, get_abstract_values(config.training_settings))
    return pipeline


def _is_done_by_runners(piece: object, observations: ObservationPipeline) -> bool:
    """Return whether a piece for the learner is part of the pipeline that it shares with runners.

    Raises:
        ConfigError: If the piece would transform observations in another way.
    """
    num_frames = lookup.load("rllib.connectors").get_stacked_frames(piece)
    if num_frames is not None:
        counts = [
            connector.unwrapped.num_frames
            for connector in observations
            if isinstance(connector.unwrapped, FrameStacking)
        ]
        stacked = counts[0] if counts else 1
        if stacked != num_frames:
            raise ConfigError(
                f"FrameStackingLearner(num_frames={num_frames}) differs from the runners, "
                f"whose env_to_module_connector stacks {stacked}; the learner applies the same "
                "connectors, so set num_frames there."
            )
        return True
    if not isinstance(piece, ObservationConnector):
        return False
    has_same = any(type(each.unwrapped) is type(piece) for each in observations)
    if has_same or isinstance(piece, FlattenObservations):
        return True
    raise ConfigError(
        f"{piece.name} transforms observations; the learner applies the connectors of the runners, "
        "so give it to env_to_module_connector alone."
    )


def _raise_if_unused(config: "Config", switch: str, **uses: bool) -> None:
    """Raise for settings that have no effect because `switch=False` leaves out their connector."""
    for name, is_wanted in uses.items():
        if is_wanted and name in config.explicit:
            raise ConfigError(
                f"{name}={config[name]!r} is applied by a default connector, which {switch}=False "
                "leaves out; set only one of them."
            )


def _check_mask_key(action_mask_key: str | None, pipeline: ObservationPipeline) -> None:
    """Check that a mask key other than the default exists; the default may be missing."""
    if action_mask_key in (None, ACTION_MASK) or has_action_mask(pipeline.spaces[-1]):
        return
    space = " ".join(str(pipeline.space).split())
    raise ConfigError(
        f"action_mask_key is {action_mask_key!r}, but the observation space {space} has no part of "
        "this name; name one, or leave action_mask_key out."
    )
