"""Writing checkpoints: beside, then renamed; some are kept; a full disk is one sentence."""

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
    WRITING,
    checkpoint_path,
    complete_checkpoints,
    number_of,
    publish,
    remove_checkpoint,
    tidy,
)
from jaxrl.runs.checkpoint.leaves import describe, host_leaves
from jaxrl.runs.checkpoint.manifest import VERSION, write_manifest
from jaxrl.runs.checkpoint.reader import METADATA, read_metadata, score_of

logger = logging.getLogger("jaxrl.runs.checkpoint")


class CheckpointWriter:
    """Saves numbered checkpoints into one folder and keeps some of them.

    Args:
        folder: Made if missing.
        max_to_keep: None for all. The newest are kept or, if they are scored, the best, and the
            newest beside them.
        scored: Whether `save` is given scores.
        score_order: "max" or "min".
        kept: Numbers that stay, whatever else; may change.
        asynchronous: Write in the background; `wait` or the next save waits for the previous one.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        max_to_keep: int | None = None,
        scored: bool = False,
        score_order: str = "max",
        kept: Container[int] = (),
        asynchronous: bool = False,
    ) -> None:
        self.folder = Path(folder).expanduser().resolve()
        self._max_to_keep, self._kept = max_to_keep, kept
        self._sign = (1.0 if score_order == "max" else -1.0) if scored else 0.0
        self._scores: dict[int, float | None] = {}
        self._asynchronous = asynchronous
        self._writing: threading.Thread | None = None
        self._failure: Exception | None = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            tidy(self.folder)
        except OSError as error:
            raise self._error(error) from error

    def save(
        self, number: int, state: PyTree, metadata: Mapping[str, Any], score: float | None = None
    ) -> Path:
        """Begin to save; the state may be donated as soon as this returns.

        A write in the background that failed is logged by the next save, which then does not leave
        before it is on the disk, and raises if it fails as well. Nor does one that replaces another.

        Args:
            number: The checkpoint's number, ascending within the folder. If it is there, it stays
                as it is or, if it holds anything else, until the new one is complete.
            state: Any pytree.
            metadata: JSON; the description of the leaves is added.
            score: The metric's value now, for keeping the best; None if there is none yet.

        Raises:
            CheckpointError: It could not be written; earlier ones are as they were.
        """
        leaves = host_leaves(state)
        document = {**metadata, "checkpoint_version": VERSION, "leaves": describe(leaves)}
        text = json.dumps(document)
        score = None if score is None or not math.isfinite(score) else float(score)
        path = checkpoint_path(self.folder, number)
        failed = self._joined()
        if failed is not None:
            logger.error("%s", self._error(failed))
        if _holds(path, text):
            return path
        content = (path, leaves, text, score)
        if self._asynchronous and failed is None and not path.exists():
            self._writing = threading.Thread(target=self._write_aside, args=content)
            self._writing.start()
        else:
            self._write_aside(*content)
            self.wait()
        return path

    def wait(self) -> None:
        """Until everything is on disk under its final name.

        Raises:
            CheckpointError: What was being written could not be; said once.
        """
        failed = self._joined()
        if failed is not None:
            raise self._error(failed) from failed

    def close(self) -> None:
        """Wait, and raise what `wait` does."""
        self.wait()

    def _joined(self) -> Exception | None:
        """Why the latest write failed, once it is over; None if it did not, or that was said."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.join()
        failed, self._failure = self._failure, None
        return failed

    def _write_aside(self, *content: Any) -> None:
        try:
            self._write(*content)
        except Exception as error:  # noqa: BLE001  (a thread hands on whatever it was)
            self._failure = error

    def _write(
        self, path: Path, leaves: Mapping[str, np.ndarray], text: str, score: float | None
    ) -> None:
        staging = path.with_name(WRITING + path.name)
        try:
            shutil.rmtree(staging, ignore_errors=True)
            (staging / METADATA).parent.mkdir(parents=True)
            (staging / METADATA).write_text(text, encoding="utf-8")
            write_arrays(staging / "state", leaves)
            write_manifest(staging, score)
            publish(staging, path)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        logger.info("checkpoint %s of %d arrays", path, len(leaves))
        number = number_of(path.name) or 0
        self._scores[number] = score
        self._drop(number)

    def _drop(self, latest: int) -> None:
        """Remove what is neither among the best, nor the newest, nor to be kept, nor the latest."""
        saved = {number_of(path.name) or 0: path for path in complete_checkpoints(self.folder)}
        if self._max_to_keep is None:
            return
        best = sorted(saved, key=self._rank)[-self._max_to_keep :]
        stays = {*best, max(saved, default=latest), latest}
        for number, path in saved.items():
            if number not in stays and number not in self._kept:
                remove_checkpoint(path)

    def _rank(self, number: int) -> tuple[float, int]:
        """One without a score is worse than any with; of two equals the newer is better."""
        if not self._sign:
            return 0.0, number
        if number not in self._scores:
            self._scores[number] = score_of(checkpoint_path(self.folder, number))
        score = self._scores[number]
        return (-math.inf if score is None else self._sign * score), number

    def _error(self, error: Exception) -> CheckpointError:
        return CheckpointError(
            f"Checkpoints cannot be written in {self.folder}: {_reason(error)}; those that are there "
            "are as they were."
        )


def _holds(checkpoint: Path, text: str) -> bool:
    """Whether a checkpoint has this metadata, which has the checksum of every leaf."""
    if not checkpoint.exists():
        return False
    try:
        return read_metadata(checkpoint) == json.loads(text)
    except CheckpointError:
        return False


def _reason(error: Exception) -> str:
    """What the operating system said, also where a library wraps it in hundreds of lines."""
    code = re.search(r"os_error_code='(\d+)'", str(error))
    if code is not None:
        return os.strerror(int(code[1]))
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}" + (f" ({error.filename})" if error.filename else "")
    lines = str(error).strip().splitlines()
    return (lines[0].rstrip(".") if lines else repr(error))[:300]
