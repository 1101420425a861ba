"""Training steps: sample, add to a buffer, update and synchronize weights.

The same steps are pure functions inside the compiled program (`TracedDataFlow`) and programs of
their own outside of it (`runners.data_flow`).
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, Protocol, Self, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jaxrl.buffers.sequence import AnyReplayBuffer
from jaxrl.core.keys import RunKeys
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Key, Progress, PyTree
from jaxrl.errors import ConfigError
from jaxrl.learners.gradients import select
from jaxrl.training.guard import DivergenceGuard
from jaxrl.training.train_state import RolloutBatch, Summary, TrainState


class DataFlow(Protocol):
    """Steps that a training step is made of.

    On every placement, environments act with the weights of the latest `sync_weights`.
    """

    @property
    def progress(self) -> Progress:
        """Counters of the run: `env_steps`, `updates` and `train_batches`."""
        ...

    def sample(self) -> PyTree:
        """Sample one train batch in the environments and return it."""
        ...

    def add_to_buffer(self, batch: PyTree) -> None:
        """Add a sampled batch to the replay buffer, or the circular buffer of train batches."""
        ...

    def update(self, batch: PyTree = None, *, num_updates: int | None = None) -> Mapping[str, Any]:
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


BatchUse = Literal["required", "optional", "none"]


class Learning(Protocol):
    """Pure functions that a training step consists of, for one module or for several.

    Attributes:
        takes_dataset: Whether `bind` has to be called with recorded data.
        has_buffer: Whether updates draw from a buffer.
        batch_use: Whether an update needs the batch that was sampled, may be given it, or draws from a
            buffer alone.
    """

    takes_dataset: ClassVar[bool]

    @property
    def axis_name(self) -> str | None:
        """Mesh axis that the environments are sharded over, or None."""
        ...

    @property
    def guard(self) -> DivergenceGuard:
        """Guard whose settings say whether non-finite updates end a dispatch."""
        ...

    @property
    def batch_steps(self) -> int:
        """Environment steps of one train batch, over all devices."""
        ...

    @property
    def has_buffer(self) -> bool: ...

    @property
    def batch_use(self) -> BatchUse: ...

    @property
    def learner_name(self) -> str:
        """Name of the learner in messages."""
        ...

    @property
    def has_replay(self) -> bool:
        """True if gradient steps draw rows from a replay buffer."""
        ...

    @property
    def replay(self) -> AnyReplayBuffer | None:
        """Replay buffer of the only module; None without."""
        ...

    @property
    def host_replay(self) -> AnyReplayBuffer | None:
        """Replay buffer in host memory, if there is one."""
        ...

    def bind(self, state: TrainState, *inputs: PyTree) -> Self:
        """Return the functions with recorded data, if they learn from any."""
        ...

    def with_axis(self, axis_name: str) -> Self:
        """Return the functions of one device's part of a mesh."""
        ...

    def map_steps(self, change: Callable[[str, Any], Any]) -> Self:
        """Return the functions with a changed TrainStep of each module, of which a single one is named ''."""
        ...

    def map_batches(
        self, change: Callable[..., TrainState], data: RolloutBatch, *states: TrainState
    ) -> TrainState:
        """Return what a function makes of each module's TrainStep, batch and states."""
        ...

    def init_from_keys(self, keys: RunKeys, total_envs: int) -> TrainState:
        """Return the initial state without environments. Consumes the keys."""
        ...

    def init_without_envs(self, key: Key, total_envs: int) -> TrainState:
        """Return the initial state for runners on the host. Consumes the key."""
        ...

    def make_actor_state(self, state: TrainState) -> PyTree:
        """Return the inputs of acting with the newest weights."""
        ...

    def make_behaviour_actor(self, state: TrainState) -> PyTree:
        """Return the inputs of acting with the weights of the behavior policies."""
        ...

    def receive(self, state: TrainState, data: RolloutBatch) -> tuple[TrainState, Any]:
        """Add a recorded batch to statistics, episodes and counters; return the batch to learn from."""
        ...

    def add_to_buffer(self, state: TrainState, batch: PyTree) -> TrainState:
        """Add a received batch to the buffer."""
        ...

    def update(
        self, state: TrainState, batch: PyTree, num_updates: int | None = None
    ) -> tuple[TrainState, PyTree]:
        """Update the learner from a received batch, or from its buffer; return the metrics, too."""
        ...

    def make_empty_summary(self, state: TrainState) -> Summary:
        """Return the summary of nothing, without metrics."""
        ...

    def add_sampled(self, summary: Summary, data: RolloutBatch) -> Summary:
        """Return a summary with the episodes and steps of one more recorded batch."""
        ...

    def add_updates(
        self, summary: Summary, before: TrainState, after: TrainState, metrics: PyTree
    ) -> Summary:
        """Return a summary with the metrics of the updates between two states."""
        ...


