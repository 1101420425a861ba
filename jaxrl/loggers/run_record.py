"""Record of a run on the host: its counters, its latest result, and the writer of its files."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Generator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrl.core.types import PyTree
from jaxrl.errors import EnvRunnerError, LearnerError, mark_has_checkpoint_path
from jaxrl.loggers import RunFolder
from jaxrl.loggers.python_log import get_machine_usage, get_node_ip
from jaxrl.loggers.recorder import Recorder
from jaxrl.metrics import lookup
from jaxrl.runners.metrics_logger import Key, MetricsLogger
from jaxrl.runs.host_state import RunMetadata
from jaxrl.runs.results import to_plain
from jaxrl.training.report import merge_results

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


class RunMetrics(MetricsLogger):
    """Logger of a run, which also reads the latest result.

    Attributes:
        last_result: Latest result of the run.
    """

    def __init__(self) -> None:
        super().__init__()
        self.last_result: dict[str, Any] = {}

    def peek(self, key: Key | None = None, default: object = None) -> Any:
        """Return the current value of a key that was logged, or else of the latest result.

        Without a key, the values logged since the latest result are returned.

        Raises:
            KeyError: If neither has the key and there is no default.
        """
        found = None
        if key is not None and key not in self:
            found = lookup(
                self.last_result, key if isinstance(key, str) else "/".join(map(str, key))
            )
        return super().peek(key, default) if found is None else found


class RunRecord:
    """Record of a run on the host: its counters, latest result, and recorder.

    Args:
        config: Config of the run.
        run_folder: Folder of the run to continue; None creates one on the first write.

    Attributes:
        host: Counters and numbers that checkpoints store.
        recorder: Writer of results and checkpoints.
        metrics: Logger of the run, whose values are added to results.
        evaluation_metrics: Logger of the values that hooks log during evaluations on the host.
    """

    def __init__(self, config: "AlgorithmConfig", run_folder: RunFolder | None) -> None:
        self.host = RunMetadata()
        self.metrics, self.evaluation_metrics = RunMetrics(), MetricsLogger()
        self.recorder = Recorder(config, run_folder)
        self._decision: Callable[[], None] | None = None
        self._restored = (0, 0.0)
        """Iteration and total time that this process went on from."""
        self._should_save_at_end = config.checkpointing_settings.checkpoint_at_end

    @property
    def last_result(self) -> dict[str, Any]:
        """Latest result; after a restore, the numbers of the saved one."""
        return self.metrics.last_result

    @last_result.setter
    def last_result(self, result: dict[str, Any]) -> None:
        self.metrics.last_result = result

    @property
    def iteration(self) -> int:
        """Number of completed iterations, including those before a restore."""
        return self.host.iteration

    @iteration.setter
    def iteration(self, iteration: int) -> None:
        self.host.iteration = iteration

    @property
    def last_iteration(self) -> int:
        """Iteration of the latest result; 0 before the first."""
        return int(self.last_result.get("training_iteration", 0))

    def extend_result(self, result: dict[str, Any]) -> None:
        """Add the values of the run's logger to a result, whose own entries have precedence."""
        result.update(merge_results(self.metrics.reduce(), result))

    def make_unwritten(
        self, config: "AlgorithmConfig", trial_id: str
    ) -> dict[str, Callable[[], Any]]:
        """Return what Ray's Trainables add to results and no file needs, made when it is read.

        Args:
            config: Config of the run.
            trial_id: Id of the trial of Ray Tune, "default" outside of it.
        """
        iteration, seconds = self._restored
        values = {
            "done": False,
            "trial_id": trial_id,
            "iterations_since_restore": self.iteration - iteration,
            "time_since_restore": self.host.time_total_s - seconds,
        }
        made: dict[str, Callable[[], Any]] = {
            "config": config.to_dict,
            "node_ip": get_node_ip,
            "perf": get_machine_usage,
        }
        constants = {name: partial(_return, value) for name, value in values.items()}
        return constants | {name: functools.cache(make) for name, make in made.items()}

    def store_counts(self, counts: dict[str, Any]) -> None:
        """Store the counts of host runners and the values logged so far, for a checkpoint."""
        self.host.runner_counts = to_plain(counts)
        self.host.logged = to_plain(self.metrics.get_state())
        self.host.logged_in_evaluations = to_plain(self.evaluation_metrics.get_state())

    def begin_result(
        self, result: dict[str, Any], decide: Callable[[dict[str, Any]], None]
    ) -> None:
        """Expect a result, before callbacks receive it.

        Args:
            result: Result, which callbacks may change.
            decide: Function that decides about the next iteration from a result. It is called by
                `add_result`, or before a checkpoint that a callback saves, which has the decision.
        """

        def keep_and_decide() -> None:
            self.last_result = result
            self.host.record_result(result)
            decide(result)

        self._decision = keep_and_decide

    def add_result(self, result: dict[str, Any]) -> None:
        """Write the latest result and decide about the next iteration."""
        self.recorder.write(result)
        is_decided = self._decision is None
        self.decide()
        if is_decided:  # callbacks may have changed the result since
            self.last_result = result
            self.host.record_result(result)

    def decide(self) -> None:
        """Decide about the next iteration from the expected result, if that has not been done."""
        decide, self._decision = self._decision, None
        if decide is not None:
            decide()

    def save(
        self, state: PyTree, metadata: Mapping[str, Any], files: Path | None, *, wait: bool
    ) -> Path:
        """Write a checkpoint into the run folder; see `Recorder.save`."""
        recorder, result = self.recorder, self.last_result
        return recorder.save(self.iteration, state, metadata, result, files, wait=wait)

    def resume_after(self, env_steps: int) -> None:
        """Continue after the iteration of the restored counters.

        Args:
            env_steps: Number of environment steps sampled up to that iteration.
        """
        self.last_result, self._decision = self.host.last_result, None
        self.metrics.set_state(self.host.logged)
        self.evaluation_metrics.set_state(self.host.logged_in_evaluations)
        self.recorder.set_start(self.iteration, env_steps)
        self._restored = self.iteration, self.host.time_total_s

    def copy_progress(self, source: "RunRecord") -> None:
        """Copy another run's counters and latest result, except for its time and action count."""
        own = self.host
        self.last_result = source.last_result
        self.metrics.set_state(source.metrics.get_state())
        self.evaluation_metrics.set_state(source.evaluation_metrics.get_state())
        self.host = dataclasses.replace(
            source.host, time_total_s=own.time_total_s, actions_drawn=own.actions_drawn
        )

    # --- errors ---

    @contextlib.contextmanager
    def save_on_runner_failure(self, save: Callable[[], str]) -> Generator[None]:
        """Save on runner failure, and add the latest checkpoint's path to errors ending the run.

        Args:
            save: Function that saves the run and returns a sentence about it.
        """
        try:
            yield
        except EnvRunnerError as error:
            # The learner state is intact; only the environment states are lost with the runners.
            self.iteration += 1
            raise mark_has_checkpoint_path(EnvRunnerError(f"{error} {save()}")) from error
        except LearnerError as error:
            latest = self.recorder.latest_checkpoint
            where = f"is {latest}" if latest else "does not exist: nothing has been saved yet"
            found = LearnerError(f"{error} The latest checkpoint {where}.")
            raise mark_has_checkpoint_path(found) from error

    def save_after_error(
        self, error: BaseException, save: Callable[[], str], *, has_trained: bool
    ) -> None:
        """Save the run after an error that ends it, and add a note about that to the error.

        Args:
            error: Error, which remains to be raised.
            save: Function that saves the run and returns a sentence about it.
            has_trained: Whether train batches were run since the latest result.
        """
        has_learned = bool(self.last_result) or has_trained
        if getattr(error, "has_checkpoint_path", False) or not has_learned:
            return
        if not self._should_save_at_end:
            return
        # Train batches of an iteration without a result count towards the next one.
        self.iteration = self.last_iteration
        error.add_note(save())


def _return(value: object) -> object:
    return value
