"""TensorBoard events: scalars against environment steps, without TensorFlow."""

import importlib
import math
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxrl.logging import files, results

_NOT_PLOTTED = frozenset({"timestamp", "pid"})


class TensorBoardSink:
    """Writes one event per result, flushed at once: a killed run loses nothing.

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
        from tensorboardX import RecordWriter  # slow to import

        # Classes that protobuf makes at import, which type checkers cannot see.
        event_pb2: Any = importlib.import_module("tensorboardX.proto.event_pb2")
        summary_pb2: Any = importlib.import_module("tensorboardX.proto.summary_pb2")
        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        self._path = _unused(directory)
        with files.one_sentence("write", self._path):
            self._writer = RecordWriter(str(self._path))
            self._add(self._event(wall_time=time.time(), file_version="brain.Event:2"))
            if start_iteration > 0:
                log = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
                step = start_env_steps + 1
                self._add(self._event(wall_time=time.time(), step=step, session_log=log))

    def write(self, result: results.Result) -> None:
        summary = self._summary(
            value=[
                self._summary.Value(tag=name, simple_value=value)
                for name, value in finite_numbers(result).items()
            ]
        )
        step = results.env_steps(result)
        with files.one_sentence("write", self._path):
            self._add(self._event(wall_time=time.time(), step=step, summary=summary))

    def close(self) -> None:
        self._writer.close()

    def _add(self, event: Any) -> None:
        self._writer.write(event.SerializeToString())
        self._writer.flush()


def finite_numbers(result: results.Result) -> Mapping[str, float]:
    """The numbers of a result that can be drawn, under flat names."""
    return {
        name: float(value)
        for name, value in results.flat_scalars(result).items()
        if isinstance(value, int | float) and math.isfinite(value) and name not in _NOT_PLOTTED
    }


def _unused(directory: Path) -> Path:
    """A name of TensorBoard's pattern that is free; later starts sort behind earlier ones."""
    stem = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}"
    start = len(list(directory.glob("events.out.tfevents.*")))
    return directory / f"{stem}.{start:04d}"
