"""The file `sweep.json`: state of a sweep beside its lanes' checkpoints."""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrl.config.coerce import MismatchError, coerce, describe_type
from jaxrl.config.serialize import serialize_restorable
from jaxrl.config.signature import has_valid_digest, is_sealed_by_user, seal
from jaxrl.errors import CheckpointError
from jaxrl.runs.checkpoint import SWEEP_FILE, list_checkpoints, set_aside_later_checkpoints
from jaxrl.runs.run_folder import is_run_folder, parse_iteration
from jaxrl.runtime import files

if TYPE_CHECKING:
    from jaxrl.config.config import Config

logger = logging.getLogger("jaxrl")

VERSION = 2
"""Version of the file format. Version 1 had no digest."""


def is_sweep_folder(path: Path) -> bool:
    """Return whether a folder holds a saved sweep."""
    return (path / SWEEP_FILE).is_file()


def is_lane_name(name: str) -> bool:
    """Return whether a folder of a sweep is a lane, and not a run that began from one."""
    return name.startswith("lane_") and name.removeprefix("lane_").isdecimal()


def list_lanes(folder: Path) -> list[Path]:
    """Return the run folders of a sweep's lanes that have begun, in the order of their indices."""
    lanes = [p for p in folder.glob("lane_*") if is_lane_name(p.name) and is_run_folder(p)]
    return sorted(lanes, key=lambda path: int(path.name.removeprefix("lane_")))


def write_sweep(folder: Path, config: "Config", state: Mapping[str, Any]) -> None:
    """Record atomically that all lanes are saved at an iteration.

    Args:
        folder: Folder of the sweep.
        config: Config of the sweep; settings that cannot be saved are listed under `not_saved`.
        state: `training_iteration`, `diverged`, `swept` and, where they apply, `values`,
            `last_time` and `trials`.
    """
    saved, not_saved = serialize_restorable(config)
    document = {
        "sweep_version": VERSION,
        "algorithm": config.algo_name,
        "config": saved,
        "not_saved": not_saved,
        **state,
    }
    document = seal(document)
    path = folder / SWEEP_FILE
    with files.translate_os_errors("write", path), files.open_atomic(path) as file:
        json.dump(document, file, indent=2, allow_nan=False)


def read_sweep(folder: Path) -> dict[str, Any]:
    """Return the document that `write_sweep` wrote.

    Raises:
        CheckpointError: If there is no saved sweep, or it is damaged or has a later version.
    """
    path = folder / SWEEP_FILE
    if not path.is_file() and is_lane_name(folder.name) and is_sweep_folder(folder.parent):
        raise CheckpointError(
            f"{folder} is one run of the sweep {folder.parent}: Algorithm.from_checkpoint resumes it."
        )
    if not path.is_file():
        raise CheckpointError(
            f"{folder} holds no saved sweep: {SWEEP_FILE}, which save() and fit() write, is "
            "missing."
        )
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        version = document["sweep_version"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: {error!r}.") from error
    if version not in (1, VERSION):
        raise CheckpointError(
            f"{path} has version {version}, but this jaxrl reads versions up to {VERSION}."
        )
    if version == VERSION and not has_valid_digest(document):
        raise CheckpointError(f"{path} is damaged: its digest does not match.")
    _check_document(document, path)
    return document


def is_own(document: Mapping[str, Any]) -> bool:
    """Return whether the current user wrote a sweep's file on this machine."""
    return is_sealed_by_user(document)


_FIELD_TYPES: dict[str, Any] = {
    "training_iteration": int,
    "diverged": dict[str, str],
    "swept": list[str],
    "not_saved": list[str],
    "values": list[dict[str, Any]] | None,
    "last_time": float,
    "trials": bool,
}


def _check_document(document: Mapping[str, Any], path: Path) -> None:
    """Raise CheckpointError if the document is not one that `write_sweep` wrote."""
    required = ("training_iteration", "diverged", "swept", "not_saved", "config")
    for name in required:
        if name not in document:
            raise CheckpointError(f"{path} is damaged: {name} is missing.")
    for name, kind in _FIELD_TYPES.items():
        try:
            coerce(document.get(name, [] if name == "not_saved" else None), kind)
        except (MismatchError, OverflowError, RecursionError):
            if name in document:
                raise CheckpointError(
                    f"{path} is damaged: {name} must be {describe_type(kind)}."
                ) from None
    if not all(index.isdecimal() for index in document["diverged"]):
        raise CheckpointError(f"{path} is damaged: the keys of diverged must be lane indices.")


def find_checkpoint_at(lane: Path, iteration: int | None) -> Path:
    """Return a lane's complete checkpoint of an iteration.

    Args:
        lane: Folder of the lane.
        iteration: Iteration of the checkpoint; None for the newest.

    Raises:
        CheckpointError: If there is no such checkpoint.
    """
    checkpoints = {parse_iteration(path): path for path in list_checkpoints(lane / "checkpoints")}
    wanted = max(checkpoints, default=None) if iteration is None else iteration
    if wanted not in checkpoints:
        which = "" if iteration is None else f" of iteration {iteration}"
        raise CheckpointError(
            f"{lane} has no checkpoint{which}, so the sweep cannot be resumed as a whole; "
            "Algorithm.from_checkpoint resumes single lanes."
        )
    return checkpoints[wanted]


def set_aside_later(lanes: Sequence[Path], iteration: int) -> None:
    """Rename the lanes' checkpoints of later iterations, which the sweep as a whole has not saved.

    It was killed while it saved them, or a lane was resumed by itself.
    """
    renamed = [p for x in lanes for p in set_aside_later_checkpoints(x / "checkpoints", iteration)]
    if renamed:
        logger.warning(
            "The sweep continues from iteration %d; %d later checkpoints of its lanes were renamed, "
            "the first to %s.",
            iteration,
            len(renamed),
            renamed[0],
        )
