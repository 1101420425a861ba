"""Trained runs that commands are given: found, read and opened."""

import contextlib
import dataclasses
import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from jaxrl.config.imports import Trust
from jaxrl.config.serialize import deserialize_config
from jaxrl.config.settings.run import WITHOUT_CALLBACKS
from jaxrl.errors import CheckpointError, RunFolderError, did_you_mean
from jaxrl.loggers.sinks import read_results
from jaxrl.runs import results
from jaxrl.runs.checkpoint import find_checkpoint, list_checkpoints, read_metadata
from jaxrl.runs.manifest import (
    ITERATION,
    SESSION_TYPES,
    check_session,
    get_session,
    read_sessions,
)
from jaxrl.runs.run_folder import (
    RESULT_FILE,
    has_own_params,
    is_run_folder,
    parse_iteration,
    resolve_results_dir,
)
from jaxrl.runtime.files import read_bounded
from jaxrl.sweeps.state import is_lane_name, is_sweep_folder, read_sweep

if TYPE_CHECKING:
    from jaxrl.algorithm import Algorithm
    from jaxrl.config.base import AlgorithmConfig

MAX_PARAMS_BYTES = 64 * 2**20
"""Maximum size of a run's `params.json`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Record of a run.

    Args:
        path: Run folder.
        params: Content of its `params.json`.
        sessions: Sessions of its manifest. A run from before manifests has one with the versions
            and devices of its newest checkpoint, or none.
        checkpoints: Its checkpoints by iteration.
    """

    path: Path
    params: Mapping[str, Any]
    sessions: Sequence[Mapping[str, Any]]
    checkpoints: Mapping[int, Path]

    @property
    def has_results(self) -> bool:
        """Return whether the results of its iterations were recorded."""
        return (self.path / RESULT_FILE).is_file()

    def read_results(self) -> Iterator[dict[str, Any]]:
        """Yield the recorded results; none if they were not recorded."""
        if self.has_results:
            yield from read_results(self.path / RESULT_FILE)

    def load_config(self, trust: Sequence[str] | None) -> "AlgorithmConfig":
        """Return the config of the run; see `load_run_config`."""
        return load_run_config(self.path, self.params, trust)


def load_record(given: str, instead_of_sweep: str | None = None) -> RunRecord:
    """Load the record of a run.

    Args:
        given: Run folder, or its name in the results folder.
        instead_of_sweep: What to do in place of giving a sweep; None says to give a lane.

    Raises:
        JaxrlError: If there is no such run, it is a sweep, or its files are damaged.
    """
    path = find_run_folder(given)
    if is_sweep_folder(path):
        raise _make_sweep_error(path, instead_of_sweep)
    saved = {parse_iteration(found): found for found in list_checkpoints(path / "checkpoints")}
    sessions = read_sessions(path) or _read_old_sessions(saved)
    return RunRecord(path=path, params=read_params(path), sessions=sessions, checkpoints=saved)


def _make_sweep_error(path: Path, advice: str | None = None) -> RunFolderError:
    advice = advice or f"name one of its lanes, such as {path}/lane_000"
    return RunFolderError(f"{path} is a sweep of several runs: {advice}.")


def find_run(given: str) -> Path:
    """Return an existing path, or the run of this name in the results folder, or a path below it.

    Raises:
        RunFolderError: If a name is neither a path nor a run.
    """
    path = Path(given).expanduser()
    root = resolve_results_dir()
    if path.exists() or path.is_absolute():
        return path
    if is_run_folder(root / path.parts[0]):
        return root / path
    if path.name != given:
        return path
    entries = root.iterdir() if root.is_dir() else ()
    runs = [entry.name for entry in entries if is_run_folder(entry)]
    raise RunFolderError(
        f"There is no run '{given}', here or in {root}.{did_you_mean(given, runs)}"
    )


def resolve_checkpoint(path: Path) -> Path:
    """Return the checkpoint at a path, or the newest one of a run folder.

    Raises:
        RunFolderError: If the run ended before its first checkpoint, or it is a sweep.
        CheckpointError: If the path is neither a checkpoint nor a run folder.
    """
    if is_run_folder(path) and not list_checkpoints(path / "checkpoints"):
        if is_sweep_folder(path):
            raise _make_sweep_error(path)
        raise RunFolderError(
            f"{path} has no checkpoint yet: the run ended before the first was saved. "
            "Train it again."
        )
    return find_checkpoint(path)


