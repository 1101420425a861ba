"""Checkpoints: the whole TrainState, atomic, under digests, and without pickle.

A checkpoint is a folder with `state/` (every leaf under its path, arrays of TensorStore's), `metadata/` (JSON:
config, versions, and of every leaf its shape, dtype and checksum) and `manifest.json` (the SHA-256 of
every file, itself under a digest and signed by the user who wrote it). It is written under a temporary
name and renamed, and renamed before it is removed, so a folder called `checkpoint_...` is complete.
Nothing is loaded that does not match leaf by leaf.

A number that is saved again is written beside the old one; while the two change places, the old one
is called `replaced_checkpoint_...` and still counts. So at every moment the newest number is there.
"""

from jaxrl.runs.checkpoint.folders import (
    complete_checkpoints,
    find_checkpoint,
    is_checkpoint,
    previous_hint,
    remove_checkpoint,
    set_aside_later,
)
from jaxrl.runs.checkpoint.leaves import (
    describe,
    fill,
    first_difference,
    host_leaves,
    leaf_name,
    named_leaves,
)
from jaxrl.runs.checkpoint.reader import is_own, read_leaves, read_metadata
from jaxrl.runs.checkpoint.writer import CheckpointWriter

__all__ = [
    "CheckpointWriter",
    "complete_checkpoints",
    "describe",
    "fill",
    "find_checkpoint",
    "first_difference",
    "host_leaves",
    "is_checkpoint",
    "is_own",
    "leaf_name",
    "named_leaves",
    "previous_hint",
    "read_leaves",
    "read_metadata",
    "remove_checkpoint",
    "set_aside_later",
]
