"""Record of a run on the host: its counters and latest result, its folder, sinks and checkpoints."""

import contextlib
import dataclasses
import functools
import logging
import os
import time
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrl.core.types import Device, PyTree
from jaxrl.errors import (
    ConfigError,
    EnvRunnerError,
    JaxrlError,
    LearnerError,
    RunFolderError,
    mark_has_checkpoint_path,
    summarize_exception,
)
from jaxrl.loggers import RunFolder, Sink, close_sinks, open_sinks
from jaxrl.loggers.plots import draw_learning_curve
from jaxrl.loggers.python_log import get_machine_usage, get_node_ip
from jaxrl.loggers.sinks import BufferedSink, NamedSink, cut_sinks
from jaxrl.metrics import EVALUATION, get_score, lookup
from jaxrl.runners.metrics_logger import Key, MetricsLogger
from jaxrl.runs import results
from jaxrl.runs.checkpoint import (
    CheckpointWriter,
    find_swept_iteration,
    list_checkpoints,
    remove_old_set_aside,
    set_aside_later_checkpoints,
)
from jaxrl.runs.host_state import RunMetadata
from jaxrl.runs.manifest import Session, add_session
from jaxrl.runs.run_folder import check_name, resolve_results_dir
from jaxrl.runtime import files
from jaxrl.training.report import merge_results

if TYPE_CHECKING:
    from jaxrl.config.config import Config
    from jaxrl.config.settings.run import CheckpointingSettings


MIN_TRAIN_TO_SAVE_RATIO = 20.0
"""Minimum ratio of training time to saving time where checkpoints follow a time interval."""


logger = logging.getLogger("jaxrl")


@dataclasses.dataclass
class _Resources:
    """Resources to close, held apart from the Recorder so that its finalizer can close them."""

    sinks: list[Sink] | None = None
    writer: CheckpointWriter | None = None

    def close(self) -> None:
        """Finish pending writes and close both resources, even if one of them fails."""
        sinks, writer = self.sinks, self.writer
        self.sinks = self.writer = None
        try:
            if writer is not None:
                writer.close()
        finally:
            if sinks is not None:
                close_sinks(sinks)


@contextlib.contextmanager
def note_close_failure(error: BaseException | None) -> Generator[None]:
    """Add a failure to close as a note to the original error instead of replacing it."""
    try:
        yield
    except Exception as problem:
        if error is None:
            raise
        error.add_note(f"Closing the run failed as well ({summarize_exception(problem)}).")


