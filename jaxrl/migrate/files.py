"""Files to migrate: finding, reading and writing them, and the differences to the originals."""

import dataclasses
import difflib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from jaxrl.errors import ConfigError, JaxrlError
from jaxrl.migrate.python_file import MENTION, RLLIB_MENTION, migrate_python
from jaxrl.migrate.report import ByHand, Migration
from jaxrl.migrate.yaml_file import migrate_yaml
from jaxrl.runs.files import open_atomic

PYTHON, DATA, NOTEBOOK = (".py",), (".yaml", ".yml", ".json"), (".ipynb",)
SUFFIXES = (*PYTHON, *DATA, *NOTEBOOK)
SKIPPED_FOLDERS = ("__pycache__", "build", "dist", "node_modules", "site-packages")
MAX_DATA_BYTES = 1_000_000
"""Size above which a YAML or JSON file in a folder is data, and no experiment."""
BYTE_ORDER_MARK = "\ufeff"


@dataclasses.dataclass(frozen=True)
class MigratedFile:
    """File with its migration."""

    path: Path
    migration: Migration


@dataclasses.dataclass(frozen=True)
class Batch:
    """Migrations of all files, and sentences on those that could not be read."""

    num_read: int
    files: list[MigratedFile]
    errors: list[str]

    @property
    def uses_rllib(self) -> bool:
        """Whether any of the files uses RLlib."""
        return any(file.migration.uses_rllib for file in self.files)


def migrate_paths(paths: Sequence[str]) -> Batch:
    """Migrate files, and all files in folders, without writing anything.

    Raises:
        ConfigError: If a path does not exist, or is a file of another kind.
    """
    num_read = 0
    files: list[MigratedFile] = []
    errors: list[str] = []
    for path, is_named in find_files(paths):
        num_read += 1
        try:
            migration = migrate_file(path, is_named=is_named)
        except JaxrlError as error:
            errors.append(str(error))
            continue
        if migration is not None and (
            migration.uses_rllib or migration.is_changed or migration.by_hand
        ):
            files.append(MigratedFile(path, migration))
    return Batch(num_read, files, errors)


def find_files(paths: Sequence[str]) -> Iterator[tuple[Path, bool]]:
    """Yield files once each, and whether the path itself was named.

    Raises:
        ConfigError: If a path does not exist, or is a file of another kind.
    """
    seen: set[Path] = set()
    chosen = [Path(path).expanduser() for path in paths]
    for path in chosen:
        if not path.exists():
            raise ConfigError(f"There is no file or folder '{path}'.")
        if path.is_file() and path.suffix not in SUFFIXES:
            raise ConfigError(
                f"'{path}' is no file to migrate; name a folder, or a file that ends in "
                f"{', '.join(SUFFIXES)}."
            )
    for path in chosen:
        for file in [path] if path.is_file() else _walk(path):
            if file.resolve() not in seen:
                seen.add(file.resolve())
                yield file, file == path


def _walk(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
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
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"Cannot read '{path}': {error.strerror}.") from error
    is_data = path.suffix in DATA
    if not is_named and not _may_concern(data, is_data=is_data):
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


def _may_concern(data: bytes, *, is_data: bool) -> bool:
    if is_data:
        has_keys = b"run" in data or b"algo" in data
        return has_keys and len(data) <= MAX_DATA_BYTES
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


def format_diff(file: MigratedFile) -> str:
    """Return the unified diff of a file, which `patch` and `git apply` read."""
    name = file.path.as_posix()
    prefixes = ("", "") if file.path.is_absolute() else ("a/", "b/")
    lines = difflib.unified_diff(
        file.migration.old.splitlines(keepends=True),
        file.migration.new.splitlines(keepends=True),
        f"{prefixes[0]}{name}",
        f"{prefixes[1]}{name}",
    )
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )
