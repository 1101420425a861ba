"""From a config to a run's pure functions: environment, connectors, module, learner, runner."""

import dataclasses
from typing import TYPE_CHECKING, Any

import gymnasium
import jax

from jaxrl.buffers.on_policy import OnPolicy
from jaxrl.config.plan import BatchPlan
from jaxrl.connectors.actions import default_action_pipeline
from jaxrl.connectors.base import (
    ActionConnector,
    ActionPipeline,
    LearnerPipeline,
    ObservationConnector,
    ObservationPipeline,
    as_connectors,
)
from jaxrl.connectors.learning import default_learner_connectors
from jaxrl.connectors.observations import default_observation_pipeline
from jaxrl.core.rl_module import RLModule, RLModuleSpec, check_module
from jaxrl.envs.registry import MadeEnv, make
from jaxrl.envs.vector import VectorEnv
from jaxrl.errors import ConfigError
from jaxrl.runners.evaluate import Evaluator
from jaxrl.runners.in_graph import InGraph
from jaxrl.runners.rollout import Sampler

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

MIN_RING_SIZE = 128
DEFAULT_STEP_CAP = 10_000
MAX_EVALUATION_ENVS = 64


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
    learner_pipeline = LearnerPipeline(
        default_learner_connectors(
            environment.clip_rewards, config.env_runners_settings.normalize_rewards, training.gamma
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
    """The config's environment, with declared spaces compared to its own."""
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
            raise ConfigError(f"{name} is declared as {declared}, but {made.id} has {own}.")
    return made


def make_sampler(config: "AlgorithmConfig", made: MadeEnv) -> Sampler:
    """The environment's copies, the pipelines and the module that fits between them."""
    settings = config.environment_settings
    runners = config.env_runners_settings
    obs_pipeline = default_observation_pipeline(
        made.env.observation_space(made.params),
        runners.observation_filter,
        _connectors(
            "env_to_module_connector", runners.env_to_module_connector, ObservationConnector
        ),
    )
    action_pipeline = default_action_pipeline(
        made.env.action_space(made.params),
        normalize_actions=settings.normalize_actions,
        clip_actions=settings.clip_actions,
        extra=_connectors(
            "module_to_env_connector", runners.module_to_env_connector, ActionConnector
        ),
    )
    mode = made.env.reset_mode if settings.reset_mode == "auto" else settings.reset_mode
    return Sampler(
        env=VectorEnv(made.env, mode),
        module=make_module(config, obs_pipeline, action_pipeline),
        obs_pipeline=obs_pipeline,
        action_pipeline=action_pipeline,
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
    settings = config.rl_module_settings
    spec: Any = settings.rl_module_spec
    if spec is None:
        spec = RLModuleSpec()
    elif isinstance(spec, type):
        spec = RLModuleSpec(module_class=spec)
    model_config = spec.model_config if spec.model_config is not None else settings.model_config
    spaces: dict[str, gymnasium.Space[Any]] = {
        "observation_space": obs_pipeline.spaces[-1],
        "action_space": action_pipeline.module_space,
    }
    module = dataclasses.replace(spec, model_config=model_config, **spaces).build()
    needs_values = vars(config.training_settings).get("use_critic", True)
    check_module(module, needs_values=needs_values)
    return module


def make_evaluator(config: "AlgorithmConfig", sampler: Sampler, made: MadeEnv) -> Evaluator:
    """The evaluation that an evaluation config asks for, on a sampler of its own."""
    settings = config.evaluation_settings
    duration = settings.evaluation_duration
    limit = _time_limit(made)
    if settings.evaluation_duration_unit == "timesteps":
        envs = _num_envs(settings.evaluation_num_envs, duration)
        steps = -(-duration // envs)
        return Evaluator(
            sampler=sampler,
            num_envs=envs,
            episodes_per_env=None,
            max_steps=steps,
            recorded=min(steps, 1024),
            explore=config.env_runners_settings.explore,
        )
    envs = _num_envs(settings.evaluation_num_envs, duration)
    quota = -(-duration // envs)
    return Evaluator(
        sampler=sampler,
        num_envs=envs,
        episodes_per_env=quota,
        max_steps=quota * limit,
        recorded=quota,
        explore=config.env_runners_settings.explore,
    )


def _num_envs(setting: Any, duration: int) -> int:
    if setting != "auto":
        return setting
    candidates = range(1, min(duration, MAX_EVALUATION_ENVS) + 1)
    return max(n for n in candidates if duration % n == 0)


def _time_limit(made: MadeEnv) -> int:
    """Steps after which an evaluated episode is given up, so that evaluation cannot hang."""
    limit = made.env.max_episode_steps
    return DEFAULT_STEP_CAP if limit is None else limit


def required_bytes(assembly: Assembly) -> int:
    """A lower bound of the memory of one train batch: the state, the rollout and the targets."""
    runner = assembly.runner

    def shapes() -> Any:
        state = runner.init(jax.random.key(0), assembly.made.params)
        _, _, rollout, _ = assembly.sampler.rollout(
            runner.actor(state), state.env, state.carry, state.env_params, runner.num_steps, True
        )
        seen = assembly.sampler.observed(state.connectors.obs, rollout)
        batch, _ = runner.learner.prepare(state.learner, seen, state.progress)
        return state, rollout, batch

    leaves = jax.tree.leaves(jax.eval_shape(shapes))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
