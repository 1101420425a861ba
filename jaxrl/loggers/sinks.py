"""Sinks: the protocol, those that a config can name, and opening and closing them.

A new sink is a subclass of `NamedSink` in this file, and its name in `LoggerName`.
"""

import abc
import contextlib
import csv
import dataclasses
import importlib
import io
import json
import logging
import math
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeAlias, runtime_checkable

from jaxrl.config.serialize import serialize_for_display
from jaxrl.config.settings.run import LoggerName
from jaxrl.errors import ConfigError, UnknownNameError, did_you_mean
from jaxrl.loggers.event_file import EventFile
from jaxrl.runs import results
from jaxrl.runs.run_folder import RunFolder
from jaxrl.runtime import files

if TYPE_CHECKING:
    from jaxrl.config.config import Config

logger = logging.getLogger("jaxrl.loggers")


@runtime_checkable
class Sink(Protocol):
    """Destination of the results of a run; one class per format."""

    def write(self, result: results.Result) -> None:
        """Write the nested result of an iteration; it must be on disk on return."""
        ...

    def close(self) -> None:
        """Close the sink; called once, when the run stops."""
        ...


@runtime_checkable
class BufferedSink(Sink, Protocol):
    """Sink that holds back what it was given, such as all but one line every two seconds."""

    def flush(self) -> None:
        """Show what was held back."""
        ...


SinkSpec: TypeAlias = "str | Sink | type"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """Run that sinks are opened for; the fields are the arguments of `open_all`."""

    folder: RunFolder
    params: Mapping[str, Any]
    start_iteration: int
    start_env_steps: int


class NamedSink(abc.ABC):
    """Sink that a config can name; it does not modify results, which all of these share.

    Attributes:
        name: Name in `debugging(loggers=[...])`.
        is_cut: Whether the sink is opened again where a run goes back to an earlier iteration, to
            drop the entries after it.
    """

    name: ClassVar[LoggerName]
    is_cut: ClassVar[bool] = False

    @classmethod
    @abc.abstractmethod
    def open(cls, run: RecordedRun) -> Self:
        """Open the sink of a run, without entries after `run.start_iteration`."""

    @abc.abstractmethod
    def write(self, result: results.Result) -> None:
        """Write the nested result of an iteration."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close the sink."""


_ENCODER = json.JSONEncoder(allow_nan=False)


class JsonSink(NamedSink):
    """Sink that appends each complete result to `result.json` as a line of strict JSON.

    Args:
        path: Path of the file; created if missing.
        start_iteration: Iteration that the run resumes from, 0 for a new run. Later lines, and a
            line left incomplete by a killed process, are dropped.
    """

    name, is_cut = "json", True

    @classmethod
    def open(cls, run: RecordedRun) -> Self:
        return cls(run.folder.result_file, start_iteration=run.start_iteration)

    def __init__(self, path: Path, *, start_iteration: int = 0) -> None:
        self._path = path
        with files.translate_os_errors("write", path):
            if path.exists():
                _drop_lines_after(path, start_iteration)
            self._file = path.open("a", encoding="utf-8")

    def write(self, result: results.Result) -> None:
        line = _encode_line(results.to_plain_result(result))
        with files.translate_os_errors("write", self._path):
            self._file.write(line + "\n")
            self._file.flush()

    def close(self) -> None:
        with files.translate_os_errors("write", self._path):
            self._file.close()


def _encode_line(result: results.PlainResult) -> str:
    try:
        return _ENCODER.encode(result)
    except ValueError:  # contains a non-finite number, which JSON cannot represent
        return json.dumps(results.to_json(result), allow_nan=False)


def read_results(path: Path, *, containing: str = "") -> Iterator[dict[str, Any]]:
    """Yield the results in a `result.json`, without a line left incomplete by a killed process.

    Args:
        path: Path of the file.
        containing: Text that a line must contain; other lines are not parsed.
    """
    with files.translate_os_errors("read", path), _open_text(path) as file:
        for line in file:
            row = parse_line(line) if containing in line else None
            if row is not None:
                yield row


