"""RLlib's recorded data: columns in Parquet, sample batches in lines of JSON, and packed episodes."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np

from jaxrl.core.types import PyTree
from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import DataError, did_you_mean
from jaxrl.offline.checks import convert_rewards, describe_episode
from jaxrl.offline.columns import parse_dtype
from jaxrl.offline.formats.rows import (
    COLUMNS,
    EPS_ID,
    EXTRAS,
    ImportSettings,
    RowParts,
    Values,
    check_columns,
    make_table,
    read_plain,
    read_tree,
    rename,
    unknown_versions,
)
from jaxrl.offline.part_files import import_pyarrow, open_parquet

Array = Any
"""A `pyarrow.Array`, which has no types."""


def read_columns(
    files: Sequence[Path], settings: ImportSettings
) -> Iterator[tuple[Path, EpisodePart]]:
    """Yield the parts of files of columns.

    Raises:
        DataError: If a column is missing or has other values than its space.
    """
    parts = RowParts(ignore_final_observation=settings.ignore_final_observation)
    for path, columns in _iter_columns(files, settings):
        for part in parts.add(make_table(columns, settings, str(path)), path):
            yield path, part
    for part in parts.finish():
        yield files[-1], part


def _iter_columns(
    files: Sequence[Path], settings: ImportSettings
) -> Iterator[tuple[Path, dict[str, Values]]]:
    """Yield the columns of files under their names here, one group of rows at a time."""
    pa, _ = import_pyarrow()
    for path in files:
        with open_parquet(path, settings.max_group_bytes) as file:
            names = rename(
                file.schema_arrow.names, settings.schema, COLUMNS, str(path), did_you_mean
            )
            check_columns(names, path)
            for i in range(file.metadata.num_row_groups):
                table = file.read_row_group(i, columns=list(names.values()))
                yield (
                    path,
                    {
                        name: read_arrow(pa, table[column].combine_chunks(), f"{path}: {column}")
                        for name, column in names.items()
                    },
                )


def read_arrow(pa: ModuleType, array: Array, name: str) -> Values:
    """Return a column of Parquet: numbers as an array, texts as a list, structs as a mapping.

    Raises:
        DataError: If values are missing, or rows have different lengths.
    """
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = array.type
    if array.null_count:
        raise DataError(f"{name} has missing values.")
    if pa.types.is_struct(kind):
        fields = [kind.field(i).name for i in range(kind.num_fields)]
        parts = dict(zip(fields, array.flatten(), strict=True))
        columns = {field: read_arrow(pa, part, f"{name}.{field}") for field, part in parts.items()}
        return columns["data"] if set(fields) == {"data", "shape"} else columns
    if any(check(kind) for check in (pa.types.is_list, pa.types.is_large_list)):
        lengths = np.diff(array.offsets.to_numpy())
        if len(lengths) and (lengths != lengths[0]).any():
            raise DataError(f"{name} has rows of different lengths.")
        return _read_rows(pa, array, int(lengths[0]) if len(lengths) else 0, name)
    if pa.types.is_fixed_size_list(kind):
        return _read_rows(pa, array, kind.list_size, name)
    if any(
        check(kind) for check in (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
    ):
        return array.to_numpy(zero_copy_only=False)
    return array.to_pylist()


def _read_rows(pa: ModuleType, array: Array, length: int, name: str) -> np.ndarray:
    inner = read_arrow(pa, array.flatten(), name)
    if not isinstance(inner, np.ndarray):
        raise DataError(f"{name} must be lists of numbers.")
    return inner.reshape(len(array), length, *inner.shape[1:])


def read_batches(
    files: Sequence[Path], settings: ImportSettings
) -> Iterator[tuple[Path, EpisodePart]]:
    """Yield the parts of files of sample batches.

    Raises:
        DataError: If a line is no sample batch of one policy, a column is missing, or it has other
            values than its space.
    """
    parts = RowParts(ignore_final_observation=settings.ignore_final_observation)
    for path in files:
        for number, batch in iter_batches(path, settings.max_group_bytes):
            where = f"{path}, line {number}"
            names = rename(list(batch), settings.schema, COLUMNS, where, did_you_mean)
            check_columns(names, path)
            columns = {name: batch[column] for name, column in names.items()}
            for part in parts.add(make_table(columns, settings, where), path):
                yield path, part
    for part in parts.finish():
        yield files[-1], part


def iter_batches(path: Path, max_bytes: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the batches of one file with the numbers of their lines.

    Raises:
        DataError: If a line is too long, or no sample batch of one policy.
    """
    with open(path, "rb") as file:
        number = 0
        while line := file.readline(max_bytes + 1):
            number += 1
            if len(line) > max_bytes:
                raise DataError(
                    f"{path}, line {number} is longer than {max_bytes} bytes: raise max_group_bytes."
                )
            if line.strip():
                yield number, _parse_batch(line, f"{path}, line {number}")


def _parse_batch(line: bytes, where: str) -> dict[str, Any]:
    try:
        data: object = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is not JSON: {str(error)[:100]}.") from error
    batch = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    kind = batch.get("type")
    if kind == "MultiAgentBatch":
        found: object = batch.get("policy_batches")
        policies = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
        batches = [each for each in policies.values() if isinstance(each, dict)]
        if len(batches) != 1 or len(policies) != 1:
            raise DataError(
                f"{where} has batches of {len(batches)} policies, and one agent is read: give the "
                "batches of one policy."
            )
        return cast("dict[str, Any]", batches[0])
    if kind != "SampleBatch":
        raise DataError(f"{where} has type={str(kind)[:40]!r}: lines of RLlib are 'SampleBatch'.")
    return batch


