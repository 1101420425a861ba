"""Files of parts of episodes, in Parquet or in `.npz`, which needs NumPy alone."""

import contextlib
import lzma
import math
import os
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import numpy as np

from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import DataError
from jaxrl.offline.checks import convert_rewards, describe_episode
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
    Column,
    Columns,
    find_agent_columns,
)
from jaxrl.offline.manifest import Header, dump_json, hash_file, parse_header

HEADER_KEY = b"jaxrl"

_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_TEXT_BYTES = 16
"""Bytes of a text or binary of variable length without its characters."""

Table = Any
"""A `pyarrow.Table`, `pyarrow.Array` or `pyarrow.parquet.ParquetFile`, which have no types."""


_MAGIC = {
    b"PAR1": "parquet",
    b"PK\x03\x04": "zip",
    b"PK\x05\x06": "zip",
    b"\x89HDF\r\n\x1a\n": "hdf5",
}


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
    for magic, kind in _MAGIC.items():
        if start.startswith(magic):
            return kind
    if start.lstrip().startswith(b"{"):
        return "json"
    raise DataError(
        f"{path} has an unknown format: recorded data are Parquet, .npz, HDF5, or lines of JSON."
    )


def has_pyarrow() -> bool:
    """Return whether pyarrow is installed."""
    try:
        import_pyarrow()
    except DataError:
        return False
    return True


