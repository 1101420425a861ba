"""Files to migrate: finding, reading and writing them, and the differences to the originals."""

import dataclasses
import difflib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from jaxrl.errors import ConfigError, JaxrlError, escape
from jaxrl.migrate.python_file import MENTION, RLLIB_MENTION, migrate_python
from jaxrl.migrate.report import ByHand, Migration
from jaxrl.migrate.yaml_file import migrate_yaml
from jaxrl.runtime.files import open_atomic

PYTHON, DATA, NOTEBOOK = (".py",), (".yaml", ".yml", ".json"), (".ipynb",)
SUFFIXES = (*PYTHON, *DATA, *NOTEBOOK)
SKIPPED_FOLDERS = ("__pycache__", "build", "dist", "node_modules", "site-packages")
MAX_PYTHON_BYTES, MAX_DATA_BYTES, MAX_NOTEBOOK_BYTES = 2_000_000, 1_000_000, 100_000_000
"""Sizes above which a file is not read: it is generated, or data."""
BYTE_ORDER_MARK = "\ufeff"


@dataclasses.dataclass(frozen=True)
class MigratedFile:
    """File with its migration."""

    path: Path
    migration: Migration


@dataclasses.dataclass(frozen=True)
class Batch:
    """Migrations of all files, and sentences on files and folders that could not be read."""

    num_read: int
    files: list[MigratedFile]
    errors: list[str]

    @property
    def uses_rllib(self) -> bool:
        """Use of RLlib by any of the files."""
        return any(file.migration.uses_rllib for file in self.files)


def migrate_paths(paths: Sequence[str]) -> Batch:
    """Migrate files, and all files in folders, without writing anything.

    Raises:
        ConfigError: If a path does not exist, or is a file of another kind.
    """
    num_read = 0
    files: list[MigratedFile] = []
    errors: list[str] = []
    for path, is_named in find_files(paths, errors):
        num_read += 1
        try:
            migration = migrate_file(path, is_named=is_named)
            if migration is None:
                continue
            if migration.is_changed and not is_named:
                _refuse_link_outside(path, paths)
        except JaxrlError as error:
            errors.append(str(error))
            continue
        if migration.uses_rllib or migration.is_changed or migration.by_hand:
            files.append(MigratedFile(path, migration))
    return Batch(num_read, files, errors)


def _refuse_link_outside(path: Path, paths: Sequence[str]) -> None:
    """Raise if a file in a folder is a link to one that is in none of the paths."""
    target = path.resolve()
    if not any(target.is_relative_to(Path(each).expanduser().resolve()) for each in paths):
        raise ConfigError(f"'{path}' is a link to '{target}': name that file to migrate it.")


def find_files(paths: Sequence[str], errors: list[str]) -> Iterator[tuple[Path, bool]]:
    """Yield files once each, and whether the path itself was named.

    Args:
        paths: Files and folders.
        errors: List that sentences on unreadable folders and links are added to.

    Raises:
        ConfigError: If a path does not exist, or is a file of another kind.
    """
    seen: set[Path] = set()
    chosen = [Path(path).expanduser() for path in paths]
    for path in chosen:
        _check_path(path)
    for path in chosen:
        for file in _walk(path, errors) if path.is_dir() else [path]:
            try:
                target = file.resolve()
            except (OSError, RuntimeError):  # a RuntimeError until Python 3.12
                errors.append(f"Cannot read '{file}': it is a link to itself.")
                continue
            if target not in seen:
                seen.add(target)
                yield file, file == path


def _check_path(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"There is no file or folder '{path}'.") from None
    except (OSError, ValueError) as error:  # ValueError: a null character
        raise ConfigError(f"Cannot read '{path}': {_get_reason(error)}.") from error
    if not stat.S_ISDIR(mode) and (path.suffix not in SUFFIXES or not stat.S_ISREG(mode)):
        raise ConfigError(
            f"'{path}' is no file to migrate; name a folder, or a file that ends in "
            f"{', '.join(SUFFIXES)}."
        )


def _get_reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)


def _walk(folder: Path, errors: list[str]) -> Iterator[Path]:
    def report(error: OSError) -> None:
        errors.append(f"Cannot read the folder '{error.filename}': {_get_reason(error)}.")

    for place, folders, names in os.walk(folder, onerror=report):
        folders[:] = sorted(
            name
            for name in folders
            if name not in SKIPPED_FOLDERS
            and not name.startswith(".")
            and not (Path(place) / name / "pyvenv.cfg").exists()
        )
        for name in sorted(names):
            if Path(name).suffix in SUFFIXES:
                yield Path(place) / name


