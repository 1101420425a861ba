"""TensorBoard events: scalars against environment steps."""

import math
import socket
import time
from pathlib import Path

from jaxrl.loggers.event_file import EventFile
from jaxrl.runs import files, results

_NOT_PLOTTED = frozenset({"timestamp", "pid"})


class TensorBoardSink:
    """Writes one event per result, on disk at once: a killed run loses nothing.

    Every start writes a file of its own. A resumed run's file begins with a mark that tells
    TensorBoard to forget what was logged past the step it goes on from.

    Args:
        directory: Folder of the event files.
        start_iteration: The iteration that the run goes on from; 0 for a new run.
        start_env_steps: Environment steps sampled until then.
    """

    def __init__(
        self, directory: Path, *, start_iteration: int = 0, start_env_steps: int = 0
    ) -> None:
        self._path = _unused(directory)
        with files.one_sentence("write", self._path):
            self._file = EventFile(self._path)
            if start_iteration > 0:
                self._file.start_at(start_env_steps + 1)

    def write(self, result: results.Result) -> None:
        with files.one_sentence("write", self._path):
            self._file.scalars(results.env_steps(result), curves(result))

    def close(self) -> None:
        with files.one_sentence("write", self._path):
            self._file.close()


def curves(result: results.Result) -> dict[str, float]:
    """The finite numbers of a result that are points of a curve, under flat names.

    Left out are the evaluation if it only repeats an earlier one, and what never changes.
    """
    skipped = ("compile/",)
    if not results.new_evaluation(result):
        skipped += ("evaluation/",)
    return {
        name: float(value)
        for name, value in results.flat_scalars(result).items()
        if isinstance(value, int | float)
        and math.isfinite(value)
        and name not in _NOT_PLOTTED
        and not name.startswith(skipped)
    }


def _unused(directory: Path) -> Path:
    """A name of TensorBoard's pattern that is free; later starts sort behind earlier ones."""
    stem = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}"
    start = len(list(directory.glob("events.out.tfevents.*")))
    return directory / f"{stem}.{start:04d}"
