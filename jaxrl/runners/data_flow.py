"""Data flow of an Algorithm's own training step: every step is a dispatch of its own."""

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from jaxtyping import Array, Int

from jaxrl.core.types import Progress
from jaxrl.errors import ConfigError
from jaxrl.runners.learner_group import LearnerGroup
from jaxrl.runners.learner_steps import LearnerSteps, StepBatch, StepResult
from jaxrl.runners.protocols import LearnerMetrics, Loop
from jaxrl.training.data_flow import CompiledStep, check_use
from jaxrl.training.report import DispatchResult, IterationTotals
from jaxrl.training.train_step import TrainStep

if TYPE_CHECKING:
    from jaxrl.config.config import Config
    from jaxrl.config.settings.run import ReportingSettings


class DispatchedDataFlow:
    """Data flow whose steps are dispatched as they are called, and may run behind Python.

    Args:
        config: Config of the run.
        train_step: Functions of the run.
        learners: Learners of the run.
        loop: Loop of the run, which samples.
    """

    def __init__(
        self,
        config: "Config",
        train_step: TrainStep,
        learners: LearnerGroup,
        loop: Loop,
    ) -> None:
        self._config, self._train_step = config, train_step
        self._learners, self._loop = learners, loop
        self._results: list[StepResult] = []
        self._is_counting = False
        self._started = 0.0
        self._latest_metrics: Mapping[str, float] = {}
        self._has_sampled = False
        self.only_updated = False
        """True if the steps that were added last are updates alone."""

    @property
    def progress(self) -> Progress:
        """Counters of the run: `env_steps`, `updates` and `train_batches`."""
        return self._learners.state.progress

    def sample(self) -> Any:
        steps = self._begin()
        batch, result = self._loop.sample(steps)
        self._has_sampled = True
        self._record(result)
        return batch

    def add_to_buffer(self, batch: "StepBatch") -> None:
        steps = self._begin()
        check_use(self._train_step, "add_to_buffer", batch, None)
        steps.add_to_buffer(batch)

    def update(
        self, batch: "StepBatch | None" = None, *, num_updates: int | None = None
    ) -> Mapping[str, float]:
        steps = self._begin()
        if self._train_step.takes_dataset:
            raise ConfigError(
                "update() needs a sampled batch or a replay buffer, and this run learns from recorded "
                "data, input_=...: call super().training_step(), which runs gradient steps on them."
            )
        check_use(self._train_step, "update", batch, num_updates)
        result = self._loop.update(steps, batch, num_updates)
        self._record(result)
        self._latest_metrics = LearnerMetrics(self._loop, _make_dispatch(result))
        return self._latest_metrics

    def sync_weights(self) -> None:
        self._loop.sync_weights(self._begin())

    def repeat(
        self, times: int | Int[Array, ""], body: "Callable[[DispatchedDataFlow], None]"
    ) -> None:
        for _ in range(int(times)):
            body(self)

    def run(self, step: CompiledStep) -> Mapping[str, float]:
        """Run a training step that is not part of the program; return its latest metrics."""
        self._latest_metrics = {}
        step(self)
        return self._latest_metrics

    def resume(self) -> None:
        """Continue after a restore, which may be between an update and `sync_weights`."""
        self._loop.resume_steps(self._learners.steps)

    def set_counting(self, is_counting: bool) -> None:
        """Set whether steps are part of an iteration; those in between are not."""
        self._is_counting, self._results, self._has_sampled = is_counting, [], False

    def _record(self, result: StepResult) -> None:
        if self._is_counting:
            self._results.append(result)

    def _begin(self) -> LearnerSteps:
        """Return the learners' steps, with the clock started."""
        interval = self._config.training_settings.weights_interval
        if interval > 1:
            raise ConfigError(
                f"broadcast_interval={interval} has no effect on a training_step that calls "
                "sample() and sync_weights() itself: leave it at 1, and call sync_weights() when "
                "it is due."
            )
        steps = self._learners.steps
        if not self._results:
            self._started = time.perf_counter()
        return steps

    def add_to(self, totals: IterationTotals, num_train_batches: int) -> bool:
        """Add the steps since the last call to an iteration's totals.

        It waits for the sampling, but not for updates after it.

        Args:
            totals: Totals of the iteration.
            num_train_batches: Number of training steps that they are counted as.

        Returns:
            Whether there were any.
        """
        results, self._results = self._results, []
        self.only_updated = bool(results) and not self._has_sampled
        self._has_sampled = False
        for result in results[:-1]:
            totals.add(_make_dispatch(result))
        if results:
            last = _make_dispatch(results[-1], num_train_batches)
            seconds = time.perf_counter() - self._started
            totals.add(dataclasses.replace(last, seconds=seconds, wait_seconds=seconds))
        return bool(results)


def _make_dispatch(result: StepResult, num_train_batches: int = 0) -> DispatchResult:
    return DispatchResult(
        pending=result.pending,
        train_batches=num_train_batches,
        env_steps=result.count_env_steps(),
        seconds=0.0,
        wait_seconds=0.0,
        num_unreported_episodes=result.num_unreported_episodes,
    )


def raise_without_progress(algo_class: type) -> NoReturn:
    """Raise ConfigError: a training step did nothing."""
    raise ConfigError(
        f"training_step() of {algo_class.__name__} neither sampled nor updated anything, so train() "
        "would never end: call super().training_step(), or sample(), update(batch) and "
        "sync_weights()."
    )


def check_updates_alone(algo_class: type, reporting: "ReportingSettings") -> None:
    """Check that an iteration does not wait for samples that its training step does not take.

    Raises:
        ConfigError: If it does.
    """
    minimum = reporting.min_sample_timesteps_per_iteration
    if minimum > 0:
        raise ConfigError(
            f"min_sample_timesteps_per_iteration={minimum} would never be reached, because "
            f"training_step() of {algo_class.__name__} updates without sampling: call sample() in "
            "it, or set min_sample_timesteps_per_iteration=0."
        )
