"""From a config to a run's pure functions: environment, connectors, module, learner, runner."""

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import gymnasium
import jax

from jaxrl.assembly.learner_checks import check_learner
from jaxrl.assembly.pipelines import action_pipeline, learner_pipeline, observation_pipeline
from jaxrl.assembly.replay import replay_of, sequence_length
from jaxrl.buffers.circular import Circular
from jaxrl.buffers.on_policy import OnPolicy
from jaxrl.buffers.sequence import AnyReplay
from jaxrl.config.batch_plan.arithmetic import BatchPlan
from jaxrl.config.batch_plan.replay import ReplayPlan
from jaxrl.config.placement import resolve_placement
from jaxrl.config.settings.asynchronous import AsyncTraining
from jaxrl.config.settings.replay import OffPolicyTraining
from jaxrl.config.settings.training import Auto
from jaxrl.connectors.pipelines import ActionPipeline, LearnerPipeline, ObservationPipeline
from jaxrl.core.types import Key, PyTree
from jaxrl.envs.context import EnvContext
from jaxrl.envs.contract import check_signatures
from jaxrl.envs.host import MadeHostEnv
from jaxrl.envs.registry import MadeEnv, make
from jaxrl.envs.vector import VectorEnv
from jaxrl.errors import ConfigError, ModuleError
from jaxrl.modules.autoregressive import refuse_inexact
from jaxrl.modules.rl_module import RLModule, check_module
from jaxrl.runtime.commands import is_command
from jaxrl.runtime.kept_programs import KeptPrograms, kept_programs
from jaxrl.runtime.program import Program
from jaxrl.training.guard import Guard
from jaxrl.training.in_graph import InGraph
from jaxrl.training.rollout import Acting, Sampler
from jaxrl.training.train_step import Learning

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from jaxrl.config.modules import model_notes

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