def _open_text(path: Path) -> IO[str]:
    return path.open(encoding="utf-8", errors="replace")


def _drop_lines_after(path: Path, iteration: int) -> None:
    """Drop later and incomplete lines, reading line by line since the file may be large."""
    with _open_text(path) as lines:
        if all(_is_line_up_to(line, iteration) for line in lines):
            return
    with _open_text(path) as lines, files.open_atomic(path) as kept:
        kept.writelines(line for line in lines if _is_line_up_to(line, iteration))


def _is_line_up_to(line: str, iteration: int) -> bool:
    row = parse_line(line)
    return row is not None and (results.get_number(row, results.ITERATION) or 0) <= iteration


def parse_line(line: str) -> dict[str, Any] | None:
    """Return the result encoded in a line, or None if the line is incomplete."""
    if not line.endswith("\n"):
        return None
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


class CsvSink(NamedSink):
    """Sink that appends the scalars of each result to `progress.csv`, under flat names.

    When a new column appears (at the first evaluation, for example), the file is rewritten with
    the longer header and empty cells in earlier rows. The file on disk is always complete.

    Args:
        path: Path of the file; created if missing.
        start_iteration: Iteration that the run resumes from; later rows are dropped.
    """

    name, is_cut = "csv", True

    @classmethod
    def open(cls, run: RecordedRun) -> Self:
        return cls(run.folder.progress_file, start_iteration=run.start_iteration)

    def __init__(self, path: Path, *, start_iteration: int = 0) -> None:
        self._path = path
        self._columns: dict[str, None] = {}
        with files.translate_os_errors("write", path):
            if path.exists():
                self._restore(start_iteration)
            self._append()

    def write(self, result: results.Result) -> None:
        row = results.flatten_scalars(result)
        added = (
            [] if row.keys() <= self._columns.keys() else [n for n in row if n not in self._columns]
        )
        with files.translate_os_errors("write", self._path):
            if added:
                self._file.close()
                self._rewrite([*self._columns, *added], self._read_rows())
                self._append()
            self._writer.writerow([_unify_lines(row.get(name, "")) for name in self._columns])
            self._file.flush()

    def close(self) -> None:
        with files.translate_os_errors("write", self._path):
            self._file.close()

    def _append(self) -> None:
        self._file = self._path.open("a", encoding="utf-8", newline="")
        self._writer = csv.writer(self._file, lineterminator="\n")

    def _restore(self, iteration: int) -> None:
        text = self._path.read_bytes().decode("utf-8", errors="replace")
        rows = list(csv.reader(io.StringIO(text, newline="")))
        if rows and not text.endswith("\n"):
            rows.pop()  # left incomplete by a killed process
        if not rows:
            self._rewrite([], iter(()))
            return
        header, *body = rows
        column = header.index(results.ITERATION) if results.ITERATION in header else None
        kept = [
            row for row in body if len(row) == len(header) and _is_row_up_to(row, column, iteration)
        ]
        if len(kept) < len(body) or not text.endswith("\n"):
            self._rewrite(header, iter(kept))
        self._columns = dict.fromkeys(header)

    def _read_rows(self) -> Iterator[Sequence[str]]:
        """Yield the rows of the file, without the header."""
        with self._path.open(encoding="utf-8", newline="") as file:
            reader = csv.reader(file)
            next(reader, None)
            yield from reader

    def _rewrite(self, columns: list[str], rows: Iterator[Sequence[str]]) -> None:
        with files.open_atomic(self._path) as file:
            if columns:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(columns)
                for row in rows:
                    writer.writerow([*row, *[""] * (len(columns) - len(row))])
        self._columns = dict.fromkeys(columns)


def _unify_lines(value: object) -> object:
    """Return text with line feeds alone, since a carriage return would end an unquoted row."""
    if isinstance(value, str) and "\r" in value:
        return value.replace("\r\n", "\n").replace("\r", "\n")
    return value


