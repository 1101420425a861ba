"""Names of checkpoint folders: listing, publishing and removing checkpoints."""

import contextlib
import functools
import json
import os
import shutil
import uuid
from collections.abc import Generator
from pathlib import Path
from typing import Any

from jaxrl.errors import CheckpointError
from jaxrl.runtime.files import try_lock_folder

CHECKPOINT_PREFIX = "checkpoint"
REPLACED_PREFIX = "replaced_"
WRITING_PREFIX, REMOVING_PREFIX = ".writing_", ".removing_"
SET_ASIDE_PREFIX = "set_aside_"
OWN_FILES = "own"
"""Folder of a checkpoint with what a subclass of Algorithm saves besides."""
SWEEP_FILE = "sweep.json"
"""File in a sweep's folder that refers to a checkpoint of every lane, by their iteration."""
_UNFINISHED = (REMOVING_PREFIX, ".replacing")
_ORBAX_UNFINISHED = ".orbax-checkpoint-tmp"


def get_checkpoint_path(folder: Path, number: int) -> Path:
    """Return the path of the checkpoint of a number."""
    return folder / f"{CHECKPOINT_PREFIX}_{number:06d}"


def parse_number(name: str) -> int | None:
    """Return the number in the name of a complete checkpoint; None for any other name."""
    prefix, _, number = name.removeprefix(REPLACED_PREFIX).partition("_")
    return (
        int(number)
        if prefix == CHECKPOINT_PREFIX and number.isascii() and number.isdecimal()
        else None
    )