MIN_RING_SIZE = 128
SAVED_UP_TO = 2**30
"""Bytes of a replay buffer up to which checkpoints hold it if it is left to us."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Assembly:
    """Everything static of a run, before any device is touched.

    `runner` is an `InGraph` where the environments are part of the compiled program, and a
    `Learning` where runners on the host step them. `kept` has programs of earlier processes;
    `trains_at_once` says that training will follow, so that its program is compiled beside others.
    """

    made: MadeEnv | MadeHostEnv
    acting: Acting
    plan: BatchPlan
    runner: Learning
    max_buffer_bytes: int | Auto = "auto"
    store_buffer: bool | Auto = "auto"
    kept: KeptPrograms | None = None
    trains_at_once: bool = False

    @functools.cached_property
    def buffer_bytes(self) -> int:
        """The size of the replay buffer over all devices."""
        return self.buffer_bytes_of(self.runner.experience)

    def buffer_bytes_of(self, experience: OnPolicy | AnyReplay) -> int:
        """The size of another buffer for the same run."""
        runner = dataclasses.replace(self.runner, experience=experience)

        def empty(key: Key) -> PyTree:
            return runner.empty_buffer(runner.init_learning(key, self.plan.total_envs))

        leaves = jax.tree.leaves(jax.eval_shape(empty, jax.random.key(0)))
        return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)

    @property
    def saves_buffer(self) -> bool:
        """Whether checkpoints hold the replay buffer."""
        if self.store_buffer == "auto":
            return self.buffer_bytes <= SAVED_UP_TO
        return self.store_buffer

    @property
    def replay(self) -> AnyReplay | None:
        """The buffer that gradient steps draw from, if they do."""
        experience = self.runner.experience
        return None if isinstance(experience, OnPolicy) else experience

    @property
    def module(self) -> RLModule:
        return self.acting.module

    def actor_program(self, jit: bool) -> Program:
        """The program that takes what acting depends on out of a state."""
        return Program("actor", self.runner.actor, kept=self.kept, enabled=jit)

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
    if resolve_placement(config, made.id, is_jax_env=isinstance(made, MadeEnv)) == "in_graph":
        assert isinstance(made, MadeEnv)
        sampler = make_sampler(config, made)
        explore = config.env_runners_settings.explore
        parts = learning_parts(config, made, sampler, in_graph=True)
        interval = 1
        if isinstance(config.training_settings, AsyncTraining):
            interval = config.training_settings.broadcast_interval
        runner: Learning = InGraph(
            acting=sampler, explore=explore, broadcast_interval=interval, **parts
        )
        return _assembly(config, made, sampler, runner)
    acting = make_acting(config, made)
    runner = Learning(acting=acting, **learning_parts(config, made, acting, in_graph=False))
    return _assembly(config, made, acting, runner)


def assemble_run(config: "AlgorithmConfig", *, trains: bool) -> Assembly:
    """`assemble`, with the programs that earlier processes compiled for the same run.

    Args:
        config: The run's.
        trains: Whether the run may be trained, rather than only looked at.
    """
    assembly = assemble(config)
    if not assembly.in_graph:
        return assembly
    kept, at_once = kept_programs(config), trains and is_command()
    return dataclasses.replace(assembly, kept=kept, trains_at_once=at_once)


def _assembly(
    config: "AlgorithmConfig", made: MadeEnv | MadeHostEnv, acting: Acting, runner: Learning
) -> Assembly:
    training = config.training_settings
    replays = isinstance(training, OffPolicyTraining)
    if config.learners_settings.learner_class is not None:
        check_learner(runner)
    return Assembly(
        made=made,
        acting=acting,
        plan=config.plan(),
        runner=runner,
        max_buffer_bytes=training.max_buffer_bytes if replays else "auto",
        store_buffer=training.store_buffer_in_checkpoints if replays else "auto",
    )


def learning_parts(
    config: "AlgorithmConfig", made: MadeEnv | MadeHostEnv, acting: Acting, *, in_graph: bool
) -> dict[str, Any]:
    """The fields of `Learning` but for `acting`."""
    plan, training = config.plan(), config.training_settings
    reporting, faults = config.reporting_settings, config.fault_tolerance_settings
    acting.module.sequence_length = sequence_length(plan, acting.module)
    learner = config.get_learner_class()(
        module=acting.module, settings=training, log_gradients=reporting.log_gradients
    )
    return {
        "learner": learner,
        "experience": _experience(config, plan, acting, in_graph=in_graph),
        "learner_pipeline": _learner_pipeline(config, made, acting),
        "num_envs": plan.num_envs,
        "num_steps": plan.rollout_fragment_length,
        "ring_size": max(MIN_RING_SIZE, reporting.metrics_num_episodes_for_smoothing),
        "guard": Guard(
            on_nonfinite=faults.on_nonfinite, tolerance=faults.nonfinite_updates_tolerance
        ),
        "circular": _circular(config),
        "zero_init_states": vars(training).get("zero_init_states", False),
    }


def _experience(
    config: "AlgorithmConfig", plan: BatchPlan, acting: Acting, *, in_graph: bool
) -> OnPolicy | AnyReplay:
    """What the rows of a gradient step are drawn from."""
    if isinstance(plan, ReplayPlan):
        return replay_of(config, plan, acting, in_graph=in_graph)
    return OnPolicy(
        num_epochs=plan.num_epochs,
        num_minibatches=plan.num_minibatches,
        num_shards=plan.num_shards,
        reshuffle=config.training_settings.shuffle_batch_per_epoch,
    )


def _circular(config: "AlgorithmConfig") -> Circular | None:
    """The buffer that batches are learned from, where that is not always the newest one alone."""
    training = config.training_settings
    if not isinstance(training, AsyncTraining):
        return None
    size = training.circular_buffer_num_batches
    iterations = training.circular_buffer_iterations_per_batch
    if size == iterations == 1:
        return None
    batch_mode = config.env_runners_settings.batch_mode
    if batch_mode != "truncate_episodes":
        raise ConfigError(
            f"circular_buffer_num_batches={size} and circular_buffer_iterations_per_batch="
            f"{iterations} need batches of one shape, but batch_mode is {batch_mode!r}; set both "
            "to 1, or batch_mode='truncate_episodes'."
        )
    return Circular(num_batches=size, iterations_per_batch=iterations)


def _learner_pipeline(
    config: "AlgorithmConfig", made: MadeEnv | MadeHostEnv, acting: Acting
) -> LearnerPipeline:
    settings = config.environment_settings
    clip = settings.clipping(atari=isinstance(made, MadeHostEnv) and made.is_atari)
    return learner_pipeline(config, acting, clip)


def make_env(config: "AlgorithmConfig") -> MadeEnv | MadeHostEnv:
    """The config's environment, checked, with declared spaces compared to its own."""
    settings = config.environment_settings
    if settings.env is None:
        raise ConfigError(
            "env is not set: name one with .environment(env=...), e.g. 'CartPole-v1'."
        )
    made = make(
        settings.env,
        settings.env_config,
        max_episode_steps=settings.max_episode_steps,
        is_atari=settings.is_atari,
    )
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
    if isinstance(made, MadeEnv):
        if not settings.disable_env_checking:
            check_signatures(made)
        if settings.validate_env is not None:
            settings.validate_env(made.env, EnvContext(settings.env_config))
    return made


