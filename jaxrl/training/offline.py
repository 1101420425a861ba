"""Training on recorded data: every gradient step of a dispatch as one compiled program.

The program has the dataset as an argument, or the rows of one train batch that were picked elsewhere.
"""

import dataclasses
import functools
from collections.abc import Callable

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
    compute_returns_to_go,
)
from jaxrl.buffers.dataset_rows import PickedRows, fold_rows, take_step
from jaxrl.core.hparams import current_values
from jaxrl.core.keys import split_run_key
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Key, Metrics, PyTree, Transition, strip_weak_types
from jaxrl.training.batch_loop import BatchLoop
from jaxrl.training.nonfinite import drop_counts
from jaxrl.training.replay_updates import BatchSource, ReplayUpdates, split_step_key
from jaxrl.training.train_state import (
    ReportRow,
    Summary,
    TrainState,
    add_updates,
    apply_update,
    count_updates_between,
    empty_summary,
    get_learner_progress,
    make_report_row,
)


@pytree
class FedRows:
    """Picked rows of all gradient steps of a train batch, `[U, N, ...]`.

    `position` is the position in the epochs after them; None if draws are independent of each other.
    """

    picked: PickedRows
    position: DatasetPosition | None


@pytree
class FedSource:
    """Source of rows that were picked elsewhere."""

    rows: FedRows

    def init_state(self) -> DatasetPosition | None:
        return self.rows.position

    def sample_rows(
        self,
        source_state: DatasetPosition | None,
        step: Int[Array, ""],
        gamma: Float[Array, ""],
        key: Key,
    ) -> tuple[None, Transition]:
        del source_state, key
        return None, fold_rows(take_step(self.rows.picked, step), gamma)

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
class OfflineRunner(BatchLoop):
    """Run that learns from a dataset and steps no environment.

    A train batch is `experience.num_updates` gradient steps. `progress.env_steps`, the time of
    schedules, counts the rows trained on. The dataset is an argument of the program: it is bound to
    the runner while the program is traced.
    """

    experience: DatasetSampler
    data: Dataset | None = None
    returns: Float[Array, " N"] | None = None
    rows: FedRows | None = None

    def init(self, key: Key, data: Dataset) -> TrainState:
        """Return the initial state, with the connectors' statistics of the data. Consumes the key."""
        return self.init_with(key, self.compute_statistics(data))

    def init_with(self, key: Key, statistics: PyTree) -> TrainState:
        """Return the initial state, given the connectors' statistics. Consumes the key."""
        state = self.init_from_keys(split_run_key(key), self.num_envs)
        position = self.experience.init_position()
        return strip_weak_types(
            replace(
                state,
                connectors=replace(state.connectors, obs=statistics),
                buffer=() if position is None else position,
            )
        )

    def step(self, state: TrainState, data: Dataset) -> tuple[TrainState, Metrics]:
        """Train on one train batch.

        Returns:
            The next state, and the means of the learner's metrics.
        """
        after, metrics = self.bind(state, data).train_batch(state)
        return after, drop_counts(metrics)

    @property
    def program(self) -> Callable[..., tuple[TrainState, ReportRow]]:
        """Function of a dispatch: `run_iterations` with the dataset as an argument."""

        def run(
            state: TrainState,
            data: Dataset,
            num_iterations: Int[Array, ""],
            batches_per_iteration: Int[Array, ""],
        ) -> tuple[TrainState, ReportRow]:
            bound = self.bind(state, data)
            return bound.run_iterations(state, num_iterations, batches_per_iteration)

        return run

    @property
    def fed_program(self) -> Callable[[TrainState, FedRows], tuple[TrainState, ReportRow]]:
        """Function of one train batch, with its rows as an argument."""

        def run(state: TrainState, rows: FedRows) -> tuple[TrainState, ReportRow]:
            bound = dataclasses.replace(self, rows=rows)
            after, summary = bound.run_batches(state, jnp.int32(1))
            return after, make_report_row(after, summary)

        return run

    def bind(self, state: TrainState, data: Dataset) -> "OfflineRunner":
        """Return the runner with a dataset, and with the returns of its rows if they are needed."""
        returns = None
        if self.experience.needs_returns:
            values = current_values(state.learner.hparams, state.progress)
            returns = compute_returns_to_go(data, values["gamma"])
        return dataclasses.replace(self, data=data, returns=returns)

    @functools.cached_property
    def jitted_init(self) -> Callable[[Key, Dataset], TrainState]:
        """`init`, traced only once for its shapes, its size and its program."""
        return jax.jit(self.init, inline=True)

    def init_summary(self, state: TrainState) -> Summary:
        metrics = jax.eval_shape(self._traced_batch, state)[1]
        return empty_summary(state.ring.count.shape[0], metrics)

    def add_step(self, state: TrainState, summary: Summary) -> tuple[TrainState, Summary]:
        after, metrics = self._traced_batch(state)
        learned = add_updates(summary, metrics, count_updates_between(state, after))
        return after, replace(learned, train_batches=summary.train_batches + 1)

    @functools.cached_property
    def _traced_batch(self) -> Callable[[TrainState], tuple[TrainState, Metrics]]:
        """`train_batch`, traced only once for all its uses in a program."""
        return jax.jit(self.train_batch, inline=True)

    def train_batch(self, state: TrainState) -> tuple[TrainState, Metrics]:
        """Train on one train batch of the bound dataset, or on the bound rows."""
        sampler = self.experience
        updates = ReplayUpdates(
            learner=self.learner,
            policy_step=self.policy_step,
            guard=self.guard,
            num_updates=sampler.num_updates,
            axis_name=self.axis_name,
            update_steps=sampler.rows_per_update,
        )
        position, learned, metrics = updates.run(
            self._make_source(state),
            jnp.ones((), jnp.bool_),
            state.connectors.obs,
            get_learner_progress(state),
            state.progress,
            self.make_batch_key(state),
        )
        trained = state.progress.env_steps.add(sampler.num_updates * sampler.rows_per_update)
        progress = replace(state.progress, env_steps=trained)
        buffer = () if position is None else position
        return apply_update(replace(state, buffer=buffer, progress=progress), learned), metrics

    def _make_source(self, state: TrainState) -> BatchSource:
        if self.rows is not None:
            return FedSource(rows=self.rows)
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