def _is_row_up_to(row: Sequence[str], column: int | None, iteration: int) -> bool:
    if column is None:
        return True
    try:
        return float(row[column]) <= iteration
    except ValueError:
        return False


_NOT_PLOTTED = frozenset({"timestamp", "pid"})


class TensorBoardSink(NamedSink):
    """Sink that writes one event of scalars per result, flushed at once so that a killed run loses nothing.

    Every start of a run writes a new file. That of a resumed run begins with a marker that makes
    TensorBoard discard events logged after the step that the run resumes from.

    Args:
        directory: Folder of the event files.
        start_iteration: Iteration that the run resumes from; 0 for a new run.
        start_env_steps: Environment steps sampled up to that iteration.
    """

    name, is_cut = "tensorboard", True

    @classmethod
    def open(cls, run: RecordedRun) -> Self:
        return cls(
            run.folder.path,
            start_iteration=run.start_iteration,
            start_env_steps=run.start_env_steps,
        )

    def __init__(
        self, directory: Path, *, start_iteration: int = 0, start_env_steps: int = 0
    ) -> None:
        self._path = _make_event_path(directory)
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


def _make_event_path(directory: Path) -> Path:
    """Return an unused path with TensorBoard's naming; later starts sort after earlier ones."""
    stem = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}"
    start = len(list(directory.glob("events.out.tfevents.*")))
    return directory / f"{stem}.{start:04d}"


class ConsoleSink(NamedSink):
    """Sink for scripts and notebooks that call `train()` or `fit()` themselves.

    Prints a line every few seconds; in a notebook, redraws a single panel.

    Args:
        title: Title of the panel.
        stop: Stop criterion, for the panel's progress bar.
    """

    name = "console"

    @classmethod
    def open(cls, run: RecordedRun) -> Self:
        return cls(run.folder.name, run.folder.stop_criterion)

    def __init__(self, title: str = "", stop: Mapping[str, Any] | None = None) -> None:
        from rich.console import Console  # slow to import

        from jaxrl.loggers.display import NotebookDisplay, PlainDisplay

        console = Console()
        self._display = (
            NotebookDisplay(title, stop or {})
            if console.is_jupyter
            else PlainDisplay("", {}, console=console)
        )

    def write(self, result: results.Result) -> None:
        self._display.update(result)

    def flush(self) -> None:
        self._display.flush()

    def close(self) -> None:
        self.flush()


class WandbSink(NamedSink):
    """Sink that logs each result to a run of Weights & Biases named after the run folder.

    W&B's own settings apply (`WANDB_PROJECT`, `WANDB_ENTITY`, `WANDB_MODE`, ...). If W&B cannot be
    reached or no user is logged in, the run is recorded offline in the run folder and can be
    uploaded later with `wandb sync`. A resumed run continues the same W&B run.

    Args:
        folder: Run folder, whose name and id become those of the W&B run.
        params: Config, shown with the run.

    Raises:
        ConfigError: If the package `wandb` is not installed.
    """

    name = "wandb"

    @classmethod
    def open(cls, run: RecordedRun) -> Self:
        return cls(run.folder, run.params)

    def __init__(self, folder: RunFolder, params: Mapping[str, Any]) -> None:
        wandb = _import_wandb()
        settings: dict[str, Any] = {
            "project": os.environ.get("WANDB_PROJECT", "jaxrl"),
            "name": folder.name,
            "id": folder.run_id,
            "resume": "allow",
            "dir": str(folder.path),
            "config": results.to_json(params),
        }
        try:
            self._run = wandb.init(**settings)
        except wandb.Error as error:
            logger.warning(
                "Weights & Biases is unavailable (%s); the run is recorded offline in %s.",
                error,
                folder.path,
            )
            self._run = wandb.init(**{**settings, "mode": "offline"})
        self._step_metric: str | None = None

    def write(self, result: results.Result) -> None:
        if self._step_metric is None:
            self._step_metric = results.get_steps_key(result)
            self._run.define_metric(self._step_metric)
            self._run.define_metric("*", step_metric=self._step_metric)
        self._run.log({**extract_curves(result), self._step_metric: results.get_steps(result)})

    def close(self) -> None:
        self._run.finish()