@contextlib.contextmanager
def open_checkpoint(
    path: Path, overrides: Mapping[str, Any], trust: Sequence[str] | None, purpose: str
) -> "Generator[Algorithm]":
    """Open the algorithm of a checkpoint, with a spinner while it is in use.

    Args:
        path: Checkpoint.
        overrides: Settings that replace saved ones.
        trust: Packages that may be imported; see `--trust`.
        purpose: Words for the spinner on what the algorithm is opened for.
    """
    from rich.console import Console

    from jaxrl.algorithm import Algorithm
    from jaxrl.cli import terminal

    console = Console()
    with (
        terminal.RaiseOnInterrupt(),
        terminal.redirect_output(console),
        console.status(f"loading {path.name} and {purpose}"),
        Algorithm.from_checkpoint(str(path), trust=trust, **overrides) as algorithm,
    ):
        yield algorithm


@contextlib.contextmanager
def open_policy(
    given: str, overrides: Mapping[str, Any], trust: Sequence[str] | None
) -> "Generator[tuple[Path, Algorithm]]":
    """Open the algorithm of a checkpoint, or of a run's newest one, without callbacks."""
    path = resolve_checkpoint(find_run(given))
    overrides = {**WITHOUT_CALLBACKS, **overrides}
    with open_checkpoint(path, overrides, trust, "computing its actions") as algorithm:
        yield path, algorithm


def find_run_folder(given: str) -> Path:
    """Return the run folder of a path or name.

    Raises:
        RunFolderError: If there is none.
    """
    path = find_run(given)
    if not is_run_folder(path):
        raise RunFolderError(
            f"There is no run folder '{path}': give one that 'jaxrl train' printed, which has "
            "params.json and run.json."
        )
    return path


def read_params(path: Path) -> dict[str, Any]:
    """Return the content of a run's `params.json`.

    Raises:
        RunFolderError: If it cannot be read, or is not a config.
    """
    params = path / "params.json"
    try:
        saved = json.loads(read_bounded(params, MAX_PARAMS_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise RunFolderError(f"Cannot read {params}: {error}.") from error
    if not isinstance(saved, dict) or not isinstance(saved.get("settings"), dict):
        raise RunFolderError(f"{params} is damaged: it must have 'algo' and 'settings'.")
    return cast(dict[str, Any], saved)


def load_run_config(
    path: Path, params: Mapping[str, Any], trust: Sequence[str] | None
) -> "AlgorithmConfig":
    """Return the config of a run, importing only what is trusted.

    Args:
        path: Run folder.
        params: Content of its `params.json`.
        trust: Packages that may be imported; see `--trust`.
    """
    source = path / "params.json"
    trusted = Trust.from_argument(trust, is_own=has_own_params(path), source=source)
    return cast("AlgorithmConfig", deserialize_config(params, trust=trusted))


def is_lane(path: Path) -> bool:
    """Return whether a run folder is that of a lane which shared its program with others."""
    sweep = path.resolve().parent
    if not is_run_folder(sweep) or not is_lane_name(path.resolve().name):
        return False
    return not is_sweep_folder(sweep) or not read_sweep(sweep).get("trials")


def count_iterations(record: RunRecord) -> int:
    """Return the last iteration with a result or, without results, with a checkpoint; 0 if none."""
    last = 0
    for row in record.read_results():
        last = int(results.get_number(row, results.ITERATION) or 0)
    return last or max(record.checkpoints, default=0)


def _read_old_sessions(checkpoints: Mapping[int, Path]) -> list[dict[str, Any]]:
    """Return what the newest readable checkpoint says of versions and devices."""
    for number in sorted(checkpoints, reverse=True):
        try:
            metadata = read_metadata(checkpoints[number])
        except CheckpointError:
            continue
        session, required = get_session(metadata), SESSION_TYPES.keys()
        if session is None:
            names = {"num_devices": "count", "platform": "platform"}
            devices = {key: metadata[name] for name, key in names.items() if name in metadata}
            session = {"versions": metadata.get("versions", {}), "devices": devices}
            required = session.keys()
        checked = {ITERATION: 0, **session}
        return [check_session(checked, checkpoints[number], (ITERATION, *required))]
    return []
