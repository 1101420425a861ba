"""Status of a run for displays: phase, progress toward the stop criterion, throughput."""

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

from jaxrl.runs import results

PHASES: tuple[str, ...] = ("building", "compiling", "training", "evaluating", "saving")
_MIN_RATE_WINDOW_S = 0.5  # of training per rate estimate; several iterations may arrive at once
_MAX_HISTORY = 240  # points of the sparkline; halved when full, so that it spans the whole run


@dataclasses.dataclass(frozen=True, kw_only=True)
class StopProgress:
    """Progress toward the stop criterion that is closest to being met.

    Attributes:
        name: Result key of the criterion.
        value: Current value.
        target: Value at which the run stops.
        fraction: `value / target`, clipped to [0, 1]; None if it is not a count (a return).
        eta_s: Estimated seconds until the target is reached, or None if unknown.
    """

    name: str
    value: float
    target: float
    fraction: float | None
    eta_s: float | None


class RunStatus:
    """Phases and results of a run as they arrive, independent of any terminal.

    Args:
        stop: Stop criterion, `{"num_env_steps_sampled_lifetime": 500_000, ...}`.
        clock: Function that returns seconds since an arbitrary origin.
    """

    def __init__(
        self, stop: Mapping[str, Any] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.stop = dict(stop or {})
        self.result: results.Result = {}
        self.evaluation: Mapping[str, Any] = {}
        self.evaluated_at = 0
        self.returns: list[float] = []
        self.steps_per_s: float | None = None
        self.phase = PHASES[0]
        self._clock = clock
        self._started = self._phase_started = clock()
        self._seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        self._stride, self._num_returns = 1, 0
        self._first: tuple[float, results.Result] | None = None
        self._last_steps: int | None = None
        self._last_trained = 0.0

    @property
    def elapsed_s(self) -> float:
        """Seconds since the display began."""
        return self._clock() - self._started

    @property
    def phase_s(self) -> float:
        """Seconds since the current phase began."""
        return self._clock() - self._phase_started

    def seconds_in(self, phase: str) -> float:
        """Return the seconds spent in a phase, including the current one."""
        return self._seconds.get(phase, 0.0) + (self.phase_s if phase == self.phase else 0.0)

    def set_phase(self, phase: str) -> None:
        """Set the current phase."""
        self._seconds[self.phase] = self.seconds_in(self.phase)
        self.phase, self._phase_started = phase, self._clock()
        self._seconds.setdefault(phase, 0.0)

    def resume_from(self, result: results.Result) -> None:
        """Start from the result of a restored run, without a rate or a remaining time."""
        if result:
            self.result = result
            self._last_steps = results.get_steps(result)

    def update(self, result: results.Result) -> None:
        """Record the result of an iteration."""
        self.result = result
        if self._first is None:
            self._first = (self._clock(), result)
        evaluation = results.get_new_evaluation(result)
        if evaluation:
            self.evaluation = evaluation
            self.evaluated_at = int(results.get_number(result, results.ITERATION) or 0)
        value = results.get_number(result, results.RETURN_MEAN)
        if value is not None:
            self._append_return(value)
        self._update_rate(result)

    def compute_progress(self) -> StopProgress | None:
        """Return progress toward the criterion closest to being met; counts precede returns."""
        known = [self._progress_toward(name, target) for name, target in self.stop.items()]
        counts = [item for item in known if item is not None and item.fraction is not None]
        if counts:
            return max(counts, key=lambda item: item.fraction or 0.0)
        return next((item for item in known if item is not None), None)

    def _progress_toward(self, name: str, target: object) -> StopProgress | None:
        value = results.get_number(self.result, name)
        if not isinstance(target, int | float):
            return None
        if not _is_count(name):
            if value is None:
                return None
            return StopProgress(name=name, value=value, target=target, fraction=None, eta_s=None)
        value = value or 0.0
        fraction = min(max(value / target, 0.0), 1.0) if target > 0 else 1.0
        eta = self._estimate_eta_s(name, value, target)
        return StopProgress(name=name, value=value, target=target, fraction=fraction, eta_s=eta)

    def _estimate_eta_s(self, name: str, value: float, target: float) -> float | None:
        if self._first is None:
            return None
        since, first = self._first
        gain = value - (results.get_number(first, name) or 0.0)
        elapsed = self._clock() - since
        return max(target - value, 0.0) * elapsed / gain if gain > 0 else None

    def _update_rate(self, result: results.Result) -> None:
        """Update the steps per second of training, excluding other phases."""
        steps, trained = results.get_steps(result), self.seconds_in("training")
        if trained <= 0.0:  # no phases are set, as in a script
            trained = results.get_number(result, results.TIME_TOTAL) or 0.0
        if self._last_steps is None:  # a resumed run has sampled earlier steps
            sampled = results.get_number(result, "env_runners/num_env_steps_sampled") or 0.0
            seconds = self.seconds_in("training") or (
                (results.get_number(result, "time_this_iter_s") or 0.0)
                - (results.get_number(result, results.COMPILE_SECONDS) or 0.0)
            )
        else:
            sampled, seconds = float(steps - self._last_steps), trained - self._last_trained
            if self.steps_per_s is not None and seconds < _MIN_RATE_WINDOW_S:
                return
        if sampled and seconds and seconds > 0.0:
            self.steps_per_s = sampled / seconds
        self._last_steps, self._last_trained = steps, trained

    def _append_return(self, value: float) -> None:
        if self._num_returns % self._stride == 0:
            self.returns.append(value)
        self._num_returns += 1
        if len(self.returns) > _MAX_HISTORY:
            self.returns = self.returns[::2]
            self._stride *= 2


def _is_count(name: str) -> bool:
    last = name.rsplit("/", maxsplit=1)[-1]
    return last in (results.ITERATION, results.TIME_TOTAL) or last.startswith("num_")
