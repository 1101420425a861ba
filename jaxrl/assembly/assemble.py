"""Assembly of a run's pure functions from a config: environment, connectors, module, learner."""

import contextlib
import dataclasses
import functools
import inspect
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.assembly.env import (
    EnvToInspect,
    make_data_env,
    make_external_env,
    make_offers,
    prepare_first_task,
)
from jaxrl.assembly.offline import (
    ChosenStorage,
    check_mixed_storage,
    check_stream_pipelines,
    choose_storage,
    count_recorded_batches,
    make_blank_dataset,
    make_dataset_sampler,
    make_mixed_sampler,
)
from jaxrl.assembly.pipelines import (
    make_action_pipeline,
    make_learner_pipeline,
    make_observation_pipeline,
)
from jaxrl.assembly.replay import make_replay_buffer, resolve_sequence_length
from jaxrl.buffers.circular import CircularBuffer
from jaxrl.buffers.dataset import Dataset, DatasetSampler
from jaxrl.buffers.on_policy import OnPolicyMinibatches
from jaxrl.buffers.replay import ReplayState
from jaxrl.buffers.sequence import AnyReplayBuffer
from jaxrl.compat import lookup
from jaxrl.config.batch_plan import BatchPlan, OfflinePlan, ReplayPlan
from jaxrl.config.placement import resolve_placement
from jaxrl.config.settings.offline import Storage
from jaxrl.config.settings.replay import OffPolicyTraining
from jaxrl.config.settings.runners import EnvRunnersSettings
from jaxrl.config.settings.training import Auto, BatchUse, EnvironmentSettings
from jaxrl.config.teams import make_named_env
from jaxrl.connectors.pipelines import ActionPipeline, ObservationPipeline, StatePipeline
from jaxrl.core.dependence import find_dependence
from jaxrl.core.hparams import PerLane, replace_with_traced
from jaxrl.core.keys import split_run_key
from jaxrl.core.space_arrays import count_bytes
from jaxrl.core.struct import replace
from jaxrl.core.types import Columns, Key, Metrics, Params, PyTree
from jaxrl.envs.context import EnvContext
from jaxrl.envs.contract import check_signatures
from jaxrl.envs.host import MadeHostEnv
from jaxrl.envs.model import EnvModel
from jaxrl.envs.registry import AnyMadeEnv, MadeEnv
from jaxrl.envs.vector import NO_FAULT, VectorEnv
from jaxrl.errors import (
    TRACING_ERRORS,
    ConfigError,
    JaxrlError,
    LossError,
    ModuleError,
    locate_in_user_code,
    summarize_exception,
)
from jaxrl.modules.actor_critic import ActorCriticModule
from jaxrl.modules.autoregressive import check_exact_entropy
from jaxrl.modules.encoder_module import EncoderModule, explain_axes, is_image
from jaxrl.modules.latent_planner import LatentModule, LatentPlanner
from jaxrl.modules.planner import Planner, Search
from jaxrl.modules.rl_module import RLModule, RLModuleSpec, check_module, make_zeros
from jaxrl.modules.scripted import ParameterFreeModule
from jaxrl.offline.held_out import EpisodeSplit
from jaxrl.runtime.commands import is_command
from jaxrl.runtime.kept_programs import ProgramCache, open_program_cache
from jaxrl.runtime.program import Program
from jaxrl.training.data_flow import CompiledStep, keep_behaviour, take_behaviour
from jaxrl.training.episode_stats import EpisodeRecord
from jaxrl.training.guard import DivergenceGuard
from jaxrl.training.in_graph import CompiledEnvs, CompiledRun
from jaxrl.training.offline import MixedTrainStep, OfflineTrainStep
from jaxrl.training.opponents import OpponentPool
from jaxrl.training.rollout import PolicyStep, RolloutWorker, make_blank_rollout
from jaxrl.training.train_state import RolloutBatch, TrainState
from jaxrl.training.train_step import Experience, TrainStep

if TYPE_CHECKING:
    from jaxrl.config.config import Config
    from jaxrl.training.multi_learning import MultiLearning


def get_compiled_step(config: "Config") -> CompiledStep | None:
    """Return the training step of the config's own Algorithm, if it has one for the program.

    Raises:
        ConfigError: If it is not a function of the data flow alone.
    """
    name = "compiled_training_step"
    step: CompiledStep | None = getattr(config.algo_class, name, None)
    if step is None:
        return None
    owner = config.algo_class.__name__ if config.algo_class else ""
    try:
        inspect.signature(step).bind(None)
    except TypeError:
        raise ConfigError(
            f"{name} of {owner} must be a static function of the data flow alone, because it is "
            f"part of the compiled program: @staticmethod, then def {name}(flow), got "
            f"{name}{inspect.signature(step)}."
        ) from None
    interval = config.training_settings.weights_interval
    if interval > 1:
        raise ConfigError(
            f"broadcast_interval={interval} has no effect on {name} of {owner}, which calls "
            "sync_weights() itself: leave it at 1."
        )
    return step