def has_episodes(path: Path, schema: Mapping[str, str], max_bytes: int) -> bool:
    """Return whether the first batch of a file says the episode of each row."""
    first = next(iter_batches(path, max_bytes), None)
    return first is not None and schema.get(EPS_ID, EPS_ID) in first[1]


_INVALID = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
_MAX_ID = 1000


def read_episodes(
    files: Sequence[Path], settings: ImportSettings
) -> Iterator[tuple[Path, EpisodePart]]:
    """Yield the parts of files of episodes; a chunk without steps has none.

    Raises:
        DataError: If msgpack is not installed, or an episode is damaged.
    """
    for path, content in _iter_contents(files, settings):
        part = _read_episode(content, settings, path)
        if part is not None:
            yield path, part


def _iter_contents(files: Sequence[Path], settings: ImportSettings) -> Iterator[tuple[Path, bytes]]:
    """Yield the packed episodes of files, one group of rows at a time."""
    for path in files:
        with open_parquet(path, settings.max_group_bytes) as file:
            for i in range(file.metadata.num_row_groups):
                yield from ((path, row) for row in file.read_row_group(i).column(0).to_pylist())


def _read_episode(content: bytes, settings: ImportSettings, path: Path) -> EpisodePart | None:
    state = _unpack(content, path)
    limit = settings.max_group_bytes
    try:
        name, t_started = str(state["id_"])[:_MAX_ID], _get_count(state, "t_started")
        length = _get_count(state, "t") - t_started
        where = f"{path}, {describe_episode(name)}"
        rewards = read_plain(_get_items(state["rewards"], length), f"{where}: rewards", limit)
        terminated, truncated = (_get_flag(state, f"is_{x}") for x in ("terminated", "truncated"))
        outputs: Mapping[str, Any] = state["extra_model_outputs"] or {}
        extras = {
            extra: read_plain(_get_items(outputs[extra], length), f"{where}: {extra}", limit)
            for extra in EXTRAS
            if extra in outputs
        }
        obs = _get_items(state["observations"], length + 1)
        actions = _get_items(state["actions"], length)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} has an episode that is damaged: {str(error)[:100]}.") from error
    if length < 1:
        return None
    return EpisodePart(
        episode_id=name,
        t_started=t_started,
        obs=read_tree(obs, settings.observation_space, f"{where}: obs", limit),
        action=read_tree(actions, settings.action_space, f"{where}: actions", limit),
        reward=convert_rewards(rewards.reshape(-1)),
        extras=extras,
        version=unknown_versions(length),
        terminated=terminated,
        truncated=truncated and not terminated,
    )


def _get_count(state: Mapping[str, Any], name: str) -> int:
    """Return an entry that is a whole number of at least 0."""
    value: object = state[name]
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise ValueError(f"{name} must be a whole number of at least 0")
    return int(value)


def _get_flag(state: Mapping[str, Any], name: str) -> bool:
    value: object = state[name]
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be a boolean")
    return bool(value)


def _get_items(buffer: Mapping[str, Any], number: int) -> PyTree:
    """Return an episode's own items, without its lookback.

    Buffers that were finalized hold arrays, in a tree of their structure.
    """
    data: object = buffer["data"]
    lookback = _get_count(buffer, "lookback")
    if buffer["finalized"] and isinstance(data, list):  # a tuple of arrays
        data = dict(enumerate(cast("list[Any]", data)))
    if isinstance(data, list | np.ndarray):
        items = cast("list[Any]", data)[lookback:]
        if len(items) != number:
            raise ValueError(f"there are {len(items)} items, and {number} are needed")
        return items
    if isinstance(data, dict):
        parts = cast("dict[str | int, Any]", data)
        return {key: _get_items({**buffer, "data": part}, number) for key, part in parts.items()}
    raise ValueError("the items of a buffer are neither a list nor an array")


def _unpack(content: bytes, path: Path) -> dict[str, Any]:
    """Return the state of an episode.

    Raises:
        DataError: If msgpack is not installed, or the content is no state.
    """
    try:
        import msgpack
    except ImportError as error:
        raise DataError(
            f"{path} has RLlib's episodes, which need msgpack: pip install 'jaxrl[offline]'."
        ) from error
    try:
        state: object = msgpack.unpackb(
            content, object_hook=_decode, strict_map_key=False, max_ext_len=0
        )
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    except (*_INVALID, msgpack.UnpackException) as error:
        raise DataError(f"{path} has an episode that is damaged: {str(error)[:100]}.") from error
    if not isinstance(state, dict):
        raise DataError(f"{path} has an episode that is damaged: it is no mapping.")
    return cast("dict[str, Any]", state)


def _decode(data: dict[Any, Any]) -> object:
    """Return the array or number that msgpack-numpy encoded, None for one of another type.

    Other mappings are unchanged.

    Raises:
        DataError: If it is of Python objects.
    """
    if b"nd" not in data and "nd" not in data:
        return data
    entries = {key if isinstance(key, bytes) else str(key).encode(): x for key, x in data.items()}
    kind: object = entries.get(b"kind", b"")
    code: object = entries.get(b"type")
    if kind not in (b"", "") or not isinstance(code, str | bytes):
        raise DataError("an episode has an array of Python objects, which would be a pickle.")
    try:
        dtype = parse_dtype(code.decode() if isinstance(code, bytes) else code)
    except ValueError:
        return None  # texts and dates, as infos have them
    values = np.frombuffer(entries[b"data"], dtype)
    if not entries[b"nd"]:
        return values[0]
    shape = tuple(int(size) for size in entries[b"shape"])
    if min(shape, default=0) < 0 or math.prod(shape) != values.size:
        raise ValueError("an array of another shape than its data")
    return values.reshape(shape)
