"""Steps of a training step of one's own, on the state of a learner group."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from jaxrl.core.struct import replace
from jaxrl.runners.fragment import Fragment, to_devices
from jaxrl.runners.host_memory import HostMemory
from jaxrl.runtime.program import Program
from jaxrl.training.data_flow import take_behaviour
from jaxrl.training.report import StepReports, TrainReport
from jaxrl.training.sharding import StepPrograms
from jaxrl.training.train_state import RolloutBatch, TrainState

if TYPE_CHECKING:
    from jaxrl.runners.ray.learner_group import RemoteBatch

StepBatch: TypeAlias = "RolloutBatch | RemoteBatch"
"""Batch of `LearnerSteps.sample` or `receive`: arrays in this process, or a number elsewhere."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepResult:
    """Result of one step of a training step.

    `pending` is the learners' handle to its report. `num_env_steps` is None until that is fetched;
    `num_unreported_episodes` is that of `DispatchResult`.
    """

    pending: StepReports | TrainReport
    num_env_steps: int | None = None
    num_unreported_episodes: int = 0

    def count_env_steps(self) -> int:
        """Return the number of sampled environment steps."""
        return self.pending.count_env_steps() if self.num_env_steps is None else self.num_env_steps


class LearnerSteps(Protocol):
    """Steps that learners offer; `pending` results are handles of reports, see `LearnerGroup`."""

    @property
    def programs(self) -> list[Program]:
        """Programs compiled in this process."""
        ...

    def sample(self) -> tuple[Any, Any]:
        """Sample one train batch in the compiled program; return the batch and its report."""
        ...

    def receive(self, fragments: Sequence[Fragment]) -> tuple[Any, Any]:
        """Receive the fragments of one train batch; return the batch and its report."""
        ...

    def add_to_buffer(self, batch: Any) -> None:
        """Add a batch to the buffer."""
        ...

    def update(self, batch: Any, num_updates: int | None) -> StepReports | TrainReport:
        """Update from a batch, or from the buffer if it is None; return the report."""
        ...

    def release_behaviour(self) -> None:
        """Act with the learner's own weights from the next `sample` on."""
        ...


class LocalLearnerSteps:
    """Steps of learners in this process.

    Args:
        programs: Programs of the steps.
        get_state: Function that returns the current state.
        set_state: Function that replaces it by one that training has led to.
        devices: Devices of the learner.
    """

    def __init__(
        self,
        programs: StepPrograms,
        get_state: Callable[[], TrainState],
        set_state: Callable[[TrainState], None],
        devices: Sequence[Any],
    ) -> None:
        self._programs, self._devices = programs, devices
        self._get_state, self._set_state = get_state, set_state

    @property
    def programs(self) -> list[Program]:
        return self._programs.programs

    def sample(self) -> tuple[RolloutBatch, StepReports]:
        state, batch, row = self._programs.sample(self._get_state())
        self._set_state(state)
        return batch, StepReports(rows=(row,))

    def receive(self, fragments: Sequence[Fragment]) -> tuple[RolloutBatch, StepReports]:
        data = to_devices(fragments, self._devices)
        state, batch, row = self._programs.receive(self._get_state(), data)
        self._set_state(state)
        return batch, StepReports(rows=(row,))

    def add_to_buffer(self, batch: RolloutBatch) -> None:
        self._set_state(self._programs.add_to_buffer(self._get_state(), batch))

    def update(self, batch: RolloutBatch | None, num_updates: int | None) -> StepReports:
        state, row = self._programs.update(self._get_state(), batch, num_updates)
        self._set_state(state)
        return StepReports(rows=(row,))

    def release_behaviour(self) -> None:
        self._set_state(take_behaviour(self._get_state(), None))


class HostMemorySteps(LocalLearnerSteps):
    """Steps of learners in this process whose replay buffer is in host memory.

    Args:
        programs: See `LocalLearnerSteps`, as are the next three.
        get_state: Function that returns the current state.
        set_state: Function that replaces it by one that training has led to.
        devices: Devices of the learner.
        memory: Replay buffer.
    """

    def __init__(
        self,
        programs: StepPrograms,
        get_state: Callable[[], TrainState],
        set_state: Callable[[TrainState], None],
        devices: Sequence[Any],
        memory: HostMemory,
    ) -> None:
        super().__init__(programs, get_state, set_state, devices)
        self._memory = memory

    def receive(self, fragments: Sequence[Fragment]) -> tuple[RolloutBatch, StepReports]:
        data, state = to_devices(fragments, self._devices), self._get_state()
        after, batch, row = self._programs.receive(replace(state, buffer=()), data)
        self._set_state(replace(after, buffer=state.buffer))
        return batch, StepReports(rows=(row,))

    def add_to_buffer(self, batch: RolloutBatch) -> None:
        state = self._get_state()
        self._set_state(replace(state, buffer=self._memory.add(state, batch)))

    def update(self, batch: RolloutBatch | None, num_updates: int | None) -> StepReports:
        del batch  # rows come from the buffer
        state = self._get_state()
        buffer, indices, rows = self._memory.sample(state, num_updates)
        after, row, errors = self._programs.update_on_presampled(replace(state, buffer=()), rows)
        buffer = self._memory.update_priorities(buffer, indices, errors, rows.is_ready)
        self._set_state(replace(after, buffer=buffer))
        return StepReports(rows=(row,))
