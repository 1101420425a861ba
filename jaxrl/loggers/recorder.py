"""What a run writes down: its folder, its sinks and its checkpoints, opened when first needed."""

import contextlib
import dataclasses
import logging
import os
import time
import weakref
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrl.core.types import PyTree
from jaxrl.errors import JaxrlError, RunFolderError, in_one_line
from jaxrl.loggers import OWN_SINKS, RunFolder, Sink, close_sinks, open_sinks
from jaxrl.loggers.plots import draw_learning_curve
from jaxrl.metrics import lookup
from jaxrl.runs import results
from jaxrl.runs.checkpoint import CheckpointWriter, complete_checkpoints
from jaxrl.runs.run_folder import check_name, results_root

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig
    from jaxrl.config.settings.run import Checkpointing


MIN_TRAINING_SHARE = 20.0
"""So many times as long as saving takes is trained in between, at least, where a clock decides."""


logger = logging.getLogger("jaxrl")


@dataclasses.dataclass
class _Open:
    """What must be closed, apart from the Recorder, so that it can be when that is gone."""

    sinks: list[Sink] | None = None
    writer: CheckpointWriter | None = None

    def close(self) -> None:
        """Finish what is being written; nothing is lost if one of them fails."""
        sinks, writer = self.sinks, self.writer
        self.sinks = self.writer = None
        try:
            if writer is not None:
                writer.close()
        finally:
            if sinks is not None:
                close_sinks(sinks)


@contextlib.contextmanager
def closing_after(error: BaseException | None) -> Generator[None]:
    """Let what fails in closing not take the place of the error that it follows."""
    try:
        yield
    except Exception as problem:
        if error is None:
            raise
        error.add_note(f"What was open could not be closed either ({in_one_line(problem)}).")


