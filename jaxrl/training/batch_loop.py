"""Loop over train batches that need nothing from the host, as one compiled program."""

import abc
import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jaxrl.core.struct import pytree
from jaxrl.core.types import PyTree
from jaxrl.training.guard import DivergenceGuard
from jaxrl.training.train_state import (
    RecordedRollouts,
    ReportRow,
    Summary,
    TrainState,
    make_report_row,
)
from jaxrl.training.train_step import TrainStep

MAX_REPORT_ROWS = 64
"""Maximum number of report rows per dispatch."""


class CompiledLoop(abc.ABC):
    """Base of what the compiled program repeats; `add_step` defines one step."""

    @property
    @abc.abstractmethod
    def divergence_guard(self) -> DivergenceGuard:
        """Guard whose settings say whether non-finite updates end a dispatch."""

    @abc.abstractmethod
    def init_summary(self, state: TrainState) -> Summary:
        """Return the summary of zero train batches of this run."""

    @abc.abstractmethod
    def add_step(self, state: TrainState, summary: Summary) -> tuple[TrainState, Summary]:
        """Run one training step, and add it to the summary."""

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

    def run_and_record(
        self,
        state: TrainState,
        num_batches: Int[Array, ""],
        max_batches: int,
        add: Callable[[TrainState, Summary], tuple[TrainState, Summary, PyTree]],
    ) -> tuple[TrainState, ReportRow, RecordedRollouts]:
        """Run train batches, and also return their rollouts.

        Args:
            state: State of the run.
            num_batches: Number of train batches.
            max_batches: Maximum of it.
            add: Function that runs one train batch, adds it to the summary, and returns its rollout.

        Returns:
            The state, report rows `[1, ...]`, and the rollouts, of which the first `num_batches` are
            filled.
        """
        first = self.init_summary(state)
        shapes = jax.eval_shape(add, state, first)[2]
        blank = jax.tree.map(lambda x: jnp.zeros((max_batches, *x.shape), x.dtype), shapes)

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


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class BatchLoop(TrainStep, CompiledLoop):
    """Base of runs of one module that the compiled program repeats."""

    @property
    def divergence_guard(self) -> DivergenceGuard:
        """Guard of the run."""
        return self.guard


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
