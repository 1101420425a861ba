"""The names of checkpoints in a folder: which are complete, and how one is put away."""

import os
import shutil
from pathlib import Path

from jaxrl.errors import CheckpointError

PREFIX = "checkpoint"
REPLACED = "replaced_"
WRITING, REMOVING = ".writing_", ".removing_"
SET_ASIDE = "set_aside_"
_UNFINISHED = (WRITING, REMOVING, ".replacing")
_ORBAX_UNFINISHED = ".orbax-checkpoint-tmp"


def checkpoint_path(folder: Path, number: int) -> Path:
    """Where the checkpoint of a number lies."""
    return folder / f"{PREFIX}_{number:06d}"


def number_of(name: str) -> int | None:
    """The number in the name of a complete checkpoint; None for any other name."""
    prefix, _, number = name.removeprefix(REPLACED).partition("_")
    return int(number) if prefix == PREFIX and number.isascii() and number.isdecimal() else None


def complete_checkpoints(folder: str | os.PathLike[str]) -> list[Path]:
    """The complete checkpoints in a folder, oldest first."""
    root = Path(folder).expanduser()
    if not root.is_dir():
        return []
    replaced: dict[int, Path] = {}
    found: dict[int, Path] = {}
    for path in root.iterdir():
        number = number_of(path.name)
        if number is not None and path.is_dir():
            (replaced if path.name.startswith(REPLACED) else found)[number] = path
    found = {**replaced, **found}
    return [found[number] for number in sorted(found)]


def is_checkpoint(path: Path) -> bool:
    """Whether a folder has the parts of a checkpoint, whatever is in them."""
    return (path / "metadata").is_dir() and (path / "state").is_dir()


def find_checkpoint(path: str | os.PathLike[str]) -> Path:
    """The checkpoint that a path means: itself, or the newest of a folder or of a run.

    Raises:
        CheckpointError: If there is none.
    """
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise CheckpointError(f"A checkpoint is named by its path, got {path!r}.")
    given = Path(path).expanduser()
    try:
        if is_checkpoint(given):
            return given.resolve()
        exists = given.exists()
        found = complete_checkpoints(given) or complete_checkpoints(given / "checkpoints")
    except (OSError, ValueError) as error:  # not readable, or no path at all
        raise CheckpointError(f"There is no checkpoint {str(path)!r}: {error}.") from error
    if not exists:
        raise CheckpointError(f"There is no checkpoint {given}: no such file or folder.")
    if not found:
        raise CheckpointError(
            f"{given} is no jaxrl checkpoint (it has no metadata/ and state/) and holds none."
        )
    return found[-1].resolve()


def previous_hint(checkpoint: Path) -> str:
    """A sentence that names the checkpoint before this one, if there is any."""
    number = number_of(checkpoint.name)
    others = [] if number is None else complete_checkpoints(checkpoint.parent)
    older = [path for path in others if (number_of(path.name) or 0) < (number or 0)]
    if not older:
        return ""
    return (
        f" The previous one is {older[-1]}, a path that 'jaxrl resume', 'jaxrl evaluate' and "
        "from_checkpoint take."
    )


def remove_checkpoint(path: Path) -> None:
    """Rename, then delete: what is half-deleted has no checkpoint's name."""
    aside = path.with_name(REMOVING + path.name)
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def set_aside_later(folder: Path, number: int) -> list[Path]:
    """Rename the checkpoints after a number, since the run goes on from there in another way.

    Returns:
        Their new paths, oldest first; nothing reads those.
    """
    put: list[Path] = []
    for path in complete_checkpoints(folder):
        if (number_of(path.name) or 0) > number:
            aside, copies = path.with_name(SET_ASIDE + path.name), 1
            while aside.exists():
                copies += 1
                aside = path.with_name(f"{SET_ASIDE}{path.name}_{copies}")
            put.append(path.rename(aside))
    return put


def tidy(folder: Path) -> None:
    """Remove what a process that was killed left behind; a replacement that was cut short is undone."""
    for aside in folder.glob(f"{REPLACED}{PREFIX}_*"):
        own = aside.with_name(aside.name.removeprefix(REPLACED))
        if own.exists():
            remove_checkpoint(aside)
        else:
            aside.rename(own)
    for path in list(folder.iterdir()):
        if path.name.startswith(_UNFINISHED) or _ORBAX_UNFINISHED in path.name:
            shutil.rmtree(path, ignore_errors=True)


def publish(staging: Path, path: Path) -> None:
    """Give a checkpoint that is completely written its name, in the place of one that has it."""
    replaced = path.with_name(REPLACED + path.name)
    if path.exists():
        if replaced.exists():
            remove_checkpoint(replaced)
        path.rename(replaced)
    staging.rename(path)
    flush(path.parent)
    if replaced.exists():
        remove_checkpoint(replaced)


def flush(path: Path) -> None:
    """Have a file, or the names in a folder, on the disk and not only in memory."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