def check_use(learning: Learning, call: str, batch: object, num_updates: int | None) -> None:
    """Check the arguments of `add_to_buffer` or `update`.

    Raises:
        ConfigError: If the algorithm has no use for them, or needs others.
    """
    name = learning.learner_name
    if call == "add_to_buffer":
        if not learning.has_buffer:
            raise ConfigError(
                f"add_to_buffer() needs an algorithm with a buffer, and {name} learns from each "
                "batch as it was sampled: call update(batch)."
            )
        return
    if learning.batch_use == "none" and batch is not None:
        raise ConfigError(
            f"update(batch) cannot be used with {name}, which draws from its buffer: call "
            "add_to_buffer(batch), then update() without a batch."
        )
    if learning.batch_use == "required" and batch is None:
        raise ConfigError(
            f"update() of {name} needs a batch to learn from: update(sample()), for example."
        )
    if num_updates is None:
        return
    if not learning.has_replay:
        raise ConfigError(
            f"num_updates={num_updates!r} counts gradient steps on rows of a replay buffer, and "
            f"{name} has none; num_epochs and minibatch_size set its updates, and update(batch) "
            "may be called several times."
        )
    is_whole = isinstance(num_updates, int) and not isinstance(num_updates, bool)
    if not is_whole or num_updates < 1:
        raise ConfigError(f"num_updates must be a whole number from 1 on, got {num_updates!r}.")


def receive_batch(
    learning: Learning, state: TrainState, data: RolloutBatch
) -> tuple[TrainState, Any, Summary]:
    """Receive a recorded batch; also return its summary."""
    after, batch = learning.receive(state, data)
    return after, batch, learning.add_sampled(learning.make_empty_summary(state), data)


def finish_update(
    learning: Learning, before: TrainState, after: TrainState, metrics: PyTree
) -> tuple[TrainState, Summary]:
    """Return the state after an update, and its summary; the weights that act are those from before."""
    summary = learning.add_updates(learning.make_empty_summary(before), before, after, metrics)
    return take_behaviour(after, keep_behaviour(before, is_kept=True)), summary


@pytree
class _RepeatCarry:
    state: TrainState
    summary: Summary


