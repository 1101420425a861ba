"""From a config to a run's pure functions: environment, connectors, module, learner, runner."""

import dataclasses
from typing import TYPE_CHECKING, Any

import gymnasium

from jaxrl.buffers.on_policy import OnPolicy
from jaxrl.config.plan import BatchPlan
from jaxrl.connectors.actions import default_action_pipeline
from jaxrl.connectors.base import (
    ActionConnector,
    ActionPipeline,
    LearnerConnector,
    LearnerPipeline,
    ObservationConnector,
    ObservationPipeline,
    as_connectors,
)
from jaxrl.connectors.learning import default_learner_connectors
from jaxrl.connectors.observations import default_observation_pipeline
from jaxrl.core.rl_module import ACTION_MASK, RLModule, check_module, has_action_mask
from jaxrl.envs.contract import check_signatures
from jaxrl.envs.host import MadeHostEnv
from jaxrl.envs.registry import MadeEnv, make
from jaxrl.envs.vector import VectorEnv
from jaxrl.errors import ConfigError, ModuleError
from jaxrl.runners.in_graph import InGraph
from jaxrl.runners.rollout import Acting, Sampler

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

MIN_RING_SIZE = 128


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Assembly:
    """Everything static of a run, before any device is touched."""

    made: MadeEnv
    sampler: Sampler
    plan: BatchPlan
    runner: InGraph

    @property
    def module(self) -> RLModule:
        return self.sampler.module


def assemble(config: "AlgorithmConfig") -> Assembly:
    """Build and check a run's functions; nothing is compiled.

    Raises:
        JaxrlError: Anything in the config that does not fit, in one sentence.
    """
    plan = config.plan()
    made = make_env(config)
    sampler = make_sampler(config, made)
    environment = config.environment_settings
    training = config.training_settings
    learner_connector = config.learners_settings.learner_connector
    learner_pipeline = LearnerPipeline(
        (
            *default_learner_connectors(
                environment.clip_rewards,
                config.env_runners_settings.normalize_rewards,
                training.gamma,
            ),
            *_connectors("learner_connector", learner_connector, LearnerConnector),
        )
    )
    reporting = config.reporting_settings
    learner = config.get_learner_class()(
        module=sampler.module, settings=training, log_gradients=reporting.log_gradients
    )
    faults = config.fault_tolerance_settings
    runner = InGraph(
        learner=learner,
        sampler=sampler,
        experience=OnPolicy(
            num_epochs=plan.num_epochs,
            num_minibatches=plan.num_minibatches,
            num_shards=plan.num_shards,
            reshuffle=training.shuffle_batch_per_epoch,
        ),
        learner_pipeline=learner_pipeline,
        num_envs=plan.num_envs,
        num_steps=plan.rollout_fragment_length,
        ring_size=max(MIN_RING_SIZE, reporting.metrics_num_episodes_for_smoothing),
        on_nonfinite=faults.on_nonfinite,
        nonfinite_tolerance=faults.nonfinite_updates_tolerance,
        explore=config.env_runners_settings.explore,
    )
    return Assembly(made=made, sampler=sampler, plan=plan, runner=runner)


def make_env(config: "AlgorithmConfig") -> MadeEnv:
    """The config's environment, checked, with declared spaces compared to its own."""
    settings = config.environment_settings
    if settings.env is None:
        raise ConfigError(
            "env is not set: name one with .environment(env=...), e.g. 'CartPole-v1'."
        )
    made = make(settings.env, settings.env_config, max_episode_steps=settings.max_episode_steps)
    for name, declared, own in (
        (
            "observation_space",
            settings.observation_space,
            made.env.observation_space(made.params),
        ),
        ("action_space", settings.action_space, made.env.action_space(made.params)),
    ):
        if declared is not None and declared != own:
            raise ConfigError(
                f"{name} is declared as {in_one_line(declared)}, but {made.id} has "
                f"{in_one_line(own)}."
            )
    if not settings.disable_env_checking:
        check_signatures(made)
    return made


def in_one_line(space: Any) -> str:
    """A space in words; NumPy breaks the bounds of a long one into lines."""
    return " ".join(str(space).split())


def spaces_of(made: MadeEnv | MadeHostEnv) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
    """An environment's observation space and action space."""
    if isinstance(made, MadeHostEnv):
        return made.observation_space, made.action_space
    return made.env.observation_space(made.params), made.env.action_space(made.params)


def make_acting(config: "AlgorithmConfig", made: MadeEnv | MadeHostEnv) -> Acting:
    """The pipelines around an environment's spaces and the module that fits between them."""
    settings = config.environment_settings
    runners = config.env_runners_settings
    observation_space, action_space = spaces_of(made)
    obs_pipeline = default_observation_pipeline(
        observation_space,
        runners.observation_filter,
        _connectors(
            "env_to_module_connector", runners.env_to_module_connector, ObservationConnector
        ),
        settings.action_mask_key,
    )
    _check_mask_is_there(settings.action_mask_key, obs_pipeline)
    action_pipeline = default_action_pipeline(
        action_space,
        normalize_actions=settings.normalize_actions,
        clip_actions=settings.clip_actions,
        extra=_connectors(
            "module_to_env_connector", runners.module_to_env_connector, ActionConnector
        ),
    )
    return Acting(
        module=make_module(config, obs_pipeline, action_pipeline),
        obs_pipeline=obs_pipeline,
        action_pipeline=action_pipeline,
    )


def make_sampler(config: "AlgorithmConfig", made: MadeEnv) -> Sampler:
    """The copies of a JAX environment and what acts in them."""
    setting = config.environment_settings.reset_mode
    mode = made.env.reset_mode if setting == "auto" else setting
    return Sampler(env=VectorEnv(made.env, mode), **vars(make_acting(config, made)))


def _check_mask_is_there(action_mask_key: str | None, pipeline: ObservationPipeline) -> None:
    """A key other than the default must name a part; unmasked environments keep the default."""
    if action_mask_key in (None, ACTION_MASK) or has_action_mask(pipeline.spaces[-1]):
        return
    raise ConfigError(
        f"action_mask_key is {action_mask_key!r}, but the observation space "
        f"{in_one_line(pipeline.space)} has no part of this name; name one, or leave "
        "action_mask_key out."
    )


def _connectors(name: str, factory: Any, kind: type) -> tuple[Any, ...]:
    if factory is None:
        return ()
    try:
        return tuple(as_connectors(factory(), kind))
    except TypeError as error:
        raise ConfigError(
            f"{name} must be a function without arguments that returns {kind.__name__}s: {error}."
        ) from error


def make_module(
    config: "AlgorithmConfig", obs_pipeline: ObservationPipeline, action_pipeline: ActionPipeline
) -> RLModule:
    """The module of the config's spec for the spaces between the pipelines, checked."""
    spec = config.get_rl_module_spec(obs_pipeline.spaces[-1], action_pipeline.module_space)
    module = spec.build()
    if module.initial_carry(1) is not None:
        raise ModuleError(
            f"{type(module).__name__} is recurrent (initial_carry is not None); the learners of this "
            "version would ignore its state, so use a module without one."
        )
    if vars(config.training_settings).get("use_critic", False):
        check_module(module, needs_values=True)
    return module
