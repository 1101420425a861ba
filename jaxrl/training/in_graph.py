"""In-graph runner: rollout, targets and all updates as one compiled program.

`InGraph.init` and `InGraph.step` are pure and public: jit, vmap or scan them freely. Everything
after the rollout is implemented by the base class, independent of where the rollout came from.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jaxrl.core.keys import split_run_key
from jaxrl.core.struct import replace
from jaxrl.core.types import Key, Metrics, PyTree, Rollout, strip_weak_types
from jaxrl.envs.vector import VectorState
from jaxrl.learners.gradients import select
from jaxrl.training.batch_loop import BatchLoop
from jaxrl.training.data_flow import CompiledStep, TracedDataFlow, keep_behaviour
from jaxrl.training.episode_stats import EpisodeRecord, EpisodeSums, compute_episode_means
from jaxrl.training.nonfinite import drop_counts
from jaxrl.training.rollout import ActorCarry, ActorState, RolloutWorker, make_env_index
from jaxrl.training.train_state import (
    RecordedRollouts,
    ReportRow,
    RolloutBatch,
    Summary,
    TrainState,
    add_to_summary,
    count_updates_between,
    empty_summary,
)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class InGraphRunner(BatchLoop):
    """Run whose environments are pure functions as well."""

    policy_step: RolloutWorker
    explore: bool = True
    broadcast_interval: int = 1
    own_step: CompiledStep | None = None
    max_recorded_batches: int = 0
    """Maximum number of train batches per dispatch of a run whose rollouts are returned; 0 if not."""
    fragments_per_env: int = 1
    """Number of consecutive fragments of each environment in a train batch, each a column of its own."""

    @property
    def total_envs(self) -> int:
        """Number of environments of the run."""
        return self.num_envs // self.fragments_per_env

    @property
    def rollout_worker(self) -> RolloutWorker:
        """Policy together with the environments that it acts in."""
        return self.policy_step

    def init(self, key: Key, env_params: PyTree) -> TrainState:
        """Return the initial state of a run, including all environments. Consumes the key."""
        keys = split_run_key(key)
        worker, num_envs = self.rollout_worker, self.total_envs
        first = replace(
            self.init_from_keys(keys, num_envs),
            env=worker.env.reset(keys.env, make_env_index(num_envs), env_params),
            env_params=env_params,
            carry=worker.initial_carry(num_envs),
        )
        first = keep_behaviour(first, is_kept=self.broadcast_interval > 1)
        if self.own_step is not None:
            after = jax.eval_shape(self._traced_own_step, first)[0]
            first = keep_behaviour(first, is_kept=after.behaviour is not None)
        return strip_weak_types(first)

    def step(self, state: TrainState) -> tuple[TrainState, Metrics]:
        """Train on one batch: rollout, targets, every minibatch's update, finish.

        Returns:
            The next state, and the learner's metrics, with statistics of the episodes that ended in
            the batch: `episode_return_mean` and `episode_len_mean` (NaN if none ended) and
            `num_episodes`.
        """
        if self.own_step is None:
            state, data, metrics = self.train_batch(state)
            episodes = EpisodeSums.empty(1).add(data.record)
        else:
            state, summary = self._traced_own_step(state)
            metrics = {name: x / summary.learned_batches for name, x in summary.metrics.items()}
            episodes = summary.episodes
        return state, {**drop_counts(metrics), **compute_episode_means(episodes, self.axis_name)}

    @functools.cached_property
    def jitted_init(self) -> Callable[[Key, PyTree], TrainState]:
        """`init`, traced only once for its shapes, its size and its program."""
        return jax.jit(self.init, inline=True)

    @property
    def program(self) -> Callable[..., tuple[PyTree, ...]]:
        """Function of a dispatch: `run_iterations`, or `run_recorded` for a run with an output."""
        return self.run_recorded if self.max_recorded_batches else self.run_iterations

    def run_recorded(
        self, state: TrainState, num_iterations: Int[Array, ""], num_batches: Int[Array, ""]
    ) -> tuple[TrainState, ReportRow, RecordedRollouts]:
        """Run train batches like `run_iterations`, and also return their rollouts.

        Args:
            state: State of the run.
            num_iterations: Number of report rows, which is 1.
            num_batches: Number of train batches, at most `max_recorded_batches`.

        Returns:
            The state, report rows `[1, ...]`, and the rollouts, of which the first `num_batches` are
            filled.
        """
        del num_iterations

        def add(state: TrainState, summary: Summary) -> tuple[TrainState, Summary, Rollout]:
            after, data, metrics = self._traced_batch(state)
            updates = count_updates_between(state, after)
            total = add_to_summary(summary, data, metrics, updates)
            return after, total, _select_rows(data.rollout)

        return self.run_and_record(state, num_batches, self.max_recorded_batches, add)

    @functools.cached_property
    def _traced_batch(self) -> Callable[[TrainState], tuple[TrainState, RolloutBatch, Metrics]]:
        """`train_batch`, traced only once for all its uses in a program."""
        return jax.jit(self.train_batch, inline=True)

    def init_summary(self, state: TrainState) -> Summary:
        """Return the summary of zero train batches of this run."""
        metrics = (
            jax.eval_shape(self._traced_batch, state)[2]
            if self.own_step is None
            else jax.eval_shape(self._traced_own_step, state)[1].metrics
        )
        return empty_summary(state.ring.count.shape[0], metrics)

    def add_step(self, state: TrainState, summary: Summary) -> tuple[TrainState, Summary]:
        """Run one training step, and add it to the summary."""
        if self.own_step is not None:
            after, own = self._traced_own_step(state)
            return after, summary.merge(own)
        after, data, metrics = self._traced_batch(state)
        updates = count_updates_between(state, after)
        return after, add_to_summary(summary, data, metrics, updates)

    @functools.cached_property
    def _traced_own_step(self) -> Callable[[TrainState], tuple[TrainState, Summary]]:
        """`own_step` on a state, traced only once for all its uses in a program."""
        own_step = self.own_step
        assert own_step is not None

        def run(state: TrainState) -> tuple[TrainState, Summary]:
            flow = TracedDataFlow(self, state)
            own_step(flow)
            return flow.finish()

        return jax.jit(run, inline=True)

    def train_batch(self, state: TrainState) -> tuple[TrainState, RolloutBatch, Metrics]:
        """Train on one batch as `step` does.

        Returns:
            The next state, the rollout, and the learner's metrics alone.
        """
        sampled, data = self.collect(state)
        learned, metrics = self.train_step(sampled, data)
        return replace(learned, behaviour=self._broadcast(learned)), data, metrics

    def collect(self, state: TrainState) -> tuple[TrainState, RolloutBatch]:
        """Step all environments for one rollout, with the weights of the behavior policy.

        Returns:
            The state with the environments after it, which has not received it yet; the rollout.
        """
        actor = self.make_actor_state(state)
        if state.behaviour is not None:
            actor = replace(actor, params=state.behaviour)
        (env, carry), (raw, record, carries) = self._collect_fragments(actor, state)
        steps = raw.mask.sum(dtype=jnp.uint32)
        data = RolloutBatch(
            rollout=raw,
            record=record,
            env_index=env.index,
            num_env_steps=steps if self.axis_name is None else jax.lax.psum(steps, self.axis_name),
            fragment_carries=carries,
        )
        return replace(state, env=env, carry=carry), data

    def _collect_fragments(
        self, actor: ActorState, state: TrainState
    ) -> tuple[tuple[VectorState, ActorCarry], tuple[Rollout, EpisodeRecord, ActorCarry | None]]:
        """Record the fragments of a train batch as one rollout.

        Returns:
            The environments and carry at the end; the rollout, its record, and the carries at the
            start of every fragment, None for a single one.
        """

        def record_one(
            start: tuple[VectorState, ActorCarry],
        ) -> tuple[tuple[VectorState, ActorCarry], tuple[Rollout, EpisodeRecord]]:
            env, carry, rollout, record = self.rollout_worker.rollout(
                actor, *start, state.env_params, self.num_steps, self.explore
            )
            return (env, carry), (rollout, record)

        start = (state.env, state.carry)
        if self.fragments_per_env == 1:
            end, (rollout, record) = record_one(start)
            return end, (rollout, record, None)
        end, (fragments, record) = jax.lax.scan(
            lambda start, _: record_one(start), start, length=self.fragments_per_env
        )
        carries = fragments.carry_in
        rows, record = jax.tree.map(
            lambda x: x.reshape((-1, *x.shape[2:])), (replace(fragments, carry_in=None), record)
        )
        return end, (replace(rows, carry_in=state.carry), record, carries)

    def receive(self, state: TrainState, data: RolloutBatch) -> tuple[TrainState, RolloutBatch]:
        """Receive a batch; connectors see one rollout, learners a column for each fragment."""
        state, batch = super().receive(state, data)
        return state, self._split_into_fragments(batch)

    def _split_into_fragments(self, batch: RolloutBatch) -> RolloutBatch:
        """Make a column of every fragment, those of an environment side by side.

        A rollout is then cut between fragments as on the host: values bootstrap there, since a
        learner sees no row of another column.
        """
        if batch.fragment_carries is None:
            return batch

        def split(rows: Array) -> Array:
            fragments = rows.reshape((self.fragments_per_env, self.num_steps, *rows.shape[1:]))
            return jnp.moveaxis(fragments, 0, 2).reshape((self.num_steps, -1, *rows.shape[2:]))

        def side_by_side(carries: Array) -> Array:
            return jnp.moveaxis(carries, 0, 1).reshape((-1, *carries.shape[2:]))

        rollout = jax.tree.map(split, replace(batch.rollout, carry_in=None))
        carries = jax.tree.map(side_by_side, batch.fragment_carries)
        carry_in = self.policy_step.get_recurrent_carry(carries)
        return replace(batch, rollout=replace(rollout, carry_in=carry_in), fragment_carries=None)

    def _broadcast(self, state: TrainState) -> PyTree:
        """Return the parameters of the next rollout; None if they are always the newest."""
        if self.broadcast_interval == 1:
            return None
        due = state.progress.train_batches.low % self.broadcast_interval == 0
        return select(due, state.learner.sgd.params, state.behaviour)


def _select_rows(rollout: Rollout) -> Rollout:
    """Return a rollout without the recurrent state at its start."""
    return replace(rollout, carry_in=None)
