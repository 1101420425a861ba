"""Files of HDF5, read with checks of declared sizes and types."""

import contextlib
import dataclasses
import math
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.errors import DataError

Group = Any
"""A group, file or array of h5py, which has no types."""


@contextlib.contextmanager
def open_hdf5(path: Path) -> Generator[Group]:
    """Open a file.

    Raises:
        DataError: If h5py is not installed, or the file is damaged.
    """
    try:
        import h5py
    except ImportError as error:
        raise DataError(
            f"{path} is HDF5, which needs h5py: pip install 'jaxrl[offline]'."
        ) from error
    try:
        with h5py.File(path, "r", locking=False) as file:
            yield file
    except DataError:
        raise
    except (OSError, KeyError, RuntimeError, ValueError, TypeError) as error:
        raise DataError(
            f"{path} cannot be read as HDF5: {str(error)[:200].rstrip('.')}."
        ) from error


def read_array(node: Group, path: Path, max_bytes: int) -> np.ndarray:
    """Return an array after a check of its declared size.

    Raises:
        DataError: If it has no numbers, is stored elsewhere, or exceeds the limit.
    """
    place = f"{path}: {node.name}"
    if not hasattr(node, "shape"):
        raise DataError(f"{place} is a group, and an array is needed.")
    if node.dtype.kind not in "biuf":
        raise DataError(
            f"{place} has the type {node.dtype} (texts, objects, or images packed as JPEG), and numbers "
            "are read."
        )
    if node.external or node.is_virtual:
        raise DataError(f"{place} is stored in another file: give a file that holds its arrays.")
    declared = math.prod(node.shape) * node.dtype.itemsize
    if declared > max_bytes:
        raise DataError(
            f"{place} declares {declared} bytes, and at most {max_bytes} are read at once: raise "
            "max_group_bytes."
        )
    return np.asarray(node[()])


def read_node(node: Group, path: Path, max_bytes: int) -> Any:
    """Return an array, or a mapping of what a group holds.

    Raises:
        DataError: If there is something else than numbers, or too much.
    """
    return _read_members(node, path, _Budget(max_bytes), depth=16)


@dataclasses.dataclass
class _Budget:
    """Number of bytes and of nodes that may still be read: links can lead to one node many times."""

    num_bytes: int
    num_nodes: int = 4096


def _read_members(node: Group, path: Path, budget: _Budget, depth: int) -> Any:
    budget.num_nodes -= 1
    if not depth or budget.num_nodes < 0:
        raise DataError(f"{path}: {node.name} is nested too deep, or has too many members.")
    if hasattr(node, "shape"):
        array = read_array(node, path, budget.num_bytes)
        budget.num_bytes -= array.nbytes
        return array
    return {
        name: _read_members(_get_own(node, name, path), path, budget, depth - 1)
        for name in list_names(node, path)
    }


def _get_own(group: Group, name: str, path: Path) -> Group:
    """Return a member of a group that is in the same file, whichever links lead to it."""
    import h5py

    is_own = not isinstance(group.get(name, getlink=True), h5py.ExternalLink)
    member = group[name] if is_own else None
    if member is None or member.file.filename != group.file.filename:
        raise DataError(
            f"{path}: {group.name}/{name} is a link to another file, which is not read."
        )
    return member


def list_names(group: Group, path: Path) -> list[str]:
    """Return the names of the members of a group.

    Raises:
        DataError: If one is not text.
    """
    names: list[str | bytes] = list(group)
    texts = [name for name in names if isinstance(name, str)]
    if len(texts) < len(names):
        (other, *_) = (name for name in names if isinstance(name, bytes))
        raise DataError(f"{path} is damaged: {group.name} has a member named {other[:40]!r}.")
    return texts


def get_member(group: Group, name: str, path: Path) -> Group:
    """Return a member of a group.

    Raises:
        DataError: If there is none, or it is in another file.
    """
    if name not in group:
        raise DataError(
            f"{path}: {group.name} has no {name!r}, but {sorted(list_names(group, path))[:20]}."
        )
    return _get_own(group, name, path)
