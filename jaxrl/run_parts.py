"""Parts of an Algorithm that differ between a run of its own and a lane of a sweep."""

import dataclasses
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

from jaxrl.assembly.assemble import Assembly
from jaxrl.core.types import Device, Key, PyTree
from jaxrl.evaluation.compiled import CompiledEvaluation, JaxEvaluation
from jaxrl.loggers.recorder import RunRecord
from jaxrl.runners.in_graph_loop import DispatchStrategy
from jaxrl.runners.learner_group import LearnerGroup, prune_for_acting
from jaxrl.runners.protocols import Loop
from jaxrl.runtime.program import Program
from jaxrl.training.rollout import ActorState
from jaxrl.training.train_state import TrainState


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
        learners: Learners that own the state.
        program: Program that extracts the inputs of acting from a state.
        num_devices: Number of devices of the run.
    """

    def __init__(self, learners: LearnerGroup, program: Program, num_devices: int) -> None:
        self._learners, self._program, self._num_devices = learners, program, num_devices
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


class LoadLeaves(Protocol):
    """Function that restores a checkpoint whose leaves have been read, and calls the hook for it.

    Its arguments are the checkpoint's path, its metadata, and its leaves.
    """

    def __call__(
        self, found: Path, metadata: dict[str, Any], leaves: Mapping[str, np.ndarray], /
    ) -> None: ...


class MakeCompiledEvaluation(Protocol):
    """Function that makes the evaluation of a run whose program others share.

    Its arguments are a function from an iteration to its key, and the functions of the evaluation.
    """

    def __call__(
        self, make_key: Callable[[int], Key], evaluation: JaxEvaluation, /
    ) -> CompiledEvaluation: ...


class AttachRun(Protocol):
    """Function that accepts what only the owner of the parts may change in the run.

    Its arguments are the run's record, its loop, and the function that restores a checkpoint.
    """

    def __call__(self, record: RunRecord, loop: Loop, load: LoadLeaves, /) -> None: ...


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class SharedParts:
    """Parts of an Algorithm whose program and state are those of a group of runs.

    Attributes:
        assembly: Functions of the run.
        devices: Devices of the run.
        placement_reason: Sentence on why it has these.
        learners: Learners of the run.
        dispatches: Dispatches of the group, as the run consumes them.
        acting: Source of the state that acting and evaluation need.
        make_evaluation: See `MakeCompiledEvaluation`.
        attach: See `AttachRun`.
        objects: Objects by name that all runs of one program share.
    """

    assembly: Assembly
    devices: list[Device]
    placement_reason: str
    learners: LearnerGroup
    dispatches: DispatchStrategy
    acting: ActingState
    make_evaluation: MakeCompiledEvaluation
    attach: AttachRun
    objects: dict[str, Any]
