"""What follows a rollout: connectors, targets, every minibatch's update, the guard.

The same functions learn in the compiled loop and from what runners on the host recorded. With
`axis_name` set they are one device's part of a `shard_map` over the mesh (see `runners.sharding`).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxrl.buffers.circular import Circular, CircularState
from jaxrl.buffers.on_policy import OnPolicy, flatten_time, take_rows
from jaxrl.buffers.replay import ReplayState
from jaxrl.buffers.sequence import AnyReplay
from jaxrl.connectors.pipelines import LearnerPipeline
from jaxrl.core.hparams import current_values
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Key, Metrics, Progress, PyTree, Rollout, strongly_typed
from jaxrl.learners.learner import NONFINITE, check_scalars, select
from jaxrl.training.episode_stats import (
    EpisodeSums,
    empty_fault_log,
    empty_ring,
    push_episodes,
    push_faults,
)
from jaxrl.training.guard import Guard
from jaxrl.training.nonfinite import PREFIX, counted, nonfinite_rows, without_counts
from jaxrl.training.replay_updates import Dealt, FromBuffer, Replaying, stored
from jaxrl.training.rollout import Acting, Actor, blank_rollout
from jaxrl.training.train_state import (
    ConnectorState,
    GuardState,
    Learned,
    Lesson,
    Sampled,
    Summary,
    TrainState,
    summed,
    updates_between,
)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Learning:
    """What a run does with what was recorded, closed over everything that is static."""

    learner: Any
    acting: Acting
    experience: OnPolicy | AnyReplay
    learner_pipeline: LearnerPipeline
    num_envs: int
    num_steps: int
    ring_size: int
    guard: Guard
    circular: Circular | None = None
    zero_init_states: bool = False
    axis_name: str | None = None

    @property
    def _epochs_of(self) -> OnPolicy:
        """The minibatches of a run that learns from fresh batches."""
        assert isinstance(self.experience, OnPolicy)
        return self.experience

    @property
    def batch_steps(self) -> int:
        """Environment steps of one train batch, over all devices."""
        return self.num_envs * self.num_steps

    def init_learning(self, key: Key, total_envs: int) -> TrainState:
        """The first state without environments, which runners on the host keep. Consumes the key.

        Without a replay buffer too, where that is in host memory.

        Args:
            key: The run's.
            total_envs: Environments of all runners, of which connectors may keep a state each.
        """
        learner_key, _, run_key = jax.random.split(key, 3)
        return strongly_typed(self._without_envs(learner_key, run_key, total_envs))

    def _without_envs(self, learner_key: Key, run_key: Key, total_envs: int) -> TrainState:
        learner_state = self.learner.init(learner_key)
        shards = self.experience.num_shards
        state = TrainState(
            learner=learner_state,
            env=(),
            env_params=(),
            connectors=ConnectorState(
                obs=self.acting.obs_pipeline.init(),
                learner=self.learner_pipeline.init(),
                per_env=self.learner_pipeline.init_per_env(total_envs),
            ),
            carry=(),
            ring=empty_ring(shards, self.ring_size),
            faults=empty_fault_log(shards),
            guard=GuardState(
                snapshot=learner_state if self.guard.on_nonfinite == "rollback" else None,
                in_a_row=jnp.zeros((), jnp.int32),
                num_rollbacks=jnp.zeros((), jnp.int32),
                num_nonfinite=jnp.zeros((), jnp.uint32),
            ),
            progress=Progress.zero(),
            key=run_key,
        )
        if isinstance(self.experience, AnyReplay) and self.experience.in_host_memory:
            return state
        return replace(state, buffer=self.empty_buffer(state))

    def empty_buffer(self, state: TrainState) -> PyTree:
        """For rollouts as they are kept, if they are."""

        def kept() -> Rollout:
            raw = blank_rollout(self.acting, self.actor(state), self.num_steps, self.num_envs)
            per_env = self.learner_pipeline.init_per_env(self.num_envs)
            connectors = replace(state.connectors, per_env=per_env)
            values = current_values(state.learner.hparams, state.progress)
            received = self._received(connectors, raw, values)[1]
            if self.circular is None:
                return self._stored(state, raw, received)
            return _as_rows(received)

        if isinstance(self.experience, AnyReplay):
            return self.experience.init(jax.eval_shape(kept))
        return () if self.circular is None else self.circular.init(jax.eval_shape(kept))

    def no_summary(self, state: TrainState, metrics: Metrics) -> Summary:
        """The summary of no train batch, for metrics of these shapes."""
        return Summary(
            metrics=jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), metrics),
            episodes=EpisodeSums.zero(state.ring.count.shape[0]),
            train_batches=jnp.zeros((), jnp.int32),
            learned_batches=jnp.zeros((), jnp.int32),
            updates=jnp.zeros((), jnp.uint32),
            env_steps=jnp.zeros((), jnp.uint32),
        )

    def learn_and_sum(self, state: TrainState, data: Sampled) -> tuple[TrainState, Summary]:
        """`learn`, with the summary of this one train batch."""
        after, metrics = self.learn(state, data)
        updates = updates_between(state, after)
        return after, summed(self.no_summary(state, metrics), data, metrics, updates)

    def learn(self, state: TrainState, data: Sampled) -> tuple[TrainState, Metrics]:
        """What follows a rollout: connectors, targets, every minibatch's update, finish, guard.

        `connectors.per_env` has to be in the order of the data's columns.
        """
        key, buffer = self.batch_key(state), state.buffer
        state, rollout = self._receive(state, data)
        lesson, progress = _lesson_of(state), state.progress
        if isinstance(self.experience, AnyReplay):
            kept = self._stored(state, data.rollout, rollout)
            buffer = self.experience.add(buffer, kept, data.env_index, data.record.env_step)
            source = self.from_buffer(buffer, progress)
            priorities, lesson, metrics = self._replaying(self.experience).learn(
                source,
                self.experience.can_learn(buffer),
                state.connectors.obs,
                lesson,
                progress,
                key,
            )
            buffer = replace(buffer, priorities=priorities)
        elif self.circular is None:
            lesson, metrics = self._learn_from(lesson, rollout, progress, key)
        else:
            buffer = self.circular.add(buffer, _as_rows(rollout))
            buffer, lesson, metrics = self._learn_again(
                self.circular, buffer, lesson, progress, key
            )
        return _taught(replace(state, buffer=buffer), lesson), metrics

    def learn_dealt(
        self, state: TrainState, data: Sampled, dealt: Dealt
    ) -> tuple[TrainState, Metrics, PyTree]:
        """`learn` with rows that were drawn elsewhere, and the TD errors `[U, N]` of them all."""
        assert isinstance(self.experience, AnyReplay)
        key = self.batch_key(state)
        state, _ = self._receive(state, data)
        errors, lesson, metrics = self._replaying(self.experience).learn(
            dealt, dealt.ready, state.connectors.obs, _lesson_of(state), state.progress, key
        )
        return _taught(state, lesson), metrics, errors

    def batch_key(self, state: TrainState) -> Key:
        """What the next train batch draws from, before its rollout is received."""
        return jax.random.fold_in(state.key, state.progress.train_batches.low)

    def from_buffer(self, buffer: ReplayState, progress: Progress) -> FromBuffer:
        """The rows of a buffer, of which this device's part is given."""
        assert isinstance(self.experience, AnyReplay)
        return FromBuffer(
            replay=self.experience,
            buffer=buffer,
            num_envs=buffer.rows.experience.mask.shape[0],
            env_steps=progress.env_steps,
            axis_name=self.axis_name,
        )

    def _replaying(self, replay: AnyReplay) -> Replaying:
        return Replaying(
            learner=self.learner,
            acting=self.acting,
            guard=self.guard,
            num_updates=replay.num_updates,
            axis_name=self.axis_name,
        )

    def to_store(self, state: TrainState, data: Sampled) -> Rollout:
        """What a replay buffer keeps of a rollout that the state has not received yet."""
        return self._stored(state, data.rollout, self._receive(state, data)[1])

    def _stored(self, state: TrainState, raw: Rollout, received: Rollout) -> Rollout:
        params = state.learner.sgd.params
        return stored(self.acting, params, raw, received, zero_carry=self.zero_init_states)

    def _receive(self, state: TrainState, data: Sampled) -> tuple[TrainState, Rollout]:
        """The state with a rollout's statistics, episodes and steps; the rollout to learn from."""
        steps = state.progress.env_steps.add(data.num_env_steps)
        progress = replace(state.progress, env_steps=steps)
        values = current_values(state.learner.hparams, progress)
        connectors, rollout = self._received(state.connectors, data.rollout, values)
        received = replace(
            state,
            connectors=connectors,
            ring=push_episodes(state.ring, data.record, data.env_index),
            faults=push_faults(state.faults, data.record, data.env_index),
            progress=progress,
        )
        return received, rollout

    def per_env_after(self, state: TrainState, data: Sampled) -> PyTree:
        """What connectors keep of each column's environment once they have seen the rollout."""
        return self._receive(state, data)[0].connectors.per_env

    def _received(
        self, before: ConnectorState, raw: Rollout, values: Mapping[str, Float[Array, ""]]
    ) -> tuple[ConnectorState, Rollout]:
        """The statistics with a rollout added, and the rollout to learn from.

        `values` are the hyperparameters at its end.
        """
        obs_state, seen = self.acting.learned_from(before.obs, raw, self.axis_name)
        learner_state, per_env, rollout = self.learner_pipeline.at(values)(
            before.learner, before.per_env, seen, self.axis_name
        )
        connectors = ConnectorState(obs=obs_state, learner=learner_state, per_env=per_env)
        return connectors, rollout

    def _learn_from(
        self, before: Lesson, rollout: Rollout, progress: Progress, key: Key
    ) -> tuple[Lesson, Metrics]:
        """Targets, every minibatch's update, finish and guard for one batch."""
        shuffle_key, update_key = jax.random.split(key)
        progress = replace(progress, updates=before.updates)
        batch, prepared = self.learner.prepare(before.learner, rollout, progress)
        check_scalars(f"{type(self.learner).__name__}.prepare", prepared)
        learned, done = self._epochs(before.learner, batch, progress, shuffle_key, update_key)
        learned = self.learner.finish(learned, done.last_epoch, progress)
        guard, learned = self.guard.after_batch(before.guard, before.learner, learned, done.skipped)
        updates = before.updates.add(self._epochs_of.num_updates)
        return Lesson(learner=learned, guard=guard, updates=updates), {**done.every, **prepared}

    def _learn_again(
        self,
        circular: Circular,
        buffer: CircularState,
        lesson: Lesson,
        progress: Progress,
        key: Key,
    ) -> tuple[CircularState, Lesson, Metrics]:
        """As many batches of the buffer as each is used times; metrics are means over them.

        A draw that the buffer does not allow yet changes nothing.
        """

        def body(carry: _Replay, key: Key) -> tuple[_Replay, Metrics]:
            draw_key, learn_key = jax.random.split(key)
            buffer, drawn = circular.draw(carry.buffer, draw_key)
            batch = _from_rows(drawn.batch)
            after, metrics = self._learn_from(carry.lesson, batch, progress, learn_key)
            lesson = select(drawn.valid, after, carry.lesson)
            missing = {name: 0.0 if name.startswith(PREFIX) else jnp.nan for name in metrics}
            metrics = {n: jnp.where(drawn.valid, x, missing[n]) for n, x in metrics.items()}
            return _Replay(buffer=buffer, lesson=lesson), metrics

        keys = jax.random.split(key, circular.iterations_per_batch)
        end, rows = jax.lax.scan(body, _Replay(buffer=buffer, lesson=lesson), keys)
        missing = jnp.isnan(rows["grad_norm"])
        counts = {name: x.sum() for name, x in rows.items() if name.startswith(PREFIX)}
        names = sorted(without_counts(rows))
        means = _mean_of_good(jnp.stack([rows[name] for name in names], axis=1), missing)
        return end.buffer, end.lesson, {n: means[i] for i, n in enumerate(names)} | counts

    def actor(self, state: TrainState) -> Actor:
        """What acting depends on."""
        return Actor(
            params=state.learner.sgd.params,
            obs_state=state.connectors.obs,
            hparams=current_values(state.learner.hparams, state.progress),
            progress=state.progress,
        )

    def _epochs(
        self,
        learner_state: Any,
        batch: PyTree,
        progress: Progress,
        shuffle_key: Key,
        update_key: Key,
    ) -> tuple[Any, Learned]:
        """Every minibatch of every epoch: the means of their metrics, and which were skipped."""
        experience = self._epochs_of
        num_steps, num_envs = jax.tree.leaves(batch)[0].shape[:2]
        flat = flatten_time(batch)
        here = num_envs * experience.num_shards // self.num_envs
        device = 0 if self.axis_name is None else jax.lax.axis_index(self.axis_name)
        shards = device * here + jnp.arange(here, dtype=jnp.int32)
        orders = experience.orders(shuffle_key, shards)
        names: list[str] = []

        def body(s: Any, i: Int[Array, ""]) -> tuple[Any, Float[Array, " M"]]:
            rows = experience.rows(i, orders, num_steps, num_envs)
            now = replace(progress, updates=progress.updates.add(i))
            key = jax.random.fold_in(update_key, i)
            s, metrics = self.learner.update(s, take_rows(flat, rows), now, key)
            check_scalars(type(self.learner).__name__, metrics)
            names[:] = sorted(metrics)
            return s, jnp.stack([metrics[name].astype(jnp.float32) for name in names])

        updates = jnp.arange(experience.num_updates, dtype=jnp.int32)
        learner_state, table = jax.lax.scan(body, learner_state, updates)
        skipped = table[:, names.index(NONFINITE)] > 0.5
        last = experience.num_minibatches
        means = jnp.stack(
            [
                _mean_of_good(table, skipped),
                _mean_of_good(table[-last:], skipped[-last:]),
                nonfinite_rows(table, skipped).sum(axis=0),
            ]
        )
        if self.axis_name is not None:
            means = jax.lax.pmean(means, self.axis_name)
        every, last_epoch = (
            {name: row[i] for i, name in enumerate(names) if name != NONFINITE} for row in means[:2]
        )
        every |= counted(names, means[2])
        return learner_state, Learned(every=every, last_epoch=last_epoch, skipped=skipped)


