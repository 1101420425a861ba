"""Training on recorded data, alone or beside a replay buffer, as one compiled program."""

import dataclasses
from typing import ClassVar, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from jaxrl.buffers.dataset import (
    Dataset,
    DatasetExtent,
    DatasetPosition,
    DatasetSampler,
    DatasetSource,
    DrawnRows,
    PickedRows,
    compute_returns_to_go,
    fold_rows,
    take_step,
)
from jaxrl.buffers.replay import Priorities, ReplayState, SampledIndices
from jaxrl.buffers.sequence import AnyReplayBuffer
from jaxrl.core.hparams import current_values
from jaxrl.core.keys import RunKeys
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import (
    IS_RECORDED,
    Key,
    Metrics,
    Progress,
    PyTree,
    Transition,
    strip_weak_types,
)
from jaxrl.training.replay_updates import BatchSource, BufferSource, ReplayUpdates, split_step_key
from jaxrl.training.train_state import (
    RolloutBatch,
    TrainState,
    apply_update,
    get_learner_progress,
)
from jaxrl.training.train_step import TrainStep


@pytree
class BatchRows:
    """Rows of all gradient steps of a train batch, `[U, N, ...]`, that were picked elsewhere.

    `position` is the position in the epochs after them; None if draws are independent of each other.
    """

    picked: PickedRows
    position: DatasetPosition | None

    def init_state(self) -> DatasetPosition | None:
        return self.position

    def sample_rows(
        self,
        source_state: DatasetPosition | None,
        step: Int[Array, ""],
        gamma: Float[Array, ""],
        key: Key,
    ) -> tuple[None, Transition]:
        del source_state, key
        return None, fold_rows(take_step(self.picked, step), gamma)

    def record_td_error(
        self,
        source_state: DatasetPosition | None,
        step: Int[Array, ""],
        indices: None,
        td_error: Float[Array, " N *L"],
    ) -> DatasetPosition | None:
        del step, indices, td_error
        return source_state


@pytree
class BatchDraws:
    """Draws of all gradient steps of a train batch `[U, N]`, and the position after them."""

    drawn: DrawnRows
    max_steps: Int[Array, "U N"]
    position: DatasetPosition | None


