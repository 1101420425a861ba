"""Everything after a rollout: connectors, targets, every minibatch's update, divergence guard.

The same functions serve the compiled loop and data recorded by runners on the host. With
`axis_name` set they compute one device's part of a `shard_map` over the mesh (see
`training.sharding`).
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxrl.buffers.circular import CircularBuffer, CircularBufferState
from jaxrl.buffers.dataset import DatasetSampler
from jaxrl.buffers.on_policy import OnPolicyMinibatches, flatten_time, take_rows
from jaxrl.buffers.replay import ReplayBuffer, ReplayState
from jaxrl.buffers.sequence import AnyReplayBuffer
from jaxrl.connectors.pipelines import LearnerPipeline
from jaxrl.core.hparams import current_values
from jaxrl.core.keys import RunKeys, split_run_key
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Key, Metrics, Progress, PyTree, Rollout, strip_weak_types
from jaxrl.learners.gradients import NUM_NONFINITE_UPDATES, check_scalar_metrics, select
from jaxrl.learners.learner import Learner, OnPolicyLearner, update_after, update_before
from jaxrl.training.data_flow import BatchUse
from jaxrl.training.episode_stats import (
    init_episode_stats,
    init_fault_log,
    push_episodes,
    push_faults,
)
from jaxrl.training.guard import DivergenceGuard
from jaxrl.training.nonfinite import NONFINITE_PREFIX, drop_counts, mask_nonfinite, prefix_counts
from jaxrl.training.replay_updates import (
    BatchSource,
    BufferSource,
    PresampledBatches,
    ReplayUpdates,
    make_stored_rollout,
)
from jaxrl.training.rollout import ActorState, PolicyStep, make_blank_rollout
from jaxrl.training.train_state import (
    ConnectorState,
    GuardState,
    LearnerProgress,
    RolloutBatch,
    Summary,
    TrainState,
    add_sampled,
    add_updates,
    apply_update,
    count_updates_between,
    empty_summary,
    get_learner_progress,
)

_CONNECTORS = 2**32 - 2
"""Number folded into the run's key for connectors; train batches fold theirs, from 0 on."""
Experience: TypeAlias = OnPolicyMinibatches | AnyReplayBuffer | DatasetSampler
"""Source of the rows of gradient steps."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TrainStep:
    """Training on recorded rollouts, as pure functions closed over all static settings.

    `takes_dataset` is whether `bind` has to be called with recorded data.
    """

    takes_dataset: ClassVar[bool] = False
    learner: Learner[Any, Any]
    policy_step: PolicyStep
    experience: Experience
    learner_pipeline: LearnerPipeline
    num_envs: int
    num_steps: int
    ring_size: int
    guard: DivergenceGuard
    circular: CircularBuffer | None = None
    zero_init_states: bool = False
    axis_name: str | None = None

    @property
    def replay(self) -> AnyReplayBuffer | None:
        """Replay buffer that updates draw from; None if they use fresh batches or a dataset."""
        if isinstance(self.experience, OnPolicyMinibatches | DatasetSampler):
            return None
        return self.experience

    @property
    def host_replay(self) -> AnyReplayBuffer | None:
        """Replay buffer in host memory, if there is one."""
        return self.replay if self.replay is not None and self.replay.in_host_memory else None

    @property
    def _minibatches(self) -> OnPolicyMinibatches:
        """Minibatches of a run that learns from fresh batches."""
        assert isinstance(self.experience, OnPolicyMinibatches)
        return self.experience

    @property
    def on_policy_learner(self) -> OnPolicyLearner[Any, Any]:
        """Learner of a run that trains on whole train batches."""
        assert isinstance(self.learner, OnPolicyLearner)
        return self.learner

    @property
    def batch_steps(self) -> int:
        """Environment steps of one train batch, over all devices."""
        return self.num_envs * self.num_steps

    def bind(self, state: TrainState, *inputs: PyTree) -> Self:
        """Return the functions with their inputs, of which they have none."""
        del state
        assert not inputs
        return self

    def map_steps(self, change: Callable[[str, Self], Self]) -> Self:
        """Return the changed training step of the only module, which has no name."""
        return change("", self)

    def with_axis(self, axis_name: str) -> Self:
        """Return the functions of one device's part of a mesh."""
        learner = dataclasses.replace(self.learner, axis_name=axis_name)
        return dataclasses.replace(self, axis_name=axis_name, learner=learner)

    def map_batches(
        self, change: Callable[..., TrainState], data: RolloutBatch, *states: TrainState
    ) -> TrainState:
        """Return what a function makes of the training step, a batch and states."""
        return change(self, data, *states)

    def init_without_envs(self, key: Key, total_envs: int) -> TrainState:
        """Return the initial state for runners on the host. Consumes the key.

        It has no environments, which these runners own, and no replay buffer if that is in host
        memory.

        Args:
            key: Key of the run.
            total_envs: Number of environments of all runners; connectors may keep a state for each.
        """
        return strip_weak_types(self.init_from_keys(split_run_key(key), total_envs))

    def init_from_keys(self, keys: RunKeys, total_envs: int) -> TrainState:
        """Return `init_without_envs` of a run whose keys have been split already."""
        learner_state = self.learner.init(keys.learner)
        shards = self.experience.num_shards
        state = TrainState(
            learner=learner_state,
            env=(),
            env_params=(),
            connectors=ConnectorState(
                obs=self.policy_step.obs_pipeline.init(),
                learner=self.learner_pipeline.init(jax.random.fold_in(keys.run, _CONNECTORS)),
                per_env=self.learner_pipeline.init_per_env(total_envs),
            ),
            carry=(),
            ring=init_episode_stats(shards, self.ring_size),
            faults=init_fault_log(shards),
            guard=GuardState(
                snapshot=learner_state if self.guard.on_nonfinite == "rollback" else None,
                in_a_row=jnp.zeros((), jnp.int32),
                num_rollbacks=jnp.zeros((), jnp.int32),
                num_nonfinite=jnp.zeros((), jnp.uint32),
            ),
            progress=Progress.zeros(),
            key=keys.run,
        )
        if self.host_replay is not None:
            return state
        return replace(state, buffer=self.init_buffer(state))

    def init_buffer(self, state: TrainState) -> PyTree:
        """Return an empty buffer for rollouts as they are stored; `()` if none are."""

        def kept() -> Rollout:
            raw = make_blank_rollout(
                self.policy_step, self.make_actor_state(state), self.num_steps, self.num_envs
            )
            per_env = self.learner_pipeline.init_per_env(self.num_envs)
            connectors = replace(state.connectors, per_env=per_env)
            values = current_values(state.learner.hparams, state.progress)
            received = self._apply_connectors(connectors, raw, values)[1]
            if self.circular is None:
                return self._to_stored(state, raw, received)
            return _as_rows(received)

        if self.replay is not None:
            return self.replay.init(jax.eval_shape(kept))
        return () if self.circular is None else self.circular.init(jax.eval_shape(kept))

    @property
    def has_buffer(self) -> bool:
        """True if updates draw from a buffer instead of using each batch as it is."""
        return self.replay is not None or self.circular is not None

    @property
    def batch_use(self) -> BatchUse:
        """Use of the sampled batch in an update: required, or none if rows come from a buffer."""
        return "none" if self.has_buffer else "required"

    @property
    def has_replay(self) -> bool:
        """True if gradient steps draw rows from a replay buffer."""
        return self.replay is not None

    @property
    def learner_name(self) -> str:
        """Name of the learner in messages."""
        return type(self.learner).__name__

    def make_empty_summary(self, state: TrainState) -> Summary:
        """Return the summary of nothing, without metrics."""
        return empty_summary(state.ring.count.shape[0], {})

    def add_sampled(self, summary: Summary, data: RolloutBatch) -> Summary:
        """Return a summary with the episodes and steps of one more recorded batch."""
        return add_sampled(summary, data)

    def add_updates(
        self, summary: Summary, before: TrainState, after: TrainState, metrics: Metrics
    ) -> Summary:
        """Return a summary with the metrics of the updates between two states."""
        return add_updates(summary, metrics, count_updates_between(before, after))

    def receive(self, state: TrainState, data: RolloutBatch) -> tuple[TrainState, RolloutBatch]:
        """Add a recorded batch to statistics, episodes and counters, before any update.

        Returns:
            The new state, and the batch with the rollout to learn from: after all connectors, and
            in the stored form if updates draw from a replay buffer.
        """
        state, rollout = self._receive(state, data)
        if self.replay is not None:
            rollout = self._to_stored(state, data.rollout, rollout)
        return state, self._split_into_fragments(replace(data, rollout=rollout))

    def _split_into_fragments(self, batch: RolloutBatch) -> RolloutBatch:
        """Make a column of every fragment, those of an environment side by side.

        A rollout is then cut between fragments as on the host: values bootstrap there, since a
        learner sees no row of another column.
        """
        if batch.fragment_carries is None:
            return batch

        def split(rows: Array) -> Array:
            fragments = rows.reshape((-1, self.num_steps, *rows.shape[1:]))
            return jnp.moveaxis(fragments, 0, 2).reshape((self.num_steps, -1, *rows.shape[2:]))

        def side_by_side(carries: Array) -> Array:
            return jnp.moveaxis(carries, 0, 1).reshape((-1, *carries.shape[2:]))

        rollout = jax.tree.map(split, replace(batch.rollout, carry_in=None))
        carries = jax.tree.map(side_by_side, batch.fragment_carries)
        carry_in = self.policy_step.get_recurrent_carry(carries)
        return replace(batch, rollout=replace(rollout, carry_in=carry_in), fragment_carries=None)

    def add_to_buffer(self, state: TrainState, batch: RolloutBatch) -> TrainState:
        """Add a batch returned by `receive` to the buffer."""
        if (replay := self.replay) is not None:
            buffer = replay.add(state.buffer, batch.rollout, batch.env_index, batch.record.env_step)
        else:
            assert self.circular is not None
            buffer = self.circular.add(state.buffer, _as_rows(batch.rollout))
        return replace(state, buffer=buffer)

    def update(
        self,
        state: TrainState,
        batch: RolloutBatch | None,
        num_updates: int | None = None,
        should_update: Bool[Array, ""] | None = None,
    ) -> tuple[TrainState, Metrics]:
        """Train on a batch returned by `receive`: targets, every minibatch's update, finish, guard.

        Args:
            state: State that has received the batch.
            batch: Batch to learn from; None if updates draw from a buffer.
            num_updates: Number of gradient steps on rows of a replay buffer; None for the
                configured number.
            should_update: Whether to take gradient steps on rows of a replay buffer; None always does.

        Returns:
            The new state, whose `progress.train_batches` is one higher, and the metrics.
        """
        key, progress, buffer = self.make_batch_key(state), state.progress, state.buffer
        learner_progress = get_learner_progress(state)
        if (replay := self.replay) is not None:
            is_ready = replay.can_learn(buffer, self.axis_name)
            if isinstance(replay, ReplayBuffer):
                replay = replay.with_env_params(state.env_params)
            priorities, learner_progress, metrics = self._make_replay_updates(
                replay, num_updates
            ).run(
                self.make_buffer_source(replay, buffer, progress),
                is_ready if should_update is None else is_ready & should_update,
                state.connectors.obs,
                learner_progress,
                progress,
                key,
            )
            buffer = replace(buffer, priorities=priorities)
        elif self.circular is not None:
            buffer, learner_progress, metrics = self._train_on_circular_buffer(
                self.circular, buffer, learner_progress, progress, key
            )
        else:
            assert batch is not None
            learner_progress, metrics = self._train_on_batch(
                learner_progress, batch.rollout, progress, key
            )
        metrics |= self.learner_pipeline.compute_metrics(state.connectors.learner)
        return apply_update(replace(state, buffer=buffer), learner_progress), metrics

    def update_on_presampled(
        self, state: TrainState, presampled: PresampledBatches
    ) -> tuple[TrainState, Metrics, PyTree]:
        """Train like `update` on rows drawn elsewhere; also return their TD errors `[U, N]`."""
        replay = self.replay
        assert replay is not None
        num_updates = jax.tree.leaves(presampled.batches)[0].shape[0]
        errors, learner_progress, metrics = self._make_replay_updates(replay, num_updates).run(
            presampled,
            presampled.is_ready,
            state.connectors.obs,
            get_learner_progress(state),
            state.progress,
            self.make_batch_key(state),
        )
        metrics |= self.learner_pipeline.compute_metrics(state.connectors.learner)
        return apply_update(state, learner_progress), metrics, errors

    def make_batch_key(self, state: TrainState) -> Key:
        """Return the key of the next train batch, before its rollout is received."""
        return jax.random.fold_in(state.key, state.progress.train_batches.low)

    def make_buffer_source(
        self, replay: AnyReplayBuffer, buffer: ReplayState, progress: Progress
    ) -> BatchSource:
        """Return the source of rows for a buffer, given this device's part of it."""
        return BufferSource(
            replay=replay,
            buffer=buffer,
            num_envs=buffer.rows.experience.mask.shape[0],
            env_steps=progress.env_steps,
            axis_name=self.axis_name,
        )

    def _make_replay_updates(
        self, replay: AnyReplayBuffer, num_updates: int | None = None
    ) -> ReplayUpdates:
        return ReplayUpdates(
            learner=self.learner,
            policy_step=self.policy_step,
            guard=self.guard,
            num_updates=replay.num_updates if num_updates is None else num_updates,
            axis_name=self.axis_name,
        )

    def _to_stored(self, state: TrainState, raw: Rollout, received: Rollout) -> Rollout:
        params = state.learner.sgd.params
        return make_stored_rollout(
            self.policy_step, params, raw, received, zero_carry=self.zero_init_states
        )

    def _receive(self, state: TrainState, data: RolloutBatch) -> tuple[TrainState, Rollout]:
        """Add a rollout to statistics, episodes and counters of the state.

        Returns:
            The new state, and the rollout to learn from.
        """
        before = state.progress.env_steps
        steps = before.add(data.num_env_steps)
        progress = replace(state.progress, env_steps=steps)
        values = current_values(state.learner.hparams, progress)
        connectors, rollout = self._apply_connectors(state.connectors, data.rollout, values)
        received = replace(
            state,
            connectors=connectors,
            ring=push_episodes(state.ring, data.record, data.env_index, before.low),
            faults=push_faults(state.faults, data.record, data.env_index),
            progress=progress,
        )
        return received, rollout

    def update_per_env(self, state: TrainState, data: RolloutBatch) -> PyTree:
        """Return the connectors' state of each column's environment after the rollout."""
        return self._receive(state, data)[0].connectors.per_env

    def _apply_connectors(
        self, before: ConnectorState, raw: Rollout, values: Mapping[str, Float[Array, ""]]
    ) -> tuple[ConnectorState, Rollout]:
        """Apply observation and learner connectors to a rollout.

        Args:
            before: Connector statistics before the rollout.
            raw: Rollout as it was recorded.
            values: Hyperparameters at its end.

        Returns:
            The updated statistics, and the rollout to learn from.
        """
        obs_state, seen = self.policy_step.update_statistics(before.obs, raw, self.axis_name)
        learner_state, per_env, rollout = self.learner_pipeline.at(values)(
            before.learner, before.per_env, seen, self.axis_name
        )
        connectors = ConnectorState(obs=obs_state, learner=learner_state, per_env=per_env)
        return connectors, rollout

    def _train_on_batch(
        self, before: LearnerProgress, rollout: Rollout, progress: Progress, key: Key
    ) -> tuple[LearnerProgress, Metrics]:
        """Train on one batch: targets, every minibatch's update, finish and guard."""
        shuffle_key, update_key = jax.random.split(key)
        progress = replace(progress, updates=before.updates)
        learner = self.on_policy_learner
        learner_state = update_before(learner, before.learner, progress)
        batch, prepared = learner.prepare(learner_state, rollout, progress)
        check_scalar_metrics(f"{type(learner).__name__}.prepare", prepared)
        minibatches = self._minibatches
        num_steps, num_envs = jax.tree.leaves(batch)[0].shape[:2]
        flat = flatten_time(batch)
        here = num_envs * minibatches.num_shards // self.num_envs
        device = 0 if self.axis_name is None else jax.lax.axis_index(self.axis_name)
        shards = device * here + jnp.arange(here, dtype=jnp.int32)
        orders = minibatches.sample_orders(shuffle_key, shards)
        names: list[str] = []

        def update(s: PyTree, i: Int[Array, ""]) -> tuple[PyTree, Float[Array, " M"]]:
            rows = minibatches.minibatch_rows(i, orders, num_steps, num_envs)
            now = replace(progress, updates=progress.updates.add(i))
            key = jax.random.fold_in(update_key, i)
            s, metrics = learner.update(s, take_rows(flat, rows), now, key)
            check_scalar_metrics(type(learner).__name__, metrics)
            names[:] = sorted(metrics)
            return s, jnp.stack([metrics[name].astype(jnp.float32) for name in names])

        updates = jnp.arange(minibatches.num_updates, dtype=jnp.int32)
        learned, table = jax.lax.scan(update, learner_state, updates)
        metrics, last_epoch, skipped = self._average_metrics(names, table)
        learned = learner.finish(learned, last_epoch, progress)
        learned = update_after(learner, learned, last_epoch, progress)
        guard, learned = self.guard.update_after_batch(
            before.guard, before.learner, learned, skipped
        )
        total = before.updates.add(minibatches.num_updates)
        after = LearnerProgress(learner=learned, guard=guard, updates=total)
        return after, {**metrics, **prepared}

    def _average_metrics(
        self, names: list[str], table: Float[Array, "U M"]
    ) -> tuple[Metrics, Metrics, Bool[Array, " U"]]:
        """Average the metrics of a train batch's updates.

        Returns:
            Means over all updates that were not skipped, NaN if all were, with counts of non-finite
            metrics over the skipped ones (see `training.nonfinite`); means over the last epoch alone;
            and whether each update was skipped.
        """
        skipped = table[:, names.index(NUM_NONFINITE_UPDATES)] > 0.5
        last = self._minibatches.num_updates_of_last_epoch
        means = jnp.stack(
            [
                _mean_of_finite(table, skipped),
                _mean_of_finite(table[-last:], skipped[-last:]),
                mask_nonfinite(table, skipped).sum(axis=0),
            ]
        )
        if self.axis_name is not None:
            means = jax.lax.pmean(means, self.axis_name)
        every, last_epoch = (
            {name: row[i] for i, name in enumerate(names) if name != NUM_NONFINITE_UPDATES}
            for row in means[:2]
        )
        return every | prefix_counts(names, means[2]), last_epoch, skipped

    def _train_on_circular_buffer(
        self,
        circular: CircularBuffer,
        buffer: CircularBufferState,
        learner_progress: LearnerProgress,
        progress: Progress,
        key: Key,
    ) -> tuple[CircularBufferState, LearnerProgress, Metrics]:
        """Train on batches drawn from the circular buffer; metrics are means over the draws.

        There are as many draws as uses of each batch. A draw that the buffer does not allow yet
        changes nothing.
        """

        def body(carry: _CircularCarry, key: Key) -> tuple[_CircularCarry, Metrics]:
            draw_key, learn_key = jax.random.split(key)
            buffer, drawn = circular.sample(carry.buffer, draw_key)
            batch = _from_rows(drawn.batch)
            after, metrics = self._train_on_batch(
                carry.learner_progress, batch, progress, learn_key
            )
            learner_progress = select(drawn.valid, after, carry.learner_progress)
            missing = {
                name: 0.0 if name.startswith(NONFINITE_PREFIX) else jnp.nan for name in metrics
            }
            metrics = {n: jnp.where(drawn.valid, x, missing[n]) for n, x in metrics.items()}
            return _CircularCarry(buffer=buffer, learner_progress=learner_progress), metrics

        keys = jax.random.split(key, circular.iterations_per_batch)
        end, rows = jax.lax.scan(
            body, _CircularCarry(buffer=buffer, learner_progress=learner_progress), keys
        )
        missing = jnp.isnan(rows["grad_norm"])
        counts = {name: x.sum() for name, x in rows.items() if name.startswith(NONFINITE_PREFIX)}
        names = sorted(drop_counts(rows))
        means = _mean_of_finite(jnp.stack([rows[name] for name in names], axis=1), missing)
        return end.buffer, end.learner_progress, {n: means[i] for i, n in enumerate(names)} | counts

    def make_actor_state(self, state: TrainState) -> ActorState:
        """Return the inputs of acting."""
        return ActorState(
            params=state.learner.sgd.params,
            obs_state=state.connectors.obs,
            hparams=current_values(state.learner.hparams, state.progress),
            progress=state.progress,
        )

    def make_behaviour_actor(self, state: TrainState) -> ActorState:
        """Return the inputs of acting with the weights of the behavior policy."""
        actor = self.make_actor_state(state)
        return actor if state.behaviour is None else replace(actor, params=state.behaviour)


def _as_rows(rollout: Rollout) -> Rollout:
    """Give the carry a leading axis, so that all leaves are `[T, B, ...]`."""
    return replace(rollout, carry_in=jax.tree.map(lambda x: x[None], rollout.carry_in))


def _from_rows(rollout: Rollout) -> Rollout:
    """Undo `_as_rows`."""
    return replace(rollout, carry_in=jax.tree.map(lambda x: x[0], rollout.carry_in))


@pytree
class _CircularCarry:
    buffer: CircularBufferState
    learner_progress: LearnerProgress


def _mean_of_finite(table: Float[Array, "U M"], skipped: Bool[Array, " U"]) -> Float[Array, " M"]:
    good = jnp.broadcast_to(~skipped[:, None], table.shape)
    count = jnp.sum(~skipped, dtype=jnp.float32)
    return jnp.sum(jnp.where(good, table, 0.0), axis=0) / count
