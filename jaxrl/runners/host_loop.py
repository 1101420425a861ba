"""Training loop over host runners: broadcast the weights, sample, update.

Synchronous and asynchronous runs share this loop and differ only in the runner group. A synchronous
group samples a batch on request, with the newest weights; an asynchronous one samples continuously
and returns the fragments that are ready.
"""

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxrl.core.struct import replace
from jaxrl.core.types import PyTree
from jaxrl.errors import CheckpointError
from jaxrl.metrics import ENV_RUNNERS, TIMERS
from jaxrl.runners.counts import OUTPUT
from jaxrl.runners.counts import WEIGHTS_VERSION as _VERSION
from jaxrl.runners.curriculum import CURRICULUM, Curriculum
from jaxrl.runners.fragment import Fragment, Weights
from jaxrl.runners.learner_group import LearnerGroup
from jaxrl.runners.learner_steps import LearnerSteps, StepBatch, StepResult
from jaxrl.runners.metrics_logger import MetricsLogger
from jaxrl.runners.protocols import EnvRunnerGroup, Fill, count_steps_left
from jaxrl.runners.recording import OUTPUT_SECONDS, Recorder, restore_recording
from jaxrl.runtime.program import Program
from jaxrl.training.data_flow import take_behaviour
from jaxrl.training.report import DispatchResult, IterationTotals, TrainReport, merge_results
from jaxrl.training.train_state import TrainState

if TYPE_CHECKING:
    from jaxrl.config.settings.run import ReportingSettings
    from jaxrl.runners.env_runner import EnvRunner


logger = logging.getLogger("jaxrl")

_LOOP_PREFIXES = ("env.", "behaviour.")
"""Prefixes of the checkpoint leaves that belong to the loop and not to the learner state."""


