"""Kind of foreign files by their content."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import DataError
from jaxrl.offline.formats import d4rl, minari, rllib_columns, rllib_episodes, rllib_json
from jaxrl.offline.formats.hdf5 import list_names, open_hdf5
from jaxrl.offline.formats.rows import EPS_ID
from jaxrl.offline.formats.settings import ImportSettings, Spaces
from jaxrl.offline.manifest import Origin
from jaxrl.offline.npz import check_npz
from jaxrl.offline.parquet import open_parquet
from jaxrl.offline.sources import sniff


class Importer(Protocol):
    """Reader of files of one format."""

    def __call__(
        self, files: Sequence[Path], settings: ImportSettings
    ) -> Iterator[tuple[Path, EpisodePart]]:
        """Yield the parts of episodes with their files, those of one episode in order of time."""
        ...


def _no_spaces(path: Path) -> Spaces:
    del path
    return None, None


def _no_origin(path: Path) -> Origin:
    del path
    return Origin()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Foreign:
    """Format of another library.

    Attributes:
        kind: Name of the format.
        read: Reader of its files.
        has_past: Whether the files say which steps follow one another.
        has_schema: Whether columns may have other names.
        read_spaces: Reader of the spaces that a file says.
        read_origin: Reader of what a file says about its origin.
    """

    kind: str
    read: Importer
    has_past: bool = True
    has_schema: bool = True
    read_spaces: Callable[[Path], Spaces] = _no_spaces
    read_origin: Callable[[Path], Origin] = _no_origin


def find_foreign(files: Sequence[Path], schema: Mapping[str, str], max_group_bytes: int) -> Foreign:
    """Return the format of files of another library.

    Raises:
        DataError: If it is unknown, or they differ in it.
    """
    found = [_find_one(path, schema, max_group_bytes) for path in files]
    for path, other in zip(files, found, strict=True):
        if (other.kind, other.has_past) != (found[0].kind, found[0].has_past):
            raise DataError(
                f"{path} has another format than {files[0]}, {other.kind} and not {found[0].kind}: "
                "open them one after the other."
            )
    return found[0]


def _find_one(path: Path, schema: Mapping[str, str], max_group_bytes: int) -> Foreign:
    finders = {
        "parquet": _find_parquet,
        "json": _find_json,
        "hdf5": _find_hdf5,
        "zip": _find_zip,
    }
    return finders[sniff(path)](path, schema, max_group_bytes)


def _find_parquet(path: Path, schema: Mapping[str, str], max_group_bytes: int) -> Foreign:
    with open_parquet(path, max_group_bytes) as file:
        names = file.schema_arrow.names
        is_binary = file.schema.column(0).physical_type == "BYTE_ARRAY" if names else False
    if len(names) == 1 and is_binary:
        return Foreign(kind="rllib_episodes", read=rllib_episodes.read_episodes, has_schema=False)
    has_past = schema.get(EPS_ID, EPS_ID) in names
    return Foreign(kind="rllib_columns", read=rllib_columns.read_columns, has_past=has_past)


def _find_json(path: Path, schema: Mapping[str, str], max_group_bytes: int) -> Foreign:
    has_past = rllib_json.has_episodes(path, schema, max_group_bytes)
    return Foreign(kind="rllib_json", read=rllib_json.read_batches, has_past=has_past)


def _find_hdf5(path: Path, schema: Mapping[str, str], max_group_bytes: int) -> Foreign:
    del max_group_bytes
    with open_hdf5(path) as file:
        names = list_names(file, path)
    if any(name.startswith("episode_") for name in names):
        return Foreign(
            kind="minari",
            read=minari.read_minari,
            has_schema=False,
            read_spaces=minari.read_minari_spaces,
            read_origin=minari.read_minari_origin,
        )
    return _find_arrays(path, names, schema)


def _find_zip(path: Path, schema: Mapping[str, str], max_group_bytes: int) -> Foreign:
    return _find_arrays(path, list(check_npz(path, max_group_bytes)), schema)


def _find_arrays(path: Path, names: Sequence[str], schema: Mapping[str, str]) -> Foreign:
    if not d4rl.is_of_arrays(names, schema):
        raise DataError(
            f"{path} has an unknown format: its entries are {sorted(names)[:10]}, and needed are "
            "observations, actions, rewards and terminals, or other names with schema={'obs': ...}."
        )
    return Foreign(kind="d4rl", read=d4rl.read_arrays)
