"""Reading a checkpoint: what it says is checked before it is believed, and before memory is taken."""

import contextlib
import json
import logging
import math
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, cast

import jax.numpy as jnp
import numpy as np

from jaxrl.errors import CheckpointError
from jaxrl.runs.checkpoint import manifest as manifests
from jaxrl.runs.checkpoint.arrays import read_arrays, stored_arrays
from jaxrl.runs.checkpoint.folders import previous_hint
from jaxrl.runs.checkpoint.leaves import describe
from jaxrl.runs.checkpoint.manifest import VERSION

logger = logging.getLogger("jaxrl.runs.checkpoint")

METADATA = "metadata/metadata"
_MAX_METADATA_BYTES = 256 * 2**20
_MAX_RATIO = 2**16
"""Entries of a leaf for a byte of its file, at most: above what compression makes of zeros."""


def read_metadata(checkpoint: Path) -> dict[str, Any]:
    """The checkpoint's JSON.

    Raises:
        CheckpointError: If it is damaged, not jaxrl's, or of a later version.
    """
    with refusing(checkpoint):
        manifest = manifests.read_manifest(checkpoint)
        if manifest is not None:
            manifests.check_names(checkpoint, manifest)
            manifests.check_content(checkpoint, manifest, METADATA)
        text = manifests.read_bounded(checkpoint / METADATA, _MAX_METADATA_BYTES)
        document = manifests.parsed(text, METADATA)
        if "leaves" not in document:
            raise ValueError("its metadata is not jaxrl's")
        _check_version(document.get("checkpoint_version"), manifest is not None)
        if manifest is None:
            logger.warning(
                "%s was written before checkpoints had digests, so that damage to its metadata would "
                "not be noticed.",
                checkpoint,
            )
        _check_described(document["leaves"], checkpoint)
    return document


def is_own(checkpoint: Path) -> bool:
    """Whether the user of this process wrote the checkpoint on this machine.

    Raises:
        CheckpointError: Its manifest is damaged.
    """
    with refusing(checkpoint):
        return manifests.is_own(manifests.read_manifest(checkpoint))


def score_of(checkpoint: Path) -> float | None:
    """The metric's value that a checkpoint was written with; None without one, or if it is damaged."""
    try:
        manifest = manifests.read_manifest(checkpoint)
        if manifest is not None:
            score = manifest.get("score")
        else:  # version 1
            score = json.loads((checkpoint / "metrics" / "metrics").read_bytes()).get("score")
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    return float(score) if isinstance(score, int | float) and math.isfinite(score) else None


def read_leaves(checkpoint: Path, metadata: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """All leaves, each compared with its checksum.

    Raises:
        CheckpointError: If anything is missing or damaged.
    """
    described: dict[str, dict[str, Any]] = metadata["leaves"]
    with refusing(checkpoint):
        manifest = manifests.read_manifest(checkpoint)
        if manifest is not None:
            manifests.check_names(checkpoint, manifest)
            manifests.check_content(checkpoint, manifest)
        stores = stored_arrays(checkpoint / "state", list(described))
        _check_stored(stores, described)
        leaves = read_arrays(stores)
        for name, entry in describe(leaves).items():
            if entry["crc32"] != described[name]["crc32"]:
                raise ValueError(f"the checksum of {name} does not match")
    return leaves


def _check_version(version: Any, has_manifest: bool) -> None:
    if version == VERSION and not has_manifest:
        raise ValueError(f"its file {manifests.MANIFEST} is missing")
    if version != (VERSION if has_manifest else 1) or isinstance(version, bool):
        raise ValueError(
            f"its format is version {version!r}, this jaxrl reads versions up to {VERSION}"
        )


def _check_described(leaves: Any, checkpoint: Path) -> None:
    """Refuse leaves that no state has, and more of them than the files can hold."""
    if not isinstance(leaves, dict):
        raise ValueError("its leaves are no mapping")
    described = cast(dict[str, Any], leaves)
    total = sum(_entries(name, entry) for name, entry in described.items())
    held = sum(path.stat().st_size for path in (checkpoint / "state").rglob("*") if path.is_file())
    if total > held * _MAX_RATIO:
        raise ValueError(f"its leaves are said to have {total} entries, in files of {held} bytes")


def _entries(name: str, entry: Any) -> int:
    """How many entries a leaf has that is described as `describe` does."""
    if not isinstance(entry, dict) or entry.keys() != {"shape", "dtype", "crc32"}:
        raise ValueError(f"its leaf {name} is not described by shape, dtype and crc32")
    shape, dtype, checksum = entry["shape"], entry["dtype"], entry["crc32"]
    if not isinstance(shape, list) or len(shape) > 32:
        raise ValueError(f"its leaf {name} has shape {shape!r}"[:200])
    if any(type(axis) is not int or not 0 <= axis < 2**48 for axis in shape):
        raise ValueError(f"its leaf {name} has shape {shape!r}"[:200])
    if not _is_dtype(dtype) or type(checksum) is not int:
        raise ValueError(f"its leaf {name} has dtype {dtype!r} and checksum {checksum!r}"[:200])
    return math.prod(shape)


def _is_dtype(name: Any) -> bool:
    """Whether this is the name of a type of numbers, or of truth values."""
    if not isinstance(name, str) or not name.isidentifier():
        return False
    try:
        dtype = np.dtype(name)
    except TypeError:
        return False
    return str(dtype) == name and bool(jnp.issubdtype(dtype, jnp.number) or dtype == np.bool_)


def _check_stored(stores: Mapping[str, Any], described: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse arrays that are not of the shape that the metadata says, before they are read."""
    for name, entry in described.items():
        store = stores[name]
        if list(store.shape) != entry["shape"] or store.dtype.name != entry["dtype"]:
            raise ValueError(f"its leaf {name} is of another shape than its metadata says")


@contextlib.contextmanager
def refusing(checkpoint: Path) -> Generator[None]:
    """Turns whatever reading raises into one sentence that also names the previous checkpoint."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"{checkpoint} cannot be loaded: {_reason(error)}.{previous_hint(checkpoint)}"
        ) from error


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError | MemoryError):
        return f"it is nested or large beyond measure ({type(error).__name__})"
    lines = str(error).strip().splitlines()
    return (lines[0].rstrip(".") if lines else repr(error))[:300]
