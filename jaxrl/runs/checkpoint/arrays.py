"""Named arrays in a folder: TensorStore's zarr in an OCDBT database, compressed and without pickle."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

_CHUNK_BYTES = 64 * 2**20
"""What is compressed at once, about: large leaves are compressed side by side."""


def write_arrays(folder: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write all arrays; nothing writes any more when this returns or raises.

    Args:
        folder: Made.
        arrays: By name; none without entries.
    """
    import tensorstore as ts  # a good part of a second to import, so only when something is saved

    folder.mkdir()
    context = ts.Context()  # of one database, so that all arrays share its files
    transaction = ts.Transaction(atomic=True)
    together: dict[str, Any] = {"context": context, "transaction": transaction}
    stores = [
        ts.open(_spec(folder, name, array), create=True, open=True, **together)
        for name, array in arrays.items()
    ]
    writes = [
        store.result().write(array) for store, array in zip(stores, arrays.values(), strict=True)
    ]
    for write in writes:
        write.result()
    transaction.commit_sync()


def stored_arrays(folder: Path, names: list[str]) -> dict[str, Any]:
    """Stores by name, which know shape and type of what they would read.

    Raises:
        ValueError: One is not there, or is damaged.
    """
    import tensorstore as ts

    context = ts.Context()
    opened = {
        name: ts.open(_spec(folder, name), open=True, read=True, context=context) for name in names
    }
    return {name: store.result() for name, store in opened.items()}


def read_arrays(stores: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """What is in the stores.

    Raises:
        ValueError: Something is damaged.
    """
    reads = {name: store.read() for name, store in stores.items()}
    return {name: np.asarray(read.result()) for name, read in reads.items()}


def _spec(folder: Path, name: str, array: np.ndarray | None = None) -> dict[str, Any]:
    base = {"driver": "file", "path": f"{folder}/"}
    spec: dict[str, Any] = {
        "driver": "zarr",
        "kvstore": {"driver": "ocdbt", "base": base, "path": f"{name}/"},
    }
    if array is None:
        return spec
    compressor = {"id": "zstd", "level": 1}
    metadata = {"shape": array.shape, "chunks": _chunks(array), "compressor": compressor}
    return {
        **spec,
        "dtype": array.dtype.name,
        "metadata": metadata,
        "store_data_equal_to_fill_value": True,
    }


def _chunks(array: np.ndarray) -> list[int]:
    """The shape of an array's chunks: whole rows."""
    if not array.ndim:
        return []
    row = array.itemsize * math.prod(array.shape[1:])
    return [max(1, min(array.shape[0], _CHUNK_BYTES // row)), *array.shape[1:]]
