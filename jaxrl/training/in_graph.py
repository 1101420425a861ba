"""Compiled runs: rollout, targets and all updates as one program.

`init` and `step` are pure and public: jit, vmap or scan them freely. Everything after the rollout is
that of `TrainStep` or `MultiLearning`, wherever the rollout came from.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jaxrl.config.agent_mapping import DRAWN
from jaxrl.core.keys import split_run_key
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Key, PyTree, Rollout, strip_weak_types
from jaxrl.envs.vector import VectorState
from jaxrl.errors import ConfigError
from jaxrl.training.agent_rows import AgentRows, without_critics
from jaxrl.training.data_flow import CompiledStep, TracedDataFlow, has_behaviour, keep_behaviour
from jaxrl.training.episode_stats import EpisodeRecord, compute_episode_means
from jaxrl.training.guard import DivergenceGuard
from jaxrl.training.multi_learning import MultiLearning
from jaxrl.training.multi_rollout import Actors, MultiRollout, MultiRolloutWorker
from jaxrl.training.rollout import ActorCarry, ActorState, RolloutWorker, make_env_index
from jaxrl.training.train_state import (
    RecordedRollouts,
    ReportRow,
    RolloutBatch,
    Summary,
    TrainState,
    make_report_row,
)
from jaxrl.training.train_step import TrainStep

MAX_REPORT_ROWS = 64
"""Maximum number of report rows per dispatch."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class CompiledLoop:
    """Training steps that the compiled program repeats; `collect` is where their rows come from.

    Attributes:
        own_step: Training step of a user's own; None for the default one.
        broadcast_interval: Number of train batches after which environments act with new weights.
        max_recorded_batches: Maximum number of train batches per dispatch of a run whose rollouts are
            returned; 0 if they are not.
        axis_name: Mesh axis that the environments are sharded over, or None.
    """

    own_step: CompiledStep | None = None
    broadcast_interval: int = 1
    max_recorded_batches: int = 0
    axis_name: str | None = None

    @property
    def divergence_guard(self) -> DivergenceGuard:
        """Guard whose settings say whether non-finite updates end a dispatch."""
        raise NotImplementedError

    @property
    def source(self) -> Callable[[TrainState], tuple[TrainState, RolloutBatch]] | None:
        """Function that steps environments for a train batch; None if all rows are recorded."""
        raise NotImplementedError

    def train_batch(self, state: TrainState) -> tuple[TrainState, Summary, list[RolloutBatch]]:
        """Run one training step.

        Returns:
            The next state, the summary of the step, and the batches that were sampled.
        """
        flow = TracedDataFlow(self, self.source, state)  # pyright: ignore[reportArgumentType]
        if self.own_step is None:
            flow.run_default_step(self.broadcast_interval)
        else:
            self.own_step(flow)
        return *flow.finish(), flow.sampled

    @functools.cached_property
    def _traced_batch(
        self,
    ) -> Callable[[TrainState], tuple[TrainState, Summary, list[RolloutBatch]]]:
        """`train_batch`, traced only once for all its uses in a program."""
        return jax.jit(self.train_batch, inline=True)

    def keep_acting_weights(self, state: TrainState) -> TrainState:
        """Return an initial state with weights that act beside the learner's, if they may lag behind."""
        if self.own_step is None:
            return keep_behaviour(state, is_kept=self.broadcast_interval > 1)
        after = jax.eval_shape(self._traced_batch, state)[0]
        return keep_behaviour(state, is_kept=has_behaviour(after))

    def step(self, state: TrainState) -> tuple[TrainState, dict[str, Any]]:
        """Run one training step: rollout, targets, every minibatch's update, finish.

        Returns:
            The next state, and the learner's metrics (of several agents: those of each module under its
            id), with statistics of the episodes that ended in the batch: `episode_return_mean` and
            `episode_len_mean` (NaN if none ended) and `num_episodes`.
        """
        after, summary, _ = self.train_batch(state)
        means = compute_episode_means(summary.episodes, self.axis_name)
        modules = {m: own.compute_means() for m, own in summary.modules.items() if own.metrics}
        return after, {**summary.compute_means(), **means, **modules}

    def init_summary(self, state: TrainState) -> Summary:
        """Return the summary of zero train batches of this run."""
        summary = jax.eval_shape(self._traced_batch, state)[1]
        return summary.make_zeros()

    def add_step(self, state: TrainState, summary: Summary) -> tuple[TrainState, Summary]:
        """Run one training step, and add it to the summary."""
        after, own, _ = self._traced_batch(state)
        return after, summary.merge(own)

    def run_batches(
        self, state: TrainState, num_batches: Int[Array, ""]
    ) -> tuple[TrainState, Summary]:
        """Run `num_batches` train batches, a traced number: changing it compiles nothing."""
        start = _RunCarry(state=state, summary=self.init_summary(state))

        def is_running(carry: _RunCarry) -> Bool[Array, ""]:
            return self.is_running(carry.state, carry.summary, num_batches)

        def body(carry: _RunCarry) -> _RunCarry:
            state, summary = self.add_step(carry.state, carry.summary)
            return _RunCarry(state=state, summary=summary)

        end = jax.lax.while_loop(is_running, body, start)
        return end.state, end.summary

    @functools.cached_property
    def _traced_run(self) -> Callable[..., tuple[TrainState, ReportRow]]:
        """`run` with the host's report, traced only once."""

        def run(state: TrainState, num_batches: Int[Array, ""]) -> tuple[TrainState, ReportRow]:
            after, summary = self.run_batches(state, num_batches)
            return after, make_report_row(after, summary)

        return jax.jit(run, inline=True)

    def is_running(
        self, state: TrainState, summary: Summary, num_batches: Int[Array, ""]
    ) -> Bool[Array, ""]:
        """Return whether a dispatch of `num_batches` train batches goes on."""
        running = summary.train_batches < num_batches
        guard = self.divergence_guard
        if guard.on_nonfinite == "raise":
            running = running & (state.guard.in_a_row < guard.tolerance)
        return running

    def run_iterations(
        self,
        state: TrainState,
        num_iterations: Int[Array, ""],
        batches_per_iteration: Int[Array, ""],
    ) -> tuple[TrainState, ReportRow]:
        """Run `num_iterations` times `batches_per_iteration` train batches, and report after each time.

        Both numbers are traced, so changing them compiles nothing. The state does not depend, to
        the bit, on how train batches are divided into rows and dispatches.

        Returns:
            The final state, and `[MAX_ROWS, ...]` rows, of which the first `num_iterations` are filled.
        """
        shapes = jax.eval_shape(self._traced_run, state, batches_per_iteration)[1]
        rows = jax.tree.map(lambda x: jnp.zeros((MAX_REPORT_ROWS, *x.shape), x.dtype), shapes)

        def body(i: Int[Array, ""], carry: _RowsCarry) -> _RowsCarry:
            after, row = self._traced_run(carry.state, batches_per_iteration)
            rows = jax.tree.map(lambda all_rows, x: all_rows.at[i].set(x), carry.rows, row)
            return _RowsCarry(state=after, rows=rows)

        end = jax.lax.fori_loop(0, num_iterations, body, _RowsCarry(state=state, rows=rows))
        return end.state, end.rows

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

        def add(state: TrainState, summary: Summary) -> tuple[TrainState, Summary, PyTree]:
            after, own, sampled = self._traced_batch(state)
            if len(sampled) != 1:
                raise ConfigError(
                    "output records the batch of each training step, but compiled_training_step() "
                    f"sampled {len(sampled)} outside of repeat(): call sample() once in it, or leave output unset."
                )
            (data,) = sampled
            return after, summary.merge(own), _select_rows(data.rollout)

        first = self.init_summary(state)
        shapes = jax.eval_shape(add, state, first)[2]
        blank = jax.tree.map(
            lambda x: jnp.zeros((self.max_recorded_batches, *x.shape), x.dtype), shapes
        )

        def is_running(carry: _RecordedCarry) -> Bool[Array, ""]:
            return self.is_running(carry.state, carry.summary, num_batches)

        def body(carry: _RecordedCarry) -> _RecordedCarry:
            i = carry.summary.train_batches
            after, summary, rows = add(carry.state, carry.summary)
            rollouts = jax.tree.map(lambda all_, x: all_.at[i].set(x), carry.rollouts, rows)
            return _RecordedCarry(state=after, summary=summary, rollouts=rollouts)

        start = _RecordedCarry(state=state, summary=first, rollouts=blank)
        end = jax.lax.while_loop(is_running, body, start)
        row = make_report_row(end.state, end.summary)
        recorded = RecordedRollouts(
            rollouts=end.rollouts, first_version=state.progress.train_batches.low
        )
        return end.state, jax.tree.map(lambda x: x[None], row), recorded


