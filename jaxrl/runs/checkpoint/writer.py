"""Writing checkpoints atomically, optionally in the background, and removing old ones."""

import functools
import json
import logging
import math
import os
import re
import shutil
import threading
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.core.types import PyTree
from jaxrl.errors import CheckpointError
from jaxrl.runs.checkpoint.arrays import write_arrays
from jaxrl.runs.checkpoint.folders import (
    OWN_FILES,
    clean_up,
    get_checkpoint_path,
    list_checkpoints,
    parse_number,
    publish,
    remove_checkpoint,
    set_aside_later_checkpoints,
    stage,
)
from jaxrl.runs.checkpoint.leaves import describe_leaves, fetch_leaves
from jaxrl.runs.checkpoint.manifest import VERSION, write_manifest
from jaxrl.runs.checkpoint.reader import METADATA, read_metadata, read_score

logger = logging.getLogger("jaxrl.runs.checkpoint")


class CheckpointWriter:
    """Writer of numbered checkpoints in one folder that removes old ones.

    Args:
        folder: Folder of the checkpoints, created if missing.
        max_to_keep: Maximum number of checkpoints; None keeps all. The newest ones are kept or,
            with scores, the best ones and the newest.
        scored: Whether scores are passed to `save`.
        score_order: Order of scores: "max" if higher is better, else "min".
        repeats_scores: Whether a score may be that of an earlier checkpoint, as results repeat the
            latest evaluation; among equal ones, the oldest is then kept.
        protected: Numbers of checkpoints that are never removed; may be mutated by the caller.
        asynchronous: Whether to write in the background; `wait` and the next `save` wait for the
            previous write.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        max_to_keep: int | None = None,
        scored: bool = False,
        score_order: str = "max",
        repeats_scores: bool = False,
        protected: Container[int] = (),
        asynchronous: bool = False,
    ) -> None:
        self.folder = Path(folder).expanduser().resolve()
        self._max_to_keep, self._protected = max_to_keep, protected
        self._sign = (1.0 if score_order == "max" else -1.0) if scored else 0.0
        self._repeats_scores = repeats_scores
        self._scores: dict[int, float | None] = {}
        self._asynchronous = asynchronous
        self._write_thread: threading.Thread | None = None
        self._failure: Exception | None = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            clean_up(self.folder)
        except OSError as error:
            raise self._make_error(error) from error

    def save(
        self,
        number: int,
        state: PyTree,
        metadata: Mapping[str, Any],
        score: float | None = None,
        files: Path | None = None,
    ) -> Path:
        """Start saving; the state may be donated as soon as this returns.

        If the previous background write failed, its error is logged and this save is synchronous,
        so that it raises if it fails, too. A save that replaces a checkpoint is also synchronous.

        Args:
            number: Number of the checkpoint, ascending within the folder. If it exists with the
                same content, nothing is written; else it is kept until the new one is complete.
            state: Any pytree.
            metadata: JSON-serializable metadata, to which the leaves' descriptions are added.
            score: Current value of the metric by which the best checkpoints are kept; None if there
                is none yet.
            files: Folder of more files, which are moved into the checkpoint; see `OWN_FILES`.

        Returns:
            The path of the checkpoint.

        Raises:
            CheckpointError: If writing failed; earlier checkpoints are intact.
        """
        _warn_of_missing(tuple(metadata.get("not_saved", ())))
        leaves = fetch_leaves(state)
        document = {**metadata, "checkpoint_version": VERSION, "leaves": describe_leaves(leaves)}
        text = json.dumps(document)
        score = None if score is None or not math.isfinite(score) else float(score)
        path = get_checkpoint_path(self.folder, number)
        failure = self._join_write()
        if failure is not None:
            logger.error("%s", self._make_error(failure))
        if files is None and _has_metadata(path, text):
            return path
        content = (path, leaves, text, score, files)
        if self._asynchronous and failure is None and not path.exists():
            self._write_thread = threading.Thread(target=self._try_write, args=content)
            self._write_thread.start()
        else:
            self._try_write(*content)
            self.wait()
        return path

    def set_aside_later(self, number: int) -> list[Path]:
        """Rename the checkpoints after a number; see `set_aside_later_checkpoints`."""
        failure = self._join_write()
        if failure is not None:
            logger.error("%s", self._make_error(failure))
        renamed = set_aside_later_checkpoints(self.folder, number)
        self._scores = {saved: score for saved, score in self._scores.items() if saved <= number}
        return renamed

    def wait(self) -> None:
        """Wait until the latest checkpoint is on disk under its final name.

        Raises:
            CheckpointError: If writing failed; raised once per failure.
        """
        failure = self._join_write()
        if failure is not None:
            raise self._make_error(failure) from failure

    def close(self) -> None:
        """Wait for pending writes; see `wait`."""
        self.wait()

    def _join_write(self) -> Exception | None:
        """Wait for the latest write and return its error, unless returned before."""
        thread, self._write_thread = self._write_thread, None
        if thread is not None:
            thread.join()
        failure, self._failure = self._failure, None
        return failure

    def _try_write(
        self,
        path: Path,
        leaves: Mapping[str, np.ndarray],
        text: str,
        score: float | None,
        files: Path | None,
    ) -> None:
        try:
            self._write(path, leaves, text, score, files)
        except Exception as error:  # noqa: BLE001  (raised in the caller's thread)
            self._failure = error
        finally:
            if files is not None:
                shutil.rmtree(files, ignore_errors=True)

    def _write(
        self,
        path: Path,
        leaves: Mapping[str, np.ndarray],
        text: str,
        score: float | None,
        files: Path | None,
    ) -> None:
        with stage(path) as staging:
            (staging / METADATA).parent.mkdir(parents=True)
            (staging / METADATA).write_text(text, encoding="utf-8")
            write_arrays(staging / "state", leaves)
            if files is not None:
                shutil.move(files, staging / OWN_FILES)
            write_manifest(staging, score)
            publish(staging, path)
        logger.info("checkpoint %s of %d arrays", path, len(leaves))
        number = parse_number(path.name) or 0
        self._scores[number] = score
        self._remove_old(number)

    def _remove_old(self, latest: int) -> None:
        """Remove all checkpoints but the best, the newest, the latest saved and protected ones."""
        saved = {parse_number(path.name) or 0: path for path in list_checkpoints(self.folder)}
        if self._max_to_keep is None:
            return
        best = sorted(saved, key=self._get_rank)[-self._max_to_keep :]
        retained = {*best, max(saved, default=latest), latest}
        for number, path in saved.items():
            if number not in retained and number not in self._protected:
                remove_checkpoint(path)

    def _get_rank(self, number: int) -> tuple[float, int]:
        """Return the sort key of a checkpoint: no score is worst.

        Newer is better among equals, unless results repeat the score of an earlier one.
        """
        if not self._sign:
            return 0.0, number
        if number not in self._scores:
            self._scores[number] = read_score(get_checkpoint_path(self.folder, number))
        score = self._scores[number]
        if score is None:
            return -math.inf, number
        return self._sign * score, -number if self._repeats_scores else number

    def _make_error(self, error: Exception) -> CheckpointError:
        return CheckpointError(
            f"Checkpoints cannot be written in {self.folder}: {_summarize_error(error)}; existing "
            "checkpoints are intact."
        )


@functools.cache
def _warn_of_missing(names: tuple[str, ...]) -> None:
    """Warn, once per process, of settings that checkpoints lack."""
    if names:
        logger.warning(
            "Checkpoints of this run do not contain %s, which has no import path: supply it again, "
            "from_checkpoint(path, %s).",
            " and ".join(names),
            ", ".join(f"{name}=..." for name in names),
        )


def _has_metadata(checkpoint: Path, text: str) -> bool:
    """Return whether a checkpoint has this metadata, which has the checksum of every leaf."""
    if not checkpoint.exists():
        return False
    try:
        return read_metadata(checkpoint) == json.loads(text)
    except CheckpointError:
        return False


def _summarize_error(error: Exception) -> str:
    """Return the operating system's message, even if a library wraps it in hundreds of lines."""
    code = re.search(r"os_error_code='(\d+)'", str(error))
    if code is not None:
        return os.strerror(int(code[1]))
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}" + (f" ({error.filename})" if error.filename else "")
    lines = str(error).strip().splitlines()
    return (lines[0].rstrip(".") if lines else repr(error))[:300]
