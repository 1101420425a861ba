"""Training steps of one's own: sample, add to a buffer, update and synchronize weights.

The same steps are pure functions inside the compiled program (`TracedDataFlow`) and programs of
their own outside of it (`runners.data_flow`).
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Metrics, Progress, PyTree
from jaxrl.errors import ConfigError
from jaxrl.training.replay_updates import PresampledBatches
from jaxrl.training.train_state import (
    RolloutBatch,
    Summary,
    TrainState,
    add_sampled,
    add_updates,
    count_updates_between,
    empty_summary,
)

if TYPE_CHECKING:
    from jaxrl.training.in_graph import InGraphRunner
    from jaxrl.training.train_step import TrainStep


class DataFlow(Protocol):
    """Steps that a training step is made of.

    On every placement, environments act with the weights of the latest `sync_weights`.
    """

    @property
    def progress(self) -> Progress:
        """Counters of the run: `env_steps`, `updates` and `train_batches`."""
        ...

    def sample(self) -> Any:
        """Sample one train batch in the environments and return it."""
        ...

    def add_to_buffer(self, batch: Any) -> None:
        """Add a sampled batch to the replay buffer, or the circular buffer of train batches."""
        ...

    def update(self, batch: Any = None, *, num_updates: int | None = None) -> Mapping[str, Any]:
        """Update the learner and return the metrics of the updates.

        Args:
            batch: Sampled batch to learn from; None if the algorithm draws from a buffer.
            num_updates: Number of gradient steps on rows of a replay buffer; None for the number
                that `training_intensity` gives.
        """
        ...

    def sync_weights(self) -> None:
        """Act with the learner's weights from the next sample on."""
        ...

    def repeat(self, times: int | Int[Array, ""], body: "Callable[[Any], None]") -> None:
        """Call `body` with a data flow a number of times, which may depend on the run's progress.

        Args:
            times: Number of times, possibly traced; 0 or 1 is a condition.
            body: Function that uses the steps of the flow it is given.
        """
        ...


CompiledStep: TypeAlias = Callable[[DataFlow], None]
"""Training step as a function of the flow alone, which can be part of the compiled program."""


def check_use(train_step: "TrainStep", call: str, batch: object, num_updates: int | None) -> None:
    """Check the arguments of `add_to_buffer` or `update`.

    Raises:
        ConfigError: If the algorithm has no use for them, or needs others.
    """
    name = type(train_step.learner).__name__
    if call == "add_to_buffer":
        if not train_step.has_buffer:
            raise ConfigError(
                f"add_to_buffer() needs an algorithm with a buffer, and {name} learns from each "
                "batch as it was sampled: call update(batch)."
            )
        return
    if train_step.has_buffer and batch is not None:
        raise ConfigError(
            f"update(batch) cannot be used with {name}, which draws from its buffer: call "
            "add_to_buffer(batch), then update() without a batch."
        )
    if not train_step.has_buffer and batch is None:
        raise ConfigError(
            f"update() of {name} needs a batch to learn from: update(sample()), for example."
        )
    if num_updates is None:
        return
    if train_step.replay is None:
        raise ConfigError(
            f"num_updates={num_updates!r} counts gradient steps on rows of a replay buffer, and "
            f"{name} has none; num_epochs and minibatch_size set its updates, and update(batch) "
            "may be called several times."
        )
    is_whole = isinstance(num_updates, int) and not isinstance(num_updates, bool)
    if not is_whole or num_updates < 1:
        raise ConfigError(f"num_updates must be a whole number from 1 on, got {num_updates!r}.")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class StepFunctions:
    """Steps of a training step as pure functions of the state.

    Each also returns a summary of what it did.
    """

    train_step: "TrainStep"

    def receive(
        self, state: TrainState, data: RolloutBatch
    ) -> tuple[TrainState, RolloutBatch, Summary]:
        """Receive a batch that host runners recorded."""
        state, batch = self.train_step.receive(state, data)
        return state, batch, add_sampled(_empty_summary(state), data)

    def sample(self, state: TrainState) -> tuple[TrainState, RolloutBatch, Summary]:
        """Step the environments of a compiled program for one batch, and receive it."""
        runner: InGraphRunner = self.train_step  # pyright: ignore[reportAssignmentType]
        return self.receive(*runner.collect(state))

    def add_to_buffer(self, state: TrainState, batch: RolloutBatch) -> TrainState:
        """Add a received batch to the buffer."""
        return self.train_step.add_to_buffer(state, batch)

    def update(
        self, state: TrainState, batch: RolloutBatch | None, num_updates: int | None = None
    ) -> tuple[TrainState, Summary]:
        """Update the learner; acting keeps its weights until they are synchronized."""
        after, metrics = self.train_step.update(state, batch, num_updates)
        return _finish_update(state, after, metrics)

    def update_on_presampled(
        self, state: TrainState, presampled: PresampledBatches
    ) -> tuple[TrainState, Summary, PyTree]:
        """Update the learner from rows that were drawn elsewhere; also return their TD errors."""
        after, metrics, errors = self.train_step.update_on_presampled(state, presampled)
        return *_finish_update(state, after, metrics), errors