class SaveSchedule:
    """Schedule by which `fit` saves: every so many iterations, or every so many seconds.

    Args:
        settings: Checkpointing settings.
        clock: Function that returns seconds since an arbitrary origin.
    """

    def __init__(
        self, settings: "CheckpointingSettings", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings, self._clock = settings, clock
        self._saved_at, self._save_s = clock(), 0.0

    def is_due(self, iteration: int) -> bool:
        """Return whether to save after this iteration."""
        frequency, interval = (
            self._settings.checkpoint_frequency,
            self._settings.checkpoint_interval_s,
        )
        if frequency and iteration % frequency == 0:
            return True
        if interval is None:
            return False
        # States that are slow to write are saved less often.
        return self._clock() - self._saved_at >= max(
            interval, MIN_TRAIN_TO_SAVE_RATIO * self._save_s
        )

    @contextlib.contextmanager
    def time_save(self) -> Generator[None]:
        """Time a save; the interval to the next one counts from its beginning."""
        self._saved_at = self._clock()
        yield
        self._save_s = self._clock() - self._saved_at


class Recorder:
    """Writer of a run's results and checkpoints.

    The run folder is created with the first result or checkpoint, not with the Algorithm. Open
    files are closed by `close` or, at the latest, when the recorder is garbage-collected or Python
    exits.

    Args:
        config: Config of the run.
        run_folder: Folder of a resumed run; None for a new one.
        start_iteration: Iteration that was restored; later log entries are dropped.
        start_env_steps: Environment steps sampled up to that iteration.
    """

    def __init__(
        self,
        config: "Config",
        run_folder: RunFolder | None,
        start_iteration: int = 0,
        start_env_steps: int = 0,
    ) -> None:
        self._config = config
        self._folder = run_folder
        self._open = _Resources()
        self._start = (start_iteration, start_env_steps)
        self._session: Session | None = None
        self._session_start: int | None = start_iteration
        """Iteration that this process starts from; None once the manifest has it."""
        self._has_results = False
        self._may_have_later = False
        """Whether the folder may have results and checkpoints after the start."""
        self._last_written = 0
        """Iteration of the latest result that was written."""
        self._latest_checkpoint: Path | None = None
        self._protected: set[int] = set()
        self._has_warned_of_score = False
        weakref.finalize(self, self._open.close)

    def begin(self, devices: Sequence[Device]) -> None:
        """Prepare for the result of an iteration that begins; see `check_writable`.

        Args:
            devices: Devices of the run.
        """
        self.check_writable()
        self._get_session(devices)

    def describe_session(self, devices: Sequence[Device]) -> dict[str, Any]:
        """Return this process's entry of the run's manifest.

        Args:
            devices: Devices of the run.
        """
        return self._get_session(devices).describe()

    def _get_session(self, devices: Sequence[Device]) -> Session:
        if self._session is None:
            self._session = Session(self._config, devices)
        return self._session

    def _record_session(self, *, wait: bool) -> None:
        """Add this process to the run's manifest if it has results and is not in it yet.

        Args:
            wait: Whether to wait for git; otherwise a later call may have to add it.
        """
        start, folder, session = self._session_start, self._folder, self._session
        if not self._has_results or start is None or folder is None or session is None:
            return
        if wait or session.is_complete:
            add_session(folder.path, session.describe(), start)
            self._session_start = None

    def check_writable(self) -> None:
        """Raise, before anything is compiled, if the run folder could not be created.

        Raises:
            ConfigError: If `run_name` is not a valid folder name.
            RunFolderError: If the results folder is not writable.
        """
        if self._folder is not None:
            return
        debugging = self._config.debugging_settings
        if debugging.run_name is not None:
            check_name(debugging.run_name)
        root = resolve_results_dir(debugging.results_dir)
        parent = next(path for path in (root, *root.parents) if path.exists())
        if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
            raise RunFolderError(
                f"results_dir={str(root)!r} cannot be written, because {parent} is "
                f"{'not writable' if parent.is_dir() else 'not a folder'}; choose another with "
                ".debugging(results_dir=...)."
            )

    def set_start(self, iteration: int, env_steps: int) -> None:
        """Set the iteration and steps that the run goes on from.

        What the run folder has of after them is dropped from the logs, and its checkpoints are set
        aside, by the next write.
        """
        self._may_have_later = self._folder is not None
        self._start = (iteration, env_steps)
        self._session_start, self._has_results = iteration, False

    @property
    def folder(self) -> RunFolder:
        """Run folder, created if there is none yet."""
        if self._folder is None:
            self._folder = RunFolder.create(self._config)
        elif self._folder.recreate(self._config):
            self._latest_checkpoint = None
            self._discard_resources()
        return self._folder

    def _discard_resources(self) -> None:
        """Close files that were removed from disk; they are reopened when needed."""
        opened = dataclasses.replace(self._open)
        self._open.writer = self._open.sinks = None
        self._session_start = self._start[0]
        try:
            opened.close()
        except Exception as error:  # noqa: BLE001  (the data is lost; training continues)
            logger.warning("Data being written to removed files is lost: %s", error)

    @property
    def has_folder(self) -> bool:
        """Return whether the run has a folder, which the first write creates."""
        return self._folder is not None

    def _leave_later(self) -> None:
        """Drop results and set aside checkpoints after the start: the run goes on differently.

        As many of the latter are kept as of others.
        """
        if not self._may_have_later:
            return
        iteration, folder = self._start[0], self.folder.checkpoints
        if self._open.sinks is not None and iteration < self._last_written:
            cut_sinks(self._open.sinks, self._config, self.folder, *self._start)
        writer = self._open.writer
        with files.translate_os_errors("set aside checkpoints in", folder):
            renamed = (
                set_aside_later_checkpoints(folder, iteration)
                if writer is None
                else writer.set_aside_later(iteration)
            )
            limit = self._config.checkpointing_settings.max_to_keep
            if renamed and limit is not None:
                remove_old_set_aside(folder, limit)
        for path in renamed:
            logger.warning("A later checkpoint of the run was renamed to %s.", path)
        if renamed and self._latest_checkpoint is not None:
            saved = list_checkpoints(folder)
            self._latest_checkpoint = saved[-1] if saved else None
        self._may_have_later, self._last_written = False, iteration

    def write(self, result: Mapping[str, Any]) -> None:
        """Write the result of an iteration to every sink."""
        folder = self.folder
        self._leave_later()
        if self._open.sinks is None:
            self._open.sinks = open_sinks(self._config, folder, *self._start)
        self._has_results = True
        self._record_session(wait=False)
        plain = results.to_plain_result(result)
        for sink in self._open.sinks:
            sink.write(plain if isinstance(sink, NamedSink) else dict(result))
        number = results.get_number(result, results.ITERATION)  # callbacks may have changed it
        iteration = self._start[0] + 1 if number is None else int(number)
        self._start, self._last_written = (iteration, results.get_steps(result)), iteration

    def flush(self) -> None:
        """Let sinks show what they hold back, before the user prints something of their own."""
        for sink in self._open.sinks or ():
            if isinstance(sink, BufferedSink):
                sink.flush()

    def try_save(self, save: Callable[[], Path]) -> str:
        """Save after an error and return a sentence with the path of the latest checkpoint."""
        try:
            return f"The run is saved in {save()}."
        except Exception as problem:  # noqa: BLE001  (the original error is raised)
            with contextlib.suppress(JaxrlError):
                self.wait()
            saved = list_checkpoints(self.folder.checkpoints)
            where = f"the latest checkpoint is {saved[-1]}" if saved else "there is no checkpoint"
            return f"The run could not be saved after this error ({summarize_exception(problem)}); {where}."

    def save(
        self,
        iteration: int,
        state: PyTree,
        metadata: Mapping[str, Any],
        result: Mapping[str, Any],
        files: Path | None,
        *,
        wait: bool,
    ) -> Path:
        """Save a checkpoint in the run folder; the settings decide which ones are kept."""
        settings, folder = self._config.checkpointing_settings, self.folder
        self._leave_later()
        writer = self._open.writer
        if writer is None:
            swept = find_swept_iteration(folder.path)
            if swept is not None:  # a lane that is resumed by itself
                self._protected.add(swept)
            writer = self._open.writer = CheckpointWriter(
                folder.checkpoints,
                max_to_keep=settings.max_to_keep,
                scored=settings.score_key is not None,
                score_order=settings.checkpoint_score_order,
                repeats_scores=(settings.score_key or "").startswith(f"{EVALUATION}/"),
                protected=self._protected,
                asynchronous=settings.async_checkpointing,
            )
        path = writer.save(iteration, state, metadata, self._find_score(result), files)
        if wait:
            writer.wait()
        self._latest_checkpoint = path
        return path

    def _find_score(self, result: Mapping[str, Any]) -> float | None:
        """Return the score of a checkpoint; a wrong key must not prevent that it is saved."""
        key = self._config.checkpointing_settings.score_key
        try:
            return None if key is None else get_score(result, key)
        except ConfigError as error:
            if not self._has_warned_of_score:
                logger.warning(
                    "Checkpoints have no score for checkpoint_score_attribute: %s", error
                )
            self._has_warned_of_score = True
            return None

    def wait(self) -> None:
        """Wait until the checkpoint being written, if any, is complete."""
        if self._open.writer is not None:
            self._open.writer.wait()

    def protect_checkpoint(self, iteration: int) -> None:
        """Protect the checkpoint of an iteration from removal until another one is named."""
        self._protected.clear()
        self._protected.add(iteration)

    @property
    def latest_checkpoint(self) -> Path | None:
        """Newest checkpoint saved by this recorder; None before the first."""
        return self._latest_checkpoint

    def draw_learning_curve(self) -> Path | None:
        """Draw the learning curve and return its path; None if nothing was logged yet."""
        return draw_learning_curve(self.folder) if self.has_folder else None

    def close(self) -> None:
        """Finish pending writes and release the run folder."""
        try:
            self._record_session(wait=True)
        finally:
            self._open.close()
            if self._folder is not None:
                self._folder.close()


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

    def __init__(self, config: "Config", run_folder: RunFolder | None) -> None:
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

    def make_unwritten(self, config: "Config", trial_id: str) -> dict[str, Callable[[], Any]]:
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
        self.host.runner_counts = results.to_plain(counts)
        self.host.logged = results.to_plain(self.metrics.get_state())
        self.host.logged_in_evaluations = results.to_plain(self.evaluation_metrics.get_state())

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