def _import_wandb() -> ModuleType:
    try:
        return importlib.import_module("wandb")
    except ImportError as error:
        raise ConfigError(
            "The logger 'wandb' needs the package wandb: install it with "
            "\"pip install 'jaxrl[wandb]'\", or remove 'wandb' from the loggers."
        ) from error


NAMED_SINKS: Mapping[str, type[NamedSink]] = {
    sink.name: sink for sink in NamedSink.__subclasses__()
}
"""Sinks by the names of `LoggerName`."""


def open_sinks(
    config: "Config",
    folder: RunFolder,
    start_iteration: int = 0,
    start_env_steps: int = 0,
) -> list[Sink]:
    """Open the sinks of `debugging(loggers=[...])`; see `open_all`."""
    return open_all(
        config.debugging_settings.loggers,
        folder,
        serialize_for_display(config),
        start_iteration=start_iteration,
        start_env_steps=start_env_steps,
    )


def open_all(
    specs: Sequence[SinkSpec],
    folder: RunFolder,
    params: Mapping[str, Any],
    *,
    start_iteration: int = 0,
    start_env_steps: int = 0,
) -> list[Sink]:
    """Open every sink in a run folder, dropping entries later than `start_iteration`.

    Args:
        specs: Names from `NAMED_SINKS`, sinks, or sink classes (called with the `RunFolder`).
        folder: Run folder.
        params: Config as a dictionary, for sinks that show it.
        start_iteration: Iteration that a resumed run continues from; 0 for a new run.
        start_env_steps: Environment steps sampled up to that iteration.

    Raises:
        UnknownNameError: If a name is not in `NAMED_SINKS`.
        ConfigError: If an entry is not a sink, or the package of a sink is missing.
        RunFolderError: If a file cannot be written.
    """
    run = RecordedRun(
        folder=folder,
        params=params,
        start_iteration=start_iteration,
        start_env_steps=start_env_steps,
    )
    with contextlib.ExitStack() as on_failure:
        opened: list[Sink] = []
        on_failure.callback(close_sinks, opened)
        for spec in specs:
            sink = _open(spec, run)
            opened.append(sink)
        on_failure.pop_all()
    return opened


def cut_sinks(
    sinks: list[Sink],
    config: "Config",
    folder: RunFolder,
    start_iteration: int,
    start_env_steps: int,
) -> None:
    """Open the sinks with `is_cut` again, in their places, without entries after an iteration."""
    run = RecordedRun(
        folder=folder,
        params=serialize_for_display(config),
        start_iteration=start_iteration,
        start_env_steps=start_env_steps,
    )
    for i, sink in enumerate(sinks):
        if isinstance(sink, NamedSink) and sink.is_cut:
            sink.close()
            sinks[i] = sink.open(run)


def close_sinks(sinks: Sequence[Sink]) -> None:
    """Close all sinks, even if one fails, and raise the first failure."""
    failures: list[Exception] = []
    for sink in sinks:
        try:
            sink.close()
        except (OSError, RuntimeError, ValueError) as error:
            failures.append(error)
    if failures:
        raise failures[0]


def _open(spec: SinkSpec, run: RecordedRun) -> Sink:
    if isinstance(spec, str):
        if spec not in NAMED_SINKS:
            raise UnknownNameError(
                f"There is no logger '{spec}'.{did_you_mean(spec, NAMED_SINKS)} "
                f"The loggers are {', '.join(NAMED_SINKS)}."
            )
        return NAMED_SINKS[spec].open(run)
    sink: Any = spec
    if isinstance(spec, type):
        if not issubclass(spec, Sink):
            raise ConfigError(f"A logger must have write(result) and close(), got {spec!r}.")
        sink = sink(run.folder)
    if not isinstance(sink, Sink):
        raise ConfigError(
            f"A logger must have write(result) and close(), got {sink!r}; "
            f"the built-in ones are {', '.join(NAMED_SINKS)}."
        )
    return sink