def _lesson_of(state: TrainState) -> Lesson:
    return Lesson(learner=state.learner, guard=state.guard, updates=state.progress.updates)


def _taught(state: TrainState, lesson: Lesson) -> TrainState:
    """The state after a train batch."""
    progress = replace(
        state.progress,
        updates=lesson.updates,
        train_batches=state.progress.train_batches.add(1),
    )
    return replace(state, learner=lesson.learner, guard=lesson.guard, progress=progress)


def _as_rows(rollout: Rollout) -> Rollout:
    """With the carry as a row of its own, so that all leaves are `[T, B, ...]`."""
    return replace(rollout, carry_in=jax.tree.map(lambda x: x[None], rollout.carry_in))


def _from_rows(rollout: Rollout) -> Rollout:
    """Undoes `_as_rows`."""
    return replace(rollout, carry_in=jax.tree.map(lambda x: x[0], rollout.carry_in))


@pytree
class _Replay:
    buffer: CircularState
    lesson: Lesson


def _mean_of_good(table: Float[Array, "U M"], skipped: Bool[Array, " U"]) -> Float[Array, " M"]:
    good = jnp.broadcast_to(~skipped[:, None], table.shape)
    count = jnp.sum(~skipped, dtype=jnp.float32)
    return jnp.sum(jnp.where(good, table, 0.0), axis=0) / count
