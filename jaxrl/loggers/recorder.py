"""Recorder of a run: its folder, sinks and checkpoint writer, opened on first use."""

import contextlib
import dataclasses
import logging
import os
import time
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrl.core.types import Device, PyTree
from jaxrl.errors import ConfigError, JaxrlError, RunFolderError, summarize_exception
from jaxrl.loggers import RunFolder, Sink, close_sinks, open_sinks
from jaxrl.loggers.plots import draw_learning_curve
from jaxrl.loggers.sinks import FILE_SINKS, BufferedSink, reopen_files
from jaxrl.metrics import EVALUATION, get_score
from jaxrl.runs import results
from jaxrl.runs.checkpoint import (
    CheckpointWriter,
    find_swept_iteration,
    list_checkpoints,
    remove_old_set_aside,
    set_aside_later_checkpoints,
)
from jaxrl.runs.manifest import Session, add_session
from jaxrl.runs.run_folder import check_name, resolve_results_dir
from jaxrl.runtime import files

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig
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
        config: "AlgorithmConfig",
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
            reopen_files(self._open.sinks, self._config, self.folder, *self._start)
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
            sink.write(plain if isinstance(sink, FILE_SINKS) else dict(result))
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