def check_learner(runner: TrainStep) -> None:
    """Trace the training on one blank train batch, or on blank recorded data.

    With a replay buffer in host memory, rows come from outside of the program; only the initial
    state is traced, and the rest left to the compilation.

    Raises:
        LossError: If the learner cannot be traced, or overrides a method of RLlib's that is never
            called.
    """
    is_users = lookup.is_defined_by_user(type(runner.learner))
    if is_users:
        lookup.load("rllib.attributes").refuse_learner_methods(runner.learner)
    try:
        jax.eval_shape(_make_blank_run(runner), jax.random.key(0))
    except JaxrlError:
        raise
    except TRACING_ERRORS as error:
        if is_users:
            lookup.load("rllib.attributes").explain_learner_method(error, runner.learner)
        raise LossError(
            f"learner_class={type(runner.learner).__name__} cannot be traced by jax.jit "
            f"({summarize_exception(error)}){locate_in_user_code(error)}."
        ) from error


def check_learner_class(config: "Config") -> None:
    """Raise if `learner_class` is no subclass of the algorithm's Learner.

    Raises:
        LossError: If it is not.
    """
    given, own = config.learners_settings.learner_class, config.get_default_learner_class()
    if given is not None and not (isinstance(given, type) and issubclass(given, own)):
        raise LossError(
            f"learner_class must be a subclass of {own.__module__}.{own.__name__}, the Learner of "
            f"{config.algo_name}, got {getattr(given, '__name__', given)}."
        )


def _make_blank_run(runner: TrainStep) -> Callable[[Key], PyTree]:
    """Return the function that is traced."""
    own = replace_per_lane(runner)
    if runner.host_replay is not None:
        return own.learner.init
    if isinstance(own, OfflineTrainStep):
        sizes = own.experience.source_sizes or (0,)
        return partial(_train_on_blank_data, own, make_blank_dataset(own.policy_step, len(sizes)))
    if isinstance(own, MixedTrainStep):
        sizes = own.recorded.source_sizes or ()
        return partial(
            _train_on_blank_batch, runner, make_blank_dataset(own.policy_step, len(sizes))
        )
    return partial(_train_on_blank_batch, runner)


def _train_on_blank_data(learning: OfflineTrainStep, data: Dataset, key: Key) -> Metrics:
    state = learning.init_from_data(split_run_key(key), data)
    return learning.bind(state, data).update(state, None)[1]


def _train_on_blank_batch(runner: TrainStep, *inputs: PyTree) -> Metrics:
    *datasets, key = inputs
    steps, envs = runner.num_steps, runner.num_envs
    state = replace_per_lane(runner).init_without_envs(key, envs)
    runner = runner.bind(state, *datasets)
    zeros = jnp.zeros((steps, envs), jnp.int32)
    data = RolloutBatch(
        rollout=make_blank_rollout(runner.policy_step, runner.make_actor_state(state), steps, envs),
        record=EpisodeRecord(
            ended=zeros > 0,
            episode_return=zeros.astype(jnp.float32),
            episode_length=zeros,
            env_step=zeros.astype(jnp.uint32),
            fault=zeros + NO_FAULT,
        ),
        env_index=jnp.arange(envs, dtype=jnp.int32),
        num_env_steps=jnp.asarray(runner.batch_steps, jnp.uint32),
    )
    received, batch = runner.receive(state, data)
    if runner.has_buffer:
        received = runner.add_to_buffer(received, batch)
    return runner.update(received, batch)[1]


def replace_per_lane(runner: TrainStep) -> TrainStep:
    """Return the runner with a number in place of every per-lane setting, as `init` receives it."""
    settings = runner.learner.settings
    own = [name for name, value in vars(settings).items() if isinstance(value, PerLane)]
    numbers = dict.fromkeys(own, jnp.ones((), jnp.float32))
    learner = dataclasses.replace(runner.learner, settings=replace_with_traced(settings, numbers))
    return dataclasses.replace(runner, learner=learner)


LARGE_IMAGE = 1024
"""Number of pixels from which an image that is flattened is worth a warning."""


def make_module(
    config: "Config", obs_pipeline: ObservationPipeline, action_pipeline: ActionPipeline
) -> RLModule:
    """Make and check the module of the config's spec for the spaces between the pipelines."""
    spec = config.get_rl_module_spec(obs_pipeline.spaces[-1], action_pipeline.module_space)
    training = config.training_settings
    is_parameter_free = _is_subclass(spec.module_class, ParameterFreeModule)
    needs_values = config.is_trained and training.needs_values and not is_parameter_free
    if type(spec).build is RLModuleSpec.build:
        module = spec.build(needs_values=needs_values)
    else:  # of a user's class
        module = spec.build()
        check_module(module, needs_values=needs_values)
    if isinstance(module, EncoderModule):
        warn_if_flattened(module)
        _check_policy_reads(module)
    if _ignores_carry(module):
        raise ModuleError(
            f"{type(module).__name__} is recurrent (initial_carry is not None), but defines only "
            "how it acts: implement _forward_step(params, obs, carry), which learners unroll."
        )
    if not config.is_trained:
        return module
    of_several = "" if config.module_id is None else ", or name the others in policies_to_train"
    if config.learns and is_parameter_free:
        raise ModuleError(
            f"{type(module).__name__} has no parameters that {config.algo_name} could train: use "
            f"RandomAgentConfig, which learns nothing, to run it{of_several}."
        )
    check_exact_entropy(module, training)
    hidden = module.critic_only_observations
    if hidden and isinstance(module, ActorCriticModule) and not training.needs_values:
        raise ConfigError(
            f"critic_only_observations={list(hidden)} is for a critic, and {config.algo_name} learns no "
            "values with these settings: leave it out."
        )
    return module


