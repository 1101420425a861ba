"""Losses of a learner on recorded rows that it does not learn from, as one compiled program."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrl.buffers.dataset import (
    Dataset,
    DatasetSampler,
    DrawnRows,
    compute_returns_to_go,
)
from jaxrl.buffers.dataset_rows import fold_rows
from jaxrl.core.hparams import current_values
from jaxrl.core.struct import replace
from jaxrl.core.types import Key, Metrics, Progress, PyTree, Transition
from jaxrl.learners.base import BaseLearner
from jaxrl.learners.learner import LearnerState
from jaxrl.training.offline import OfflineRunner
from jaxrl.training.replay_updates import ReplayUpdates

_SALT = 0x68656C64
"""Constant folded into the run's key for the draws of losses."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _RowsInOrder:
    """Rows of a dataset in order, `batch_size` samples of the sampler for each step."""

    sampler: DatasetSampler
    data: Dataset
    returns: Float[Array, " N"] | None

    def init_state(self) -> None:
        return None

    def sample_rows(
        self, source_state: None, step: Int[Array, ""], gamma: Float[Array, ""], key: Key
    ) -> tuple[None, Transition]:
        del source_state
        sampler, size = self.sampler, self.sampler.count_samples(self.data)
        place = step * sampler.batch_size + jnp.arange(sampler.batch_size, dtype=jnp.int32)
        first = jnp.minimum(place, size - 1) * (sampler.sequence_length or 1)
        drawn = DrawnRows(rows=first, learns=place < size)
        picked = sampler.pick(self.data, drawn, sampler.draw_max_steps(key), self.returns)
        return None, fold_rows(picked, gamma)

    def record_td_error(
        self,
        source_state: None,
        step: Int[Array, ""],
        indices: None,
        td_error: Float[Array, " N *L"],
    ) -> None:
        del source_state, step, indices, td_error


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class HeldOutLosses:
    """Means of a learner's losses over the rows of a dataset, at its current parameters.

    Each batch's losses are those of a gradient step that is not taken: learning rates are 0, so that
    no loss sees what another one's step would change.

    Args:
        runner: Functions of the run.
        sampler: What a sample is, and how many a batch has; one shard, in epochs.
        num_batches: Number of batches.
    """

    runner: OfflineRunner
    sampler: DatasetSampler
    num_batches: int

    @staticmethod
    def make(runner: OfflineRunner, batch_rows: int, num_rows: int, most: int) -> "HeldOutLosses":
        """Make the losses of a dataset.

        Args:
            runner: Functions of the run.
            batch_rows: Maximum number of rows of a batch; a sequence is never divided.
            num_rows: Number of rows of the dataset.
            most: Maximum number of batches.
        """
        length = runner.experience.sequence_length or 1
        samples = -(-num_rows // length)
        size = min(samples, max(1, batch_rows // length))
        sampler = dataclasses.replace(
            runner.experience, batch_size=size, num_shards=1, order="epochs", source_sizes=None
        )
        number = min(most, -(-samples // size))
        return HeldOutLosses(runner=runner, sampler=sampler, num_batches=number)

    def count_rows(self, num_rows: int) -> int:
        """Return the number of rows of a dataset of `num_rows` that losses are means over."""
        return min(num_rows, self.num_batches * self.sampler.rows_per_update)

    def __call__(
        self, learner: LearnerState, obs_state: PyTree, progress: Progress, key: Key, data: Dataset
    ) -> Metrics:
        """Compute the means of all metrics whose names end with "loss".

        Args:
            learner: State of the learner.
            obs_state: Statistics of the observation connectors.
            progress: Counters of the run.
            key: Key of the run, which is not consumed: equal states have equal losses.
            data: Dataset.
        """
        gamma = current_values(learner.hparams, progress)["gamma"]
        returns = compute_returns_to_go(data, gamma) if self.sampler.needs_returns else None
        source = _RowsInOrder(sampler=self.sampler, data=data, returns=returns)
        updates = ReplayUpdates(
            learner=self.runner.learner,
            policy_step=self.runner.policy_step,
            guard=self.runner.guard,
            num_updates=1,
            axis_name=None,
        )
        state, base = self._stop_learning(learner), jax.random.fold_in(key, _SALT)

        def compute(number: Int[Array, ""]) -> Metrics:
            metrics = updates.compute_metrics(source, obs_state, state, progress, number, base)
            return {name: x for name, x in metrics.items() if name.endswith("loss")}

        batches = jax.lax.map(compute, jnp.arange(self.num_batches, dtype=jnp.int32))
        # Losses are means over all rows of a batch, of which those beyond the data weigh 0.
        scale = self.sampler.rows_per_update / self.count_rows(data.num_rows)
        return {name: x.sum() * jnp.float32(scale) for name, x in batches.items()}

    def _stop_learning(self, state: LearnerState) -> LearnerState:
        """Return the state with learning rates of 0, and in which no part's step is delayed."""
        zero = jnp.zeros((), jnp.float32)
        rates = {name: zero for name in state.hparams if name == "lr" or name.endswith("_lr")}
        state = replace(state, hparams={**state.hparams, **rates})
        learner = self.runner.learner
        return learner.without_delays(state) if isinstance(learner, BaseLearner) else state