def import_pyarrow() -> tuple[ModuleType, ModuleType]:
    """Return pyarrow and its module for Parquet.

    Raises:
        DataError: If pyarrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise DataError("Parquet files need pyarrow: pip install 'jaxrl[offline]'.") from error
    return pyarrow, pyarrow.parquet


class ParquetSink:
    """Parquet file under construction.

    Args:
        file: Binary file to write to.
        header: Facts about the data, which become metadata of the file.
    """

    def __init__(self, file: IO[bytes], header: Header) -> None:
        self._pyarrow, parquet = import_pyarrow()
        self._file = file
        self._columns = header.columns
        self._texts = (EPISODE_ID, *(AGENT_COLUMNS if header.origin.module_id is not None else ()))
        empty = self._encode([], [])
        metadata = {HEADER_KEY: dump_json(header.to_data()).encode()}
        self._schema: Table = empty.schema.with_metadata(metadata)
        self._writer = parquet.ParquetWriter(
            file, self._schema, compression="zstd", use_dictionary=list(self._texts)
        )

    def add(self, parts: Sequence[EpisodePart], arrays: Sequence[Mapping[str, Any]]) -> None:
        """Add a row group of parts, given with their arrays by column."""
        table = self._encode(parts, arrays).cast(self._schema)
        self._writer.write_table(table, row_group_size=len(parts))

    @property
    def num_bytes(self) -> int:
        """Number of bytes written so far."""
        return self._file.tell()

    def close(self) -> None:
        """Write the end of the file."""
        self._writer.close()

    def _encode(
        self, parts: Sequence[EpisodePart], arrays: Sequence[Mapping[str, np.ndarray | None]]
    ) -> Table:
        pa = self._pyarrow
        flags = {name: pa.array([getattr(p, name) for p in parts], pa.bool_()) for name in FLAGS}
        fields = {
            **{x: pa.array([getattr(p, x) for p in parts], pa.string()) for x in self._texts},
            T_STARTED: pa.array([part.t_started for part in parts], pa.int64()),
            LENGTH: pa.array([len(part) for part in parts], pa.int64()),
            **flags,
        }
        for column in self._columns.leaves:
            if column.size:
                leaves = [part_arrays[column.name] for part_arrays in arrays]
                fields[column.name] = _encode_leaf(pa, column, leaves)
        for column, values in (
            (_REWARD, [np.asarray(part.reward, np.float32) for part in parts]),
            (_VERSION, [np.asarray(part.version, np.int64) for part in parts]),
        ):
            fields[column.name] = _encode_leaf(pa, column, values)
        return pa.table(fields)


_REWARD = Column(REWARDS, REWARDS, (), np.dtype(np.float32), ())
_VERSION = Column(VERSION, VERSION, (), np.dtype(np.int64), ())


def _encode_leaf(pa: ModuleType, column: Column, leaves: Sequence[np.ndarray | None]) -> Table:
    """Return a list for every part; None for a part without this leaf."""
    present = [leaf for leaf in leaves if leaf is not None]
    blank = np.zeros((0, *column.shape), column.dtype)
    values = np.ascontiguousarray(np.concatenate([blank, *present]))
    lengths = [0 if leaf is None else len(leaf) for leaf in leaves]
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int32)
    if column.dtype.itemsize == 1:
        buffers = [None, pa.py_buffer(values.tobytes())]
        rows = pa.Array.from_buffers(pa.binary(column.size), len(values), buffers)
    else:
        rows = pa.array(values.reshape(-1))
        if column.shape:
            rows = pa.FixedSizeListArray.from_arrays(rows, column.size)
    is_missing = np.asarray([leaf is None for leaf in leaves], np.bool_)
    mask = pa.array(is_missing) if is_missing.any() else None
    return pa.ListArray.from_arrays(pa.array(offsets), rows, mask=mask)


@contextlib.contextmanager
def open_parquet(path: Path, max_group_bytes: int) -> Generator[Table]:
    """Open a Parquet file after a check of its declared sizes.

    Raises:
        DataError: If it is damaged, or one of its row groups is too large.
    """
    pa, pq = import_pyarrow()
    try:
        with pq.ParquetFile(path) as file:
            check_sizes(file, path, max_group_bytes)
            yield file
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise DataError(f"{path} cannot be read as Parquet: {lines[0].rstrip('.')}.") from error


def check_sizes(file: Table, path: Path, max_group_bytes: int) -> None:
    """Check the declared sizes of the row groups of a Parquet file.

    Raises:
        DataError: If one exceeds the limit.
    """
    widths: list[int] = []
    for i in range(len(file.schema)):
        column = file.schema.column(i)
        is_fixed = column.physical_type == "FIXED_LEN_BYTE_ARRAY"
        widths.append(column.length if is_fixed else _WIDTHS.get(column.physical_type, _TEXT_BYTES))
    for i in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(i)
        declared = 0
        for j, width in enumerate(widths):
            chunk = group.column(j)
            if min(chunk.num_values, chunk.total_uncompressed_size, group.num_rows) < 0:
                raise DataError(f"{path} is damaged: it declares a negative size.")
            declared += max(chunk.num_values * width, chunk.total_uncompressed_size)
        if declared > max_group_bytes:
            raise DataError(
                f"{path} declares a row group of {declared} bytes, and at most {max_group_bytes} are "
                "read at once: write it with smaller row groups, or raise max_group_bytes."
            )


def read_parquet_header(path: Path, max_group_bytes: int) -> dict[str, Any] | None:
    """Return the header of a file of this format as data; None for other Parquet files."""
    with open_parquet(path, max_group_bytes) as file:
        text: bytes | None = (file.schema_arrow.metadata or {}).get(HEADER_KEY)
    return None if text is None else parse_header(text, path)


def iter_parquet(path: Path, columns: Columns, max_group_bytes: int) -> Iterator[EpisodePart]:
    """Yield the parts of a Parquet file, a row group at a time.

    Raises:
        DataError: If the file is damaged, or has other columns.
    """
    with open_parquet(path, max_group_bytes) as file:
        _check_schema(file.schema_arrow, columns, path)
        for i in range(file.metadata.num_row_groups):
            yield from _decode_group(file.read_row_group(i), columns, path)


def _check_schema(schema: Table, columns: Columns, path: Path) -> None:
    """Check the types of all columns of a file."""
    pa, _ = import_pyarrow()
    plain = {EPISODE_ID: pa.string(), T_STARTED: pa.int64(), LENGTH: pa.int64()}
    has_agents = bool(find_agent_columns(schema.names, columns))
    plain.update(dict.fromkeys(AGENT_COLUMNS if has_agents else (), pa.string()))
    expected = {**plain, **dict.fromkeys(FLAGS, pa.bool_())}
    for name, kind in expected.items():
        index = schema.get_field_index(name)
        if index < 0 or schema.field(index).type != kind:
            raise DataError(f"{path} is damaged: its column {name!r} is not of type {kind}.")
    for column in (*columns.leaves, _REWARD, _VERSION):
        if not column.size:
            continue
        index = schema.get_field_index(column.name)
        found = None if index < 0 else schema.field(index).type
        if found is None or not _is_type(pa, found, column):
            raise DataError(
                f"{path} is damaged: its column {column.name[:100]!r} is of type {str(found)[:100]}, "
                f"and its header says rows of {column.dtype} of shape {column.shape}."
            )


def _is_type(pa: ModuleType, found: Table, column: Column) -> bool:
    if not pa.types.is_list(found):
        return False
    row = found.value_type
    if column.dtype.itemsize == 1:
        return row == pa.binary(column.size)
    if column.shape:
        if not pa.types.is_fixed_size_list(row) or row.list_size != column.size:
            return False
        row = row.value_type
    return row == pa.from_numpy_dtype(column.dtype)


def _decode_group(table: Table, columns: Columns, path: Path) -> Iterator[EpisodePart]:
    plain = {name: table[name].to_pylist() for name in (EPISODE_ID, T_STARTED, LENGTH, *FLAGS)}
    names = find_agent_columns(table.column_names, columns)
    agents = {name: table[name].to_pylist() for name in names}
    num_parts = table.num_rows
    leaves = {
        column.name: _decode_leaf(table, column, path)
        for column in (*columns.leaves, _REWARD, _VERSION)
        if column.size
    }
    for i in range(num_parts):
        row = {name: values[i] for name, values in plain.items()}
        if any(value is None for value in row.values()) or row[LENGTH] < 1 or row[T_STARTED] < 0:
            raise DataError(f"{path} is damaged: row {i} has no valid id, length or flags.")
        arrays = {name: values[i] for name, values in leaves.items()}
        row.update({name: values[i] for name, values in agents.items()})
        yield make_part(row, arrays, columns, path)


def _decode_leaf(table: Table, column: Column, path: Path) -> list[np.ndarray | None]:
    """Return the array of each part."""
    lists = table[column.name].combine_chunks()
    rows = lists.values
    is_binary = column.dtype.itemsize == 1
    has_lists = bool(column.shape) and not is_binary
    has_null = rows.null_count or (has_lists and rows.values.null_count)
    if has_null or (lists.null_count and column.group != STATE):
        raise DataError(f"{path} is damaged: its column {column.name!r} has missing values.")
    if is_binary:
        data = np.frombuffer(rows.buffers()[1] or b"", column.dtype)
        first = rows.offset * column.size
        values = data[first : first + len(rows) * column.size]
    else:
        values = (rows.flatten() if has_lists else rows).to_numpy()
    values = values.reshape(len(rows), *column.shape)
    offsets, is_valid = lists.offsets.to_numpy(), lists.is_valid().to_pylist()
    return [
        values[offsets[i] : offsets[i + 1]] if valid else None for i, valid in enumerate(is_valid)
    ]


def make_part(
    row: Mapping[str, Any], arrays: Mapping[str, np.ndarray | None], columns: Columns, path: Path
) -> EpisodePart:
    """Return the part of one row of a file.

    Args:
        row: Id, first time step, length and flags, and whose the part is, if of several agents.
        arrays: Arrays by column; leaves without entries may be missing.
        columns: Columns of the file.
        path: File, for error messages.

    Raises:
        DataError: If an array has another length.
    """
    length = int(row[LENGTH])
    reward, version = arrays[REWARDS], arrays[VERSION]
    for name, array in ((REWARDS, reward), (VERSION, version)):
        _check_length(array, length, name, row, path)
    found: dict[str, np.ndarray | None] = {}
    for column in columns.leaves:
        num_rows = column.count_rows(length)
        blank = np.zeros((num_rows, *column.shape), column.dtype) if not column.size else None
        array = found[column.name] = arrays.get(column.name, blank)
        _check_length(array, num_rows, column.name, row, path)
    assert reward is not None
    assert version is not None
    return EpisodePart(
        episode_id=row[EPISODE_ID],
        t_started=int(row[T_STARTED]),
        reward=reward,
        version=version,
        **{name: bool(row[name]) for name in FLAGS},
        **{name: row.get(name) or None for name in AGENT_COLUMNS},
        **columns.unflatten(found),
    )


def _check_length(
    array: np.ndarray | None, num_rows: int, name: str, row: Mapping[str, Any], path: Path
) -> None:
    if array is None or len(array) == num_rows:
        return
    length = int(row[LENGTH])
    wanted = f"length + 1 = {num_rows}" if num_rows == length + 1 else str(num_rows)
    raise DataError(
        f"{path}, {describe_episode(row[EPISODE_ID])}: {name} has {len(array)} entries, and a part "
        f"of length {length} has {wanted}."
    )


def count_group_steps(step_bytes: int) -> int:
    """Return the number of steps of a row group of about 4 MiB, at least one."""
    return max(1, math.floor(2**22 / max(step_bytes, 1)))


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


Arrays = Mapping[str, np.ndarray | None]
"""Arrays of a part by column."""

_SINKS: Mapping[str, Callable[[IO[bytes], Header], ParquetSink | NpzSink]] = {
    "parquet": ParquetSink,
    "npz": NpzSink,
}


class PartFile:
    """File of parts under construction, which has a temporary name until it is complete.

    Args:
        folder: Folder of the file.
        file_format: "parquet" or "npz".
        header: Facts about the data.
    """

    def __init__(
        self,
        folder: Path,
        file_format: str,
        header: Header,
    ) -> None:
        handle, self._name = tempfile.mkstemp(dir=folder, prefix=".part-")
        self._file = os.fdopen(handle, "wb")
        try:
            self._sink = _SINKS[file_format](self._file, header)
        except BaseException:
            self.remove()
            raise
        self.num_rows = 0

    @property
    def num_bytes(self) -> int:
        return self._sink.num_bytes

    def add(self, group: Sequence[tuple[EpisodePart, Arrays]]) -> None:
        self._sink.add([part for part, _ in group], [arrays for _, arrays in group])
        self.num_rows += len(group)

    def finish(self, path: Path) -> tuple[str, int]:
        """Complete the file under its name, and return its digest and size."""
        self._sink.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        digest, size = hash_file(Path(self._name)), os.stat(self._name).st_size
        mask = os.umask(0o022)
        os.umask(mask)
        os.chmod(self._name, 0o666 & ~mask)
        os.replace(self._name, path)
        return digest, size

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            os.unlink(self._name)


def choose_format(name: str) -> str:
    """Return the format of a setting, "parquet" or "npz".

    Raises:
        DataError: If it is unknown, or needs pyarrow, which is not installed.
    """
    if name not in ("auto", *_SINKS):
        raise DataError(f"file_format must be 'auto', 'parquet' or 'npz', got {name!r}.")
    if name == "parquet" and not has_pyarrow():
        raise DataError(
            "file_format='parquet' needs pyarrow: pip install 'jaxrl[offline]', or use 'npz'."
        )
    return name if name != "auto" else "parquet" if has_pyarrow() else "npz"
