"""What a sweep remembers beside its lanes' checkpoints: how far all of them have come together."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrl.config import signature
from jaxrl.config.coerce import MismatchError, coerce, describe
from jaxrl.config.serialize import restorable_dict
from jaxrl.errors import CheckpointError
from jaxrl.runs import files
from jaxrl.runs.checkpoint import complete_checkpoints, remove_checkpoint
from jaxrl.runs.run_folder import iteration_of

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

SWEEP_FILE = "sweep.json"
VERSION = 2
"""Of the file's format. Version 1 had no digest."""


def is_sweep_folder(path: Path) -> bool:
    """Whether a sweep was saved there."""
    return (path / SWEEP_FILE).is_file()


def write_sweep(folder: Path, config: "AlgorithmConfig", state: Mapping[str, Any]) -> None:
    """Say that all lanes are saved at an iteration; the file is whole at any moment.

    Args:
        folder: The sweep's.
        config: Of the sweep; what cannot be saved of it is named under `not_saved`.
        state: `training_iteration`, `diverged` and `scheduler`.
    """
    saved, not_saved = restorable_dict(config)
    document = {
        "sweep_version": VERSION,
        "algorithm": config.algo_name,
        "config": saved,
        "not_saved": not_saved,
        **state,
    }
    document = signature.sealed(document)
    path = folder / SWEEP_FILE
    with files.one_sentence("write", path), files.replacing(path) as file:
        json.dump(document, file, indent=2, allow_nan=False)


def read_sweep(folder: Path) -> dict[str, Any]:
    """What `write_sweep` wrote.

    Raises:
        CheckpointError: There is no saved sweep, or it is damaged or of a later version.
    """
    path = folder / SWEEP_FILE
    if not path.is_file():
        raise CheckpointError(
            f"{folder} holds no saved sweep: it has no {SWEEP_FILE}, which save() and fit() write."
        )
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        version = document["sweep_version"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: {error!r}.") from error
    if version not in (1, VERSION):
        raise CheckpointError(
            f"{path} has version {version}, and this jaxrl reads versions up to {VERSION}."
        )
    if version == VERSION and not signature.is_whole(document):
        raise CheckpointError(f"{path} is damaged: its digest does not match.")
    _check(document, path)
    return document


def is_own(document: Mapping[str, Any]) -> bool:
    """Whether the user of this process wrote a sweep's file on this machine."""
    return signature.is_own_seal(document)


_TYPES: dict[str, Any] = {
    "training_iteration": int,
    "diverged": dict[str, str],
    "swept": list[str],
    "not_saved": list[str],
    "values": list[dict[str, Any]] | None,
    "last_time": float,
    "trials": bool,
}


def _check(document: Mapping[str, Any], path: Path) -> None:
    """Refuse what `write_sweep` did not write."""
    needed = ("training_iteration", "diverged", "swept", "not_saved", "config")
    for name in needed:
        if name not in document:
            raise CheckpointError(f"{path} is damaged: {name} is missing.")
    for name, kind in _TYPES.items():
        try:
            coerce(document.get(name, [] if name == "not_saved" else None), kind)
        except (MismatchError, OverflowError, RecursionError):
            if name in document:
                raise CheckpointError(
                    f"{path} is damaged: {name} must be {describe(kind)}."
                ) from None
    if not all(index.isdecimal() for index in document["diverged"]):
        raise CheckpointError(f"{path} is damaged: diverged must name lanes by their numbers.")


def checkpoint_at(lane: Path, iteration: int | None) -> Path:
    """A lane's complete checkpoint of an iteration; None for its newest.

    Raises:
        CheckpointError: It has none.
    """
    found = {iteration_of(path): path for path in complete_checkpoints(lane / "checkpoints")}
    wanted = max(found, default=None) if iteration is None else iteration
    if wanted not in found:
        of = "" if iteration is None else f" of iteration {iteration}"
        raise CheckpointError(
            f"{lane} has no checkpoint{of}, so the sweep cannot go on as a whole; "
            "Algorithm.from_checkpoint goes on with single lanes."
        )
    return found[wanted]


def remove_later(lane: Path, iteration: int) -> None:
    """Remove checkpoints of a lane that the sweep as a whole had not reached when it was killed."""
    for path in complete_checkpoints(lane / "checkpoints"):
        if iteration_of(path) > iteration:
            remove_checkpoint(path)
