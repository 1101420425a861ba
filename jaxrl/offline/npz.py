"""Parts of episodes in `.npz` files, which need NumPy alone."""

import contextlib
import lzma
import math
import struct
import zipfile
import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import DataError
from jaxrl.offline.checks import convert_rewards
from jaxrl.offline.columns import (
    AGENT_COLUMNS,
    EPISODE_ID,
    FLAGS,
    HAS_STATE,
    HEADER,
    LENGTH,
    REWARDS,
    STATE,
    T_STARTED,
    VERSION,
    Columns,
    find_agent_columns,
)
from jaxrl.offline.manifest import Header, parse_header
from jaxrl.offline.parquet import make_part
from jaxrl.offline.space_json import dump_json

SUFFIX = ".npz"
MAGIC = b"PK\x03\x04"

_MAX_ARRAYS = 4096
NPZ_ERRORS = (
    *(OSError, ValueError, EOFError, LookupError, RuntimeError, SyntaxError, TypeError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
)
"""Errors that NumPy and zipfile raise for damaged files."""


class NpzSink:
    """File of arrays under construction, which is kept in memory until it is closed.

    Args:
        file: Binary file to write to.
        header: Facts about the data.
    """

    def __init__(self, file: IO[bytes], header: Header) -> None:
        self._file = file
        self._header = header
        self._parts: list[EpisodePart] = []
        self._arrays: list[Mapping[str, np.ndarray | None]] = []
        self.num_bytes = 0

    def add(
        self, parts: Sequence[EpisodePart], arrays: Sequence[Mapping[str, np.ndarray | None]]
    ) -> None:
        """Add parts, given with their arrays by column."""
        self._parts.extend(parts)
        self._arrays.extend(arrays)
        self.num_bytes += self._header.columns.step_bytes * sum(map(len, parts))

    def close(self) -> None:
        """Write the file."""
        parts = self._parts
        text = dump_json(self._header.to_data()).encode()
        content: dict[str, np.ndarray] = {
            HEADER: np.frombuffer(text, np.uint8),
            EPISODE_ID: np.asarray([part.episode_id for part in parts], np.str_),
            T_STARTED: np.asarray([part.t_started for part in parts], np.int64),
            LENGTH: np.asarray([len(part) for part in parts], np.int64),
            **{name: np.asarray([getattr(part, name) for part in parts]) for name in FLAGS},
            REWARDS: np.concatenate([np.asarray(part.reward, np.float32) for part in parts]),
            VERSION: np.concatenate([np.asarray(part.version, np.int64) for part in parts]),
        }
        for name in AGENT_COLUMNS if self._header.origin.module_id is not None else ():
            content[name] = np.asarray([getattr(part, name) or "" for part in parts], np.str_)
        for column in self._header.columns.leaves:
            leaves = [arrays[column.name] for arrays in self._arrays]
            blank = np.zeros((0, *column.shape), column.dtype)
            present = [leaf for leaf in leaves if leaf is not None]
            content[column.name] = np.concatenate([blank, *present])
            if column.group == STATE:
                content[HAS_STATE] = np.asarray([leaf is not None for leaf in leaves])
        arguments: dict[str, Any] = content
        np.savez_compressed(self._file, allow_pickle=False, **arguments)


def check_npz(path: Path, max_bytes: int) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Return shape and type of the arrays of a file, as their headers declare them.

    Raises:
        DataError: If it is damaged, has arrays of Python objects, or they exceed the limit.
    """
    found: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
    with _translating_errors(path), zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if len(members) > _MAX_ARRAYS:
            raise DataError(f"{path} declares {len(members)} arrays, too many to be data.")
        for member in members:
            with archive.open(member) as file:
                shape, dtype = _read_array_header(file)
            name = member.filename.removesuffix(".npy")
            if dtype.hasobject or dtype.kind not in "biufSU":
                raise DataError(
                    f"{path}: the array {name!r} has the type {dtype}, which would be a pickle: "
                    "save numbers."
                )
            if min(shape, default=0) < 0:
                raise DataError(f"{path}: the array {name!r} declares the shape {shape}.")
            found[name] = shape, dtype
    declared = sum(math.prod(shape) * dtype.itemsize for shape, dtype in found.values())
    if declared > max_bytes:
        raise DataError(
            f"{path} declares arrays of {declared} bytes, and at most {max_bytes} are read at once: "
            "split it, or raise max_group_bytes."
        )
    return found


@contextlib.contextmanager
def _translating_errors(path: Path) -> Generator[None]:
    """Translate the errors of damaged files."""
    try:
        yield
    except DataError:
        raise
    except NPZ_ERRORS as error:
        raise DataError(
            f"{path} cannot be read as .npz: {str(error)[:200].rstrip('.')}."
        ) from error


def _read_array_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"an array has version {version} of the format")
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }[version]
    shape, _, dtype = read(file)
    return shape, dtype


def load_arrays(path: Path, max_bytes: int) -> dict[str, np.ndarray]:
    """Return the arrays of a file after a check of their declared sizes.

    Raises:
        DataError: If it is damaged, has arrays of Python objects, or they exceed the limit.
    """
    names = check_npz(path, max_bytes)
    with _translating_errors(path), np.load(path, allow_pickle=False) as archive:
        return {name: np.asarray(archive[name]) for name in names}


def read_npz_header(path: Path, max_bytes: int) -> dict[str, Any] | None:
    """Return the header of a file of this format as data; None for other files of arrays."""
    names = check_npz(path, max_bytes)
    if HEADER not in names:
        return None
    with _translating_errors(path), np.load(path, allow_pickle=False) as archive:
        return parse_header(np.asarray(archive[HEADER]).tobytes(), path)


def iter_npz(path: Path, columns: Columns, max_bytes: int) -> Iterator[EpisodePart]:
    """Yield the parts of a file.

    Raises:
        DataError: If the file is damaged.
    """
    arrays = load_arrays(path, max_bytes)
    has_state = bool(columns.select(STATE))
    plain = {EPISODE_ID: "U", T_STARTED: "i", LENGTH: "i", **dict.fromkeys(FLAGS, "b")}
    if has_state:
        plain[HAS_STATE] = "b"
    plain.update(dict.fromkeys(find_agent_columns(arrays, columns), "U"))
    expected = {*plain, REWARDS, VERSION, *(column.name for column in columns.leaves)}
    missing = sorted(expected - arrays.keys())
    if missing:
        raise DataError(f"{path} is damaged: it has no array {missing[0][:100]!r}.")
    lengths = arrays[LENGTH]
    for name, kind in plain.items():
        if arrays[name].dtype.kind != kind or arrays[name].shape != (lengths.size,):
            raise DataError(
                f"{path} is damaged: {name} is {arrays[name].dtype} of shape {arrays[name].shape}, and "
                f"there are {lengths.size} parts."
            )
    if lengths.min(initial=1) < 1 or lengths.max(initial=1) > arrays[REWARDS].size:
        raise DataError(f"{path} is damaged: its parts have no valid lengths.")
    bounds: dict[str, np.ndarray] = {}
    for column in columns.leaves:
        is_state = column.group == STATE
        counts = arrays[HAS_STATE].astype(int) if is_state else lengths
        bounds[column.name] = _sum_up(counts if is_state else column.count_rows(0) + lengths)
        shape = (int(bounds[column.name][-1]), *column.shape)
        if arrays[column.name].dtype != column.dtype or arrays[column.name].shape != shape:
            found = f"{arrays[column.name].dtype} of shape {arrays[column.name].shape}"
            raise DataError(
                f"{path}: {column.name} is {found}, and the lengths of its parts, with one more "
                f"observation each, need {column.dtype} of shape {shape}."
            )
    for name, kinds in ((REWARDS, "biuf"), (VERSION, "iu")):
        bounds[name] = _sum_up(lengths)
        if arrays[name].shape != (int(bounds[name][-1]),) or arrays[name].dtype.kind not in kinds:
            raise DataError(
                f"{path} is damaged: {name} is {arrays[name].dtype} of shape {arrays[name].shape}, and "
                f"there are {int(lengths.sum())} steps."
            )
    arrays[REWARDS] = convert_rewards(arrays[REWARDS])
    arrays[VERSION] = arrays[VERSION].astype(np.int64, copy=False)
    for i in range(len(lengths)):
        row = {name: arrays[name][i].item() for name in plain}
        leaves: dict[str, np.ndarray | None] = {
            name: arrays[name][ends[i] : ends[i + 1]] for name, ends in bounds.items()
        }
        if has_state and not row[HAS_STATE]:
            leaves.update({column.name: None for column in columns.select(STATE)})
        yield make_part(row, leaves, columns, path)


def _sum_up(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)])
