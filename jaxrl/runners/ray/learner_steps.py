"""Steps of a training step of one's own, on learners in processes of their own."""

import weakref
from collections.abc import Sequence
from typing import Any, Protocol

from jaxrl.runners.fragment import Fragment
from jaxrl.runtime.program import Program
from jaxrl.training.report import TrainReport


class StepCalls(Protocol):
    """Calls of all learners at the same time."""

    def call_step(self, method: str, *args: object) -> Any:
        """Call a method that changes the state; return the first learner's result."""
        ...

    def call_with_columns(
        self, method: str, fragments: Sequence[Fragment], *args: object
    ) -> TrainReport:
        """Call a method with each learner's columns of a batch."""
        ...


class RemoteBatch:
    """Batch that the learners hold under a number, until this object is gone."""

    def __init__(self, number: int) -> None:
        self.number = number


class RemoteLearnerSteps:
    """Steps of remote learners; a batch stays with them.

    Args:
        calls: Calls of the learners.
    """

    def __init__(self, calls: StepCalls) -> None:
        self._calls: weakref.ref[StepCalls] = weakref.ref(calls)
        self._num_batches = 0
        self._unused: list[int] = []
        """Numbers of batches that are gone here; the learners forget them with the next one."""

    @property
    def programs(self) -> list[Program]:
        """Empty; the learners compile in their own processes."""
        return []

    def sample(self) -> tuple[RemoteBatch, TrainReport]:
        batch = self._make_batch()
        return batch, self._get_calls().call_step("step_sample", batch.number)

    def receive(self, fragments: Sequence[Fragment]) -> tuple[RemoteBatch, TrainReport]:
        batch = self._make_batch()
        return batch, self._get_calls().call_with_columns("step_receive", fragments, batch.number)

    def add_to_buffer(self, batch: RemoteBatch) -> None:
        self._get_calls().call_step("step_add_to_buffer", batch.number)

    def update(self, batch: RemoteBatch | None, num_updates: int | None) -> TrainReport:
        number = None if batch is None else batch.number
        return self._get_calls().call_step("step_update", number, num_updates)

    def release_behaviour(self) -> None:
        self._release(behaviour=True)

    def _get_calls(self) -> StepCalls:
        calls = self._calls()
        assert calls is not None
        return calls

    def _make_batch(self) -> RemoteBatch:
        if self._unused:
            self._release(behaviour=False)
        self._num_batches += 1
        batch = RemoteBatch(self._num_batches)
        weakref.finalize(batch, self._unused.append, batch.number).atexit = False
        return batch

    def _release(self, *, behaviour: bool) -> None:
        numbers = list(self._unused)
        del self._unused[: len(numbers)]
        self._get_calls().call_step("step_release", numbers, behaviour)
