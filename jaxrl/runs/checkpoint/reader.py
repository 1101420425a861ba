"""Reading checkpoints: content is verified before it is used and before memory is allocated."""

import contextlib
import functools
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
from jaxrl.runs.checkpoint.arrays import open_arrays, read_arrays
from jaxrl.runs.checkpoint.folders import describe_previous
from jaxrl.runs.checkpoint.leaves import describe_leaves
from jaxrl.runs.checkpoint.manifest import VERSION
from jaxrl.runtime.files import read_bounded

logger = logging.getLogger("jaxrl.runs.checkpoint")

METADATA = "metadata/metadata"
_MAX_METADATA_BYTES = 256 * 2**20
_MAX_RATIO = 2**16
"""Maximum number of a leaf's entries per byte on disk: above the compression ratio of zeros."""


def read_metadata(checkpoint: Path) -> dict[str, Any]:
    """Return the checkpoint's metadata.

    Raises:
        CheckpointError: If it is damaged, not jaxrl's, or has a later version.
    """
    with translate_errors(checkpoint):
        manifest = manifests.read_manifest(checkpoint)
        if manifest is not None:
            manifests.check_names(checkpoint, manifest)
            manifests.check_content(checkpoint, manifest, METADATA)
        text = read_bounded(checkpoint / METADATA, _MAX_METADATA_BYTES)
        document = manifests.parse_json_object(text, METADATA)
        if "leaves" not in document:
            raise ValueError("its metadata is not jaxrl's")
        _check_version(document.get("checkpoint_version"), manifest is not None)
        if manifest is None:
            logger.warning(
                "%s was written before checkpoints had digests, so damage to its metadata cannot "
                "be detected.",
                checkpoint,
            )
        _check_descriptions(document["leaves"], checkpoint)
    return document


def is_own(checkpoint: Path) -> bool:
    """Return whether the current user wrote the checkpoint on this machine.

    Raises:
        CheckpointError: If its manifest is damaged.
    """
    with translate_errors(checkpoint):
        return manifests.is_own(manifests.read_manifest(checkpoint))


def read_score(checkpoint: Path) -> float | None:
    """Return the score that a checkpoint was saved with; None without one, or if it is damaged."""
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
    """Read all leaves and verify their checksums.

    Args:
        checkpoint: Path of the checkpoint.
        metadata: Metadata returned by `read_metadata`.

    Raises:
        CheckpointError: If anything is missing or damaged.
    """
    described: dict[str, dict[str, Any]] = metadata["leaves"]
    with translate_errors(checkpoint):
        manifest = manifests.read_manifest(checkpoint)
        if manifest is not None:
            manifests.check_names(checkpoint, manifest)
            manifests.check_content(checkpoint, manifest)
        stores = open_arrays(checkpoint / "state", list(described))
        _check_stored(stores, described)
        leaves = read_arrays(stores)
        for name, entry in describe_leaves(leaves).items():
            if entry["crc32"] != described[name]["crc32"]:
                raise ValueError(f"the checksum of {name} does not match")
    return leaves


def _check_version(version: object, has_manifest: bool) -> None:
    if version == VERSION and not has_manifest:
        raise ValueError(f"its file {manifests.MANIFEST} is missing")
    if version != (VERSION if has_manifest else 1) or isinstance(version, bool):
        raise ValueError(
            f"its format is version {version!r}, but this jaxrl reads versions up to {VERSION}"
        )


def _check_descriptions(leaves: object, checkpoint: Path) -> None:
    """Raise ValueError for invalid leaf descriptions, or ones too large for the files' sizes."""
    if not isinstance(leaves, dict):
        raise ValueError("its leaves are not a mapping")
    described = cast(dict[str, Any], leaves)
    total = sum(_count_entries(name, entry) for name, entry in described.items())
    size = sum(path.stat().st_size for path in (checkpoint / "state").rglob("*") if path.is_file())
    if total > size * _MAX_RATIO:
        raise ValueError(f"its leaves claim to have {total} entries in files of {size} bytes")


def _count_entries(name: str, entry: object) -> int:
    """Return the number of entries of a leaf, given its description by `describe_leaves`."""
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


def _is_dtype(name: object) -> bool:
    """Return whether this is the name of a numeric or boolean dtype."""
    return isinstance(name, str) and name.isidentifier() and _is_numeric(name)


@functools.lru_cache(maxsize=64)
def _is_numeric(name: str) -> bool:
    try:
        dtype = np.dtype(name)
    except TypeError:
        return False
    return str(dtype) == name and bool(jnp.issubdtype(dtype, jnp.number) or dtype == np.bool_)


def _check_stored(stores: Mapping[str, Any], described: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise ValueError if stored arrays differ in shape or dtype from the metadata."""
    for name, entry in described.items():
        store = stores[name]
        if list(store.shape) != entry["shape"] or store.dtype.name != entry["dtype"]:
            raise ValueError(f"its leaf {name} differs in shape or dtype from its metadata")


@contextlib.contextmanager
def translate_errors(checkpoint: Path) -> Generator[None]:
    """Translate any error of reading to a CheckpointError that names the previous checkpoint."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        reason, hint = _summarize_error(error), describe_previous(checkpoint)
        raise CheckpointError(f"{checkpoint} cannot be loaded: {reason}.{hint}") from error


def _summarize_error(error: Exception) -> str:
    if isinstance(error, RecursionError | MemoryError):
        return f"it is nested too deeply or too large ({type(error).__name__})"
    lines = str(error).strip().splitlines()
    return (lines[0].rstrip(".") if lines else repr(error))[:300]