class TracedDataFlow:
    """Data flow inside the compiled program; its values are traced.

    Args:
        learning: Functions of a training step.
        collect: Function that steps the environments for one batch; None if there are none.
        state: State before the training step.
        summary: Summary of what has been done before; None for nothing.
    """

    def __init__(
        self,
        learning: Learning,
        collect: Callable[[TrainState], tuple[TrainState, RolloutBatch]] | None,
        state: TrainState,
        summary: Summary | None = None,
    ) -> None:
        self._learning, self._collect, self._state = learning, collect, state
        self._summary = learning.make_empty_summary(state) if summary is None else summary
        self.has_sampled = self.has_updated = False
        self.sampled: list[RolloutBatch] = []
        """Batches that were sampled outside of `repeat`, as they were recorded."""

    @property
    def progress(self) -> Progress:
        return self._state.progress

    def sample(self) -> PyTree:
        if self._collect is None:
            raise ConfigError(
                "sample() needs environments, and this run learns from recorded data alone: call "
                "update()."
            )
        sampled, data = self._collect(self._state)
        self.has_sampled = True
        self.sampled.append(data)
        self._state, batch, summary = receive_batch(self._learning, sampled, data)
        self._summary = self._summary.merge(summary)
        return batch

    def add_to_buffer(self, batch: PyTree) -> None:
        check_use(self._learning, "add_to_buffer", batch, None)
        self._state = self._learning.add_to_buffer(self._state, batch)

    def update(self, batch: PyTree = None, *, num_updates: int | None = None) -> PyTree:
        check_use(self._learning, "update", batch, num_updates)
        self.has_updated = True
        updated, metrics = self._learning.update(self._state, batch, num_updates)
        self._state, summary = finish_update(self._learning, self._state, updated, metrics)
        self._summary = self._summary.merge(summary)
        if summary.modules:
            return {m: own.metrics for m, own in summary.modules.items() if own.metrics}
        return summary.metrics

    def sync_weights(self) -> None:
        self._state = take_behaviour(self._state, None)

    def run_default_step(self, weights_interval: int) -> None:
        """Run the training step of every algorithm.

        Args:
            weights_interval: Number of train batches after which acting takes the newest weights.
        """
        batch = None if self._collect is None else self.sample()
        if batch is not None and self._learning.has_buffer:
            self.add_to_buffer(batch)
        self.update(None if self._learning.batch_use == "none" else batch)
        if weights_interval == 1:
            self.sync_weights()
            return
        due = self.progress.train_batches.low % weights_interval == 0
        self._state = _renew_behaviour(self._state, due)

    def repeat(self, times: int | Int[Array, ""], body: "Callable[[TracedDataFlow], None]") -> None:
        def run(carry: _RepeatCarry) -> _RepeatCarry:
            flow = TracedDataFlow(self._learning, self._collect, carry.state, carry.summary)
            body(flow)
            self.has_sampled |= flow.has_sampled
            self.has_updated |= flow.has_updated
            return _RepeatCarry(state=flow._state, summary=flow._summary)

        start = _RepeatCarry(state=self._state, summary=self._summary)
        end = jax.eval_shape(run, start)
        state = keep_behaviour(self._state, is_kept=has_behaviour(end.state))
        is_released = has_behaviour(state) and not has_behaviour(end.state)
        summary = end.summary.make_zeros().merge(self._summary)

        def loop(_: Int[Array, ""], carry: _RepeatCarry) -> _RepeatCarry:
            after = run(carry)
            return replace(after, state=keep_behaviour(after.state, is_kept=is_released))

        carry = _RepeatCarry(state=state, summary=summary)
        done = jax.lax.fori_loop(0, jnp.asarray(times, jnp.int32), loop, carry)
        self._state, self._summary = done.state, done.summary

    def finish(self) -> tuple[TrainState, Summary]:
        """Return the state and the summary after the training step, which counts as one train batch.

        Raises:
            ConfigError: If it neither sampled nor updated.
        """
        if not (self.has_sampled or self.has_updated):
            raise ConfigError(
                "compiled_training_step() neither sampled nor updated anything, so training would "
                "never end: call sample(), update(batch) and sync_weights() of its argument."
            )
        return self._state, self._summary.add_train_batch()


def has_behaviour(state: TrainState) -> bool:
    """Return whether acting has weights of its own, which lag behind the learner's."""
    return state.behaviour is not None or any(map(has_behaviour, state.modules.values()))


def keep_behaviour(state: TrainState, *, is_kept: bool) -> TrainState:
    """Return the state with the weights that act in a field of their own, if they are to be kept."""
    if not is_kept:
        return state
    if state.modules:
        modules = {m: keep_behaviour(own, is_kept=True) for m, own in state.modules.items()}
        return replace(state, modules=modules)
    return (
        state if state.behaviour is not None else replace(state, behaviour=state.learner.sgd.params)
    )


def _renew_behaviour(state: TrainState, due: Bool[Array, ""]) -> TrainState:
    """Return the state whose weights that act are the newest ones, if they are due."""
    if state.modules:
        modules = {m: _renew_behaviour(own, due) for m, own in state.modules.items()}
        return replace(state, modules=modules)
    return replace(state, behaviour=select(due, state.learner.sgd.params, state.behaviour))


def take_behaviour(state: TrainState, source: TrainState | None) -> TrainState:
    """Return the state with another's weights that act; None lets its own newest ones act."""
    if state.modules:
        modules = {
            m: take_behaviour(own, None if source is None else source.modules[m])
            for m, own in state.modules.items()
        }
        return replace(state, modules=modules)
    return replace(state, behaviour=None if source is None else source.behaviour)


def train_on_batch(
    learning: Learning, state: TrainState, data: RolloutBatch
) -> tuple[TrainState, Summary]:
    """Run the training step of every algorithm on a batch that was recorded elsewhere."""
    flow = TracedDataFlow(learning, lambda state: (state, data), state)
    flow.run_default_step(1)
    after, summary = flow.finish()
    return take_behaviour(after, state), summary
