"""How many train batches go into one dispatch of the compiled program, and running them."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl.runners.hooks import RunnerHooks
from jaxrl.runners.learner_group import LearnerGroup
from jaxrl.runners.protocols import Fill, steps_left
from jaxrl.runtime.program import Program
from jaxrl.training.report import (
    Dispatched,
    IterationTotals,
    Report,
    counted,
    new_episodes,
    to_host,
)
from jaxrl.training.train_state import TrainState

if TYPE_CHECKING:
    from jaxrl.config.settings.run import Reporting

CHUNK_SECONDS = 1.0
"""Length of one dispatch; stop signals and time targets are looked at in between."""


class Dispatcher:
    """Runs train batches in chunks of about a second.

    Splitting a run into other chunks changes no bit of it: the number of train batches is traced,
    and every random draw depends on counters alone.

    Args:
        learners: Where the programs and the state are.
        batch_steps: Environment steps of one train batch, where no environment is at fault.
        trained_steps: Steps that it trains on, or none of them while that is too early.
        hooks: Told of episodes and samples.
    """

    def __init__(
        self, learners: LearnerGroup, batch_steps: int, trained_steps: int, hooks: RunnerHooks
    ) -> None:
        self.runners = None
        self.notes: list[str] = []
        self.programs: list[Program] = []
        self._learners = learners
        self._batch_steps, self._trained_steps = batch_steps, trained_steps
        self._hooks = hooks
        self._seconds_per_batch: float | None = None
        self._started = 0.0
        self._latest: tuple[int, np.ndarray] | None = None
        self._iterations = 1
        self._is_iteration = False

    def prepare(self) -> None:
        """There is nothing to make."""

    def wanted(self, reporting: "Reporting", totals: IterationTotals, elapsed: float) -> int:
        to_sample, to_train = steps_left(reporting, totals, self._steps_that_count(totals))
        left = max(-(-to_sample // self._batch_steps), -(-to_train // self._trained_steps))
        pace = self._seconds_per_batch
        chunk = 1 if pace is None else max(1, int(CHUNK_SECONDS / pace))
        self._is_iteration = (
            totals.train_batches == 0
            and left <= chunk
            and not reporting.min_time_s_per_iteration
            and not reporting.min_train_timesteps_per_iteration
        )
        if left > 0:
            return min(left, chunk)
        remaining = (reporting.min_time_s_per_iteration or 0.0) - elapsed
        if remaining <= 0:
            return 0
        return max(1, min(chunk, int(remaining / (pace or CHUNK_SECONDS))))

    def expect(self, iterations: int) -> None:
        self._iterations = iterations

    def _steps_that_count(self, totals: IterationTotals) -> int:
        """Those of the iteration so far, for what it was asked for."""
        return totals.env_steps

    def dispatch(self, batches: int, on_phase: Callable[[str], None]) -> Dispatched:
        def on_phase_and_clock(phase: str) -> None:
            on_phase(phase)
            self._started = time.perf_counter()

        before = self._episode_counts() if self._hooks.wants("on_episode_end") else None
        self._started = time.perf_counter()
        rows = self._iterations if self._is_iteration else 1
        pending = self._learners.run(batches, on_phase_and_clock, rows_at_most=rows)
        report = self._learners.report([pending])
        spent = time.perf_counter() - self._started
        seconds, waited = spent, spent
        if self._is_iteration and report.seconds is not None:
            # A whole iteration may have been computed before it is asked for.
            seconds, waited = report.seconds, report.waited
        summary = report.summaries[0]
        done, env_steps = int(summary.train_batches), int(summary.env_steps)
        self._seconds_per_batch = seconds / max(1, done)
        self._latest = self._learners.generation, np.asarray(report.latest.ring.count)
        return Dispatched(
            pending=report,
            train_batches=done,
            env_steps=env_steps,
            seconds=seconds,
            waited=waited,
            lent=waited - spent,
            not_reported=self._tell(report, before, env_steps),
        )

    def _tell(self, report: Report, before: np.ndarray | None, env_steps: int) -> int:
        """Call the hooks of what was sampled; the episodes that are gone already."""
        episodes, missed = ([], 0) if before is None else new_episodes(report.latest.ring, before)
        for episode in episodes:
            self._hooks.call("on_episode_end", episode=episode)
        samples = {
            "num_env_steps_sampled": env_steps,
            "num_env_steps_sampled_lifetime": counted(report.latest.env_steps),
            "num_episodes": int(report.summaries[0].episodes.count.sum()),
        }
        self._hooks.call("on_sample_end", samples=samples)
        return missed

    def _episode_counts(self) -> np.ndarray:
        """How many episodes each shard has seen end until now.

        Known on the host since the last dispatch; fetched only where the state was restored or
        replaced since.
        """
        if self._latest is not None and self._latest[0] == self._learners.generation:
            return self._latest[1]
        return to_host(self._learners.state.ring.count)

    def report(self, pending: Sequence[Report]) -> Report:
        return Report.joined(pending)

    def added_to(self, result: dict[str, Any]) -> dict[str, Any]:
        return result

    def whole(self, state: TrainState) -> TrainState:
        return state

    def own_leaves(self, leaves: Mapping[str, Any], counts: Mapping[str, Any]) -> dict[str, Any]:
        """None: the environments are in the learners' state."""
        del leaves, counts
        return {}

    def restore(self, fill: Fill, counts: Mapping[str, Any]) -> None:
        """There is nothing beside the learners' state."""

    def get_counts(self) -> dict[str, Any]:
        return {}

    def stop(self) -> None:
        """There is nothing to let go."""