def draw_batch(
    sampler: DatasetSampler,
    extent: DatasetExtent,
    position: DatasetPosition | None,
    run_key: Key,
    train_batches: UInt32[Array, ""],
) -> BatchDraws:
    """Draw the rows of a train batch of all devices, the same as a program with the dataset draws.

    Args:
        sampler: Draws of the run.
        extent: Extent of the dataset.
        position: Position in the epochs before the train batch; None to draw with replacement.
        run_key: Key of the run.
        train_batches: Number of train batches before this one.
    """
    batch_key = jax.random.fold_in(run_key, train_batches)

    def draw(
        position: DatasetPosition | None, step: Int[Array, ""]
    ) -> tuple[DatasetPosition | None, tuple[DrawnRows, Int[Array, " N"]]]:
        row_key, _ = split_step_key(batch_key, step)
        draw_key, fold_key = jax.random.split(row_key)
        drawn = sampler.draw(extent, position, draw_key, run_key)
        return sampler.advance(extent, position), (drawn, sampler.draw_max_steps(fold_key))

    steps = jnp.arange(sampler.num_updates, dtype=jnp.int32)
    after, (drawn, max_steps) = jax.lax.scan(draw, position, steps)
    return BatchDraws(drawn=drawn, max_steps=max_steps, position=after)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class OfflineTrainStep(TrainStep):
    """Train step of a run that learns from a dataset and steps no environment.

    A train batch is `experience.num_updates` gradient steps. `progress.env_steps`, the time of
    schedules, counts the rows trained on. The dataset is an argument of the program: it is bound
    while the program is traced, or the rows of one train batch are.
    """

    takes_dataset: ClassVar[bool] = True
    experience: DatasetSampler
    data: Dataset | None = None
    returns: Float[Array, " N"] | None = None
    rows: BatchRows | None = None

    def init_from_data(self, keys: RunKeys, data: Dataset) -> TrainState:
        """Return the initial state, with the connectors' statistics of the data."""
        return self.init_with(keys, self.compute_statistics(data))

    def init_with(self, keys: RunKeys, statistics: PyTree) -> TrainState:
        """Return the initial state, given the connectors' statistics."""
        state = self.init_from_keys(keys, self.num_envs)
        position = self.experience.init_position()
        return strip_weak_types(
            replace(
                state,
                connectors=replace(state.connectors, obs=statistics),
                buffer=() if position is None else position,
            )
        )

    def bind(self, state: TrainState, *inputs: Dataset) -> Self:
        """Return the functions with a dataset, and with the returns of its rows if they are needed."""
        (data,), returns = inputs, None
        if self.experience.needs_returns:
            values = current_values(state.learner.hparams, state.progress)
            returns = compute_returns_to_go(data, values["gamma"])
        return dataclasses.replace(self, data=data, returns=returns)

    @property
    def has_buffer(self) -> bool:
        """True: updates draw from the dataset."""
        return True

    @property
    def has_replay(self) -> bool:
        """True: gradient steps draw rows."""
        return True

    def update(
        self,
        state: TrainState,
        batch: RolloutBatch | None,
        num_updates: int | None = None,
        should_update: Bool[Array, ""] | None = None,
    ) -> tuple[TrainState, Metrics]:
        """Take the gradient steps of one train batch on rows of the bound dataset, or on the bound rows."""
        del batch
        sampler = self.experience
        number = sampler.num_updates if num_updates is None else num_updates
        updates = ReplayUpdates(
            learner=self.learner,
            policy_step=self.policy_step,
            guard=self.guard,
            num_updates=number,
            axis_name=self.axis_name,
            update_steps=sampler.rows_per_update,
        )
        position, learned, metrics = updates.run(
            self._make_source(state),
            jnp.ones((), jnp.bool_) if should_update is None else should_update,
            state.connectors.obs,
            get_learner_progress(state),
            state.progress,
            self.make_batch_key(state),
        )
        trained = state.progress.env_steps.add(number * sampler.rows_per_update)
        progress = replace(state.progress, env_steps=trained)
        buffer = () if position is None else position
        return apply_update(replace(state, buffer=buffer, progress=progress), learned), metrics

    def _make_source(self, state: TrainState) -> BatchSource:
        if self.rows is not None:
            return self.rows
        assert self.data is not None
        return DatasetSource(
            sampler=self.experience,
            data=self.data,
            position=state.buffer if isinstance(state.buffer, DatasetPosition) else None,
            returns=self.returns,
            run_key=state.key,
            axis_name=self.axis_name,
        )

    @property
    def needs_statistics(self) -> bool:
        """True if observation connectors have statistics, which are those of all rows."""
        return self.policy_step.obs_pipeline.has_statistics

    def compute_statistics(self, data: Dataset) -> PyTree:
        """Return the statistics of the observation connectors over all rows."""
        pipeline = self.policy_step.obs_pipeline
        first = pipeline.init()
        if not self.needs_statistics:
            return first
        if pipeline.temporal:  # the rows have passed the connectors
            return data.statistics
        rows = jnp.arange(data.num_rows, dtype=jnp.int32)
        mask = jnp.ones((data.num_rows,), jnp.bool_)
        obs = data.get_obs(rows)
        found = first
        for _ in range(sum(bool(jax.tree.leaves(state)) for state in first)):
            # One more of the connectors receives what those before it return in the end.
            received = self._list_received(found, obs)
            found = pipeline.update(first, received, mask[:, None], None)
        return found

    def update_statistics(self, before: PyTree, obs: PyTree, mask: Bool[Array, " N"]) -> PyTree:
        """Return the statistics with further observations `[N, ...]`, of which a mask counts."""
        pipeline = self.policy_step.obs_pipeline
        return pipeline.update(before, self._list_received(before, obs), mask[:, None], None)

    def _list_received(self, states: PyTree, obs: PyTree) -> tuple[PyTree, ...]:
        """Return what each connector receives of observations `[N, ...]`, `[N, 1, ...]`."""
        obs = jax.tree.map(lambda x: x[:, None], obs)
        received: list[PyTree] = []
        for connector, state in zip(self.policy_step.obs_pipeline.connectors, states, strict=True):
            received.append(obs)
            obs = connector(state, obs)
        return tuple(received)


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

    takes_dataset: ClassVar[bool] = True
    recorded: DatasetSampler
    data: Dataset | None = None

    def bind(self, state: TrainState, *inputs: Dataset) -> Self:
        """Return the train step with a dataset."""
        del state
        (data,) = inputs
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