def _check_policy_reads(module: EncoderModule) -> None:
    """Raise ModuleError if the module's actions depend on a part that is for critics alone."""
    hidden, rows = module.critic_only_observations, 2
    if not hidden:
        return

    def make_inputs(key: Key) -> tuple[PyTree, PyTree, PyTree]:
        obs = make_zeros(module.observation_space, (rows,))
        return module.init(key), obs, module.initial_carry(rows)

    def act(params: Params, obs: PyTree, carry: PyTree) -> tuple[PyTree, PyTree]:
        out = module.forward_inference(params, obs, carry)
        return out[Columns.ACTION_DIST_INPUTS], out.get(Columns.STATE_OUT)

    read, _ = find_dependence(act, *jax.eval_shape(make_inputs, jax.random.key(0)))
    seen = module.select_network_obs(read)
    name = next((name for name in hidden if any(jax.tree.leaves(seen[name]))), None)
    if name is not None:
        raise ModuleError(
            f"The actions of {type(module).__name__} depend on {name!r}, which critic_only_observations "
            "names: build its policy's encoder by make_policy_encoder()."
        )


def _is_subclass(found: object, expected: type) -> bool:
    return isinstance(found, type) and issubclass(found, expected)


def _ignores_carry(module: RLModule) -> bool:
    """Return whether learners would ignore the module's carry although the loss needs it."""
    has_carry = module.initial_carry(1) is not None
    return has_carry and module.trains_on_sequences and not module.is_stateful


def warn_if_flattened(module: EncoderModule) -> None:
    """Warn, once per process and shape, that an image becomes the inputs of a dense layer."""
    space = module.get_network_obs_space()
    if not isinstance(space, spaces.Box) or module.settings.conv_filters is not None:
        return
    if space.dtype == np.uint8 and len(space.shape) in (2, 3) and not is_image(space):
        _warn_of_shape(space.shape)


@functools.cache
def _warn_of_shape(shape: tuple[int, ...]) -> None:
    if math.prod(shape) >= LARGE_IMAGE:
        advice = explain_axes(shape) or " Images are [H, W, C]; set conv_filters for [H, W]."
        logger.warning(
            "Observations of shape %s are flattened to %d inputs of a dense layer.%s",
            shape,
            math.prod(shape),
            advice,
        )


PolicyStepT = TypeVar("PolicyStepT", bound=PolicyStep)

logger = logging.getLogger("jaxrl")