class SaveTimes:
    """When `fit` saves on the way: every so many iterations, or every so many seconds.

    Args:
        settings: Of checkpointing.
        clock: Gives seconds.
    """

    def __init__(
        self, settings: "Checkpointing", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings, self._clock = settings, clock
        self._latest, self._took = clock(), 0.0

    def is_due(self, iteration: int) -> bool:
        """Whether to save after this iteration."""
        frequency, interval = (
            self._settings.checkpoint_frequency,
            self._settings.checkpoint_interval_s,
        )
        if frequency and iteration % frequency == 0:
            return True
        if interval is None:
            return False
        # A state that takes long to write is written more seldom.
        return self._clock() - self._latest >= max(interval, MIN_TRAINING_SHARE * self._took)

    @contextlib.contextmanager
    def saving(self) -> Generator[None]:
        """Surround a save, which counts from its beginning."""
        self._latest = self._clock()
        yield
        self._took = self._clock() - self._latest


class Recorder:
    """The run folder appears with the first result or checkpoint, not with the Algorithm.

    What it opened is closed by `close` or, at the latest, when it is garbage or Python ends.

    Args:
        config: The run's config.
        run_folder: The folder of the run that goes on; None for a new one.
        start_iteration: The iteration that was restored; logs are cut off behind it.
        start_env_steps: Environment steps until then.
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
        self._open = _Open()
        self._start = (start_iteration, start_env_steps)
        self._latest_checkpoint: Path | None = None
        self._kept: set[int] = set()
        weakref.finalize(self, self._open.close)

    def check_writable(self) -> None:
        """Refuse, before anything is compiled, a run folder that could not be made.

        Raises:
            ConfigError: `run_name` cannot be a folder's name.
            RunFolderError: The results folder cannot be written.
        """
        if self._folder is not None:
            return
        debugging = self._config.debugging_settings
        if debugging.run_name is not None:
            check_name(debugging.run_name)
        root = results_root(debugging.results_dir)
        parent = next(path for path in (root, *root.parents) if path.exists())
        if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
            raise RunFolderError(
                f"results_dir={str(root)!r} cannot be written, because {parent} is "
                f"{'not writable' if parent.is_dir() else 'no folder'}; choose another with "
                ".debugging(results_dir=...)."
            )

    def starts_at(self, iteration: int, env_steps: int) -> None:
        """Set where logs go on, before the first result is written."""
        self._start = (iteration, env_steps)

    @property
    def folder(self) -> RunFolder:
        """The run's folder, made if there is none yet."""
        if self._folder is None:
            self._folder = RunFolder.create(self._config)
        elif self._folder.make_again(self._config):
            self._latest_checkpoint = None
            self._forget()
        return self._folder

    def _forget(self) -> None:
        """Let go what writes into files that were removed; it is opened anew when it is needed."""
        opened = dataclasses.replace(self._open)
        self._open.writer = self._open.sinks = None
        try:
            opened.close()
        except Exception as error:  # noqa: BLE001  (what was lost is lost; the run goes on)
            logger.warning("What was being written into removed files is lost: %s", error)

    @property
    def has_folder(self) -> bool:
        """Whether anything was written yet."""
        return self._folder is not None

    def write(self, result: Mapping[str, Any]) -> None:
        """Pass one iteration's result to every sink."""
        folder = self.folder
        if self._open.sinks is None:
            self._open.sinks = open_sinks(self._config, folder, *self._start)
        plain = results.plain_result(result)
        for sink in self._open.sinks:
            sink.write(plain if isinstance(sink, OWN_SINKS) else dict(result))
        self._start = (int(result[results.ITERATION]), results.env_steps(result))

    def saved_or_why_not(self, save: Callable[[], Path]) -> str:
        """Save after an error, and say where; or why not, and where the latest checkpoint is."""
        try:
            return f"The run is saved in {save()}."
        except Exception as problem:  # noqa: BLE001  (the error itself is what has to be told)
            with contextlib.suppress(JaxrlError):
                self.wait()
            whole = complete_checkpoints(self.folder.checkpoints)
            where = f"the latest checkpoint is {whole[-1]}" if whole else "there is no checkpoint"
            return f"The run could not be saved after it ({in_one_line(problem)}); {where}."

    def save(
        self,
        iteration: int,
        state: PyTree,
        metadata: Mapping[str, Any],
        result: Mapping[str, Any],
        *,
        wait: bool,
    ) -> Path:
        """A checkpoint in the run's folder, under the settings' rules of what is kept."""
        settings, folder = self._config.checkpointing_settings, self.folder
        writer = self._open.writer
        if writer is None:
            writer = self._open.writer = CheckpointWriter(
                folder.checkpoints,
                max_to_keep=settings.max_to_keep,
                scored=settings.checkpoint_score_attribute is not None,
                score_order=settings.checkpoint_score_order,
                kept=self._kept,
                asynchronous=settings.async_checkpointing,
            )
        score = None
        if settings.checkpoint_score_attribute is not None:
            score = lookup(result, settings.checkpoint_score_attribute)
        path = writer.save(iteration, state, metadata, score)
        if wait:
            writer.wait()
        self._latest_checkpoint = path
        return path

    def wait(self) -> None:
        """Wait until the checkpoint that is being written is complete, if there is one."""
        if self._open.writer is not None:
            self._open.writer.wait()

    def keep(self, iteration: int) -> None:
        """Let the checkpoint of an iteration stay, whatever else, until another is named."""
        self._kept.clear()
        self._kept.add(iteration)

    @property
    def latest_checkpoint(self) -> Path | None:
        """The newest checkpoint of this session that was asked for; None before the first."""
        return self._latest_checkpoint

    def draw_learning_curve(self) -> Path | None:
        """The picture of what was logged; None if that is nothing (yet)."""
        return draw_learning_curve(self.folder) if self.has_folder else None

    def close(self) -> None:
        """Finish what is being written and let the folder go."""
        self._open.close()
        if self._folder is not None:
            self._folder.close()
