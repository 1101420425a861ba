"""Files of a source of recorded data, and their kinds, which are found by their content."""

import glob
import os
from collections.abc import Sequence
from pathlib import Path

from jaxrl.config.datasets import PREFIX, find_dataset
from jaxrl.errors import DataError
from jaxrl.offline import npz, parquet
from jaxrl.offline.agents import check_one_module
from jaxrl.offline.manifest import MANIFEST

Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A folder, a file, a pattern such as "data/*.parquet", a data set such as "dataset:cartpole-expert",
or a list of these."""

HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"

_NO_DATA = frozenset((MANIFEST, "metadata.json"))
"""Files that say what is in those beside them."""


_MAX_DEEP = 2
"""Largest number of '**' in a pattern, whose time grows with the number of folders to this power."""


def find_files(source: Source) -> list[Path]:
    """Return the files of a source, those of a folder and of a pattern in the order of their names.

    Raises:
        DataError: If there are none, or a data set has not been made.
        UnknownNameError: If there is no data set of a name.
    """
    entries = [source] if isinstance(source, str | os.PathLike) else list(source)
    files: list[Path] = []
    for entry in entries:
        name = os.fspath(entry)
        is_dataset = name.startswith(PREFIX)
        found = _find_entry(find_dataset(name) if is_dataset else Path(name).expanduser())
        if not found:
            raise DataError(
                f"No file matches {os.fspath(entry)!r}: give a folder, a file, or a pattern such as "
                "'data/*.parquet'."
            )
        check_one_module(name, found)
        files.extend(found)
    if not files:
        raise DataError("The source of recorded data is an empty list: give a folder or a file.")
    seen: set[Path] = set()
    for path in files:
        if path in seen:
            raise DataError(f"{path} is given twice: its steps would count twice.")
        seen.add(path)
    return files


def _find_entry(path: Path) -> list[Path]:
    if path.is_dir():
        return _find_in_folder(path)
    if path.exists():
        _check_regular(path)
        return [path.absolute()]
    if path.parts.count("**") > _MAX_DEEP:
        raise DataError(
            f"The pattern {str(path)!r} has more than {_MAX_DEEP} '**', each of which matches all "
            "folders beneath the others: one finds the same files."
        )
    found: list[Path] = []
    for name in sorted(glob.glob(str(path), recursive=True)):
        matched = Path(name)
        found += _find_in_folder(matched) if matched.is_dir() else [matched.absolute()]
    for match in found:
        _check_regular(match)
    return [match for match in found if match.name not in _NO_DATA]


def _check_regular(path: Path) -> None:
    """Check that a path is that of a file, and of nothing that may be waited for."""
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is a pipe or a device: give a file or a folder.")


def _find_in_folder(folder: Path) -> list[Path]:
    """Return the files of a folder and of those in it, without hidden ones."""
    return [
        path.absolute()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.name not in _NO_DATA
        and not any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)
    ]


def sniff(path: Path) -> str:
    """Return "parquet", "zip", "hdf5" or "json" by the first bytes of a file.

    Raises:
        DataError: If it is none of these, or cannot be read.
    """
    try:
        with open(path, "rb") as file:
            start = file.read(64)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
    if start.startswith(parquet.MAGIC):
        return "parquet"
    if start.startswith((npz.MAGIC, b"PK\x05\x06")):
        return "zip"
    if start.startswith(HDF5_MAGIC):
        return "hdf5"
    if start.lstrip().startswith(b"{"):
        return "json"
    raise DataError(
        f"{path} has an unknown format: recorded data are Parquet, .npz, HDF5, or lines of JSON."
    )