def list_checkpoints(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the paths of the complete checkpoints in a folder, oldest first."""
    root = Path(folder).expanduser()
    if not root.is_dir():
        return []
    replaced: dict[int, Path] = {}
    current: dict[int, Path] = {}
    for path in root.iterdir():
        number = parse_number(path.name)
        if number is not None and path.is_dir():
            (replaced if path.name.startswith(REPLACED_PREFIX) else current)[number] = path
    checkpoints = {**replaced, **current}
    return [checkpoints[number] for number in sorted(checkpoints)]


def is_checkpoint(path: Path) -> bool:
    """Return whether a folder has a checkpoint's subfolders, without checking their content."""
    return (path / "metadata").is_dir() and (path / "state").is_dir()


def get_path(given: object) -> Path:
    """Return the path of a checkpoint, which may be an object of Ray Tune's, as of a Result.

    Raises:
        CheckpointError: If it has none, or cannot be copied from where Tune stored it.
    """
    path = given if isinstance(given, str) else getattr(given, "path", None)
    if path is None and isinstance(given, os.PathLike):
        path = os.fspath(given)
    if not isinstance(path, str):
        raise CheckpointError(
            f"A checkpoint must be given as a path, or as a Checkpoint of Ray Tune, got {given!r}."
        )
    copy = None if isinstance(given, str) else getattr(given, "to_directory", None)
    if copy is not None and not Path(path).exists():  # in a storage of Tune's
        try:
            path = str(copy())
        except Exception as error:
            raise CheckpointError(
                f"{given!r} cannot be copied to this machine: {error}."
            ) from error
    return Path(path).expanduser()


def find_checkpoint(path: str | os.PathLike[str]) -> Path:
    """Find the checkpoint at a path: the path itself, or the newest one of a folder or run.

    Raises:
        CheckpointError: If there is none.
    """
    root = get_path(path)
    try:
        if is_checkpoint(root):
            return root.resolve()
        exists = root.exists()
        checkpoints = list_checkpoints(root) or list_checkpoints(root / "checkpoints")
    except (OSError, ValueError) as error:  # not readable, or not a valid path
        raise CheckpointError(f"There is no checkpoint {str(path)!r}: {error}.") from error
    if not exists:
        set_aside = root.with_name(SET_ASIDE_PREFIX + root.name)
        other = (
            f" It was renamed to {set_aside} when its run went back." if set_aside.exists() else ""
        )
        raise CheckpointError(
            f"There is no checkpoint {root}: no such file or folder."
            f"{other or describe_previous(root)}"
        )
    if (root / SWEEP_FILE).is_file():
        raise CheckpointError(_describe_sweep(root))
    if not checkpoints:
        raise CheckpointError(
            f"{root} is not a jaxrl checkpoint (it has no metadata/ and state/) and contains none."
        )
    return checkpoints[-1].resolve()


def remove_old_set_aside(folder: Path, max_to_keep: int) -> None:
    """Remove all but the newest of the checkpoints that were set aside."""
    found = [path for path in folder.glob(f"{SET_ASIDE_PREFIX}*") if path.is_dir()]
    found.sort(key=lambda path: (path.stat().st_mtime_ns, path.name))
    for path in found[: max(0, len(found) - max_to_keep)]:
        remove_checkpoint(path)


def _describe_sweep(folder: Path) -> str:
    if _read_sweep(folder).get("trials"):
        return (
            f"{folder} is a sweep of several runs, in Tune's trials: 'jaxrl resume' continues it."
        )
    return (
        f"{folder} is a sweep of several runs: Population.from_checkpoint and 'jaxrl resume' "
        f"continue it; one of its runs is {folder / 'lane_000'}."
    )


def describe_previous(checkpoint: Path) -> str:
    """Return a sentence that names the previous checkpoint; empty if there is none."""
    number = parse_number(checkpoint.name)
    others = [] if number is None else list_checkpoints(checkpoint.parent)
    older = [path for path in others if (parse_number(path.name) or 0) < (number or 0)]
    if not older:
        return ""
    return (
        f" The previous one is {older[-1]}, which can be passed to 'jaxrl resume', "
        "'jaxrl evaluate' and from_checkpoint."
    )


def remove_checkpoint(path: Path) -> None:
    """Remove a checkpoint, renaming it first so that no partial one has a checkpoint's name."""
    renamed = path.with_name(REMOVING_PREFIX + path.name)
    shutil.rmtree(renamed, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):  # another process removed it
        path.rename(renamed)
    shutil.rmtree(renamed, ignore_errors=True)


def set_aside_later_checkpoints(folder: Path, number: int) -> list[Path]:
    """Rename the checkpoints after a number, because the run continues differently from there.

    Returns:
        The new paths, oldest first, which are no longer read.
    """
    renamed: list[Path] = []
    for path in list_checkpoints(folder):
        if (parse_number(path.name) or 0) > number:
            target, copies = path.with_name(SET_ASIDE_PREFIX + path.name), 1
            while target.exists():
                copies += 1
                target = path.with_name(f"{SET_ASIDE_PREFIX}{path.name}_{copies}")
            renamed.append(path.rename(target))
    return renamed


def find_swept_iteration(run: Path) -> int | None:
    """Return the iteration at which a lane's sweep resumes; None without a sweep, or for a trial."""
    saved = _read_sweep(run.parent)
    iteration = saved.get("training_iteration")
    return iteration if type(iteration) is int and not saved.get("trials") else None


def _read_sweep(folder: Path) -> dict[str, Any]:
    """Return the content of a sweep's file; empty if there is none, or it is damaged."""
    try:
        saved = json.loads((folder / SWEEP_FILE).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return saved if isinstance(saved, dict) else {}


@contextlib.contextmanager
def stage(path: Path) -> Generator[Path]:
    """Make a folder to write a checkpoint in, which is removed at the end if it is not published.

    It is locked, so that `clean_up` of another writer leaves it alone.
    """
    staging, handle = path, None
    while handle is None:
        staging = path.with_name(f"{WRITING_PREFIX}{uuid.uuid4().hex[:12]}_{path.name}")
        staging.mkdir(parents=True)
        handle = try_lock_folder(staging)
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        os.close(handle)


def clean_up(folder: Path) -> None:
    """Remove leftovers of a killed process and undo incomplete replacements.

    What a living process writes is left to it.
    """
    in_use: list[str] = []
    for path in list(folder.iterdir()):
        if path.name.startswith(WRITING_PREFIX):
            try:
                handle = try_lock_folder(path)
            except OSError:  # of another user
                handle = None
            if handle is None:
                in_use.append(path.name)
                continue
            shutil.rmtree(path, ignore_errors=True)
            os.close(handle)
        elif path.name.startswith(_UNFINISHED) or _ORBAX_UNFINISHED in path.name:
            shutil.rmtree(path, ignore_errors=True)
    for replaced in folder.glob(f"{REPLACED_PREFIX}{CHECKPOINT_PREFIX}_*"):
        current = replaced.with_name(replaced.name.removeprefix(REPLACED_PREFIX))
        if current.exists():
            remove_checkpoint(replaced)
        elif not any(name.endswith(current.name) for name in in_use):
            replaced.rename(current)


def publish(staging: Path, path: Path) -> None:
    """Rename a completely written checkpoint to its final name, replacing one of that name."""
    replaced = path.with_name(REPLACED_PREFIX + path.name)
    if path.exists():
        if replaced.exists():
            remove_checkpoint(replaced)
        path.rename(replaced)
    staging.rename(path)
    flush(path.parent)
    if replaced.exists():
        remove_checkpoint(replaced)


def flush(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class SavedPath(str):
    """Path of a saved checkpoint, which RLlib's code reads as `save().checkpoint.path`.

    It is written to YAML as the string that it is.
    """

    def __new__(cls, path: object = "") -> "SavedPath":
        _register_with_yaml()
        return super().__new__(cls, path)

    @property
    def checkpoint(self) -> "SavedPath":
        """The checkpoint itself."""
        return self

    @property
    def path(self) -> str:
        """The path as a plain string."""
        return str(self)

    def to_directory(self) -> str:
        """Return the path; nothing is copied."""
        return str(self)


@functools.cache
def _register_with_yaml() -> None:
    """Let PyYAML write paths as strings; its safe dumpers refuse subclasses that they do not know.

    It is imported with the first path, since most programs that read checkpoints write no YAML.
    """
    import yaml

    def represent(dumper: yaml.representer.SafeRepresenter, path: SavedPath) -> yaml.Node:
        return dumper.represent_str(str(path))

    for name in ("SafeDumper", "Dumper", "CSafeDumper", "CDumper"):
        if hasattr(yaml, name):  # those in C are not part of every build
            yaml.add_representer(SavedPath, represent, Dumper=getattr(yaml, name))
