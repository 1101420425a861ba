"""Compiled runs: rollout, targets and all updates as one program.

`init` and `step` are pure and public: jit, vmap or scan them freely.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jaxrl.config.agent_mapping import DRAWN
from jaxrl.core.keys import RunKeys, split_run_key
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Key, PyTree, Rollout, strip_weak_types
from jaxrl.envs.multi.vector import MultiVectorState
from jaxrl.envs.vector import VectorState
from jaxrl.errors import ConfigError
from jaxrl.training.agent_rows import without_critics
from jaxrl.training.data_flow import (
    CompiledStep,
    Learning,
    TracedDataFlow,
    has_behaviour,
    keep_behaviour,
)
from jaxrl.training.episode_stats import EpisodeRecord, compute_episode_means
from jaxrl.training.multi_rollout import MultiCarry, MultiRollout, MultiRolloutWorker
from jaxrl.training.offline import OfflineTrainStep
from jaxrl.training.rollout import ActorCarry, RolloutWorker, make_env_index
from jaxrl.training.train_state import (
    RecordedRollouts,
    ReportRow,
    RolloutBatch,
    Summary,
    TrainState,
    make_report_row,
)

_EPISODES = 0x4550  # folded into the key of a train batch, which its updates split
MAX_REPORT_ROWS = 64
"""Maximum number of report rows per dispatch."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class CompiledEnvs:
    """Source of train batches: environments that are pure functions, of one agent or of several.

    Attributes:
        worker: Policies together with the environments that they act in.
        num_envs: Number of environments, over all devices.
        num_steps: Number of steps of a fragment.
        fragments_per_env: Number of consecutive fragments of each environment in a train batch.
        explore: Whether policies explore.
        begins_episodes: Whether all environments begin an episode with each train batch, of which the
            rows of episodes that its end cuts off are masked.
    """

    worker: RolloutWorker | MultiRolloutWorker
    num_envs: int
    num_steps: int
    fragments_per_env: int = 1
    explore: bool = True
    begins_episodes: bool = False

    def init(self, learning: Learning, keys: RunKeys, env_params: PyTree) -> TrainState:
        """Return the initial state of a run, including all environments."""
        return replace(
            learning.init_from_keys(keys, self.num_envs),
            env=self.worker.env.reset(keys.env, make_env_index(self.num_envs), env_params),
            env_params=env_params,
            carry=self.worker.initial_carry(self.num_envs),
        )

    def collect(self, learning: Learning, state: TrainState) -> tuple[TrainState, RolloutBatch]:
        """Step all environments for one rollout, with the weights of the behavior policy.

        Returns:
            The state with the environments after it, which has not received it yet; the rollout.
        """
        actor: PyTree = learning.make_behaviour_actor(state)
        if self.begins_episodes:
            state = self._begin_episodes(state)
        (env, carry), (raw, record, carries) = self._collect_fragments(actor, state)
        if self.begins_episodes:
            ended = jax.lax.cumsum(record.ended.astype(jnp.int32), axis=0, reverse=True) > 0
            raw = replace(raw, mask=raw.mask & ended)
        steps = raw.mask.sum(dtype=jnp.uint32)
        axis_name = learning.axis_name
        data = RolloutBatch(
            rollout=raw,  # pyright: ignore[reportArgumentType]
            record=record,
            env_index=env.index,
            num_env_steps=steps if axis_name is None else jax.lax.psum(steps, axis_name),
            fragment_carries=carries,
        )
        after = replace(state, env=env, carry=carry)
        return self.worker.end_rollout(after, data, axis_name), data

    def _begin_episodes(self, state: TrainState) -> TrainState:
        """Return the state with all environments at the start of an episode."""
        batch_key = jax.random.fold_in(state.key, state.progress.train_batches.low)
        key = jax.random.fold_in(batch_key, _EPISODES)
        env = self.worker.env.reset(key, state.env.index, state.env_params)
        return replace(state, env=env, carry=self.worker.initial_carry(state.env.index.shape[0]))

    def _collect_fragments(
        self, actor: PyTree, state: TrainState
    ) -> tuple[
        tuple[VectorState | MultiVectorState, ActorCarry | MultiCarry],
        tuple[Rollout | MultiRollout, EpisodeRecord, ActorCarry | None],
    ]:
        """Record the fragments of a train batch as one rollout.

        Returns:
            The environments and carry at the end; the rollout, its record, and the carries at the
            start of every fragment, None for a single one.
        """

        def record_one(start: tuple[Any, Any]) -> tuple[tuple[Any, Any], tuple[Any, EpisodeRecord]]:
            env, carry, rollout, record = self.worker.rollout(
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


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class CompiledRun:
    """Training steps that the compiled program repeats, from a source by a learning.

    Attributes:
        learning: Functions of the training of one module or of several, which recorded data are an
            input of if there are any.
        source: Environments that are stepped; None if all rows are recorded.
        own_step: Training step of a user's own; None for the default one.
        broadcast_interval: Number of train batches after which environments act with new weights.
        max_recorded_batches: Maximum number of train batches per dispatch of a run whose rollouts are
            returned; 0 if they are not.
    """

    learning: Learning
    source: CompiledEnvs | None
    own_step: CompiledStep | None = None
    broadcast_interval: int = 1
    max_recorded_batches: int = 0

    @property
    def batch_steps(self) -> int:
        """Environment steps of one train batch, over all devices."""
        return self.learning.batch_steps

    @property
    def rollout_worker(self) -> RolloutWorker | MultiRolloutWorker:
        """Policies together with the environments that they act in."""
        assert self.source is not None
        return self.source.worker

    @property
    def num_inputs(self) -> int:
        """Number of arguments of `program` beside the state and the numbers of train batches."""
        return int(self.learning.takes_dataset)

    def bind(self, state: TrainState, *inputs: PyTree) -> "CompiledRun":
        """Return the run with its recorded data, if it learns from any."""
        if not inputs:
            return self
        return dataclasses.replace(self, learning=self.learning.bind(state, *inputs))

    def init(self, key: Key, inputs: PyTree) -> TrainState:
        """Return the initial state of a run. Consumes the key.

        Args:
            key: Key of the run.
            inputs: Parameters of the environments; recorded data if there are no environments.
        """
        keys = split_run_key(key)
        if self.source is None:
            assert isinstance(self.learning, OfflineTrainStep)
            return self.learning.init_from_data(keys, inputs)
        state = self.source.init(self.learning, keys, inputs)
        return strip_weak_types(self._keep_acting_weights(strip_weak_types(state)))

    @functools.cached_property
    def jitted_init(self) -> Callable[[Key, PyTree], TrainState]:
        """`init`, traced only once for its shapes, its size and its program."""
        return jax.jit(self.init, inline=True)

    def make_actor_state(self, state: TrainState) -> PyTree:
        """Return the inputs of acting with the newest weights; of several modules, those of each."""
        return self.learning.make_actor_state(state)

    def collect(self, state: TrainState) -> tuple[TrainState, RolloutBatch]:
        """Step the environments for one rollout, see `CompiledEnvs.collect`."""
        assert self.source is not None
        return self.source.collect(self.learning, state)

    def train_batch(self, state: TrainState) -> tuple[TrainState, Summary, list[RolloutBatch]]:
        """Run one training step.

        Returns:
            The next state, the summary of the step, and the batches that were sampled.
        """
        flow = TracedDataFlow(self.learning, None if self.source is None else self.collect, state)
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

    def _keep_acting_weights(self, state: TrainState) -> TrainState:
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
        means = compute_episode_means(summary.episodes, self.learning.axis_name)
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
    ) -> tuple[TrainState, ReportRow]:
        """Run `num_batches` train batches, a traced number: changing it compiles nothing.

        Returns:
            The final state, and the report on the train batches.
        """
        start = _RunCarry(state=state, summary=self.init_summary(state))

        def is_running(carry: _RunCarry) -> Bool[Array, ""]:
            return self.is_running(carry.state, carry.summary, num_batches)

        def body(carry: _RunCarry) -> _RunCarry:
            state, summary = self.add_step(carry.state, carry.summary)
            return _RunCarry(state=state, summary=summary)

        end = jax.lax.while_loop(is_running, body, start)
        return end.state, make_report_row(end.state, end.summary)

    @functools.cached_property
    def _traced_run(self) -> Callable[..., tuple[TrainState, ReportRow]]:
        """`run_batches`, traced only once."""
        return jax.jit(self.run_batches, inline=True)

    def is_running(
        self, state: TrainState, summary: Summary, num_batches: Int[Array, ""]
    ) -> Bool[Array, ""]:
        """Return whether a dispatch of `num_batches` train batches goes on."""
        running = summary.train_batches < num_batches
        guard = self.learning.guard
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

    def dispatch(
        self, state: TrainState, *arguments: PyTree, return_previous: bool = False
    ) -> tuple[PyTree, ...]:
        """Run the program of a dispatch: `run_iterations`, or `run_recorded` for a run with an output.

        Args:
            state: State of the run.
            *arguments: Recorded data if there are any, and the two numbers.
            return_previous: Whether to return a copy of the state, too.
        """
        before = jax.tree.map(lambda x: jnp.array(x, copy=True), state) if return_previous else None
        *inputs, num_iterations, num_batches = arguments
        bound = self.bind(state, *inputs)
        run = bound.run_recorded if bound.max_recorded_batches else bound.run_iterations
        after = run(state, num_iterations, num_batches)
        return (*after, before) if return_previous else after

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
