"""Training on a replay buffer and on recorded data: every gradient step has rows of both."""

import dataclasses
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrl.buffers.dataset import Dataset, DatasetSampler, DatasetSource
from jaxrl.buffers.replay import Priorities, ReplayState, SampledIndices
from jaxrl.buffers.sequence import AnyReplayBuffer
from jaxrl.core.struct import replace
from jaxrl.core.types import IS_RECORDED, Key, Progress, PyTree, Transition
from jaxrl.training.in_graph import InGraphRunner
from jaxrl.training.replay_updates import BufferSource
from jaxrl.training.train_state import TrainState
from jaxrl.training.train_step import TrainStep


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MixedSource:
    """Rows of the buffer and of the dataset; the memory is the buffer's priorities.

    Each shard has its rows of the buffer, followed by those of the dataset, so that the place of a
    row does not depend on the number of devices. The extra `IS_RECORDED` of each row is 1 if it is
    of the dataset, else 0.
    """

    buffer: BufferSource
    recorded: DatasetSource

    @property
    def num_shards(self) -> int:
        """Number of logical shards of this device."""
        axis_name, total = self.recorded.axis_name, self.recorded.sampler.num_shards
        return total if axis_name is None else total // jax.lax.axis_size(axis_name)

    def init_state(self) -> Priorities | None:
        return self.buffer.init_state()

    def sample_rows(
        self,
        source_state: Priorities | None,
        step: Int[Array, ""],
        gamma: Float[Array, ""],
        key: Key,
    ) -> tuple[SampledIndices, Transition]:
        buffer_key, recorded_key = jax.random.split(key)
        drawn, sampled = self.buffer.sample_rows(source_state, step, gamma, buffer_key)
        _, recorded = self.recorded.sample_rows(None, step, gamma, recorded_key)
        shards = self.num_shards

        def join(x: Array, y: Array) -> Array:
            rows = [part.reshape(shards, -1, *x.shape[1:]) for part in (x, y.astype(x.dtype))]
            return jnp.concatenate(rows, axis=1).reshape(-1, *x.shape[1:])

        return drawn, jax.tree.map(join, _mark(sampled, 0.0), _mark(recorded, 1.0))

    def record_td_error(
        self,
        source_state: Priorities | None,
        step: Int[Array, ""],
        indices: SampledIndices,
        td_error: Float[Array, " N"],
    ) -> Priorities | None:
        sampler, shards = self.recorded.sampler, self.num_shards
        by_shard = td_error.reshape(shards, -1)
        num_sampled = by_shard.shape[1] - sampler.batch_size // sampler.num_shards
        of_buffer = by_shard[:, :num_sampled].reshape(-1)
        return self.buffer.record_td_error(source_state, step, indices, of_buffer)


def _mark(rows: Transition, is_recorded: float) -> Transition:
    """Return rows whose only extra is `IS_RECORDED`."""
    return replace(rows, extras={IS_RECORDED: jnp.full_like(rows.weight, is_recorded)})


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MixedTrainStep(TrainStep):
    """Train step whose gradient steps also have rows of a dataset, an argument of the program.

    The batch size of the replay buffer is that of a gradient step, of which `recorded` draws its
    share.
    """

    recorded: DatasetSampler
    data: Dataset | None = None

    def bind(self, data: Dataset) -> Self:
        """Return the train step with a dataset, for `step` and other pure functions."""
        return dataclasses.replace(self, data=data)

    def make_buffer_source(
        self, replay: AnyReplayBuffer, buffer: ReplayState, progress: Progress
    ) -> MixedSource:
        """Return the source of rows for a buffer, given this device's part of it."""
        assert self.data is not None
        num_sampled = replay.rows_per_update - self.recorded.batch_size
        sampled = dataclasses.replace(replay, batch_size=num_sampled)
        recorded = DatasetSource(
            sampler=self.recorded,
            data=self.data,
            position=None,
            returns=None,
            run_key=None,
            axis_name=self.axis_name,
        )
        source = super().make_buffer_source(sampled, buffer, progress)
        assert isinstance(source, BufferSource)
        return MixedSource(buffer=source, recorded=recorded)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MixedRunner(MixedTrainStep, InGraphRunner):
    """In-graph run whose gradient steps also have rows of a dataset."""

    @property
    def program(self) -> Callable[..., tuple[PyTree, ...]]:
        """Function of a dispatch, with the dataset as an argument after the state."""

        def run(state: TrainState, data: Dataset, *numbers: Any) -> tuple[PyTree, ...]:
            bound = self.bind(data)
            if bound.max_recorded_batches:
                return bound.run_recorded(state, *numbers)
            return bound.run_iterations(state, *numbers)

        return run
