"""The loop over runners on the host: sample, learn, publish the weights, in that order for ever.

Synchronous and asynchronous runs say the same words; the group of runners makes the difference. A
synchronous group samples when it is asked for a batch, with the newest weights; an asynchronous one
samples all the time and hands over what is ready.
"""

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from jaxrl.core.types import PyTree
from jaxrl.runners.dispatch import Dispatched
from jaxrl.runners.fragment import Fragment, Weights
from jaxrl.runners.learner_group import LearnerGroup
from jaxrl.runners.metrics_logger import MetricsLogger
from jaxrl.runners.program import Program
from jaxrl.runners.results import IterationTotals, Report

if TYPE_CHECKING:
    from jaxrl.config.run_groups import Reporting


class EnvRunnerGroup(Protocol):
    """The runners of a run: one that is in this process, or actors.

    `notes` are sentences for `explain()`.
    """

    notes: list[str]

    @property
    def programs(self) -> list[Program]:
        """What was compiled in this process to act."""
        ...

    def publish(self, weights: Weights) -> None:
        """The weights to act with from now on."""
        ...

    def next_batch(self) -> list[Fragment]:
        """The fragments of one train batch, in the order of its columns."""
        ...

    def metrics(self) -> dict[str, Any]:
        """Parts of the result, since the last call where they are no lifetime counts."""
        ...

    def get_state(self) -> PyTree:
        """Where all the environments are, in the order of their indices."""
        ...

    def set_state(self, state: PyTree) -> None:
        """Go on from what `get_state` returned."""
        ...

    def get_counts(self) -> dict[str, Any]:
        """Lifetime counts, as JSON takes them."""
        ...

    def set_counts(self, counts: dict[str, Any]) -> None:
        """Go on counting from what `get_counts` returned."""
        ...

    def foreach_env_runner(self, fn: Callable[[Any], Any]) -> list[Any]:
        """What a function of each runner returns."""
        ...

    def stop(self) -> None:
        """Let everything go; may be called twice."""
        ...


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
        self._generation: int | None = None
        self._version = 0
        self._started = 0.0
        self.metrics = MetricsLogger()
        self.timers = {"sample_s": 0.0, "learn_s": 0.0, "synch_weights_s": 0.0}

    @property
    def has_runners(self) -> bool:
        """Whether the group was made yet."""
        return self._runners is not None

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

    def restore_runners(self, restore: Callable[[EnvRunnerGroup], None]) -> None:
        """Put the group where it shall go on: now, or when it is made."""
        self._restore = restore
        if self.has_runners:
            _ = self.runners

    def get_counts(self) -> dict[str, Any]:
        """What lasts for the run's life: the group's counts, and what callbacks logged."""
        return {**self.runners.get_counts(), "logged": self.metrics.get_state()}

    def set_counts(self, counts: Mapping[str, Any]) -> dict[str, Any]:
        """Go on from what `get_counts` returned; the group's part of it."""
        self.metrics.set_state(counts.get("logged", {}))
        return {name: value for name, value in counts.items() if name != "logged"}

    def stop(self) -> None:
        """Stop the runners, if there are any; may be called twice."""
        if self._runners is not None:
            self._runners.stop()

    def wanted(self, reporting: "Reporting", totals: IterationTotals, elapsed: float) -> int:
        """1 while the iteration has not all that it was asked for, else 0."""
        steps = max(
            reporting.min_sample_timesteps_per_iteration,
            reporting.min_train_timesteps_per_iteration,
            1,
        )
        more = totals.env_steps < steps or elapsed < (reporting.min_time_s_per_iteration or 0.0)
        return int(more)

    def start(self, batches: int, on_phase: Callable[[str], None]) -> Dispatched:
        """Publish weights if that is due, gather a train batch and begin to learn from it."""
        del batches
        self._started = begin = time.perf_counter()
        self._publish_if_due()
        begin = self._lap("synch_weights_s", begin)
        fragments = self.runners.next_batch()
        begin = self._lap("sample_s", begin)
        self.metrics.merge(fragment.metrics for fragment in fragments)
        pending = self._learners.learn(fragments, on_phase)
        self._version += 1
        self._lap("learn_s", begin)
        return Dispatched(pending, sum(fragment.num_env_steps for fragment in fragments))

    def _publish_if_due(self) -> None:
        if self._generation != self._learners.generation:
            self._generation = self._learners.generation
            self._version = int(self._learners.state.progress.train_batches)
            self._published = None
        due = self._version // self._interval
        if self._published != (self._generation, due):
            self.runners.publish(self._learners.weights(self._version))
            self._published = (self._generation, due)

    def _lap(self, timer: str, begin: float) -> float:
        now = time.perf_counter()
        self.timers[timer] += now - begin
        return now

    def finish(self, dispatched: Dispatched) -> tuple[Report, int, float]:
        """Wait for a dispatch: its report, its environment steps, and its seconds."""
        begin = time.perf_counter()
        report = self._learners.report(dispatched.pending)
        now = self._lap("learn_s", begin)
        return report, dispatched.env_steps, now - self._started

    def episode_counts(self) -> np.ndarray:
        """Episodes of host runners are told of where they end."""
        return np.zeros(0, np.uint32)

    def take_timers(self) -> dict[str, float]:
        """Seconds of each part since the last call."""
        taken = dict(self.timers)
        self.timers = dict.fromkeys(taken, 0.0)
        return taken