def _select_rows(rollout: Rollout | MultiRollout) -> PyTree:
    """Return what is recorded: rows of modules that act, without recurrent states and critics' inputs."""
    if isinstance(rollout, MultiRollout):
        acting = {m: without_critics(x) for m, x in rollout.rollouts.items() if m != DRAWN}
        return replace(rollout, rollouts=acting)
    return replace(rollout, carry_in=None)


@pytree
class _RunCarry:
    state: TrainState
    summary: Summary


@pytree
class _RecordedCarry:
    state: TrainState
    summary: Summary
    rollouts: PyTree


@pytree
class _RowsCarry:
    state: TrainState
    rows: ReportRow


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class InGraphRunner(TrainStep, CompiledLoop):
    """Run whose environments are pure functions as well."""

    policy_step: RolloutWorker
    explore: bool = True
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
        return strip_weak_types(self.keep_acting_weights(first))

    @functools.cached_property
    def jitted_init(self) -> Callable[[Key, PyTree], TrainState]:
        """`init`, traced only once for its shapes, its size and its program."""
        return jax.jit(self.init, inline=True)

    @property
    def divergence_guard(self) -> DivergenceGuard:
        """Guard of the run."""
        return self.guard

    @property
    def source(self) -> Callable[[TrainState], tuple[TrainState, RolloutBatch]]:
        """Function that steps the environments for a train batch."""
        return self.collect

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


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MultiAgentRunner(MultiLearning, CompiledLoop):
    """Run of several agents in environments that are pure functions.

    Attributes:
        rollout_worker: Modules in the environments.
        explore: Whether modules explore.
    """

    rollout_worker: MultiRolloutWorker
    explore: bool = True

    @property
    def rows(self) -> AgentRows:
        return self.rollout_worker.rows

    @property
    def source(self) -> Callable[[TrainState], tuple[TrainState, RolloutBatch]]:
        """Function that steps the environments for a train batch."""
        return self.collect

    def init(self, key: Key, env_params: PyTree) -> TrainState:
        """Return the initial state of a run, including all environments. Consumes the key."""
        keys, worker = split_run_key(key), self.rollout_worker
        state = self.init_around(
            keys,
            self.num_envs,
            env=worker.env.reset(keys.env, make_env_index(self.num_envs), env_params),
            env_params=env_params,
            carry=worker.initial_carry(self.num_envs),
        )
        if worker.pool is None:
            return strip_weak_types(self.keep_acting_weights(state))
        opponents = worker.pool.init(
            jax.random.fold_in(keys.learner, len(self.steps)),
            super().make_actor_state(state),
            state.modules,
        )
        state = replace(state, opponents=strip_weak_types(opponents))
        return strip_weak_types(self.keep_acting_weights(state))

    def make_actor_state(self, state: TrainState) -> Actors:
        """Return the inputs of acting of every module, and of opponents that are drawn."""
        actors = super().make_actor_state(state)
        pool = self.rollout_worker.pool
        if pool is not None:
            actors[DRAWN] = pool.place_learners(state.opponents, actors)
        return actors

    @functools.cached_property
    def jitted_init(self) -> Callable[[Key, PyTree], TrainState]:
        """`init`, traced only once for its shapes, its size and its program."""
        return jax.jit(self.init, inline=True)

    def collect(self, state: TrainState) -> tuple[TrainState, RolloutBatch]:
        """Step all environments for one rollout, with the weights of the behavior policies.

        Returns:
            The state with the environments after it, which has not received it yet; the rollout.
        """
        worker, actors = self.rollout_worker, self.make_actor_state(state)
        for m, module in state.modules.items():
            if module.behaviour is not None:
                actors[m] = replace(actors[m], params=module.behaviour)
        env, carry, recorded = worker.rollout(
            actors, state.env, state.carry, state.env_params, self.num_steps, self.explore
        )
        num_steps = self._count_steps(recorded.mask)
        data = RolloutBatch(
            rollout=recorded,  # pyright: ignore[reportArgumentType]
            record=recorded.record,
            env_index=env.index,
            num_env_steps=num_steps,
        )
        if worker.pool is not None and carry.opponents is not None:
            opponents, own = worker.pool.add_games(
                state.opponents, carry.opponents, num_steps, env.index.shape[0], self.axis_name
            )
            state, carry = replace(state, opponents=opponents), replace(carry, opponents=own)
        return replace(state, env=env, carry=carry), data
