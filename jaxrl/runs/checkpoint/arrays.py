"""Storage of named arrays: TensorStore's zarr in an OCDBT database, compressed, without pickle."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

_CHUNK_BYTES = 64 * 2**20
"""Approximate chunk size in bytes; chunks of large leaves are compressed in parallel."""


def write_arrays(folder: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write all arrays; no write is pending when this returns or raises.

    Args:
        folder: Folder to create.
        arrays: Arrays by name; each must have at least one entry.
    """
    import tensorstore as ts  # slow to import, so only when something is saved

    folder.mkdir()
    context = ts.Context()  # shared, so that all arrays are in the same database files
    transaction = ts.Transaction(atomic=True)
    shared: dict[str, Any] = {"context": context, "transaction": transaction}
    stores = [
        ts.open(_make_spec(folder, name, array), create=True, open=True, **shared)
        for name, array in arrays.items()
    ]
    writes = [
        store.result().write(array) for store, array in zip(stores, arrays.values(), strict=True)
    ]
    for write in writes:
        write.result()
    transaction.commit_sync()


def open_arrays(folder: Path, names: list[str]) -> dict[str, Any]:
    """Open stores by name; their shapes and dtypes are available before reading.

    Raises:
        ValueError: If a store is missing or damaged.
    """
    import tensorstore as ts

    context = ts.Context()
    opened = {
        name: ts.open(_make_spec(folder, name), open=True, read=True, context=context)
        for name in names
    }
    return {name: store.result() for name, store in opened.items()}


def read_arrays(stores: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Read the arrays of the stores.

    Raises:
        ValueError: If an array is damaged.
    """
    reads = {name: store.read() for name, store in stores.items()}
    return {name: np.asarray(read.result()) for name, read in reads.items()}


def _make_spec(folder: Path, name: str, array: np.ndarray | None = None) -> dict[str, Any]:
    base = {"driver": "file", "path": f"{folder}/"}
    spec: dict[str, Any] = {
        "driver": "zarr",
        "kvstore": {"driver": "ocdbt", "base": base, "path": f"{name}/"},
    }
    if array is None:
        return spec
    compressor = {"id": "zstd", "level": 1}
    metadata = {"shape": array.shape, "chunks": _choose_chunks(array), "compressor": compressor}
    return {
        **spec,
        "dtype": array.dtype.name,
        "metadata": metadata,
        "store_data_equal_to_fill_value": True,
    }


def _choose_chunks(array: np.ndarray) -> list[int]:
    """Return the shape of an array's chunks, which have whole rows."""
    if not array.ndim:
        return []
    row_bytes = array.itemsize * math.prod(array.shape[1:])
    return [max(1, min(array.shape[0], _CHUNK_BYTES // row_bytes)), *array.shape[1:]]
