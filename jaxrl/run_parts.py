"""Parts of an Algorithm that differ between a run of its own and a lane of a sweep."""

import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import jax
import numpy as np

from jaxrl.assembly.assemble import Assembly, assemble_run
from jaxrl.assembly.device_trial import DeviceTrials, open_device_trials
from jaxrl.core.types import Device, Key, PyTree
from jaxrl.evaluation.evaluation import Evaluation
from jaxrl.loggers.recorder import RunRecord
from jaxrl.runners.factories import make_learner_group, make_loop
from jaxrl.runners.hooks import RunnerHooks
from jaxrl.runners.learner_group import LearnerGroup, prune_for_acting
from jaxrl.runners.placement import check_memory, choose_devices
from jaxrl.runners.protocols import Loop
from jaxrl.runtime.program import Program
from jaxrl.training.rollout import ActorState
from jaxrl.training.train_state import TrainState

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


class ActingState(Protocol):
    """Source of the state that acting and evaluation need."""

    @property
    def programs(self) -> list[Program]:
        """Programs compiled for it."""
        ...

    def fetch(self) -> tuple[ActorState, PyTree]:
        """Return the actor state and the environment parameters, on one device."""
        ...

    def get_actor_state(self) -> ActorState:
        """Return the actor state, which is the same object until training changes it."""
        ...


class OwnActingState:
    """Acting state of a run, extracted from the state of its learners.

    Args:
        assembly: Functions of the run.
        learners: Learners that own the state.
        num_devices: Number of devices of the run.
        jit: Whether to compile.
    """

    def __init__(
        self, assembly: Assembly, learners: LearnerGroup, num_devices: int, *, jit: bool
    ) -> None:
        self._learners, self._num_devices = learners, num_devices
        self._program = assembly.make_actor_program(jit)
        self._cache: tuple[weakref.ref[TrainState], ActorState] | None = None
        """Actor of a TrainState, cached by identity since states are replaced and never mutated."""

    @property
    def programs(self) -> list[Program]:
        return [self._program]

    def fetch(self) -> tuple[ActorState, PyTree]:
        return self._extract(self._learners.state)

    def get_actor_state(self) -> ActorState:
        state = self._learners.state
        if self._cache is None or self._cache[0]() is not state:
            self._cache = weakref.ref(state), self._extract(state)[0]
        return self._cache[1]

    def _extract(self, state: TrainState) -> tuple[ActorState, PyTree]:
        acting = self._program(prune_for_acting(state)), state.env_params
        if self._num_devices == 1:
            return acting
        return jax.tree.map(lambda leaf: leaf.addressable_data(0), acting)


class RunParts(Protocol):
    """Factory of the parts of an Algorithm that depend on who owns its programs and its state.

    Attributes:
        shared: Objects by name that all runs of one program share.
    """

    shared: dict[str, Any]

    def open_device_trials(self, config: "AlgorithmConfig") -> DeviceTrials:
        """Return the trials that decide about devices and microbatches."""
        ...

    def assemble(
        self, config: "AlgorithmConfig", trials: DeviceTrials, *, should_train: bool
    ) -> tuple[Assembly, list[Device], str]:
        """Return the run's functions, its devices and the reason for choosing them."""
        ...

    def make_evaluation(
        self,
        config: "AlgorithmConfig",
        assembly: Assembly,
        hooks: RunnerHooks,
        make_key: Callable[[int], Key],
    ) -> Evaluation:
        """Make the evaluation.

        Args:
            config: Config of the run.
            assembly: Functions of the run.
            hooks: Callbacks of host runners.
            make_key: Function from an iteration to the key of its evaluation.
        """
        ...

    def make_learner_group(
        self, config: "AlgorithmConfig", assembly: Assembly, devices: list[Device]
    ) -> LearnerGroup:
        """Make the learners."""
        ...

    def make_loop(
        self,
        config: "AlgorithmConfig",
        assembly: Assembly,
        learners: LearnerGroup,
        callbacks: RunnerHooks,
        algorithm: object,
    ) -> Loop:
        """Make the training loop."""
        ...

    def make_acting_state(
        self,
        config: "AlgorithmConfig",
        assembly: Assembly,
        learners: LearnerGroup,
        devices: list[Device],
    ) -> ActingState:
        """Make the source of the state that acting needs."""
        ...

    def attach(self, record: RunRecord, load: "LoadLeaves") -> None:
        """Accept what only the owner of the parts may change in the run.

        Args:
            record: Record of the run.
            load: Function that restores a checkpoint whose leaves have been read.
        """
        ...


class LoadLeaves(Protocol):
    """Function that restores a checkpoint whose leaves have been read, and calls the hook for it.

    Its arguments are the checkpoint's path, its metadata, and its leaves.
    """

    def __call__(
        self, found: Path, metadata: dict[str, Any], leaves: Mapping[str, np.ndarray], /
    ) -> None: ...


class OwnRunParts:
    """Parts of a run with programs and a state of its own."""

    def __init__(self) -> None:
        self.shared: dict[str, Any] = {}

    def open_device_trials(self, config: "AlgorithmConfig") -> DeviceTrials:
        return open_device_trials(config)

    def assemble(
        self, config: "AlgorithmConfig", trials: DeviceTrials, *, should_train: bool
    ) -> tuple[Assembly, list[Device], str]:
        assembly = assemble_run(config, should_train=should_train)
        devices, why = choose_devices(
            config.learners_settings,
            assembly.plan,
            config.preferred_devices,
            is_in_graph=assembly.is_in_graph,
            compiles=config.debugging_settings.compiles,
            trials=trials,
        )
        check_memory(assembly, devices)
        return assembly, devices, why

    def make_evaluation(
        self,
        config: "AlgorithmConfig",
        assembly: Assembly,
        hooks: RunnerHooks,
        make_key: Callable[[int], Key],
    ) -> Evaluation:
        del make_key  # the key is part of each evaluation's inputs
        return Evaluation(config, assembly, hooks)

    def make_learner_group(
        self, config: "AlgorithmConfig", assembly: Assembly, devices: list[Device]
    ) -> LearnerGroup:
        return make_learner_group(config, assembly, devices)

    def make_loop(
        self,
        config: "AlgorithmConfig",
        assembly: Assembly,
        learners: LearnerGroup,
        callbacks: RunnerHooks,
        algorithm: object,
    ) -> Loop:
        return make_loop(config, assembly, learners, callbacks, algorithm)

    def make_acting_state(
        self,
        config: "AlgorithmConfig",
        assembly: Assembly,
        learners: LearnerGroup,
        devices: list[Device],
    ) -> ActingState:
        jit = config.debugging_settings.compiles
        return OwnActingState(assembly, learners, len(devices), jit=jit)

    def attach(self, record: RunRecord, load: LoadLeaves) -> None:
        """Do nothing: nobody else owns the parts."""
