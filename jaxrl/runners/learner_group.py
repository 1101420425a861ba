"""Learner groups, which own the TrainState: the interface, and the one in this process."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import jax
import jax.numpy as jnp

from jaxrl.assembly.assemble import Assembly
from jaxrl.core.keys import make_key
from jaxrl.core.struct import replace
from jaxrl.core.types import Device, Key
from jaxrl.errors import ConfigError
from jaxrl.runners.batches import concatenate_fragments, to_devices
from jaxrl.runners.fragment import Fragment, Weights
from jaxrl.runners.host_replay import HostReplay
from jaxrl.runners.learner_steps import LearnerSteps, LocalLearnerSteps
from jaxrl.runtime.program import Program
from jaxrl.training.replay_updates import PresampledBatches
from jaxrl.training.report import TrainReport
from jaxrl.training.rollout import ActorState
from jaxrl.training.sharding import make_train_step_program, state_shardings
from jaxrl.training.step_programs import StepPrograms
from jaxrl.training.train_state import RolloutBatch, Summary, TrainState

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


class LearnerGroup(Protocol):
    """Learners of a run, either in this process or in processes of their own."""

    is_remote: bool

    @property
    def state(self) -> TrainState:
        """Full TrainState; learners in other processes are queried for it on access."""
        ...

    @state.setter
    def state(self, state: TrainState) -> None: ...

    @property
    def generation(self) -> int:
        """Number of times the state was replaced from outside instead of by training."""
        ...

    @property
    def programs(self) -> list[Program]:
        """Programs compiled in this process."""
        ...

    def run_batches(
        self, num_batches: int, on_phase: Callable[[str], None], *, max_iterations: int = 1
    ) -> object:
        """Run train batches of a run whose environments are in the compiled program.

        Args:
            num_batches: Number of train batches.
            on_phase: Function called with the name of each phase.
            max_iterations: Maximum number of equal calls, including this one, that may be computed
                at once because nothing else is expected in between.

        Returns:
            Handle of the computation.
        """
        ...

    def update(self, fragments: Sequence[Fragment], on_phase: Callable[[str], None]) -> object:
        """Train on the fragments of one train batch.

        Args:
            fragments: Fragments recorded by the runners, in the order of the columns.
            on_phase: Function called with the name of each phase.

        Returns:
            Handle of the computation.
        """
        ...

    def wait(self, pending: Any) -> None:
        """Wait for a computation, given its handle."""
        ...

    def fetch_report(self, pending: Sequence[Any]) -> TrainReport:
        """Fetch the report on computations, given their handles."""
        ...

    def get_weights(self, version: int) -> Weights:
        """Return the current actor state, labeled with a version."""
        ...

    @property
    def steps(self) -> LearnerSteps:
        """Steps for a training step of one's own.

        Raises:
            ConfigError: If these learners do not offer them.
        """
        ...

    def foreach_learner(self, fn: Callable[[Any], Any]) -> list[Any]:
        """Call a function on each learner and return the results."""
        ...

    def stop(self) -> None:
        """Release all resources; safe to call more than once."""
        ...


class LocalLearnerGroup:
    """Group of one learner in this process, trained on data of host runners.

    Args:
        config: Config of the run.
        assembly: Pure functions of the run.
        devices: Local devices of the learner.
    """

    is_remote = False

    def __init__(
        self, config: "AlgorithmConfig", assembly: Assembly, devices: list[Device]
    ) -> None:
        self._jit, self._devices = config.debugging_settings.jit, devices
        self._train_step = assembly.train_step
        self._generation = 0
        self._host_memory: HostReplay | None = None
        self._init, self._main, self._state = self._build(config, assembly, devices)
        self._actor = jax.jit(self._copy_actor)
        programs = StepPrograms(
            assembly.train_step,
            devices,
            max_retraces=None,  # a step has one more signature while weights are not synchronized
            jit=self._jit,
            program_cache=assembly.program_cache,
        )
        self._steps = LocalLearnerSteps(
            programs, lambda: self.state, self._set_trained_state, devices
        )

    def _build(
        self, config: "AlgorithmConfig", assembly: Assembly, devices: list[Device]
    ) -> tuple[Program, Program, TrainState]:
        """Create the programs for initialization and training, and the initial state."""
        debugging, total_envs = config.debugging_settings, assembly.plan.total_envs
        has_fixed_shapes = config.env_runners_settings.batch_mode == "truncate_episodes"
        # Complete episodes differ in length, so their fragments have several shapes.
        retraces = debugging.max_retraces if has_fixed_shapes else None
        train_step = assembly.train_step
        if (replay := train_step.host_replay) is not None:
            self._host_memory = HostReplay(
                train_step, replay, devices, max_retraces=retraces, jit=debugging.jit
            )
            main = self._host_memory.train_program
        else:
            main = make_train_step_program(
                train_step,
                devices,
                max_retraces=retraces,
                jit=debugging.jit,
                program_cache=assembly.program_cache,
            )

        def init(key: Key) -> TrainState:
            return train_step.init_without_envs(key, total_envs)

        key = make_key(debugging.run_seed)
        shardings = state_shardings(jax.eval_shape(init, key), devices)
        first = Program(
            "init",
            init,
            out_shardings=shardings,
            program_cache=assembly.program_cache,
            enabled=debugging.jit,
        )
        state = first(key)
        if self._host_memory is not None:
            state = replace(state, buffer=self._host_memory.init_buffer(state))
        return first, main, state

    @property
    def state(self) -> TrainState:
        return self._state

    @state.setter
    def state(self, state: TrainState) -> None:
        self._state = state
        self._generation += 1

    def _set_trained_state(self, state: TrainState) -> None:
        """Replace the state by one that training has led to."""
        self._state = state

    @property
    def generation(self) -> int:
        return self._generation

    @property
    def steps(self) -> LearnerSteps:
        if self._host_memory is not None:
            raise ConfigError(
                "replay_buffer_config['storage']='host' cannot be used by a training_step of one's "
                "own yet; leave it out, so that the buffer is on the learner's devices."
            )
        return self._steps

    @property
    def programs(self) -> list[Program]:
        main = [self._main] if self._host_memory is None else self._host_memory.programs
        return [self._init, *main, *self._steps.programs]

    def run_batches(
        self, num_batches: int, on_phase: Callable[[str], None], *, max_iterations: int = 1
    ) -> object:
        """Raise; the environments are stepped by host runners."""
        raise NotImplementedError("This learner is only trained on fragments of host runners.")

    def update(self, fragments: Sequence[Fragment], on_phase: Callable[[str], None]) -> Summary:
        if self._host_memory is not None:
            data = to_devices(fragments, self._devices)
            return self._learn_with_host_memory(self._host_memory, data, on_phase)
        # A single device receives the arrays with the call: placing each one would double its cost.
        is_single = self._jit and len(self._devices) == 1
        data = (
            concatenate_fragments(fragments) if is_single else to_devices(fragments, self._devices)
        )
        self._state, summary = self._dispatch(self._state, data, on_phase=on_phase)
        return summary

    def _learn_with_host_memory(
        self, memory: HostReplay, data: RolloutBatch, on_phase: Callable[[str], None]
    ) -> Summary:
        """Train on one train batch, with the replay buffer in host memory."""
        if self._jit and not self._main.compile_stats:
            on_phase("compiling")
        buffer, drawn, dealt = memory.sample_batches(self._state, data)
        self._state, ready = replace(self._state, buffer=buffer), dealt.is_ready
        state, summary, errors = self._dispatch(
            replace(self._state, buffer=()), data, dealt, on_phase=on_phase
        )
        self._state = replace(state, buffer=buffer)
        self._state = replace(state, buffer=memory.update_priorities(buffer, drawn, errors, ready))
        return summary

    def _dispatch(
        self,
        state: TrainState,
        *arguments: RolloutBatch | PresampledBatches,
        on_phase: Callable[[str], None],
    ) -> tuple[Any, ...]:
        if self._jit and not self._main.compile_stats:
            on_phase("compiling")
        compiled = self._main.get_executable(state, *arguments)
        on_phase("training")
        return compiled(state, *arguments)

    def wait(self, pending: Summary) -> None:
        jax.block_until_ready(pending.train_batches)

    def fetch_report(self, pending: Sequence[Any]) -> TrainReport:
        return TrainReport.fetch(self._state, pending)

    def get_weights(self, version: int) -> Weights:
        return Weights(version=version, actor=self._actor(prune_for_acting(self._state)))

    def _copy_actor(self, state: TrainState) -> ActorState:
        """Return a copy of the actor, since the memory of the state is donated to the next one."""
        return jax.tree.map(
            lambda leaf: jnp.array(leaf, leaf.dtype), self._train_step.make_actor_state(state)
        )

    def foreach_learner(self, fn: Callable[[Any], Any]) -> list[Any]:
        return [fn(self)]

    def stop(self) -> None:
        """Do nothing; there are no resources to release."""


def prune_for_acting(state: TrainState) -> TrainState:
    """Return the state without the parts that acting does not need, which may be large."""
    empty = ()
    return replace(
        state, buffer=empty, ring=empty, faults=empty, guard=empty, env=empty, carry=empty
    )
