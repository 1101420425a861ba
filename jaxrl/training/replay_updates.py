"""Updates from replay: a number of gradient steps per rollout, each on freshly drawn rows."""

import dataclasses
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxrl.buffers.replay import Priorities, ReplayState, SampledIndices
from jaxrl.buffers.sequence import AnyReplayBuffer
from jaxrl.core.hparams import current_values
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import (
    Columns,
    Counter,
    Key,
    Metrics,
    Params,
    Progress,
    PyTree,
    ReturnColumns,
    Rollout,
    Transition,
    map_obs,
)
from jaxrl.learners.gradients import NUM_NONFINITE_UPDATES, check_scalar_metrics
from jaxrl.learners.learner import Learner, LearnerState, update_after, update_before
from jaxrl.modules.sequences import attach_state_in
from jaxrl.training.guard import DivergenceGuard
from jaxrl.training.nonfinite import mask_nonfinite, prefix_counts
from jaxrl.training.rollout import PolicyStep
from jaxrl.training.train_state import LearnerProgress


def make_stored_rollout(
    policy_step: PolicyStep, params: Params, raw: Rollout, received: Rollout, *, zero_carry: bool
) -> Rollout:
    """Convert a rollout to its stored form: raw observations, and rewards as they are learned from.

    With temporal connectors, observations are stored as the module saw them instead. For a stateful
    module, the recurrent state before each row is stored, unless `zero_carry`.

    Args:
        policy_step: Module and connectors.
        params: Parameters that the recurrent states are computed with.
        raw: Rollout as it was recorded.
        received: Rollout after all connectors.
        zero_carry: Whether sequences begin with a zero recurrent state.
    """
    kept = replace(received, extras={})
    if policy_step.module.is_stateful and not zero_carry:
        kept = attach_state_in(policy_step.module, params, kept)
    kept = replace(kept, carry_in=None)
    if policy_step.obs_pipeline.temporal:
        return kept
    return replace(kept, obs=raw.obs, final_obs=raw.final_obs)


class BatchSource(Protocol):
    """Source of the rows of gradient steps; `memory` is threaded from step to step."""

    def init_state(self) -> PyTree:
        """Return the memory before the first step."""
        ...

    def sample_rows(
        self, source_state: PyTree, step: Int[Array, ""], gamma: Float[Array, ""], key: Key
    ) -> tuple[Any, Transition]:
        """Return the rows of a step, with their origin. Consumes the key.

        Args:
            source_state: Memory before the step.
            step: Number of the step within the train batch.
            gamma: Discount factor.
            key: Key of the step.

        Returns:
            The origin of the rows, which `learned_from` receives, and the rows.
        """
        ...

    def record_td_error(
        self,
        source_state: PyTree,
        step: Int[Array, ""],
        indices: PyTree,
        td_error: Float[Array, " N *L"],
    ) -> PyTree:
        """Return the memory after the step.

        Args:
            source_state: Memory before the step.
            step: Number of the step within the train batch.
            indices: Origin of the rows.
            td_error: TD errors of the rows.
        """
        ...


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class BufferSource:
    """Rows freshly drawn for every step; the memory is the priorities, updated by every step.

    `num_envs` is the number of environments on this device.
    """

    replay: AnyReplayBuffer
    buffer: ReplayState
    num_envs: int
    env_steps: Counter
    axis_name: str | None

    def init_state(self) -> Priorities | None:
        return self.buffer.priorities

    def sample_rows(
        self,
        source_state: Priorities | None,
        step: Int[Array, ""],
        gamma: Float[Array, ""],
        key: Key,
    ) -> tuple[SampledIndices, Transition]:
        del step
        draw_key, fold_key = jax.random.split(key)
        shards, axis_name = self._local_shards(), self.axis_name
        drawn = self.replay.sample(
            self.buffer, source_state, draw_key, shards, self.env_steps, axis_name
        )
        return drawn, self.replay.gather_transitions(self.buffer, drawn, gamma, shards, fold_key)

    def record_td_error(
        self,
        source_state: Priorities | None,
        step: Int[Array, ""],
        indices: SampledIndices,
        td_error: Float[Array, " N *L"],
    ) -> Priorities | None:
        del step
        if source_state is None:
            return None
        return self.replay.update_priorities(source_state, indices, td_error, self.axis_name)

    def _local_shards(self) -> Int[Array, " S"]:
        """Return the logical shards of this device."""
        here = self.num_envs * self.replay.num_shards // self.replay.num_envs
        device = 0 if self.axis_name is None else jax.lax.axis_index(self.axis_name)
        return device * here + jnp.arange(here, dtype=jnp.int32)