def migrate_file(path: Path, *, is_named: bool = True) -> Migration | None:
    """Migrate a file without writing it.

    Args:
        path: Path of the file.
        is_named: Whether the user named it; otherwise files of other projects are passed over.

    Returns:
        The migration, None if the file is not about RLlib.

    Raises:
        ConfigError: If the file cannot be read or parsed.
    """
    is_data = path.suffix in DATA
    data = _read_bounded(path, may_pass=is_data and not is_named)
    if data is None or (not is_named and not _may_concern(data, is_data=is_data)):
        return None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}, line {line}: not UTF-8; convert the file first.") from error
    mark = BYTE_ORDER_MARK if text.startswith(BYTE_ORDER_MARK) else ""
    text = text.removeprefix(mark)
    if path.suffix in NOTEBOOK:
        migration = _report_notebook(text)
    elif is_data:
        migration = _migrate_data(text, path, is_named=is_named)
    else:
        migration = migrate_python(text, path)
    if migration is None or not mark:
        return migration
    return dataclasses.replace(migration, old=mark + text, new=mark + migration.new)


def _read_bounded(path: Path, *, may_pass: bool) -> bytes | None:
    """Read a regular file of limited size; None for a larger one that may be passed over."""
    limit = MAX_PYTHON_BYTES
    if path.suffix in (*DATA, *NOTEBOOK):
        limit = MAX_DATA_BYTES if path.suffix in DATA else MAX_NOTEBOOK_BYTES
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # reading a pipe would wait for its writer
            raise ConfigError(f"Cannot read '{path}': it is not a regular file.")
        if status.st_size > limit and may_pass:
            return None
        if status.st_size > limit:
            raise ConfigError(
                f"'{path}' has {status.st_size:,} bytes, and files of more than {limit:,} are "
                "not read."
            )
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"Cannot read '{path}': {_get_reason(error)}.") from error


def _may_concern(data: bytes, *, is_data: bool) -> bool:
    if is_data:
        return b"run" in data or b"algo" in data
    return b"rllib" in data or b"jaxrl" in data


def _migrate_data(text: str, path: Path, *, is_named: bool) -> Migration | None:
    try:
        return migrate_yaml(text, path)
    except ConfigError:
        if is_named:
            raise
        return None  # templates and data of other tools


def _report_notebook(text: str) -> Migration | None:
    if RLLIB_MENTION.search(text) is None:
        return None
    line = text.count("\n", 0, MENTION.search(text).start()) + 1  # pyright: ignore
    advice = "notebooks are not read; convert it: jupyter nbconvert --to script"
    return Migration(text, text, [], [ByHand(line, "file", "a notebook", advice)], True)


def write_files(files: Sequence[MigratedFile]) -> int:
    """Replace the changed files, none if one of them cannot be written.

    Returns:
        Number of files written.

    Raises:
        ConfigError: If a file is not writable.
    """
    changed = [file for file in files if file.migration.is_changed]
    for file in changed:
        target = file.path.resolve()
        if not os.access(target, os.W_OK) or not os.access(target.parent, os.W_OK):
            raise ConfigError(f"Cannot write '{file.path}': it is read-only; nothing was changed.")
    for number, file in enumerate(changed):
        target = file.path.resolve()
        try:
            mode = stat.S_IMODE(target.stat().st_mode)
            with open_atomic(target, mode) as stream:
                stream.write(file.migration.new)
        except OSError as error:
            done = (
                f"{number} of {len(changed)} files were written before"
                if number
                else "nothing was changed"
            )
            raise ConfigError(f"Cannot write '{file.path}': {error.strerror}; {done}.") from error
    return len(changed)


def _split_lines(text: str) -> list[str]:
    """Split a text at line feeds alone, as `patch` does."""
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1].removesuffix("\n")
    return lines if lines[-1] else lines[:-1]


def format_diff(file: MigratedFile) -> str:
    """Return the unified diff of a file, which `patch` and `git apply` read."""
    name = escape(file.path.as_posix())
    prefixes = ("", "") if file.path.is_absolute() else ("a/", "b/")
    lines = difflib.unified_diff(
        _split_lines(file.migration.old),
        _split_lines(file.migration.new),
        f"{prefixes[0]}{name}",
        f"{prefixes[1]}{name}",
    )
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )
