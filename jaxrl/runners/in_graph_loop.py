"""Training loop for environments in the compiled program: dispatches of bounded length."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from jaxrl.assembly.env import get_params_by_name, is_same_task, place_env_params
from jaxrl.config.curriculum import to_task_data
from jaxrl.core.struct import replace
from jaxrl.core.types import PyTree
from jaxrl.envs.context import EnvContext
from jaxrl.errors import ConfigError
from jaxrl.metrics import ENV_RUNNERS, TIMERS
from jaxrl.runners.compiled_runner import CompiledEnvRunner, CompiledRunnerGroup
from jaxrl.runners.counts import OUTPUT
from jaxrl.runners.curriculum import CURRICULUM, Curriculum
from jaxrl.runners.hooks import DISPATCH_HOOKS, RunnerHooks
from jaxrl.runners.learner_group import LearnerGroup
from jaxrl.runners.learner_steps import LearnerSteps, StepBatch, StepResult
from jaxrl.runners.metrics_logger import log_custom_metrics
from jaxrl.runners.protocols import Fill, count_steps_left
from jaxrl.runners.recording import (
    OUTPUT_SECONDS,
    RolloutRecorder,
    join_batches,
    restore_recording,
)
from jaxrl.runtime.program import Program
from jaxrl.training.report import (
    DispatchResult,
    IterationTotals,
    TrainReport,
    add_agents,
    collect_episodes,
    counter_to_int,
    merge_results,
    to_host,
)
from jaxrl.training.train_state import TrainState

if TYPE_CHECKING:
    from jaxrl.config.settings.run import ReportingSettings

CHUNK_SECONDS = 1.0
"""Target duration of a dispatch; stop signals and time limits are checked in between."""


class DispatchStrategy(Protocol):
    """Source of a loop's dispatches: the loop itself, or a group of runs that shares them."""

    def get_pending_batches(self) -> int | None:
        """Return the train batches of a dispatch that has been run already; None if none has."""
        ...

    def get_episode_counts(self, learners: LearnerGroup) -> np.ndarray:
        """Return the episodes that ended in each shard before the next dispatch.

        Args:
            learners: Learners of the loop.
        """
        ...

    def count_sampled_steps(self, totals: IterationTotals, batch_steps: int) -> int:
        """Return the steps sampled so far that count towards the iteration's required number.

        Args:
            totals: Totals of the iteration so far.
            batch_steps: Number of environment steps per train batch, if no environment fails.
        """
        ...

    def extend_result(self, result: dict[str, Any]) -> dict[str, Any]:
        """Return a result with the entries that only this run has."""
        ...


class OwnDispatches:
    """Strategy of a run that has its program for itself."""

    def get_pending_batches(self) -> int | None:
        return None

    def get_episode_counts(self, learners: LearnerGroup) -> np.ndarray:
        return to_host(learners.state.ring.count)

    def count_sampled_steps(self, totals: IterationTotals, batch_steps: int) -> int:
        del batch_steps
        return totals.env_steps

    def extend_result(self, result: dict[str, Any]) -> dict[str, Any]:
        return result


class InGraphLoop:
    """Loop that runs train batches in chunks of about a second.

    How a run is split into chunks does not change its state, to the bit: the number of train
    batches is traced, and every random draw depends on counters alone. Metrics that are means over
    an iteration's train batches are summed in float32 per chunk, so their last digits may differ.

    Args:
        learners: Learners that own the programs and the state.
        batch_steps: Number of environment steps per train batch, if no environment fails.
        trained_steps: Number of steps trained on per train batch, once learning has started.
        hooks: Callbacks for episodes and samples.
        strategy: Source of the dispatches.
        runner: What hooks receive as `env_runner`.
        curriculum: Tasks of the environments.
        recorder: Recorder of what is sampled; None if nothing is recorded.
        max_recorded_batches: Maximum number of train batches per dispatch that are recorded.
    """

    def __init__(
        self,
        learners: LearnerGroup,
        batch_steps: int,
        trained_steps: int,
        hooks: RunnerHooks,
        strategy: DispatchStrategy,
        runner: CompiledEnvRunner,
        curriculum: Curriculum,
        recorder: RolloutRecorder | None = None,
        max_recorded_batches: int = 0,
    ) -> None:
        self._recorder, self._max_recorded_batches = recorder, max_recorded_batches
        self.runners = CompiledRunnerGroup(runner)
        self.metrics_logger = runner.metrics
        self.curriculum = curriculum
        self.notes: list[str] = []
        self.programs: list[Program] = []
        self._learners = learners
        self._batch_steps, self._trained_steps = batch_steps, trained_steps
        self._hooks, self._strategy = hooks, strategy
        self._seconds_per_batch: float | None = None
        self._started = 0.0
        self._latest_counts: tuple[int, np.ndarray] | None = None
        self._lookahead = 1
        self._steps: LearnerSteps | None = None
        self._is_full_iteration = False
        self._has_announced_env = False

    def broadcast_if_due(self) -> None:
        """Do nothing: nobody acts on the host."""

    def prepare(self) -> None:
        """Call the hook for created environments, once."""
        if self._has_announced_env:
            return
        self._has_announced_env = True
        runner = self.runners.local_env_runner
        context = EnvContext(runner.config.environment_settings.env_config)
        self._hooks.call(
            "on_environment_created", **self._get_hook_arguments(), env_context=context
        )

    @property
    def is_dispatched(self) -> bool:
        """Presence of a dispatch that another lane has begun for all lanes."""
        return self._strategy.get_pending_batches() is not None

    def next_num_batches(
        self, reporting: "ReportingSettings", totals: IterationTotals, elapsed: float
    ) -> int:
        pending = self._strategy.get_pending_batches()
        if pending is not None:
            return pending
        left = self._count_batches_left(reporting, totals)
        batch_s = self._seconds_per_batch
        chunk = 1 if batch_s is None else max(1, int(CHUNK_SECONDS / batch_s))
        if self._recorder is not None:
            chunk = min(chunk, self._max_recorded_batches)
        self._is_full_iteration = (
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
        return max(1, min(chunk, int(remaining / (batch_s or CHUNK_SECONDS))))

    def _count_batches_left(self, reporting: "ReportingSettings", totals: IterationTotals) -> int:
        """Return the number of train batches that the iteration still needs, if not negative."""
        sampled = self._strategy.count_sampled_steps(totals, self._batch_steps)
        to_sample, to_train = count_steps_left(reporting, totals, sampled)
        return max(-(-to_sample // self._batch_steps), -(-to_train // self._trained_steps))

    def set_lookahead(self, num_iterations: int) -> None:
        self._lookahead = num_iterations

    def run_batches(self, num_batches: int, on_phase: Callable[[str], None]) -> DispatchResult:
        self.prepare()

        def on_phase_and_clock(phase: str) -> None:
            on_phase(phase)
            self._started = time.perf_counter()

        if self._steps is not None:  # this step acts with the newest weights
            self._steps.release_behaviour()
            self._steps = None
        before = self._get_episode_counts() if self._hooks.has_listeners("on_episode_end") else None
        self._started = time.perf_counter()
        is_ahead = self._is_full_iteration and self._recorder is None
        rows = self._lookahead if is_ahead else 1
        pending = self._learners.run_batches(num_batches, on_phase_and_clock, max_iterations=rows)
        report = self._learners.fetch_report([pending])
        spent = time.perf_counter() - self._started
        seconds, waited = spent, spent
        if self._is_full_iteration and report.seconds is not None:
            # A whole iteration may have been computed before it was requested.
            seconds, waited = report.seconds, report.wait_seconds
        report = self._record(report)
        summary = report.summaries[0]
        done, env_steps = int(summary.train_batches), int(summary.env_steps)
        self._seconds_per_batch = seconds / max(1, done)
        self._latest_counts = self._learners.generation, np.asarray(report.latest.ring.count)
        return DispatchResult(
            pending=report,
            train_batches=done,
            env_steps=env_steps,
            seconds=seconds,
            wait_seconds=waited,
            ahead_seconds=waited - spent,
            num_unreported_episodes=self._call_hooks(report, before, env_steps),
        )

    def _record(self, report: TrainReport) -> TrainReport:
        """Record the rollouts of a report, and return it without them."""
        recorded = report.recorded
        if self._recorder is None or recorded is None:
            return report
        number = int(report.summaries[0].train_batches)
        rollout = join_batches(recorded.rollouts, number)
        num_rows, num_envs = rollout.mask.shape
        versions = int(recorded.first_version) + np.arange(number)
        versions = np.broadcast_to(
            np.repeat(versions, num_rows // max(1, number))[:, None], (num_rows, num_envs)
        )
        self._recorder.add(rollout, np.arange(num_envs), versions)
        return dataclasses.replace(report, recorded=None)

    def sample(self, steps: LearnerSteps) -> tuple[Any, StepResult]:
        if self._recorder is not None:
            raise ConfigError(
                "output=... records the steps of the built-in training step, but this one samples "
                "by itself in the compiled program: set placement='host', or leave output out."
            )
        is_heard = any(map(self._hooks.has_listeners, DISPATCH_HOOKS))
        before = self._get_episode_counts() if self._hooks.has_listeners("on_episode_end") else None
        self._latest_counts = None
        batch, pending = steps.sample()
        if not is_heard:
            return batch, StepResult(pending=pending)
        report = self.fetch_report([pending])
        env_steps = int(report.summaries[0].env_steps)
        missed = self._call_hooks(report, before, env_steps)
        return batch, StepResult(pending=pending, num_unreported_episodes=missed)

    def update(
        self, steps: LearnerSteps, batch: "StepBatch | None", num_updates: int | None
    ) -> StepResult:
        self._steps = steps
        return StepResult(pending=steps.update(batch, num_updates), num_env_steps=0)

    def sync_weights(self, steps: LearnerSteps) -> None:
        steps.release_behaviour()

    def resume_steps(self, steps: LearnerSteps) -> None:
        self._steps = steps

    def _call_hooks(self, report: TrainReport, before: np.ndarray | None, env_steps: int) -> int:
        """Call the hooks for episodes and samples; return the number of episodes not reported."""
        episodes, missed = (
            ([], 0) if before is None else collect_episodes(report.latest.ring, before)
        )
        if patterns := self.runners.local_env_runner.patterns:
            episodes, left_out = add_agents(episodes, report.latest.agents.ring, patterns)
            missed += left_out
        for episode in episodes:
            self._hooks.call(
                "on_episode_end",
                episode=episode,
                prev_episode_chunks=[],
                env_index=episode.env_index,
                rl_module=self.runners.local_env_runner.module,
                **self._get_hook_arguments(),
            )
            log_custom_metrics(self.metrics_logger, episode.custom_data)
        samples = {
            "num_env_steps_sampled": env_steps,
            "num_env_steps_sampled_lifetime": counter_to_int(report.latest.env_steps),
            "num_episodes": int(report.summaries[0].episodes.count.sum()),
        }
        arguments = self._get_hook_arguments()
        del arguments["env"]
        self._hooks.call("on_sample_end", samples=samples, **arguments)
        return missed

    def _get_hook_arguments(self) -> dict[str, object]:
        """Return the arguments of all hooks of environments and episodes."""
        runner = self.runners.local_env_runner
        return {"env_runner": runner, "env": runner.env, "metrics_logger": self.metrics_logger}

    def _get_episode_counts(self) -> np.ndarray:
        """Return the number of episodes that have ended in each shard.

        It is known on the host from the last dispatch, and fetched only if the state has been
        restored or replaced since.
        """
        if self._latest_counts is not None and self._latest_counts[0] == self._learners.generation:
            return self._latest_counts[1]
        return self._strategy.get_episode_counts(self._learners)

    def fetch_report(self, pending: Sequence[Any]) -> TrainReport:
        return TrainReport.merge(pending)

    def extend_result(self, result: dict[str, Any]) -> dict[str, Any]:
        """Add the metrics logged by callbacks, those that only this run has, and the task."""
        logged = self.metrics_logger.reduce()
        result = merge_results({ENV_RUNNERS: logged}, result) if logged else result
        if self._recorder is not None:
            timers = {TIMERS: {OUTPUT_SECONDS: self._recorder.take_seconds()}}
            result = merge_results(result, timers)
        return {**self._strategy.extend_result(result), **self.curriculum.describe()}

    @property
    def task(self) -> None:
        """None: the task is part of the state."""

    def choose_task(self, result: Mapping[str, Any]) -> None:
        if self.curriculum.is_active and self.curriculum.update(result, self._call_task_method):
            self._set_params(self.curriculum.payload)

    def _set_params(self, params: PyTree) -> None:
        state = self._learners.state
        placed = place_env_params(state.env_params, params)
        self._learners.state = replace(state, env_params=placed)

    def _call_task_method(self, name: str, *args: int) -> PyTree:
        """Return the current parameters by name: a JAX environment has no methods of tasks."""
        params = get_params_by_name(to_host(self._learners.state.env_params))
        if name != "get_task" or params is None:
            raise ConfigError(
                f"task_settable_env has no {name}() for a JAX environment, whose tasks are its "
                "parameters by name."
            )
        return to_task_data(params, "env_params")

    def full_state(self, state: TrainState) -> TrainState:
        return state

    def env_leaves(self, leaves: Mapping[str, Any], counts: Mapping[str, Any]) -> dict[str, Any]:
        """Return no leaves: the environments are part of the learner state."""
        del leaves, counts
        return {}

    def check_counts(self, counts: Mapping[str, Any]) -> None:
        """Check nothing: a run that samples goes on from any."""
        del counts

    def restore(self, fill: Fill, counts: Mapping[str, Any]) -> None:
        """Restore the logged metrics and the current task; all other state is in the learners."""
        del fill
        self.metrics_logger.set_state(counts.get("logged", {}))
        self.curriculum.set_state(counts.get(CURRICULUM, {}))
        if self._recorder is not None:
            restore_recording(self._recorder, counts.get(OUTPUT))
        if self.curriculum.task is None:
            return
        # The task's parameters only: others may have been changed by set_env_params.
        current = to_host(self._learners.state.env_params)
        changed = self.curriculum.replace_params(current)
        if not is_same_task(current, changed):
            self._set_params(changed)

    def get_counts(self) -> dict[str, Any]:
        """Return the metrics logged by callbacks and the task, if there are any."""
        counts = {
            "logged": self.metrics_logger.get_state(),
            CURRICULUM: self.curriculum.get_state(),
            OUTPUT: self._recorder.get_state() if self._recorder is not None else {},
        }
        return {name: value for name, value in counts.items() if value}

    def stop(self) -> None:
        if self._recorder is not None:
            self._recorder.close()