MIN_RING_SIZE = 128
MAX_SAVED_BUFFER_BYTES = 2**30
"""Maximum size in bytes of a replay buffer that checkpoints store by default."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Assembly:
    """Everything static of a run, before any device is touched.

    `source` has the environments if they are part of the compiled program; None if they are not.
    `compiled_step` is the training step of the user's own Algorithm as a function of its data flow.
    `storage` is where the rows of recorded data are, for a run that learns from them alone, and
    `episode_split` has those that are read but not yet used.
    `num_buffers` is the number of modules whose buffers share these limits equally.
    `program_cache` is the cache of programs that were compiled before;
    `should_train` is whether the run is made to be trained, rather than restored, and
    `should_compile_train` whether its program is compiled concurrently with others.
    """

    made: AnyMadeEnv
    policy_step: PolicyStep
    plan: BatchPlan
    train_step: TrainStep
    source: CompiledEnvs | None = None
    weights_interval: int = 1
    max_recorded_batches: int = 0
    max_buffer_bytes: int | Auto = "auto"
    store_buffer: bool | Auto = "auto"
    num_buffers: int = 1
    compiled_step: CompiledStep | None = None
    program_cache: ProgramCache | None = None
    should_compile_train: bool = False
    should_train: bool = True
    storage: ChosenStorage | None = None
    episode_split: EpisodeSplit = dataclasses.field(default_factory=EpisodeSplit)

    @functools.cached_property
    def state_shapes(self) -> TrainState:
        """Shapes and types of the state, with environments if they are in the compiled program."""
        if self.is_in_graph:  # The program needs the same trace.
            init, params = self.run.jitted_init, self.jax_env.params
            return jax.eval_shape(init, jax.random.key(0), params)
        init = partial(self.train_step.init_without_envs, total_envs=self.plan.total_envs)
        return jax.eval_shape(init, jax.random.key(0))

    @property
    def state_bytes(self) -> int:
        """Size of the state in bytes."""
        return _count_bytes(self.state_shapes)

    @property
    def learner_bytes(self) -> int:
        """Size of parameters and optimizer states in bytes."""
        return sum(_count_bytes(part.state_shapes.learner) for part in self.parts.values())

    @functools.cached_property
    def batch_bytes(self) -> int:
        """Lower bound in bytes of what one train batch needs beside the state."""
        if not self.is_in_graph:  # observations and their successors
            plan = self.plan
            rows = plan.num_envs * plan.rollout_fragment_length
            rows = plan.train_batch_size if self.is_offline else rows
            return 2 * count_bytes(self.made.spaces[0]) * rows
        step, worker = self.train_step, self.rollout_worker

        def batch(state: TrainState) -> PyTree:
            actor = step.make_actor_state(state)
            rollout = make_blank_rollout(worker, actor, step.num_steps, step.num_envs)
            if step.replay is not None:
                return rollout
            seen = worker.preprocess_rollout(state.connectors.obs, rollout)
            return rollout, step.on_policy_learner.prepare(state.learner, seen, state.progress)[0]

        return _count_bytes(jax.eval_shape(batch, self.state_shapes))

    @functools.cached_property
    def buffer_bytes(self) -> int:
        """Size of the replay buffer in bytes over all devices."""
        if self.is_in_graph:
            return _count_bytes(self.state_shapes.buffer)
        return self._compute_buffer_bytes(self.train_step.experience)

    def _compute_buffer_bytes(self, experience: Experience) -> int:
        """Return the size in bytes of another buffer for the same run."""
        train_step = dataclasses.replace(self.train_step, experience=experience)

        def empty(key: Key) -> PyTree:
            return train_step.init_buffer(train_step.init_without_envs(key, self.plan.total_envs))

        return _count_bytes(jax.eval_shape(empty, jax.random.key(0)))

    def find_capacity(self, limit: int) -> int:
        """Return the largest capacity of the replay buffer, in whole rollouts, of `limit` bytes."""
        replay, steps = self.replay, self.plan.rollout_fragment_length
        assert replay is not None
        unit = self.plan.num_envs * steps
        low, high = 0, replay.length * replay.num_envs // unit
        while low < high:  # bisection, because the tree of priorities grows in jumps
            middle = (low + high + 1) // 2
            other = dataclasses.replace(replay, length=middle * steps)
            fits = self._compute_buffer_bytes(other) <= limit
            low, high = (middle, high) if fits else (low, middle - 1)
        return low * unit

    @property
    def should_save_buffer(self) -> bool:
        """Return whether checkpoints store the replay buffer."""
        if self.store_buffer == "auto":
            return self.num_buffers * self.buffer_bytes <= MAX_SAVED_BUFFER_BYTES
        return self.store_buffer

    @property
    def replay(self) -> AnyReplayBuffer | None:
        """Replay buffer that gradient steps draw from, if any."""
        return self.train_step.replay

    @property
    def row_source(self) -> AnyReplayBuffer | DatasetSampler | None:
        """Replay buffer or dataset that gradient steps draw from, if any."""
        experience = self.train_step.experience
        return None if isinstance(experience, OnPolicyMinibatches) else experience

    @property
    def patterns(self) -> tuple[Mapping[str, str], ...]:
        """Module of each agent in the copies of the environment, in turn; none for one agent."""
        return ()

    @property
    def parts(self) -> "Mapping[str, Assembly]":
        """Assemblies with a learner: that of each of several modules, or this one, named ''."""
        return {"": self}

    @property
    def pool(self) -> OpponentPool | None:
        """Opponents that are drawn; None without."""
        return None

    @property
    def module_buffers(self) -> Mapping[str, AnyReplayBuffer]:
        """Replay buffer of each of several modules that has one."""
        return {
            name: part.replay
            for name, part in self.parts.items()
            if name and part.replay is not None
        }

    @property
    def module(self) -> RLModule:
        return self.policy_step.module

    def with_train_step(self, train_step: "TrainStep | MultiLearning") -> "Assembly":
        """Return the assembly with another training step of the same run."""
        assert isinstance(train_step, TrainStep)
        return dataclasses.replace(self, train_step=train_step)

    def make_abstract_params(self) -> PyTree:
        """Return shapes and types of the parameters."""
        return self.policy_step.param_shapes

    def make_actor_program(self, jit: bool) -> Program:
        """Make the program that extracts the inputs of acting from a state."""
        return Program(
            "actor",
            self.train_step.make_actor_state,
            program_cache=self.program_cache,
            enabled=jit,
        )

    @property
    def rollout_worker(self) -> RolloutWorker:
        """Policy with its environments, if both are in the program."""
        return cast("RolloutWorker", self.run.rollout_worker)

    @property
    def is_in_graph(self) -> bool:
        """Return whether the environments are stepped inside the compiled program."""
        return self.source is not None

    @functools.cached_property
    def run(self) -> CompiledRun:
        """Functions of a run whose train batches need nothing from the host."""
        assert self.is_in_graph or self.is_offline
        return CompiledRun(
            learning=self.train_step,
            source=self.source,
            own_step=self.compiled_step if self.is_in_graph else None,
            broadcast_interval=self.weights_interval,
            max_recorded_batches=self.max_recorded_batches,
        )

    @property
    def is_offline(self) -> bool:
        """Return whether the run learns from recorded data."""
        return isinstance(self.train_step, OfflineTrainStep)

    @property
    def row_storage(self) -> Storage:
        """Place of the recorded rows that are learned from, if there are any."""
        return "device" if self.storage is None else self.storage.name

    @property
    def offline_step(self) -> OfflineTrainStep:
        """Train step of a run that learns from recorded data alone."""
        assert isinstance(self.train_step, OfflineTrainStep)
        return self.train_step

    @property
    def jax_env(self) -> MadeEnv:
        """Environment of a run whose environments are in the compiled program."""
        assert isinstance(self.made, MadeEnv)
        return self.made

    def require_jax_env(self, what: str) -> MadeEnv:
        """Return the environment of a run, which must be part of the compiled program.

        Args:
            what: Property or method that requires it, for the message.

        Raises:
            ConfigError: If it is stepped on the host.
        """
        if not self.is_in_graph:
            raise ConfigError(
                f"{what} requires an environment in the compiled program, but {self.made.id} is stepped "
                "by runners on the host: call a method of your environment on each runner with "
                "env_runner_group.foreach_env_runner(...)."
            )
        return self.jax_env

    # --- checkpoints ---

    def select_saved_state(self, state: TrainState) -> TrainState:
        """Return the state that checkpoints store."""
        modules = {m: self.parts[m].select_saved_state(own) for m, own in state.modules.items()}
        state = replace(state, modules=modules)
        is_left_out = self.replay is not None and not self.should_save_buffer
        return replace(state, buffer=()) if is_left_out else state

    def select_expected_state(
        self, state: TrainState, leaves: Mapping[str, Any], *, has_own_step: bool
    ) -> TrainState:
        """Return the part of a state to look up among saved leaves.

        The replay buffer is left out if none was saved.

        Args:
            state: Current state.
            leaves: Saved leaves by name.
            has_own_step: Whether the run has a training step of its own, in between whose steps the
                weights that act may differ from the learner's.
        """
        if has_own_step and self.is_in_graph and self.compiled_step is None:
            is_kept = any("behaviour" in name.split(".")[:3] for name in leaves)
            state = keep_behaviour(take_behaviour(state, None), is_kept=is_kept)
        return self._drop_missing_buffers(state, leaves, "")

    def _drop_missing_buffers(
        self, state: TrainState, leaves: Mapping[str, Any], prefix: str
    ) -> TrainState:
        modules = {
            m: self.parts[m]._drop_missing_buffers(own, leaves, f"modules.{m}.")
            for m, own in state.modules.items()
        }
        state = replace(state, modules=modules)
        has_buffer = any(name.startswith(f"{prefix}buffer.") for name in leaves)
        return state if has_buffer or self.replay is None else replace(state, buffer=())

    def restore_empty_buffer(self, restored: TrainState, before: TrainState) -> TrainState:
        """Return a restored state with an empty replay buffer, if it needs one that was not saved.

        Args:
            restored: Result of `select_expected_state`, filled with the saved leaves.
            before: Current state of the run, the memory of whose buffer the empty one reuses.
        """
        modules = {
            m: self.parts[m].restore_empty_buffer(own, before.modules[m])
            for m, own in restored.modules.items()
        }
        restored = replace(restored, modules=modules)
        replay, buffer = self.replay, before.buffer
        if (
            replay is None
            or isinstance(restored.buffer, ReplayState)
            or not jax.tree.leaves(buffer)
        ):
            return restored
        logger.warning(
            "The checkpoint has no replay buffer: learning resumes once %d transitions are in the "
            "buffer again.",
            replay.min_rows_to_learn,
        )
        places = jax.tree.map(lambda leaf: leaf.sharding, buffer)
        empty = jax.jit(replay.clear, donate_argnums=0, out_shardings=places)
        return replace(restored, buffer=empty(buffer))

    # --- messages ---

    def describe_buffers(self) -> list[str]:
        """Return a sentence on each replay buffer's size and whether checkpoints store it."""
        notes: list[str] = []
        for name, part in self.parts.items():
            if (replay := part.replay) is None:
                continue
            capacity, size = replay.length * replay.num_envs, part.buffer_bytes
            where = " in host memory" if replay.in_host_memory else ""
            stored = "store it" if part.should_save_buffer else "do not store it"
            notes.append(
                f"Replay buffer{f' of {name}' if name else ''}: {capacity} transitions of "
                f"{size / capacity:.0f} bytes, {size / 2**20:.2f} MiB{where}; checkpoints {stored} "
                f"(store_buffer_in_checkpoints={part.store_buffer!r})."
            )
        return notes

    def log(self, algo_name: str, warnings: Iterable[str], notes: Iterable[str]) -> None:
        """Log the environment, the batch arithmetic, adapted defaults, and the given sentences."""
        made, plan = self.made, self.plan
        logger.info("%s on %s; %s", algo_name, made.id, plan.describe())
        for note in (*([] if plan.rounding is None else [plan.rounding]), *warnings):
            logger.warning(note)
        for note in (*made.notes, *plan.notes, *notes):
            logger.info(note)
        if not logger.isEnabledFor(logging.DEBUG):
            return
        observation_space, action_space = made.spaces
        logger.debug("observation space %s", observation_space)
        logger.debug("action space %s", action_space)
        params = self.make_abstract_params()
        for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
            logger.debug("parameter %s is %s%s", jax.tree_util.keystr(path), leaf.dtype, leaf.shape)


