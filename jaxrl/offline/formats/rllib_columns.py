"""RLlib's columns: Parquet with one row a step."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import DataError, did_you_mean
from jaxrl.offline.formats.rows import COLUMNS, RowParts, check_columns
from jaxrl.offline.formats.settings import ImportSettings
from jaxrl.offline.formats.values import Values, make_table, rename
from jaxrl.offline.parquet import import_pyarrow, open_parquet

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
