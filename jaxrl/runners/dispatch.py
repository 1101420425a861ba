"""How many train batches go into one dispatch of the compiled program, and running them."""

import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from jaxrl.runners.results import IterationTotals, Report, to_host
from jaxrl.runners.sharding import Compiled
from jaxrl.runners.train_state import Summary, TrainState

if TYPE_CHECKING:
    from jaxrl.config.run_groups import Reporting

CHUNK_SECONDS = 1.0
"""Length of one dispatch; stop signals and time targets are looked at in between."""


class Dispatcher:
    """Runs train batches in chunks of about a second.

    Splitting a run into other chunks changes no bit of it: the number of train batches is traced,
    and every random draw depends on counters alone.

    Args:
        programs: The runner's programs.
        batch_steps: Environment steps of one train batch.
        jit: Whether they are compiled.
    """

    def __init__(self, programs: Compiled, batch_steps: int, *, jit: bool) -> None:
        self._programs = programs
        self._batch_steps = batch_steps
        self._jit = jit
        self._seconds_per_batch: float | None = None
        self._started = 0.0
        self._latest: tuple[weakref.ref[TrainState], np.ndarray] | None = None

    def wanted(self, reporting: "Reporting", totals: IterationTotals, elapsed: float) -> int:
        """Train batches of the next dispatch, 0 when the iteration has all it was asked for."""
        steps = max(
            reporting.min_sample_timesteps_per_iteration,
            reporting.min_train_timesteps_per_iteration,
            1,
        )
        left = -(-(steps - totals.env_steps) // self._batch_steps)
        pace = self._seconds_per_batch
        chunk = 1 if pace is None else max(1, int(CHUNK_SECONDS / pace))
        if left > 0:
            return min(left, chunk)
        remaining = (reporting.min_time_s_per_iteration or 0.0) - elapsed
        if remaining <= 0:
            return 0
        return max(1, min(chunk, int(remaining / (pace or CHUNK_SECONDS))))

    def start(
        self, state: TrainState, batches: int, on_phase: Callable[[str], None]
    ) -> tuple[TrainState, Summary]:
        """Dispatch train batches: the state after them, and what `finish` turns into a report.

        The given state is donated. Keep the new one before anything else can go wrong: waiting
        for the results may be interrupted, and the old one is gone.
        """
        number = np.int32(batches)
        if self._jit and not self._programs.run.figures:
            on_phase("compiling")
        run = self._programs.run.compiled_for(state, number)
        on_phase("training")
        self._started = time.perf_counter()
        return run(state, number)

    def finish(self, state: TrainState, summary: Summary) -> tuple[Report, float]:
        """Wait for a dispatch; what it reports, and its seconds."""
        report = Report.fetch(state, summary)
        seconds = time.perf_counter() - self._started
        self._seconds_per_batch = seconds / max(1, int(report.summary.train_batches))
        self._latest = (weakref.ref(state), np.asarray(report.ring.count))
        return report, seconds

    def episode_counts(self, state: TrainState) -> np.ndarray:
        """How many episodes each shard has seen end until this state.

        Known on the host since the last dispatch; fetched only for a state that is not the one
        that it returned, which was restored or replaced.
        """
        if self._latest is not None and self._latest[0]() is state:
            return self._latest[1]
        return to_host(state.ring.count)
