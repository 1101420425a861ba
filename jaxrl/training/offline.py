"""Training on recorded data: every gradient step of a dispatch as one compiled program."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrl.buffers.dataset import (
    Dataset,
    DatasetPosition,
    DatasetSampler,
    DatasetSource,
    compute_returns_to_go,
)
from jaxrl.core.hparams import current_values
from jaxrl.core.keys import split_run_key
from jaxrl.core.struct import replace
from jaxrl.core.types import Key, Metrics, PyTree, strip_weak_types
from jaxrl.training.batch_loop import BatchLoop
from jaxrl.training.nonfinite import drop_counts
from jaxrl.training.replay_updates import ReplayUpdates
from jaxrl.training.train_state import (
    ReportRow,
    Summary,
    TrainState,
    add_updates,
    apply_update,
    count_updates_between,
    empty_summary,
    get_learner_progress,
)


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

    def init(self, key: Key, data: Dataset) -> TrainState:
        """Return the initial state, with the connectors' statistics of the data. Consumes the key."""
        state = self._init_without_envs(split_run_key(key), self.num_envs)
        position = self.experience.init_position()
        statistics = self._compute_statistics(state.connectors.obs, data)
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
        """Train on one train batch of the bound dataset."""
        sampler, data = self.experience, self.data
        assert data is not None
        source = DatasetSource(
            sampler=sampler,
            data=data,
            position=state.buffer if isinstance(state.buffer, DatasetPosition) else None,
            returns=self.returns,
            run_key=state.key,
            axis_name=self.axis_name,
        )
        updates = ReplayUpdates(
            learner=self.learner,
            policy_step=self.policy_step,
            guard=self.guard,
            num_updates=sampler.num_updates,
            axis_name=self.axis_name,
            update_steps=sampler.rows_per_update,
        )
        position, learned, metrics = updates.run(
            source,
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

    def _compute_statistics(self, first: PyTree, data: Dataset) -> PyTree:
        """Return the statistics of the observation connectors over all rows."""
        pipeline = self.policy_step.obs_pipeline
        if pipeline.temporal or not jax.tree.leaves(first):
            return first
        rows = jnp.arange(data.num_rows, dtype=jnp.int32)
        obs = jax.tree.map(lambda x: x[:, None], data.get_obs(rows))
        received: list[PyTree] = []
        for connector, state in zip(pipeline.connectors, first, strict=True):
            received.append(obs)
            obs = connector(state, obs)
        mask = jnp.ones((data.num_rows, 1), jnp.bool_)
        return pipeline.update(first, tuple(received), mask, None)
