"""Learner groups, which own the TrainState: the interface, and the one in this process."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.assembly.assemble import Assembly
from jaxrl.buffers.dataset import Dataset
from jaxrl.config.multi_agent import LIVE_SETTINGS
from jaxrl.core.keys import make_key
from jaxrl.core.struct import replace
from jaxrl.core.types import Device, Key, PyTree
from jaxrl.errors import DataError
from jaxrl.runners.fragment import Fragment, Weights, concatenate_fragments, to_devices
from jaxrl.runners.host_memory import HostMemory, UserReplay, make_host_memory
from jaxrl.runners.learner_steps import HostMemorySteps, LearnerSteps, LocalLearnerSteps
from jaxrl.runtime.program import Program
from jaxrl.training.report import StepReports, TrainReport
from jaxrl.training.rollout import ActorState
from jaxrl.training.sharding import StepPrograms, make_train_step_program, state_shardings
from jaxrl.training.train_state import Summary, TrainState

if TYPE_CHECKING:
    from jaxrl.config.config import Config


class LearnerGroup(Protocol):
    """Learners of a run, either in this process or in processes of their own."""

    is_remote: bool

    @property
    def fingerprint(self) -> str | None:
        """Digest of the recorded data that are learned from; None without any."""
        ...

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
    def user_buffer(self) -> UserReplay | None:
        """Replay buffer of a user's own class, which the TrainState does not hold; None without."""
        ...

    @property
    def steps(self) -> LearnerSteps:
        """Steps for a training step of one's own.

        Raises:
            ConfigError: If these learners do not offer them.
        """
        ...

    def foreach_learner(self, func: Callable[[Any], Any]) -> list[Any]:
        """Call a function on each learner and return the results."""
        ...

    def stop(self) -> None:
        """Release all resources; safe to call more than once."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class DeviceDataset:
    """Recorded rows on the devices of a run, whose program has them as an argument.

    Attributes:
        dataset: Recorded rows.
        fingerprint: Digest of the recorded data; None if a run was restored without them.
        missing: Error of data that are missing: such a run cannot be trained.
    """

    dataset: Dataset
    fingerprint: str | None
    missing: DataError | None


class LocalLearnerGroup:
    """Group of one learner in this process, trained on data of host runners.

    Args:
        config: Config of the run.
        assembly: Pure functions of the run.
        devices: Local devices of the learner.
        state: State to continue from; None makes the initial one.
        data: Recorded rows that the program takes; None without.

    Attributes:
        dataset: Recorded rows on the devices; None without.
        fingerprint: Digest of the recorded data; None without, or if a run was restored without them.
        config: Config of the run; `policies_to_train` may be set.
        write_weights: What `set_weights` calls, set by the owner of the state's form.
    """

    is_remote = False

    def __init__(
        self,
        config: "Config",
        assembly: Assembly,
        devices: list[Device],
        state: TrainState | None = None,
        data: DeviceDataset | None = None,
    ) -> None:
        self.dataset: Dataset | None = None if data is None else data.dataset
        self.fingerprint: str | None = None if data is None else data.fingerprint
        self._missing = None if data is None else data.missing
        is_live = config.is_multi_agent and not assembly.is_in_graph
        self.config = config.copy_live(*LIVE_SETTINGS) if is_live else config
        self._jit, self._devices = config.debugging_settings.compiles, devices
        self._train_step = assembly.train_step
        self._generation = 0
        self.write_weights: Callable[[Mapping[str, PyTree]], object] = lambda weights: None
        self._continued = state
        self._host_memory: HostMemory | None = None
        self._inputs: tuple[PyTree, ...] = () if data is None else (data.dataset,)
        self._init, self._main, self._state = self._build(config, assembly, devices)
        self._actor = jax.jit(self._copy_actor)
        programs = StepPrograms(
            assembly.train_step,
            assembly.source,
            devices,
            max_retraces=None,  # a step has one more signature while weights are not synchronized
            jit=self._jit,
            program_cache=assembly.program_cache,
        )
        access = lambda: self.state, self._set_trained_state
        self._steps = (
            LocalLearnerSteps(programs, *access, devices)
            if self._host_memory is None
            else HostMemorySteps(programs, *access, devices, self._host_memory)
        )

    def _build(
        self, config: "Config", assembly: Assembly, devices: list[Device]
    ) -> tuple[Program, Program, TrainState]:
        """Create the programs for initialization and training, and the initial state."""
        debugging, total_envs = config.debugging_settings, assembly.plan.total_envs
        has_fixed_shapes = config.env_runners_settings.batch_mode == "truncate_episodes"
        # Complete episodes differ in length, so their fragments have several shapes.
        retraces = debugging.max_retraces if has_fixed_shapes else None
        train_step = assembly.train_step
        self._host_memory = make_host_memory(
            config, train_step, devices, max_retraces=retraces, jit=debugging.compiles
        )
        main = make_train_step_program(
            train_step,
            devices,
            max_retraces=retraces,
            jit=debugging.compiles,
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
            enabled=debugging.compiles,
        )
        if self._continued is not None:
            state, self._continued = self._continued, None
            return first, main, jax.device_put(state, shardings)
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
        return self._steps

    @property
    def user_buffer(self) -> UserReplay | None:
        return self._host_memory if isinstance(self._host_memory, UserReplay) else None

    @property
    def programs(self) -> list[Program]:
        memory = self._host_memory
        main = [self._main] if memory is None else memory.programs
        return [self._init, *main, *self._steps.programs]

    def _check_data(self) -> None:
        """Raise DataError if there are no data to train on."""
        if self._missing is not None:
            raise self._missing

    def run_batches(
        self, num_batches: int, on_phase: Callable[[str], None], *, max_iterations: int = 1
    ) -> object:
        """Raise; the environments are stepped by host runners."""
        raise NotImplementedError("This learner is only trained on fragments of host runners.")

    def update(
        self, fragments: Sequence[Fragment], on_phase: Callable[[str], None]
    ) -> Summary | StepReports:
        self._check_data()
        if self._host_memory is not None:
            return self._update_in_steps(fragments, on_phase)
        # A single device receives the arrays with the call: placing each one would double its cost.
        is_single = self._jit and len(self._devices) == 1
        data = (
            concatenate_fragments(fragments) if is_single else to_devices(fragments, self._devices)
        )
        self._state, summary = self._dispatch(self._state, data, *self._inputs, on_phase=on_phase)
        return summary

    def _update_in_steps(
        self, fragments: Sequence[Fragment], on_phase: Callable[[str], None]
    ) -> StepReports:
        """Train on one train batch, with the replay buffer in host memory."""
        is_first = self._jit and not self._steps.programs
        on_phase("compiling" if is_first else "training")
        batch, received = self._steps.receive(fragments)
        self._steps.add_to_buffer(batch)
        updated = self._steps.update(None, None)
        self._steps.release_behaviour()
        return StepReports(rows=(*received.rows, *updated.rows))

    def _dispatch(
        self,
        state: TrainState,
        *arguments: PyTree,
        on_phase: Callable[[str], None],
    ) -> tuple[Any, ...]:
        if self._jit and not self._main.compile_stats:
            on_phase("compiling")
        compiled = self._main.get_executable(state, *arguments)
        on_phase("training")
        return compiled(state, *arguments)

    def wait(self, pending: Summary | StepReports) -> None:
        last = pending.rows[-1].summary if isinstance(pending, StepReports) else pending
        jax.block_until_ready(last.updates)

    def fetch_report(self, pending: Sequence[Any]) -> TrainReport:
        report = TrainReport.fetch(self._state, pending)
        if (memory := self.user_buffer) is None:
            return report
        position = np.int32(len(memory.buffer)), None
        return dataclasses.replace(report, latest=replace(report.latest, buffer_position=position))

    def get_weights(self, version: int) -> Weights:
        return Weights(version=version, actor=self._actor(prune_for_acting(self._state)))

    def _copy_actor(self, state: TrainState) -> ActorState:
        """Return a copy of the actor, since the memory of the state is donated to the next one."""
        return jax.tree.map(
            lambda leaf: jnp.array(leaf, leaf.dtype), self._train_step.make_actor_state(state)
        )

    def foreach_learner(
        self, func: Callable[[Any], Any], *, timeout_seconds: float | None = None
    ) -> list[Any]:
        """Call a function on the only learner, in this process, for which no time is too short."""
        del timeout_seconds
        return [func(self)]

    def set_weights(self, weights: Mapping[str, PyTree]) -> None:
        """Replace parameters of modules, as `Algorithm.set_weights` does."""
        self.write_weights(weights)

    def stop(self) -> None:
        """Do nothing; there are no resources to release."""


def prune_for_acting(state: TrainState) -> TrainState:
    """Return the state without the parts that acting does not need, which may be large."""
    empty = ()
    return replace(
        state,
        buffer=empty,
        ring=empty,
        faults=empty,
        guard=empty,
        env=empty,
        carry=empty,
        agents=empty,
        modules={name: prune_for_acting(module) for name, module in state.modules.items()},
    )
