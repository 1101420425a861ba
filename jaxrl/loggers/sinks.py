"""The `Sink` protocol and the sinks that a config can name."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast, runtime_checkable

from jaxrl.config.serialize import serialize_for_display
from jaxrl.config.settings.run import LoggerName
from jaxrl.errors import ConfigError, UnknownNameError, did_you_mean
from jaxrl.loggers.csv_sink import CsvSink
from jaxrl.loggers.json_sink import JsonSink
from jaxrl.loggers.tensorboard_sink import TensorBoardSink
from jaxrl.runs import results
from jaxrl.runs.run_folder import RunFolder

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

FILE_SINKS = (JsonSink, CsvSink, TensorBoardSink)
"""Sinks that do not modify results, so they share one converted to plain Python types.

Opened again, they drop the entries of a future that a run went back from.
"""


@runtime_checkable
class Sink(Protocol):
    """Destination of the results of a run; one class per format."""

    def write(self, result: results.Result) -> None:
        """Write the nested result of an iteration; it must be on disk on return."""
        ...

    def close(self) -> None:
        """Close the sink; called once, when the run stops."""
        ...


SinkSpec: TypeAlias = "str | Sink | type"


@runtime_checkable
class BufferedSink(Sink, Protocol):
    """Sink that holds back what it was given, such as all but one line every two seconds."""

    def flush(self) -> None:
        """Show what was held back."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """Run that sinks are opened for; the fields are the arguments of `open_all`."""

    folder: RunFolder
    params: Mapping[str, Any]
    start_iteration: int
    start_env_steps: int


def _open_json(run: RecordedRun) -> Sink:
    return JsonSink(run.folder.result_file, start_iteration=run.start_iteration)


def _open_csv(run: RecordedRun) -> Sink:
    return CsvSink(run.folder.progress_file, start_iteration=run.start_iteration)


def _open_tensorboard(run: RecordedRun) -> Sink:
    return TensorBoardSink(
        run.folder.path,
        start_iteration=run.start_iteration,
        start_env_steps=run.start_env_steps,
    )


def _open_console(run: RecordedRun) -> Sink:
    from jaxrl.loggers.console_sink import ConsoleSink  # rich is slow to import

    return ConsoleSink(run.folder.name, run.folder.stop_criterion)


def _open_wandb(run: RecordedRun) -> Sink:
    from jaxrl.loggers.wandb_sink import WandbSink

    return WandbSink(run.folder, run.params)


OPENERS: Mapping[LoggerName, Callable[[RecordedRun], Sink]] = {
    "json": _open_json,
    "csv": _open_csv,
    "tensorboard": _open_tensorboard,
    "console": _open_console,
    "wandb": _open_wandb,
}
"""Functions that open the sink of each name; `jaxrl.config.settings.run` has the names."""


def open_sinks(
    config: "AlgorithmConfig",
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
        specs: Names from `OPENERS`, sinks, or sink classes (called with the `RunFolder`).
        folder: Run folder.
        params: Config as a dictionary, for sinks that show it.
        start_iteration: Iteration that a resumed run continues from; 0 for a new run.
        start_env_steps: Environment steps sampled up to that iteration.

    Raises:
        UnknownNameError: If a name is not in `OPENERS`.
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


def reopen_files(
    sinks: list[Sink],
    config: "AlgorithmConfig",
    folder: RunFolder,
    start_iteration: int,
    start_env_steps: int,
) -> None:
    """Reopen the sinks of files in their places, dropping entries later than `start_iteration`."""
    run = RecordedRun(
        folder=folder,
        params=serialize_for_display(config),
        start_iteration=start_iteration,
        start_env_steps=start_env_steps,
    )
    openers = dict(zip(FILE_SINKS, (_open_json, _open_csv, _open_tensorboard), strict=True))
    for i, sink in enumerate(sinks):
        if isinstance(sink, FILE_SINKS):
            sink.close()
            sinks[i] = openers[type(sink)](run)


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
        openers = cast(Mapping[str, Callable[[RecordedRun], Sink]], OPENERS)
        if spec not in openers:
            raise UnknownNameError(
                f"There is no logger '{spec}'.{did_you_mean(spec, openers)} "
                f"The loggers are {', '.join(openers)}."
            )
        return openers[spec](run)
    sink: Any = spec
    if isinstance(spec, type):
        if not issubclass(spec, Sink):
            raise ConfigError(f"A logger must have write(result) and close(), got {spec!r}.")
        sink = sink(run.folder)
    if not isinstance(sink, Sink):
        raise ConfigError(
            f"A logger must have write(result) and close(), got {sink!r}; "
            f"the built-in ones are {', '.join(OPENERS)}."
        )
    return sink