def _finish_update(
    before: TrainState, after: TrainState, metrics: Metrics
) -> tuple[TrainState, Summary]:
    """Return the state after an update with the weights that act, and the update's summary."""
    behaviour = before.learner.sgd.params if before.behaviour is None else before.behaviour
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), metrics)
    empty = replace(_empty_summary(before), metrics=zeros)
    summary = add_updates(empty, metrics, count_updates_between(before, after))
    return replace(after, behaviour=behaviour), summary


def _empty_summary(state: TrainState) -> Summary:
    return empty_summary(state.ring.count.shape[0], {})


@pytree
class _RepeatCarry:
    state: TrainState
    summary: Summary


class TracedDataFlow:
    """Data flow inside the compiled program; its values are traced.

    Args:
        runner: Functions of the run.
        state: State before the training step.
        summary: Summary of what has been done before; None for nothing.
    """

    def __init__(
        self, runner: "InGraphRunner", state: TrainState, summary: Summary | None = None
    ) -> None:
        self._functions, self._train_step = StepFunctions(train_step=runner), runner
        self._state = state
        self._summary = _empty_summary(state) if summary is None else summary
        self.has_sampled = self.has_updated = False

    @property
    def progress(self) -> Progress:
        return self._state.progress

    def sample(self) -> RolloutBatch:
        self.has_sampled = True
        self._state, batch, summary = self._functions.sample(self._state)
        self._summary = self._summary.merge(summary)
        return batch

    def add_to_buffer(self, batch: RolloutBatch) -> None:
        check_use(self._train_step, "add_to_buffer", batch, None)
        self._state = self._functions.add_to_buffer(self._state, batch)

    def update(
        self, batch: RolloutBatch | None = None, *, num_updates: int | None = None
    ) -> Metrics:
        check_use(self._train_step, "update", batch, num_updates)
        self.has_updated = True
        self._state, summary = self._functions.update(self._state, batch, num_updates)
        self._summary = self._summary.merge(summary)
        return summary.metrics

    def sync_weights(self) -> None:
        self._state = replace(self._state, behaviour=None)

    def repeat(self, times: int | Int[Array, ""], body: "Callable[[TracedDataFlow], None]") -> None:
        def run(carry: _RepeatCarry) -> _RepeatCarry:
            flow = TracedDataFlow(self._train_step, carry.state, carry.summary)
            body(flow)
            self.has_sampled |= flow.has_sampled
            self.has_updated |= flow.has_updated
            return _RepeatCarry(state=flow._state, summary=flow._summary)

        start = _RepeatCarry(state=self._state, summary=self._summary)
        end = jax.eval_shape(run, start)
        state = keep_behaviour(self._state, is_kept=end.state.behaviour is not None)
        is_released = state.behaviour is not None and end.state.behaviour is None
        names = {name: jnp.zeros(x.shape, x.dtype) for name, x in end.summary.metrics.items()}
        summary = replace(self._summary, metrics={**names, **self._summary.metrics})

        def loop(_: Int[Array, ""], carry: _RepeatCarry) -> _RepeatCarry:
            after = run(carry)
            return replace(after, state=keep_behaviour(after.state, is_kept=is_released))

        carry = _RepeatCarry(state=state, summary=summary)
        done = jax.lax.fori_loop(0, jnp.asarray(times, jnp.int32), loop, carry)
        self._state, self._summary = done.state, done.summary

    def finish(self) -> tuple[TrainState, Summary]:
        """Return the state and the summary after the training step.

        Raises:
            ConfigError: If it neither sampled nor updated.
        """
        if not (self.has_sampled or self.has_updated):
            raise ConfigError(
                "compiled_training_step() neither sampled nor updated anything, so training would "
                "never end: call sample(), update(batch) and sync_weights() of its argument."
            )
        return self._state, replace(self._summary, train_batches=jnp.ones((), jnp.int32))


def keep_behaviour(state: TrainState, *, is_kept: bool) -> TrainState:
    """Return the state with the weights that act in a field of their own, if they are to be kept."""
    if not is_kept or state.behaviour is not None:
        return state
    return replace(state, behaviour=state.learner.sgd.params)
