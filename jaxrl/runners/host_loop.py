"""The loop over runners on the host: sample, learn, publish the weights, in that order for ever.

Synchronous and asynchronous runs say the same words; the group of runners makes the difference. A
synchronous group samples when it is asked for a batch, with the newest weights; an asynchronous one
samples all the time and hands over what is ready.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxrl.core.struct import replace
from jaxrl.errors import CheckpointError
from jaxrl.metrics import ENV_RUNNERS, TIMERS
from jaxrl.runners.counts import WEIGHTS_VERSION as _VERSION
from jaxrl.runners.fragment import Weights
from jaxrl.runners.learner_group import LearnerGroup
from jaxrl.runners.metrics_logger import MetricsLogger
from jaxrl.runners.protocols import EnvRunnerGroup, Fill, steps_left
from jaxrl.runtime.program import Program
from jaxrl.training.report import Dispatched, IterationTotals, Report, merged
from jaxrl.training.train_state import TrainState

if TYPE_CHECKING:
    from jaxrl.config.settings.run import Reporting


_OWN = ("env.", "behaviour.")
"""What a checkpoint has of the loop's beside the learners' state."""


class HostLoop:
    """One train batch a dispatch, from a group of runners to a group of learners.

    Args:
        make_runners: Makes the group that fragments come from, when it is first needed.
        learners: Where they are learned from.
        broadcast_interval: Train batches between two publications of the weights.
    """

    def __init__(
        self,
        make_runners: Callable[[], EnvRunnerGroup],
        learners: LearnerGroup,
        broadcast_interval: int = 1,
    ) -> None:
        self._make_runners, self._learners = make_runners, learners
        self._runners: EnvRunnerGroup | None = None
        self._restore: Callable[[EnvRunnerGroup], None] | None = None
        self._interval = broadcast_interval
        self._published: tuple[int | None, int] | None = None
        self._acting: Weights | None = None
        self._restored: tuple[int, Weights] | None = None
        self._generation: int | None = None
        self._version = 0
        self.metrics = MetricsLogger()
        self._timers = {"sample_s": 0.0, "learn_s": 0.0, "synch_weights_s": 0.0}

    @property
    def runners(self) -> EnvRunnerGroup:
        """The group, made and put where it shall go on if that was not done yet."""
        if self._runners is None:
            self._runners = self._make_runners()
        if self._restore is not None:
            restore, self._restore = self._restore, None
            restore(self._runners)
        return self._runners

    @property
    def programs(self) -> list[Program]:
        """What the group compiled in this process."""
        return [] if self._runners is None else self._runners.programs

    @property
    def notes(self) -> list[str]:
        """The group's, once it is there."""
        return [] if self._runners is None else list(self._runners.notes)

    def prepare(self) -> None:
        """Make the group."""
        _ = self.runners

    def wanted(self, reporting: "Reporting", totals: IterationTotals, elapsed: float) -> int:
        """1 or 0."""
        more = max(steps_left(reporting, totals, totals.env_steps)) > 0
        return int(more or elapsed < (reporting.min_time_s_per_iteration or 0.0))

    def expect(self, iterations: int) -> None:
        """Nothing is computed ahead: runners act with what was learned from what they sampled."""

    def dispatch(self, batches: int, on_phase: Callable[[str], None]) -> Dispatched:
        """Publish weights if that is due, gather a train batch and learn from it.

        The group tells the hooks, where it happens.
        """
        del batches
        started = begin = time.perf_counter()
        self._publish_if_due()
        begin = self._lap("synch_weights_s", begin)
        fragments = self.runners.next_batch()
        begin = self._lap("sample_s", begin)
        self.metrics.merge(fragment.metrics for fragment in fragments)
        pending = self._learners.learn(fragments, on_phase)
        self._version += 1
        self._learners.wait(pending)
        now = self._lap("learn_s", begin)
        return Dispatched(
            pending=pending,
            train_batches=1,
            env_steps=sum(fragment.num_env_steps for fragment in fragments),
            seconds=now - started,
            waited=now - started,
        )

    def _publish_if_due(self) -> None:
        if self._generation != self._learners.generation:
            self._generation = self._learners.generation
            self._version = int(self._learners.state.progress.train_batches)
            self._published = None
        due = self._version // self._interval
        if self._published == (self._generation, due):
            return
        weights = self._restored_weights() or self._learners.weights(self._version)
        self.runners.publish(weights)
        self._published = (self._generation, due)
        self._acting = weights if self._interval > 1 else None

    def _restored_weights(self) -> Weights | None:
        """Those that a checkpoint says are acted with still, unless the state was replaced since."""
        restored, self._restored = self._restored, None
        if restored is None or self._interval == 1 or restored[0] != self._generation:
            return None
        return restored[1]

    @property
    def _outlasting(self) -> Weights | None:
        """Weights that the next batch is sampled with although there are newer ones."""
        now = self._learners.generation
        if self._restored is not None and self._restored[0] == now:
            return self._restored[1]
        lasts = self._published == (now, self._version // self._interval)
        return self._acting if lasts and self._generation == now else None

    def _lap(self, timer: str, begin: float) -> float:
        now = time.perf_counter()
        self._timers[timer] += now - begin
        return now

    def report(self, pending: Sequence[Any]) -> Report:
        return self._learners.report(pending)

    def added_to(self, result: dict[str, Any]) -> dict[str, Any]:
        """With the group's metrics, those that callbacks logged, and the seconds of each part."""
        timers = dict(self._timers)
        self._timers = dict.fromkeys(timers, 0.0)
        result = merged(result, {**self.runners.metrics(), TIMERS: timers})
        return merged({ENV_RUNNERS: self.metrics.reduce()}, result)

    def whole(self, state: TrainState) -> TrainState:
        acting = self._outlasting
        return replace(
            state,
            env=self.runners.get_state(),
            behaviour=None if acting is None else acting.actor,
        )

    def own_leaves(self, leaves: Mapping[str, Any], counts: Mapping[str, Any]) -> dict[str, Any]:
        own = {name: leaf for name, leaf in leaves.items() if name.startswith(_OWN)}
        if any(name.startswith("behaviour.") for name in own) and _VERSION not in counts:
            raise CheckpointError(
                "The state has the weights that were acted with, and no "
                f"host.runner_counts.{_VERSION}, which says how old they are."
            )
        return own

    def restore(self, fill: Fill, counts: Mapping[str, Any]) -> None:
        """Put the group where it shall go on: now, or when it is made."""
        self.metrics.set_state(counts.get("logged", {}))
        own = {name: value for name, value in counts.items() if name not in ("logged", _VERSION)}
        actor = fill("behaviour", lambda: self._learners.weights(0).actor)
        self._restored = None
        if actor is not None:
            weights = Weights(version=int(counts[_VERSION]), actor=actor)
            self._restored = self._learners.generation, weights

        def restore(runners: EnvRunnerGroup) -> None:
            runners.set_counts(own)
            runners.set_state(fill("env", runners.get_state))

        self._restore = restore
        if self._runners is not None:
            _ = self.runners

    def get_counts(self) -> dict[str, Any]:
        """The group's counts, and what callbacks logged."""
        counts = {**self.runners.get_counts(), "logged": self.metrics.get_state()}
        acting = self._outlasting
        return counts if acting is None else {**counts, _VERSION: acting.version}

    def stop(self) -> None:
        if self._runners is not None:
            self._runners.stop()