def assemble(config: "Config") -> Assembly:
    """Build and check a run's functions, without compiling anything.

    Raises:
        JaxrlError: If anything in the config is invalid.
    """
    if config.is_multi_agent:
        from jaxrl.assembly.multi_agent import assemble_multi_agent

        return assemble_multi_agent(config)
    mode = config.env_runners_settings.gym_env_vectorize_mode
    made = prepare_first_task(config.environment_settings, mode, make_env(config))
    placement = resolve_placement(config, made.id, is_jax_env=made.is_jax)
    if isinstance(made, MadeEnv) and placement == "in_graph":
        acting = make_policy_step(config, made).with_envs(
            make_vector_env(config.environment_settings, made)
        )
        sampler = with_sequences(config, acting)
        plan = config.plan()
        runners = config.env_runners_settings
        begins_episodes = runners.batch_mode == "complete_episodes"
        if begins_episodes:
            _check_episodes_fit(made, plan.rollout_fragment_length, plan.fragments_per_env)
        fields = make_train_step_fields(config, made, sampler, in_graph=True)
        source = CompiledEnvs(
            worker=sampler,
            num_envs=plan.num_envs // plan.fragments_per_env,
            num_steps=plan.rollout_fragment_length,
            fragments_per_env=plan.fragments_per_env,
            explore=runners.explore,
            begins_episodes=begins_episodes,
        )
        step = TrainStep(policy_step=sampler, **fields)
        if config.is_mixed and not config.in_evaluation:
            assert isinstance(plan, ReplayPlan)
            recorded = make_mixed_sampler(config, plan, sampler)
            step = MixedTrainStep(policy_step=sampler, recorded=recorded, **fields)
        return dataclasses.replace(
            _make_assembly(config, made, sampler, step),
            source=source,
            weights_interval=config.training_settings.weights_interval,
            max_recorded_batches=count_recorded_batches(config, [(sampler, plan.num_envs)]),
        )
    if isinstance(made, MadeHostEnv):
        _check_can_pause(config.env_runners_settings, made)
    acting = with_sequences(config, make_policy_step(config, made))
    if config.is_mixed and not config.in_evaluation:
        return _make_assembly(config, made, acting, _make_mixed_step(config, made, acting))
    if placement == "offline":
        chosen = choose_storage(config, made.spaces)
        fields = make_train_step_fields(config, made, acting, in_graph=False, storage=chosen.name)
        if chosen.name == "stream":
            check_stream_pipelines(config, acting, fields["learner_pipeline"])
        runner = OfflineTrainStep(policy_step=acting, **fields)
        return dataclasses.replace(_make_assembly(config, made, acting, runner), storage=chosen)
    train_step = TrainStep(
        policy_step=acting, **make_train_step_fields(config, made, acting, in_graph=False)
    )
    return _make_assembly(config, made, acting, train_step)


