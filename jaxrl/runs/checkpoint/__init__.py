"""Checkpoints of the whole TrainState: atomic, verified by digests, and without pickle.

A checkpoint is a folder with `state/` (leaves as TensorStore arrays, by path), `metadata/` (JSON
with the config, versions, and the shape, dtype and checksum of every leaf) and `manifest.json` (the
SHA-256 of every file, with a digest of itself and the signature of the user who wrote it). It is
written under a temporary name and then renamed, and renamed before it is removed, so a folder
called `checkpoint_...` is always complete. Leaves are loaded only if all of them match.

If a number is saved again, the new checkpoint is written next to the old one. While they are
swapped, the old one is called `replaced_checkpoint_...` and is still valid, so the newest number is
available at any time.
"""

from jaxrl.runs.checkpoint.folders import (
    OWN_FILES,
    SWEEP_FILE,
    SavedPath,
    describe_previous,
    find_checkpoint,
    find_swept_iteration,
    get_path,
    is_checkpoint,
    list_checkpoints,
    remove_old_set_aside,
    set_aside_later_checkpoints,
)
from jaxrl.runs.checkpoint.leaves import (
    describe_leaves,
    fetch_leaves,
    fill,
    find_first_difference,
    format_leaf_name,
    get_named_leaves,
    is_key_name,
)
from jaxrl.runs.checkpoint.reader import is_own, read_leaves, read_metadata
from jaxrl.runs.checkpoint.writer import CheckpointWriter

__all__ = [
    "OWN_FILES",
    "SWEEP_FILE",
    "CheckpointWriter",
    "SavedPath",
    "describe_leaves",
    "describe_previous",
    "fetch_leaves",
    "fill",
    "find_checkpoint",
    "find_first_difference",
    "find_swept_iteration",
    "format_leaf_name",
    "get_named_leaves",
    "get_path",
    "is_checkpoint",
    "is_key_name",
    "is_own",
    "list_checkpoints",
    "read_leaves",
    "read_metadata",
    "remove_old_set_aside",
    "set_aside_later_checkpoints",
]