class HostLoop:
    """Loop that runs one train batch per dispatch, from a runner group to a learner group.

    Args:
        make_runners: Function that creates the runner group on first use.
        learners: Learners to update.
        curriculum: Tasks of the environments.
        broadcast_interval: Number of train batches between weight broadcasts.
        saves_buffer: Whether checkpoints store a replay buffer of the user's own.
        recorder: Recorder of what is sampled; None if nothing is recorded.
    """

    def __init__(
        self,
        make_runners: Callable[[], EnvRunnerGroup],
        learners: LearnerGroup,
        curriculum: Curriculum,
        broadcast_interval: int = 1,
        *,
        saves_buffer: bool = True,
        recorder: Recorder | None = None,
    ) -> None:
        self._recorder = recorder
        self._saves_buffer = saves_buffer
        self.curriculum = curriculum
        self._is_new_task = False
        self._make_runners, self._learners = make_runners, learners
        self._runners: EnvRunnerGroup | None = None
        self._creating = threading.RLock()
        self._pending_restore: Callable[[EnvRunnerGroup], None] | None = None
        self._interval = broadcast_interval
        self._last_broadcast: tuple[int | None, int] | None = None
        self._acting_weights: Weights | None = None
        self._is_synced_by_user = False
        self._restored: tuple[int, Weights] | None = None
        self._generation: int | None = None
        self._version = 0
        self.metrics_logger = MetricsLogger()
        self._timers = {"sample_s": 0.0, "learn_s": 0.0, "synch_weights_s": 0.0}

    @property
    def runners(self) -> EnvRunnerGroup:
        """Runner group, created and restored on first access, from whatever thread."""
        with self._creating:
            if self._runners is None:
                self._runners = self._make_runners()
            if self._pending_restore is not None:
                restore, self._pending_restore = self._pending_restore, None
                restore(self._runners)
            return self._runners

    @property
    def programs(self) -> list[Program]:
        """Programs that the runner group compiled in this process."""
        return [] if self._runners is None else self._runners.programs

    @property
    def notes(self) -> list[str]:
        """Messages of the runner group for `explain()`; empty before it is created."""
        return [] if self._runners is None else list(self._runners.notes)

    @property
    def has_runners(self) -> bool:
        """True if the runner group has been created."""
        return self._runners is not None

    def set_learners(self, learners: LearnerGroup) -> None:
        """Continue with other learners, whose weights the runners receive next."""
        self._learners = learners
        self._generation = self._acting_weights = self._restored = None

    def prepare(self) -> None:
        """Create the runner group."""
        _ = self.runners

    def next_num_batches(
        self, reporting: "ReportingSettings", totals: IterationTotals, elapsed: float
    ) -> int:
        """Return 1 if the iteration needs another train batch, else 0."""
        more = max(count_steps_left(reporting, totals, totals.env_steps)) > 0
        return int(more or elapsed < (reporting.min_time_s_per_iteration or 0.0))

    def set_lookahead(self, num_iterations: int) -> None:
        """Do nothing; no iteration can be computed ahead, as sampling needs the updated weights."""

    def run_batches(self, num_batches: int, on_phase: Callable[[str], None]) -> DispatchResult:
        """Broadcast the weights if due, sample a train batch and update the learners.

        The runners call the hooks for episodes and samples.
        """
        del num_batches
        started = begin = time.perf_counter()
        self._is_synced_by_user = False
        self._broadcast_if_due()
        begin = self._add_time("synch_weights_s", begin)
        fragments = self._sample()
        begin = self._add_time("sample_s", begin)
        self.metrics_logger.aggregate_runners((x.worker_index, x.metrics) for x in fragments)
        pending = self._learners.update(fragments, on_phase)
        self._version += 1
        self._learners.wait(pending)
        now = self._add_time("learn_s", begin)
        return DispatchResult(
            pending=pending,
            train_batches=1,
            env_steps=sum(fragment.num_env_steps for fragment in fragments),
            seconds=now - started,
            wait_seconds=now - started,
        )

    def _sample(self) -> list[Fragment]:
        """Return the fragments of the next train batch, after recording them."""
        fragments = self.runners.next_batch()
        if self._recorder is not None:
            self._recorder.add_fragments(fragments)
        return fragments

    def sample(self, steps: LearnerSteps) -> tuple[Any, StepResult]:
        """Sample a train batch with the weights of the latest `sync_weights`."""
        begin = time.perf_counter()
        self._is_synced_by_user = True
        self._follow_generation()
        if self._last_broadcast is None:
            self._broadcast(self._take_restored_weights() or self._get_newest_weights())
        elif self._is_new_task:
            self._broadcast(self._acting_weights or self._get_newest_weights())
        begin = self._add_time("synch_weights_s", begin)
        fragments = self._sample()
        begin = self._add_time("sample_s", begin)
        self.metrics_logger.aggregate_runners((x.worker_index, x.metrics) for x in fragments)
        batch, pending = steps.receive(fragments)
        self._add_time("learn_s", begin)
        env_steps = sum(fragment.num_env_steps for fragment in fragments)
        return batch, StepResult(pending=pending, num_env_steps=env_steps)

    def update(
        self, steps: LearnerSteps, batch: "StepBatch | None", num_updates: int | None
    ) -> StepResult:
        """Update the learners."""
        begin = time.perf_counter()
        self._is_synced_by_user = True
        self._follow_generation()
        pending = steps.update(batch, num_updates)
        self._version += 1
        self._add_time("learn_s", begin)
        return StepResult(pending=pending, num_env_steps=0)

    def sync_weights(self, steps: LearnerSteps) -> None:
        """Send the learners' weights to the runners."""
        begin = time.perf_counter()
        self._is_synced_by_user = True
        self._follow_generation()
        self._restored = None
        steps.release_behaviour()
        self._broadcast(self._get_newest_weights())
        self._add_time("synch_weights_s", begin)

    def resume_steps(self, steps: LearnerSteps) -> None:
        """Do nothing; `restore` has the weights to act with."""

    def _get_newest_weights(self) -> Weights:
        return self._learners.get_weights(self._version)

    def _follow_generation(self) -> None:
        """Forget what was broadcast if the state has been replaced since."""
        if self._generation != self._learners.generation:
            self._generation = self._learners.generation
            self._version = int(self._learners.state.progress.train_batches)
            self._last_broadcast = None

    def broadcast_if_due(self) -> None:
        """Send the weights to act with, unless a training step of one's own decides about that."""
        if self._last_broadcast is None or not self._is_synced_by_user:
            self._broadcast_if_due()

    def _broadcast_if_due(self) -> None:
        self._follow_generation()
        due = self._version // self._interval
        weights = self._acting_weights
        if self._last_broadcast != (self._generation, due):
            weights = self._take_restored_weights()
        elif not self._is_new_task:
            return
        if weights is None:
            weights = self._get_newest_weights()
        self._broadcast(weights)

    def _broadcast(self, weights: Weights) -> None:
        self.runners.sync_weights(dataclasses.replace(weights, task=self.task))
        self._last_broadcast = (self._generation, self._version // self._interval)
        self._is_new_task = False
        self._acting_weights = weights if self._keeps_weights else None

    @property
    def _keeps_weights(self) -> bool:
        """True if the runners may act with weights that are not the newest when they sample."""
        return self._interval > 1 or self._is_synced_by_user

    def _take_restored_weights(self) -> Weights | None:
        """Return the acting weights of a restored checkpoint unless the state has been replaced."""
        restored, self._restored = self._restored, None
        if restored is None or not self._keeps_weights or restored[0] != self._generation:
            return None
        return restored[1]

    @property
    def _outdated_weights(self) -> Weights | None:
        """Weights to sample the next batch with if they are not the newest; None otherwise."""
        now = self._learners.generation
        if self._restored is not None and self._restored[0] == now:
            return self._restored[1]
        acting = self._acting_weights
        if acting is None or self._generation != now:
            return None
        if self._is_synced_by_user:
            return None if acting.version == self._version else acting
        is_current = self._last_broadcast == (now, self._version // self._interval)
        return acting if is_current else None

    def _add_time(self, timer: str, begin: float) -> float:
        now = time.perf_counter()
        self._timers[timer] += now - begin
        return now

    def fetch_report(self, pending: Sequence[Any]) -> TrainReport:
        return self._learners.fetch_report(pending)

    def extend_result(self, result: dict[str, Any]) -> dict[str, Any]:
        """Add the group's metrics, those logged by callbacks, and the seconds of each phase."""
        timers = dict(self._timers)
        self._timers = dict.fromkeys(timers, 0.0)
        if self._recorder is not None:
            timers[OUTPUT_SECONDS] = self._recorder.take_seconds()
        result = merge_results(result, {**self.runners.get_metrics(), TIMERS: timers})
        result = merge_results({ENV_RUNNERS: self.metrics_logger.reduce()}, result)
        return {**result, **self.curriculum.describe()}

    @property
    def task(self) -> PyTree:
        return self.curriculum.payload

    def choose_task(self, result: Mapping[str, Any]) -> None:
        """Choose the next task, which the runners receive with the next weights."""
        if self.curriculum.is_active:
            self._is_new_task |= self.curriculum.update(result, self._call_task_method)

    def _call_task_method(self, name: str, *args: int) -> PyTree:
        def call(_: int, runner: "EnvRunner") -> PyTree:
            return runner.vector.call_task_method(name, *args)

        return self.runners.foreach_env_runner_with_index(call)[0][1]

    def full_state(self, state: TrainState) -> TrainState:
        acting = self._outdated_weights
        own = self._learners.user_buffer if self._saves_buffer else None
        return replace(
            take_behaviour(state, None),
            env=self.runners.get_state(),
            behaviour=None if acting is None else acting.actor,
            buffer=state.buffer if own is None else own.get_state() or (),
        )

    def env_leaves(self, leaves: Mapping[str, Any], counts: Mapping[str, Any]) -> dict[str, Any]:
        has_own = self._learners.user_buffer is not None
        prefixes = (*_LOOP_PREFIXES, "buffer.") if has_own else _LOOP_PREFIXES
        own = {name: leaf for name, leaf in leaves.items() if name.startswith(prefixes)}
        if any(name.startswith("behaviour.") for name in own) and _VERSION not in counts:
            raise CheckpointError(
                "The state has the weights of the behavior policy but no "
                f"host.runner_counts.{_VERSION}, which gives their version."
            )
        return own

    def check_counts(self, counts: Mapping[str, Any]) -> None:
        """Check nothing: a run that samples goes on from any."""
        del counts

    def restore(self, fill: Fill, counts: Mapping[str, Any]) -> None:
        """Restore the runner group, now or as soon as it is created."""
        self.metrics_logger.set_state(counts.get("logged", {}))
        self.curriculum.set_state(counts.get(CURRICULUM, {}))
        if self._recorder is not None:
            restore_recording(self._recorder, counts.get(OUTPUT))
        others = ("logged", _VERSION, CURRICULUM, OUTPUT)
        own = {name: value for name, value in counts.items() if name not in others}
        actor = fill("behaviour", lambda: self._learners.get_weights(0).actor)
        self._restored = None
        if actor is not None:
            weights = Weights(version=int(counts[_VERSION]), actor=actor)
            self._restored = self._learners.generation, weights

        if (buffer := self._learners.user_buffer) is not None:
            saved = fill("buffer", dict)
            if saved is None:
                logger.warning(
                    "The checkpoint does not have what is in %s: learning resumes once it is "
                    "filled again.",
                    type(buffer.buffer).__name__,
                )
            else:
                buffer.set_state(saved)

        def restore(runners: EnvRunnerGroup) -> None:
            runners.set_counts(own)
            if self.task is not None:
                runners.set_task(self.task)
            runners.set_state(fill("env", runners.get_state))

        self._pending_restore = restore
        if self._runners is not None:
            _ = self.runners

    def get_counts(self) -> dict[str, Any]:
        """Return the counts of the runner group and the metrics logged by callbacks."""
        counts = {**self.runners.get_counts(), "logged": self.metrics_logger.get_state()}
        if state := self.curriculum.get_state():
            counts[CURRICULUM] = state
        if self._recorder is not None:
            counts[OUTPUT] = self._recorder.get_state()
        acting = self._outdated_weights
        return counts if acting is None else {**counts, _VERSION: acting.version}

    def stop(self) -> None:
        try:
            if self._runners is not None:
                self._runners.stop()
        finally:
            if self._recorder is not None:
                self._recorder.close()