def _make_mixed_step(config: "Config", made: AnyMadeEnv, acting: PolicyStep) -> MixedTrainStep:
    """Make the train step of a run that learns from recorded data, too, and samples on the host."""
    plan = config.plan()
    assert isinstance(plan, ReplayPlan)
    fields = make_train_step_fields(config, made, acting, in_graph=False)
    recorded = make_mixed_sampler(config, plan, acting)
    step = MixedTrainStep(policy_step=acting, recorded=recorded, **fields)
    check_mixed_storage(
        config.offline_data_settings.input_,
        config.training_settings.replay_buffer_config,
        in_host_memory=step.host_replay is not None,
    )
    return step


def with_sequences(config: "Config", policy_step: PolicyStepT) -> PolicyStepT:
    """Return the policy step with a module that learns from sequences of the plan's length."""
    length = resolve_sequence_length(config.plan(), policy_step.module)
    return dataclasses.replace(policy_step, module=policy_step.module.with_sequence_length(length))


def assemble_run(config: "Config", *, should_train: bool) -> Assembly:
    """Assemble a run, with the cache of programs that were compiled for it before.

    Args:
        config: Config of the run.
        should_train: Whether the run may be trained, rather than only inspected.
    """
    assembly = assemble(config)
    is_in_graph = assembly.is_in_graph
    return dataclasses.replace(
        assembly,
        program_cache=open_program_cache(
            config,
            is_in_graph=is_in_graph,
            spaces=() if is_in_graph else assembly.made.spaces,
        ),
        should_train=should_train,
        should_compile_train=is_in_graph and should_train and is_command(),
    )


def _make_assembly(
    config: "Config", made: AnyMadeEnv, acting: PolicyStep, train_step: TrainStep
) -> Assembly:
    if config.learners_settings.learner_class is not None:
        check_learner(train_step)
    return Assembly(
        made=made,
        policy_step=acting,
        plan=config.plan(),
        train_step=train_step,
        compiled_step=get_compiled_step(config),
        **get_buffer_limits(config),
    )


