"""What a display knows about a run: phases, progress toward the stop criterion, throughput."""

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

from jaxrl.runs import results

PHASES: tuple[str, ...] = ("building", "compiling", "training", "evaluating", "saving")
_MEASURED_S = (
    0.5  # of training, at least, over which a rate is taken: several iterations may come at once
)
_HISTORY = 240  # points of the sparkline; halved when full, so it spans the whole run


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progress:
    """How near the run is to the criterion that it will meet first.

    Attributes:
        name: The criterion's key in the result.
        value: Where the run is.
        target: Where it stops.
        fraction: `value / target`, between 0 and 1; None for what is no count (a return).
        eta_s: Seconds until then at the present pace, or None if that is unknown.
    """

    name: str
    value: float
    target: float
    fraction: float | None
    eta_s: float | None


class RunStatus:
    """Takes phases and results as they come; knows no terminal.

    Args:
        stop: The stop criterion, `{"num_env_steps_sampled_lifetime": 500_000, ...}`.
        clock: Seconds from any origin.
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
        self._every, self._seen = 1, 0
        self._first: tuple[float, results.Result] | None = None
        self._last_steps: int | None = None
        self._last_trained = 0.0

    @property
    def elapsed_s(self) -> float:
        """Seconds since the display began."""
        return self._clock() - self._started

    @property
    def phase_s(self) -> float:
        """Seconds since the present phase began."""
        return self._clock() - self._phase_started

    def seconds_in(self, phase: str) -> float:
        """Seconds spent in a phase, the present one included."""
        return self._seconds.get(phase, 0.0) + (self.phase_s if phase == self.phase else 0.0)

    def enter(self, phase: str) -> None:
        """The run is now in this phase."""
        self._seconds[self.phase] = self.seconds_in(self.phase)
        self.phase, self._phase_started = phase, self._clock()
        self._seconds.setdefault(phase, 0.0)

    def goes_on_from(self, result: results.Result) -> None:
        """A restored run begins with these figures; no rate and no time follows from them."""
        if result:
            self.result = result
            self._last_steps = results.env_steps(result)

    def update(self, result: results.Result) -> None:
        """An iteration ended with this result."""
        self.result = result
        if self._first is None:
            self._first = (self._clock(), result)
        evaluation = results.new_evaluation(result)
        if evaluation:
            self.evaluation = evaluation
            self.evaluated_at = int(results.number(result, results.ITERATION) or 0)
        value = results.number(result, results.RETURN_MEAN)
        if value is not None:
            self._remember(value)
        self._measure(result)

    def progress(self) -> Progress | None:
        """The criterion nearest to being met; counts go before returns."""
        known = [self._toward(name, target) for name, target in self.stop.items()]
        counts = [item for item in known if item is not None and item.fraction is not None]
        if counts:
            return max(counts, key=lambda item: item.fraction or 0.0)
        return next((item for item in known if item is not None), None)

    def _toward(self, name: str, target: Any) -> Progress | None:
        value = results.number(self.result, name)
        if not isinstance(target, int | float):
            return None
        if not _is_count(name):
            if value is None:
                return None
            return Progress(name=name, value=value, target=target, fraction=None, eta_s=None)
        value = value or 0.0
        fraction = min(max(value / target, 0.0), 1.0) if target > 0 else 1.0
        eta = self._eta(name, value, target)
        return Progress(name=name, value=value, target=target, fraction=fraction, eta_s=eta)

    def _eta(self, name: str, value: float, target: float) -> float | None:
        if self._first is None:
            return None
        since, first = self._first
        gained = value - (results.number(first, name) or 0.0)
        passed = self._clock() - since
        return max(target - value, 0.0) * passed / gained if gained > 0 else None

    def _measure(self, result: results.Result) -> None:
        """Steps per second of training: without compiling, evaluating and saving."""
        steps, trained = results.env_steps(result), self.seconds_in("training")
        if trained <= 0.0:  # nobody tells of phases, as in a script
            trained = results.number(result, results.TIME_TOTAL) or 0.0
        if self._last_steps is None:  # a resumed run had sampled before
            sampled = results.number(result, "env_runners/num_env_steps_sampled") or 0.0
            seconds = self.seconds_in("training") or results.number(result, "time_this_iter_s")
        else:
            sampled, seconds = float(steps - self._last_steps), trained - self._last_trained
            if self.steps_per_s is not None and seconds < _MEASURED_S:
                return
        if sampled and seconds and seconds > 0.0:
            self.steps_per_s = sampled / seconds
        self._last_steps, self._last_trained = steps, trained

    def _remember(self, value: float) -> None:
        if self._seen % self._every == 0:
            self.returns.append(value)
        self._seen += 1
        if len(self.returns) > _HISTORY:
            self.returns = self.returns[::2]
            self._every *= 2


def _is_count(name: str) -> bool:
    last = name.rsplit("/", maxsplit=1)[-1]
    return last in (results.ITERATION, results.TIME_TOTAL) or last.startswith("num_")
