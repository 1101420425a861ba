"""TensorBoard sink: scalars against environment steps."""

import math
import socket
import time
from pathlib import Path

from jaxrl.loggers.event_file import EventFile
from jaxrl.runs import results
from jaxrl.runtime import files

_NOT_PLOTTED = frozenset({"timestamp", "pid"})


class TensorBoardSink:
    """Sink that writes one event per result, flushed at once so that a killed run loses nothing.

    Every start of a run writes a new file. That of a resumed run begins with a marker that makes
    TensorBoard discard events logged after the step that the run resumes from.

    Args:
        directory: Folder of the event files.
        start_iteration: Iteration that the run resumes from; 0 for a new run.
        start_env_steps: Environment steps sampled up to that iteration.
    """

    def __init__(
        self, directory: Path, *, start_iteration: int = 0, start_env_steps: int = 0
    ) -> None:
        self._path = _make_path(directory)
        with files.translate_os_errors("write", self._path):
            self._file = EventFile(self._path)
            if start_iteration > 0:
                self._file.start_at(start_env_steps + 1)

    def write(self, result: results.Result) -> None:
        with files.translate_os_errors("write", self._path):
            self._file.write_scalars(results.get_steps(result), extract_curves(result))

    def close(self) -> None:
        with files.translate_os_errors("write", self._path):
            self._file.close()


def extract_curves(result: results.Result) -> dict[str, float]:
    """Return the finite scalars of a result that are worth plotting, under flat names.

    Constants are left out, and so is an evaluation that only repeats an earlier one.
    """
    skipped = ("compile/",)
    if not results.get_new_evaluation(result):
        skipped += ("evaluation/",)
    return {
        name: float(value)
        for name, value in results.flatten_scalars(result).items()
        if isinstance(value, int | float)
        and math.isfinite(value)
        and name not in _NOT_PLOTTED
        and not name.startswith(skipped)
    }


def _make_path(directory: Path) -> Path:
    """Return an unused path with TensorBoard's naming; later starts sort after earlier ones."""
    stem = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}"
    start = len(list(directory.glob("events.out.tfevents.*")))
    return directory / f"{stem}.{start:04d}"
