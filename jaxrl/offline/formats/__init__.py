"""Formats of other libraries' recorded data, found by their content."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import DataError
from jaxrl.offline.formats.hdf5 import (
    is_of_arrays,
    list_names,
    open_hdf5,
    read_arrays,
    read_minari,
    read_minari_origin,
    read_minari_spaces,
)
from jaxrl.offline.formats.rllib import has_episodes, read_batches, read_columns, read_episodes
from jaxrl.offline.formats.rows import EPS_ID, ImportSettings, Spaces
from jaxrl.offline.manifest import Origin
from jaxrl.offline.part_files import check_npz, open_parquet, sniff


def _read_no_spaces(path: Path) -> Spaces:
    del path
    return None, None


def _read_no_origin(path: Path) -> Origin:
    del path
    return Origin()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Format:
    """Format of another library.

    Attributes:
        kind: Name of the format.
        read: Function that yields the parts of episodes with their files, those of one episode in
            order of time.
        has_past: Whether the files say which steps follow one another.
        has_schema: Whether columns may have other names.
        read_spaces: Function of a file that returns the spaces that it says.
        read_origin: Function of a file that returns what it says about its origin.
    """

    kind: str
    read: Callable[[Sequence[Path], ImportSettings], Iterator[tuple[Path, EpisodePart]]]
    has_past: bool = True
    has_schema: bool = True
    read_spaces: Callable[[Path], Spaces] = _read_no_spaces
    read_origin: Callable[[Path], Origin] = _read_no_origin


RLLIB_COLUMNS = Format(kind="rllib_columns", read=read_columns)
RLLIB_EPISODES = Format(kind="rllib_episodes", read=read_episodes, has_schema=False)
RLLIB_JSON = Format(kind="rllib_json", read=read_batches)
D4RL = Format(kind="d4rl", read=read_arrays)
MINARI = Format(
    kind="minari",
    read=read_minari,
    has_schema=False,
    read_spaces=read_minari_spaces,
    read_origin=read_minari_origin,
)


def find_format(files: Sequence[Path], schema: Mapping[str, str], max_group_bytes: int) -> Format:
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


def _find_one(path: Path, schema: Mapping[str, str], max_group_bytes: int) -> Format:
    match sniff(path):
        case "parquet":
            with open_parquet(path, max_group_bytes) as file:
                names = file.schema_arrow.names
                is_binary = file.schema.column(0).physical_type == "BYTE_ARRAY" if names else False
            if len(names) == 1 and is_binary:
                return RLLIB_EPISODES
            has_past = schema.get(EPS_ID, EPS_ID) in names
            return dataclasses.replace(RLLIB_COLUMNS, has_past=has_past)
        case "json":
            has_past = has_episodes(path, schema, max_group_bytes)
            return dataclasses.replace(RLLIB_JSON, has_past=has_past)
        case "hdf5":
            with open_hdf5(path) as file:
                names = list_names(file, path)
            if any(name.startswith("episode_") for name in names):
                return MINARI
        case _:
            names = list(check_npz(path, max_group_bytes))
    if not is_of_arrays(names, schema):
        raise DataError(
            f"{path} has an unknown format: its entries are {sorted(names)[:10]}, and needed are "
            "observations, actions, rewards and terminals, or other names with schema={'obs': ...}."
        )
    return D4RL
