"""From a config to a run's pure functions: environment, connectors, module, learner, runner."""

import dataclasses
from typing import TYPE_CHECKING, Any

import gymnasium

from jaxrl.buffers.on_policy import OnPolicy
from jaxrl.config.plan import BatchPlan
from jaxrl.connectors.actions import default_action_pipeline
from jaxrl.connectors.base import (
    ActionConnector,
    LearnerConnector,
    ObservationConnector,
    as_connectors,
)
from jaxrl.connectors.learning import default_learner_connectors
from jaxrl.connectors.observations import default_observation_pipeline
from jaxrl.connectors.pipelines import ActionPipeline, LearnerPipeline, ObservationPipeline
from jaxrl.core.rl_module import ACTION_MASK, RLModule, check_module, has_action_mask
from jaxrl.envs.contract import check_signatures
from jaxrl.envs.host import MadeHostEnv
from jaxrl.envs.registry import MadeEnv, make
from jaxrl.envs.vector import VectorEnv
from jaxrl.errors import ConfigError, ModuleError
from jaxrl.runners.in_graph import InGraph
from jaxrl.runners.learning import Learning
from jaxrl.runners.rollout import Acting, Sampler

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

MIN_RING_SIZE = 128


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Assembly:
    """Everything static of a run, before any device is touched.

    `runner` is an `InGraph` where the environments are part of the compiled program, and a
    `Learning` where runners on the host step them.
    """

    made: MadeEnv | MadeHostEnv
    acting: Acting
    plan: BatchPlan
    runner: Learning

    @property
    def module(self) -> RLModule:
        return self.acting.module

    @property
    def sampler(self) -> Sampler:
        """What acts with the environments that it acts in, where both are in the program."""
        return self.in_graph_runner.sampler

    @property
    def in_graph(self) -> bool:
        """Whether the environments are stepped inside the compiled program."""
        return isinstance(self.runner, InGraph)

    @property
    def in_graph_runner(self) -> InGraph:
        """The runner of a run whose environments are in the compiled program."""
        assert isinstance(self.runner, InGraph)
        return self.runner


def assemble(config: "AlgorithmConfig") -> Assembly:
    """Build and check a run's functions; nothing is compiled.

    Raises:
        JaxrlError: Anything in the config that does not fit, in one sentence.
    """
    made = make_env(config)
    if not runs_on_host(config, made):
        assert isinstance(made, MadeEnv)
        sampler = make_sampler(config, made)
        explore = config.env_runners_settings.explore
        parts = learning_parts(config, made, sampler)
        runner = InGraph(acting=sampler, explore=explore, **parts)
        return Assembly(made=made, acting=sampler, plan=config.plan(), runner=runner)
    acting = make_acting(config, made)
    runner = Learning(acting=acting, **learning_parts(config, made, acting))
    return Assembly(made=made, acting=acting, plan=config.plan(), runner=runner)


def runs_on_host(config: "AlgorithmConfig", made: MadeEnv | MadeHostEnv) -> bool:
    """Whether runners on the host step the environment, rather than the compiled program.

    Raises:
        ConfigError: `placement` or `batch_mode` asks for what this environment cannot.
    """
    runners = config.env_runners_settings
    is_jax, placement = isinstance(made, MadeEnv), runners.placement
    if placement == "in_graph" and not is_jax:
        raise ConfigError(
            f"placement='in_graph' needs an environment written in JAX, but {made.id} is a "
            "gymnasium environment, which runs on the host: use placement='auto'."
        )
    if placement == "in_graph" and runners.num_env_runners > 0:
        raise ConfigError(
            f"placement='in_graph' has no use for num_env_runners={runners.num_env_runners}: set "
            "num_env_runners=0, or placement='auto' to step the environment in Ray actors."
        )
    on_host = placement == "host" or not is_jax or runners.num_env_runners > 0
    if not on_host and runners.batch_mode == "complete_episodes":
        raise ConfigError(
            "batch_mode='complete_episodes' needs runners on the host, whose fragments may differ "
            f"in length; {made.id} runs inside the compiled program: set placement='host'."
        )
    return on_host


def learning_parts(
    config: "AlgorithmConfig", made: MadeEnv | MadeHostEnv, acting: Acting
) -> dict[str, Any]:
    """The fields of `Learning` but for `acting`."""
    plan, training = config.plan(), config.training_settings
    reporting, faults = config.reporting_settings, config.fault_tolerance_settings
    learner = config.get_learner_class()(
        module=acting.module, settings=training, log_gradients=reporting.log_gradients
    )
    return {
        "learner": learner,
        "experience": OnPolicy(
            num_epochs=plan.num_epochs,
            num_minibatches=plan.num_minibatches,
            num_shards=plan.num_shards,
            reshuffle=training.shuffle_batch_per_epoch,
        ),
        "learner_pipeline": _learner_pipeline(config, made),
        "num_envs": plan.num_envs,
        "num_steps": plan.rollout_fragment_length,
        "ring_size": max(MIN_RING_SIZE, reporting.metrics_num_episodes_for_smoothing),
        "on_nonfinite": faults.on_nonfinite,
        "nonfinite_tolerance": faults.nonfinite_updates_tolerance,
    }


def _learner_pipeline(config: "AlgorithmConfig", made: MadeEnv | MadeHostEnv) -> LearnerPipeline:
    settings = config.environment_settings
    clip = settings.clip_rewards
    if clip is None and isinstance(made, MadeHostEnv):
        # The field's convention: the sign of the reward for Atari, whose scores differ by orders.
        clip = made.is_atari if settings.is_atari is None else settings.is_atari
    defaults = default_learner_connectors(
        clip, config.env_runners_settings.normalize_rewards, config.training_settings.gamma
    )
    own = config.learners_settings.learner_connector
    return LearnerPipeline((*defaults, *_connectors("learner_connector", own, LearnerConnector)))


def make_env(config: "AlgorithmConfig") -> MadeEnv | MadeHostEnv:
    """The config's environment, checked, with declared spaces compared to its own."""
    settings = config.environment_settings
    if settings.env is None:
        raise ConfigError(
            "env is not set: name one with .environment(env=...), e.g. 'CartPole-v1'."
        )
    made = make(settings.env, settings.env_config, max_episode_steps=settings.max_episode_steps)
    observation_space, action_space = spaces_of(made)
    for name, declared, own in (
        ("observation_space", settings.observation_space, observation_space),
        ("action_space", settings.action_space, action_space),
    ):
        if declared is not None and declared != own:
            raise ConfigError(
                f"{name} is declared as {in_one_line(declared)}, but {made.id} has "
                f"{in_one_line(own)}."
            )
    if isinstance(made, MadeEnv) and not settings.disable_env_checking:
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