@pytree
class PresampledBatches:
    """Rows of every step, drawn beforehand, `[U, N, ...]`; the memory is their TD errors `[U, N]`.

    `is_ready` is whether there are updates at all.
    """

    batches: Transition
    is_ready: Bool[Array, ""]

    def init_state(self) -> Float[Array, "U N *L"]:
        return jnp.zeros_like(self.batches.weight)

    def sample_rows(
        self,
        source_state: Float[Array, "U N *L"],
        step: Int[Array, ""],
        gamma: Float[Array, ""],
        key: Key,
    ) -> tuple[None, Transition]:
        del source_state, gamma, key
        return None, jax.tree.map(lambda x: x[step], self.batches)

    def record_td_error(
        self,
        source_state: Float[Array, "U N *L"],
        step: Int[Array, ""],
        indices: None,
        td_error: Float[Array, " N *L"],
    ) -> Float[Array, "U N *L"]:
        del indices
        return source_state.at[step].set(td_error)


@pytree
class _LoopCarry:
    """Loop state of the gradient steps.

    `sums` are over the updates that were not skipped, the counts in `nonfinite` over the skipped
    ones.
    """

    learner: LearnerState
    memory: PyTree
    sums: Float[Array, " M"]
    nonfinite: Float[Array, " M"]
    skipped: Bool[Array, " U"]

    def add(
        self,
        i: Int[Array, ""],
        learner: LearnerState,
        memory: PyTree,
        metrics: Float[Array, " M"],
        skipped: Bool[Array, ""],
    ) -> "_LoopCarry":
        """Return the state after an update, given its number, metrics and whether it was skipped."""
        return _LoopCarry(
            learner=learner,
            memory=memory,
            sums=self.sums + jnp.where(skipped, 0.0, metrics),
            nonfinite=self.nonfinite + mask_nonfinite(metrics, skipped),
            skipped=self.skipped.at[i].set(skipped),
        )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ReplayUpdates:
    """Gradient steps of one train batch, either `num_updates` or none.

    With a dataset, each update advances the time of schedules by its number of rows, `update_steps`;
    otherwise environment steps do.
    """

    learner: Learner[Any, Transition]
    policy_step: PolicyStep
    guard: DivergenceGuard
    num_updates: int
    axis_name: str | None
    update_steps: int = 0

    def run(
        self,
        source: BatchSource,
        is_ready: Bool[Array, ""],
        obs_state: PyTree,
        before: LearnerProgress,
        progress: Progress,
        key: Key,
    ) -> tuple[PyTree, LearnerProgress, Metrics]:
        """Run every gradient step, or none if there is not enough data yet; then metrics are NaN.

        Args:
            source: Source of the rows.
            is_ready: Whether to run the updates.
            obs_state: Current statistics of the observation connectors.
            before: Learner state before the train batch.
            progress: Counters of the run, including the newest rollout.
            key: Key of the train batch. Consumed.

        Returns:
            The source's memory after the last step, the new learner state, and the means of the
            metrics.
        """
        number = jnp.where(is_ready, self.num_updates, 0)

        @partial(jax.jit, inline=True)  # traced once for its metrics and the loop
        def update(
            learner: LearnerState, memory: PyTree, now: Progress, i: Int[Array, ""]
        ) -> tuple[Any, PyTree, Metrics]:
            return self._update(source, obs_state, learner, memory, now, i, key)

        memory = source.init_state()
        # The number of a loop over Python's zero is of a weak type, as zero is.
        names = sorted(jax.eval_shape(update, before.learner, memory, progress, 0)[2])

        def body(i: Int[Array, ""], carry: _LoopCarry) -> _LoopCarry:
            now = replace(progress, updates=before.updates.add(i))
            if self.update_steps:
                steps = now.env_steps.add(i.astype(jnp.uint32) * jnp.uint32(self.update_steps))
                now = replace(now, env_steps=steps)
            learner, memory, metrics = update(carry.learner, carry.memory, now, i)
            row = jnp.stack([metrics[name].astype(jnp.float32) for name in names])
            skipped = metrics[NUM_NONFINITE_UPDATES] > 0.5
            return carry.add(i, learner, memory, row, skipped)

        start = _LoopCarry(
            learner=before.learner,
            memory=memory,
            sums=jnp.zeros(len(names), jnp.float32),
            nonfinite=jnp.zeros(len(names), jnp.float32),
            skipped=jnp.zeros(self.num_updates, jnp.bool_),
        )
        # A zero-trip loop instead of a branch: a branch would copy what it passes through.
        end = jax.lax.fori_loop(0, number, body, start)
        means = end.sums / (number - end.skipped.sum(dtype=jnp.int32)).astype(jnp.float32)
        counts = end.nonfinite
        if self.axis_name is not None:
            means, counts = jax.lax.pmean((means, counts), self.axis_name)
        guard, learner = self.guard.update_after_replay(
            before.guard, end.learner, end.skipped, is_ready, progress
        )
        learner_progress = LearnerProgress(
            learner=learner, guard=guard, updates=before.updates.add(number.astype(jnp.uint32))
        )
        metrics = {name: means[i] for i, name in enumerate(names) if name != NUM_NONFINITE_UPDATES}
        return end.memory, learner_progress, metrics | prefix_counts(names, counts)

    def _update(
        self,
        source: BatchSource,
        obs_state: PyTree,
        learner_state: PyTree,
        memory: PyTree,
        progress: Progress,
        number: Int[Array, ""],
        key: Key,
    ) -> tuple[Any, PyTree, Metrics]:
        """Draw rows, update the learner, and pass the TD errors to the source."""
        row_key, update_key = split_step_key(key, number)
        gamma = current_values(learner_state.hparams, progress)["gamma"]
        drawn, batch = source.sample_rows(memory, number, gamma, row_key)
        learner_state = update_before(self.learner, learner_state, progress)
        learner_state, metrics = self.learner.update(
            learner_state, self._preprocess(obs_state, batch), progress, update_key
        )
        error = metrics.get(Columns.TD_ERROR, jnp.zeros_like(batch.weight))
        memory = source.record_td_error(memory, number, drawn, error)
        scalars = {name: value for name, value in metrics.items() if name != Columns.TD_ERROR}
        check_scalar_metrics(type(self.learner).__name__, scalars)
        learner_state = update_after(self.learner, learner_state, scalars, progress, self.axis_name)
        return learner_state, memory, scalars

    def compute_metrics(
        self,
        source: BatchSource,
        obs_state: PyTree,
        learner_state: LearnerState,
        progress: Progress,
        number: Int[Array, ""],
        key: Key,
    ) -> Metrics:
        """Compute the metrics of one gradient step that is not taken. Consumes the key.

        Args:
            source: Source of the rows.
            obs_state: Current statistics of the observation connectors.
            learner_state: State before the step.
            progress: Counters of the run.
            number: Number of the step, for the source.
            key: Key of the step.
        """
        memory = source.init_state()
        return self._update(source, obs_state, learner_state, memory, progress, number, key)[2]

    def _preprocess(self, obs_state: PyTree, batch: Transition) -> Transition:
        """Return the batch as the module sees it, with the current statistics."""
        pipeline = self.policy_step.obs_pipeline
        if pipeline.temporal:
            return batch
        preprocess = partial(map_obs, partial(pipeline, obs_state))
        ends = {
            name: preprocess(value)
            for name, value in batch.extras.items()
            if name == ReturnColumns.END_OBS
        }
        return replace(
            batch,
            obs=preprocess(batch.obs),
            next_obs=preprocess(batch.next_obs),
            extras=batch.extras | ends,
        )


def split_step_key(key: Key, step: Int[Array, ""]) -> tuple[Key, Key]:
    """Derive the keys of one gradient step: one for its rows, one for its update."""
    row_key, update_key = jax.random.split(jax.random.fold_in(key, step))
    return row_key, update_key
