"""What a run writes down: its folder, its sinks and its checkpoints, opened when first needed."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrl.checkpoint import CheckpointWriter
from jaxrl.core.types import PyTree
from jaxrl.errors import RunFolderError
from jaxrl.logging import RunFolder, Sink, close_sinks, open_sinks
from jaxrl.logging.run_folder import results_root
from jaxrl.metrics import lookup

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


class Recorder:
    """The run folder appears with the first result or checkpoint, not with the Algorithm.

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
        self._sinks: list[Sink] | None = None
        self._writer: CheckpointWriter | None = None
        self._start = (start_iteration, start_env_steps)
        if run_folder is None:
            self._check_writable()

    def _check_writable(self) -> None:
        """Refuse a results folder that cannot be written before anything is compiled."""
        root = results_root(self._config.debugging_settings.results_dir)
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
        return self._folder

    @property
    def has_folder(self) -> bool:
        """Whether anything was written yet."""
        return self._folder is not None

    def write(self, result: Mapping[str, Any]) -> None:
        """Pass one iteration's result to every sink."""
        if self._sinks is None:
            self._sinks = open_sinks(self._config, self.folder, *self._start)
        for sink in self._sinks:
            sink.write(dict(result))

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
        settings = self._config.checkpointing_settings
        if self._writer is None:
            self._writer = CheckpointWriter(
                self.folder.checkpoints,
                max_to_keep=settings.max_to_keep,
                score_attribute=settings.checkpoint_score_attribute,
                score_order=settings.checkpoint_score_order,
                asynchronous=settings.async_checkpointing,
            )
        score = None
        if settings.checkpoint_score_attribute is not None:
            score = lookup(result, settings.checkpoint_score_attribute)
        path = self._writer.save(iteration, state, metadata, score)
        if wait:
            self._writer.wait()
        return path

    def close(self) -> None:
        """Finish what is being written and let the folder go."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._sinks is not None:
            close_sinks(self._sinks)
            self._sinks = None
        if self._folder is not None:
            self._folder.close()
