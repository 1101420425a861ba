"""Evaluations that are due after an iteration: in environments, and on held-out episodes."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jaxrl.config.stop import count_until_multiple
from jaxrl.estimation.methods import EstimationMethods
from jaxrl.metrics import HELD_OUT_PARTS, TIMERS
from jaxrl.runs.results import to_plain

if TYPE_CHECKING:
    from jaxrl.evaluation.evaluation import Evaluation
    from jaxrl.loggers.run_record import RunRecord


class IntervalEvaluations(EstimationMethods):
    """Methods that evaluate an algorithm every few iterations."""

    if TYPE_CHECKING:
        _record: RunRecord
        _evaluation: Evaluation
        _count_fit_iterations_left: Callable[[], int]

        @property
        def iteration(self) -> int: ...
        def evaluate(self) -> dict[str, Any]: ...
        def _finish_evaluation(self) -> dict[str, Any]: ...

    def _count_iterations_to_state_read(self) -> int:
        """Return the number of iterations, including this one, until the state is read."""
        settings = self.config.evaluation_settings
        # A parallel evaluation starts with the weights from before its iteration.
        since = self.iteration + int(settings.evaluation_parallel_to_training)
        if self.config.multi_agent_settings.league is not None:
            return 1
        return min(
            count_until_multiple(since, settings.evaluation_interval or 0),
            count_until_multiple(self.iteration, settings.offline_evaluation_interval or 0),
            self._count_fit_iterations_left(),
        )

    def _evaluate_if_due(self, result: dict[str, Any]) -> None:
        """Run the evaluations that are due, and attach the latest ones to a result."""
        settings, timers = self.config.evaluation_settings, result[TIMERS]
        latest, fresh = self._record.host.last_evaluation, dict[str, Any]()
        kept = {name: latest[name] for name in HELD_OUT_PARTS if name in latest}
        if settings.is_due(self.iteration):
            begin = time.perf_counter()
            fresh = to_plain(
                self._finish_evaluation()
                if self._evaluation.is_parallel_running
                else self.evaluate()
            )
            latest = {**kept, **fresh}
            timers["evaluation_s"] = time.perf_counter() - begin
        if settings.is_offline_evaluation_due(self.iteration):
            begin = time.perf_counter()
            found = to_plain(self.evaluate_held_out())
            latest, fresh = {**latest, **found}, {**fresh, **found}
            timers["offline_evaluation_s"] = time.perf_counter() - begin
        self._record.host.last_evaluation = latest
        attached = latest if settings.always_attach_evaluation_results else fresh
        if attached:
            result["evaluation"] = attached