def _would_forget(module: RLModule) -> bool:
    """Whether the module has a carry that learners would ignore though it matters to the loss."""
    has_carry = module.initial_carry(1) is not None
    return has_carry and module.trains_on_sequences and not module.is_stateful


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
    observation_space, action_space = spaces_of(made)
    actions = action_pipeline(config, action_space)
    observations = observation_pipeline(config, observation_space, actions.module_space)
    return Acting(
        module=make_module(config, observations, actions),
        obs_pipeline=observations,
        action_pipeline=actions,
    )


def make_sampler(config: "AlgorithmConfig", made: MadeEnv) -> Sampler:
    """The copies of a JAX environment and what acts in them."""
    setting = config.environment_settings.reset_mode
    mode = made.env.reset_mode if setting == "auto" else setting
    return Sampler(env=VectorEnv(made.env, mode), **vars(make_acting(config, made)))


def make_module(
    config: "AlgorithmConfig", obs_pipeline: ObservationPipeline, action_pipeline: ActionPipeline
) -> RLModule:
    """The module of the config's spec for the spaces between the pipelines, checked."""
    spec = config.get_rl_module_spec(obs_pipeline.spaces[-1], action_pipeline.module_space)
    module = spec.build()
    if _would_forget(module):
        raise ModuleError(
            f"{type(module).__name__} is recurrent (initial_carry is not None), but says only how it "
            "acts: implement _forward_step(params, obs, carry), from which learners unroll it."
        )
    training = config.training_settings
    refuse_inexact(module, training)
    if vars(training).get("use_critic", isinstance(training, AsyncTraining)):
        check_module(module, needs_values=True)
    return module


logger = logging.getLogger(__name__)


def announce(config: "AlgorithmConfig", assembly: Assembly, notes: Iterable[str]) -> None:
    """Log the environment, the batch arithmetic, what adapted, and the sentences given."""
    made, plan = assembly.made, assembly.plan
    logger.info("%s on %s; %s", config.algo_name, made.id, plan.describe())
    for note in (*made.notes, *plan.notes, *notes, *config.notes, *model_notes(config)):
        logger.info(note)
    if not logger.isEnabledFor(logging.DEBUG):
        return
    observation_space, action_space = spaces_of(made)
    logger.debug("observation space %s", observation_space)
    logger.debug("action space %s", action_space)
    params = jax.eval_shape(assembly.module.init, jax.random.key(0))
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        logger.debug("parameter %s is %s%s", jax.tree_util.keystr(path), leaf.dtype, leaf.shape)
