"""The in-graph runner: roll out, prepare, draw, scan(update), as one compiled program.

`InGraph.init` and `InGraph.step` are pure and public: jit, vmap or scan them as you like. What
follows the rollout is `Learning`, the same wherever that came from.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Key, Metrics, PyTree, strongly_typed
from jaxrl.learners.learner import select
from jaxrl.training.episode_stats import episode_means
from jaxrl.training.nonfinite import without_counts
from jaxrl.training.rollout import Sampler, initial_env_index
from jaxrl.training.train_state import (
    Row,
    Sampled,
    Summary,
    TrainState,
    observed,
    summed,
    updates_between,
)
from jaxrl.training.train_step import Learning

MAX_ROWS = 64
"""Rows that one dispatch can report."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class InGraph(Learning):
    """A run whose environments are pure functions as well."""

    acting: Sampler
    explore: bool = True
    broadcast_interval: int = 1

    @property
    def sampler(self) -> Sampler:
        """What acts, with the environments that it acts in."""
        return self.acting

    def init(self, key: Key, env_params: PyTree) -> TrainState:
        """The first state of a run, with all of its environments. Consumes the key."""
        learner_key, env_key, run_key = jax.random.split(key, 3)
        state = self._without_envs(learner_key, run_key, self.num_envs)
        lags = self.broadcast_interval > 1
        first = replace(
            state,
            behaviour=state.learner.sgd.params if lags else None,
            env=self.sampler.env.reset(env_key, initial_env_index(self.num_envs), env_params),
            env_params=env_params,
            carry=self.sampler.initial_carry(self.num_envs),
        )
        return strongly_typed(first)

    def step(self, state: TrainState) -> tuple[TrainState, Metrics]:
        """One train batch: roll out, prepare, every minibatch's update, finish.

        The metrics are the learner's, and those of the episodes that ended in the batch:
        `episode_return_mean` and `episode_len_mean`, NaN where none did, and `num_episodes`.
        """
        state, data, metrics = self.train_batch(state)
        own = without_counts(metrics)
        return state, {**own, **episode_means(data.record, self.axis_name)}

    def run(self, state: TrainState, num_batches: Int[Array, ""]) -> tuple[TrainState, Summary]:
        """`num_batches` train batches, a traced number: changing it compiles nothing."""
        start = _RunCarry(state=state, summary=self.first_summary(state))

        def more(carry: _RunCarry) -> Bool[Array, ""]:
            going = carry.summary.train_batches < num_batches
            if self.guard.on_nonfinite == "raise":
                going = going & (carry.state.guard.in_a_row < self.guard.tolerance)
            return going

        def body(carry: _RunCarry) -> _RunCarry:
            state, data, metrics = self._batch(carry.state)
            updates = updates_between(carry.state, state)
            return _RunCarry(state=state, summary=summed(carry.summary, data, metrics, updates))

        end = jax.lax.while_loop(more, body, start)
        return end.state, end.summary

    @functools.cached_property
    def first_state(self) -> Callable[[Key, PyTree], TrainState]:
        """`init`, traced once for its shapes, its size and its program."""
        return jax.jit(self.init, inline=True)

    @functools.cached_property
    def _batch(self) -> Callable[[TrainState], tuple[TrainState, Sampled, Metrics]]:
        """`train_batch`, traced once for all places of a program that ask for it."""
        return jax.jit(self.train_batch, inline=True)

    @functools.cached_property
    def _run(self) -> Callable[..., tuple[TrainState, Row]]:
        """`run` and what the host looks at after it, likewise."""

        def run(state: TrainState, num_batches: Int[Array, ""]) -> tuple[TrainState, Row]:
            after, summary = self.run(state, num_batches)
            return after, observed(after, summary)

        return jax.jit(run, inline=True)

    def run_rows(
        self, state: TrainState, num_rows: Int[Array, ""], batches_each: Int[Array, ""]
    ) -> tuple[TrainState, Row]:
        """Run `num_rows` times `batches_each` train batches, and report after each time.

        Both numbers are traced, so changing them compiles nothing, and how train batches are
        divided into rows and dispatches changes no bit of the state.

        Returns:
            The state after all of them, and `[MAX_ROWS, ...]` rows, of which the first `num_rows`
            are filled.
        """
        shapes = jax.eval_shape(self._run, state, batches_each)[1]
        rows = jax.tree.map(lambda x: jnp.zeros((MAX_ROWS, *x.shape), x.dtype), shapes)

        def body(i: Int[Array, ""], carry: _RowsCarry) -> _RowsCarry:
            after, row = self._run(carry.state, batches_each)
            rows = jax.tree.map(lambda all_rows, x: all_rows.at[i].set(x), carry.rows, row)
            return _RowsCarry(state=after, rows=rows)

        end = jax.lax.fori_loop(0, num_rows, body, _RowsCarry(state=state, rows=rows))
        return end.state, end.rows

    def first_summary(self, state: TrainState) -> Summary:
        """The summary of no train batch of this run."""
        return self.no_summary(state, jax.eval_shape(self._batch, state)[2])

    def train_batch(self, state: TrainState) -> tuple[TrainState, Sampled, Metrics]:
        """`step`, with what was sampled, and with the learner's metrics alone."""
        actor = self.actor(state)
        if self.broadcast_interval > 1:
            actor = replace(actor, params=state.behaviour)
        env, carry, raw, record = self.sampler.rollout(
            actor,
            state.env,
            state.carry,
            state.env_params,
            self.num_steps,
            self.explore,
        )
        steps = raw.mask.sum(dtype=jnp.uint32)
        data = Sampled(
            rollout=raw,
            record=record,
            env_index=env.index,
            num_env_steps=steps if self.axis_name is None else jax.lax.psum(steps, self.axis_name),
        )
        learned, metrics = self.learn(state, data)
        behaviour = self._broadcast(learned)
        return replace(learned, env=env, carry=carry, behaviour=behaviour), data, metrics

    def _broadcast(self, state: TrainState) -> PyTree:
        """What the next rollout acts with where that is not always the newest: None if it is."""
        if self.broadcast_interval == 1:
            return None
        due = state.progress.train_batches.low % self.broadcast_interval == 0
        return select(due, state.learner.sgd.params, state.behaviour)


@pytree
class _RunCarry:
    state: TrainState
    summary: Summary


@pytree
class _RowsCarry:
    state: TrainState
    rows: Row