def _count_bytes(shapes: PyTree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


def get_buffer_limits(config: "Config") -> dict[str, Any]:
    """Return the fields of an Assembly that limit a replay buffer; none without one."""
    training = config.training_settings
    if not isinstance(training, OffPolicyTraining):
        return {}
    return {
        "max_buffer_bytes": training.max_buffer_bytes,
        "store_buffer": training.store_buffer_in_checkpoints,
    }


def make_train_step_fields(
    config: "Config",
    made: AnyMadeEnv,
    policy_step: PolicyStep,
    *,
    in_graph: bool,
    storage: Storage = "device",
) -> dict[str, Any]:
    """Make the fields of `TrainStep` other than `policy_step`.

    Args:
        config: Config of the run.
        made: Its environment.
        policy_step: Module and connectors.
        in_graph: Whether the environments are in the compiled program.
        storage: Where recorded rows are.
    """
    plan, training = config.plan(), config.training_settings
    reporting, faults = config.reporting_settings, config.fault_tolerance_settings
    learner = config.get_learner_class()(
        module=policy_step.module, settings=training, log_gradients=reporting.log_gradients
    )
    clip_rewards = config.environment_settings.resolve_clip_rewards(is_atari_id=made.is_atari)
    pipeline = make_learner_pipeline(config, policy_step, clip_rewards)
    if isinstance(plan, ReplayPlan):
        experience = make_replay_buffer(
            config, plan, made, policy_step, pipeline, in_graph=in_graph
        )
    else:
        experience = _make_experience(config, plan, policy_step, storage)
    return {
        "learner": learner,
        "experience": experience,
        "learner_pipeline": pipeline,
        "num_envs": plan.num_envs,
        "num_steps": plan.rollout_fragment_length,
        "ring_size": compute_ring_size(config),
        "guard": DivergenceGuard(
            on_nonfinite=faults.on_nonfinite, tolerance=faults.nonfinite_updates_tolerance
        ),
        "circular": _make_circular(training.batch_use, config.env_runners_settings.batch_mode),
        "zero_init_states": training.starts_sequences_at_zero,
    }


def compute_ring_size(config: "Config") -> int:
    """Return the number of latest episodes that each shard keeps."""
    return max(MIN_RING_SIZE, config.reporting_settings.metrics_num_episodes_for_smoothing)


def _make_experience(
    config: "Config", plan: BatchPlan, acting: PolicyStep, storage: Storage
) -> Experience:
    """Make the source of rows for gradient steps without replay."""
    if isinstance(plan, OfflinePlan):
        return make_dataset_sampler(config, plan, acting, storage)
    return OnPolicyMinibatches(
        num_epochs=plan.num_epochs,
        num_minibatches=plan.minibatches_per_epoch,
        num_shards=plan.num_shards,
        reshuffle=config.training_settings.batch_use.reshuffle,
    )


def _make_circular(use: BatchUse, batch_mode: str) -> CircularBuffer | None:
    """Make the buffer of train batches; None if only the newest batch is learned from."""
    size, iterations = use.num_batches, use.iterations_per_batch
    if size == iterations == 1:
        return None
    if batch_mode != "truncate_episodes":
        raise ConfigError(
            f"circular_buffer_num_batches={size} and circular_buffer_iterations_per_batch="
            f"{iterations} need batches of one shape, but batch_mode is {batch_mode!r}; set both "
            "to 1, or batch_mode='truncate_episodes'."
        )
    return CircularBuffer(num_batches=size, iterations_per_batch=iterations)


def make_env(config: "Config") -> AnyMadeEnv:
    """Make and check the config's environment, comparing its spaces with the declared ones."""
    settings = config.environment_settings
    if settings.env is None and config.env_runners_settings.placement == "external":
        return make_external_env(settings)
    if settings.env is None and config.is_offline and not config.in_evaluation:
        return make_data_env(settings, config.offline_data_settings)
    if settings.env is None:
        raise ConfigError(
            "env is not set: name one with .environment(env=...), e.g. 'CartPole-v1'."
        )
    made = make_named_env(config)
    observation_space, action_space = made.spaces
    for name, declared, own in (
        ("observation_space", settings.observation_space, observation_space),
        ("action_space", settings.action_space, action_space),
    ):
        if declared is not None and declared != own and not config.in_evaluation:
            raise ConfigError(
                f"{name} is declared as {format_space(declared)}, but {made.id} has "
                f"{format_space(own)}."
            )
    config.check_time_limit(made.id, made.max_episode_steps)
    if isinstance(made, MadeEnv):
        if not settings.disable_env_checking:
            check_signatures(made)
        if settings.validate_env is not None:
            settings.validate_env(made.env, EnvContext(settings.env_config))
    return made


def _check_can_pause(runners: EnvRunnersSettings, made: MadeHostEnv) -> None:
    """Raise ConfigError if whole episodes are asked for of environments that step together."""
    mode = made.resolve_mode(runners.gym_env_vectorize_mode)
    if runners.batch_mode == "complete_episodes" and mode == "vector_entry_point":
        raise ConfigError(
            "batch_mode='complete_episodes' waits for the environments whose episodes go on, but those "
            f"of {made.id} step all together: set 'truncate_episodes', or "
            "gym_env_vectorize_mode='sync'."
        )


def _check_episodes_fit(made: MadeEnv, num_steps: int, fragments_per_env: int) -> None:
    """Raise ConfigError if an episode may be longer than the rollout that it is to end in."""
    limit = made.max_episode_steps
    if limit is None:
        raise ConfigError(
            f"batch_mode='complete_episodes' needs an end of every episode, and {made.id} has no time "
            "limit: set max_episode_steps, and rollout_fragment_length to it."
        )
    if num_steps < limit:
        raise ConfigError(
            f"batch_mode='complete_episodes' needs rollouts as long as an episode of {made.id}, "
            f"{limit} steps, got rollout_fragment_length={num_steps}: set it to {limit}, or "
            f"max_episode_steps to {num_steps}."
        )
    if fragments_per_env > 1:
        raise ConfigError(
            "batch_mode='complete_episodes' makes one rollout of each environment in a train batch, "
            f"and train_batch_size is {fragments_per_env} of them: leave train_batch_size out, or "
            "set more environments."
        )


def format_space(space: gymnasium.Space[Any]) -> str:
    """Format a space in one line; NumPy breaks long bounds into several."""
    return " ".join(str(space).split())


def make_policy_step(config: "Config", made: AnyMadeEnv) -> PolicyStep:
    """Make the pipelines for an environment's spaces, and the module that fits between them."""
    observation_space, action_space = made.spaces
    trained = config.environment_settings.observation_space if config.in_evaluation else None
    env = EnvToInspect(made)
    whole = trained or observation_space
    model = made.model if isinstance(made, MadeEnv) else None
    with contextlib.closing(env):
        offers = make_offers(env)
        actions = make_action_pipeline(config, action_space, offers)
        observations = make_observation_pipeline(
            config,
            whole if model is None else model.get_plain_space(whole),
            actions.module_space,
            offers,
        )
    module = make_module(config, observations, actions)
    planner = None if isinstance(module, ParameterFreeModule) else config.get_planner()
    step = PolicyStep(module=module, obs_pipeline=observations, action_pipeline=actions)
    if model is not None:
        step = add_search(step, model, whole, planner)
    elif planner is not None:
        step = search_latents(step, planner)
    if config.is_trained and not config.in_evaluation:
        check_learner_class(config)
        check_module_class(config, step.module)
    return step.fit(observation_space)


def check_module_class(config: "Config", module: RLModule) -> None:
    """Raise if the module is none of those that the learner trains, which its field `module` names.

    Raises:
        ModuleError: If it is not.
    """
    fields = {field.name: field.type for field in dataclasses.fields(config.get_learner_class())}
    trained = fields["module"]
    if isinstance(trained, type) and not isinstance(module, trained):
        raise ModuleError(
            f"module_class={type(module).__name__} is no subclass of {trained.__module__}."
            f"{trained.__name__}, which {config.algo_name} trains: subclass it, or leave it out."
        )


def search_latents(step: PolicyStepT, search: Search | None) -> PolicyStepT:
    """Return a policy that acts by search in the model that it has learned, or without search.

    Args:
        step: Policy of a `LatentModule`, with or without search.
        search: Settings of the search; None for none.

    Raises:
        ModuleError: If it is a policy of another module.
    """
    module = step.module.inner if isinstance(step.module, Planner) else step.module
    if search is not None:
        if not isinstance(module, LatentModule):
            raise ModuleError(
                f"MuZero searches in the model of a LatentModule, got a {type(module).__name__}: subclass "
                "it, or use AlphaZero, which searches in the environment."
            )
        seen = step.obs_pipeline.spaces[-1]
        module = LatentPlanner(inner=module, search=search, observation_space=seen)
    return dataclasses.replace(step, module=module)


def add_search(
    step: PolicyStepT, model: EnvModel, space: gymnasium.Space[Any], search: Search | None
) -> PolicyStepT:
    """Return a policy that acts on observations with the state, by search or by its network alone.

    Args:
        step: Policy that acts on observations without the state, or by search.
        model: Model of the environment.
        space: Observation space with the state.
        search: Settings of the search; None for none.

    Raises:
        ConfigError: If a connector has a memory, of which an imagined step knows nothing.
    """
    module, own = step.module, step.obs_pipeline
    if isinstance(own, StatePipeline):
        own = own.own
    if isinstance(module, Planner):
        module = module.inner
    pipeline = StatePipeline(
        connectors=own.connectors,
        space=space,
        own=own,
        get_plain=model.get_plain,
        keeps_state=search is not None,
    )
    if search is not None and own.temporal:
        raise ConfigError(
            f"The connector {own.temporal[0].name!r} joins an observation with what came before, "
            "which search does not know of the steps that it imagines: leave it out, and previous "
            "actions, rewards and frames as well."
        )
    if search is not None:
        seen = pipeline.spaces[-1]
        module = Planner(inner=module, search=search, model=model, observation_space=seen)
    return dataclasses.replace(step, module=module, obs_pipeline=pipeline, absent=None)


def make_vector_env(settings: EnvironmentSettings, made: MadeEnv) -> VectorEnv:
    """Make the vector of JAX environments."""
    mode = made.env.reset_mode if settings.reset_mode == "auto" else settings.reset_mode
    is_checked = not settings.disable_env_checking
    return VectorEnv(made.env, mode, obs_space=made.spaces[0] if is_checked else None)
