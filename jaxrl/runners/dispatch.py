"""How many train batches go into one dispatch of the compiled program, and running them."""

import dataclasses
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl.runners.learner_group import LearnerGroup
from jaxrl.runners.results import IterationTotals, Report, to_host

if TYPE_CHECKING:
    from jaxrl.config.run_groups import Reporting

CHUNK_SECONDS = 1.0
"""Length of one dispatch; stop signals and time targets are looked at in between."""


@dataclasses.dataclass(frozen=True)
class Dispatched:
    """What was begun: what the learners report on, and its environment steps if they are known."""

    pending: Any
    env_steps: int = 0


class Dispatcher:
    """Runs train batches in chunks of about a second.

    Splitting a run into other chunks changes no bit of it: the number of train batches is traced,
    and every random draw depends on counters alone.

    Args:
        learners: Where the programs and the state are.
        batch_steps: Environment steps of one train batch.
    """

    def __init__(self, learners: LearnerGroup, batch_steps: int) -> None:
        self._learners = learners
        self._batch_steps = batch_steps
        self._seconds_per_batch: float | None = None
        self._started = 0.0
        self._latest: tuple[int, np.ndarray] | None = None

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

    def start(self, batches: int, on_phase: Callable[[str], None]) -> Dispatched:
        """Dispatch train batches; `finish` waits for them."""

        def on_phase_and_clock(phase: str) -> None:
            on_phase(phase)
            self._started = time.perf_counter()

        return Dispatched(self._learners.run(batches, on_phase_and_clock))

    def finish(self, dispatched: Dispatched) -> tuple[Report, int, float]:
        """Wait for a dispatch: its report, its environment steps, and its seconds."""
        report = self._learners.report(dispatched.pending)
        seconds = time.perf_counter() - self._started
        done = int(report.summary.train_batches)
        self._seconds_per_batch = seconds / max(1, done)
        self._latest = (self._learners.generation, np.asarray(report.ring.count))
        return report, done * self._batch_steps, seconds

    def episode_counts(self) -> np.ndarray:
        """How many episodes each shard has seen end until now.

        Known on the host since the last dispatch; fetched only where the state was restored or
        replaced since.
        """
        if self._latest is not None and self._latest[0] == self._learners.generation:
            return self._latest[1]
        return to_host(self._learners.state.ring.count)
