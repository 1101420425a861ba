"""Messages between host runners and learners: weights and rollout fragments."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Bool, Int

from jaxrl.core.struct import replace
from jaxrl.core.types import Device, PyTree, Rollout
from jaxrl.training.episode_stats import EpisodeRecord
from jaxrl.training.rollout import ActorState
from jaxrl.training.sharding import DEVICE_AXIS, REPLICATED, data_specs
from jaxrl.training.train_state import RolloutBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weights:
    """Actor state and its version.

    Other processes receive it as NumPy arrays. Within a process, the arrays are copies, so that
    donation of the learner state does not overwrite them. `task` is the task of the environments,
    as `HostVector.set_task` takes it; None leaves it as it is.
    """

    version: int
    actor: ActorState
    task: PyTree = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunnerFault:
    """Restart of an environment, as reported in results."""

    worker_index: int
    env_index: int
    what: str
    detail: str
    silent: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fragment:
    """Consecutive steps of a runner's `n` environments, in NumPy, `[T, n, ...]`.

    `rollout` holds the raw observations of the environments, the outputs of the module and the
    module's carry at the start; `record` marks the episodes that ended. `num_env_steps` is the
    number of rows that are transitions. `number` counts the runner's fragments from 0 since its
    last (re)start. `metrics` holds the metrics logged by callbacks, in the form that
    `MetricsLogger` merges.

    With several agents, `rollout` is a `MultiRollout`, and `completed` `[T, R]` is whether a step
    completed a row of each module's column. `num_agent_steps_lost` counts the rows that
    were begun and never completed because a copy failed, `num_pending_rows` those that go on in the
    next fragment, and `rewards_without_action` the rewards of agents that were not present.
    `begins_episodes` is whether all environments began anew with it, of several agents.
    """

    worker_index: int
    number: int
    weights_version: int
    rollout: Rollout
    record: EpisodeRecord
    env_index: Int[np.ndarray, " n"]
    num_env_steps: int
    seconds: float
    env_seconds: float
    faults: tuple[RunnerFault, ...] = ()
    metrics: dict[str, Any] = dataclasses.field(default_factory=dict)
    completed: dict[str, Bool[np.ndarray, "T R"]] | None = None
    num_agent_steps_lost: int = 0
    num_pending_rows: int = 0
    rewards_without_action: int = 0
    begins_episodes: bool = False


def as_rollout_batch(fragment: Fragment) -> RolloutBatch:
    """Convert a fragment to the NumPy data that the learner consumes."""
    # Its fields hold arrays of either kind.
    make = cast("Callable[..., RolloutBatch]", RolloutBatch)
    return make(
        rollout=fragment.rollout,
        record=fragment.record,
        env_index=np.asarray(fragment.env_index, np.int32),
        num_env_steps=np.uint32(fragment.num_env_steps),
    )


def pad_to_longest(parts: Sequence[RolloutBatch]) -> list[RolloutBatch]:
    """Pad all parts to the length of the longest; fragments of complete episodes differ in length.

    The padding repeats the last row and is masked.
    """
    longest = max(len(part.rollout.mask) for part in parts)
    return [_pad(part, longest) for part in parts]


def _pad(part: RolloutBatch, length: int) -> RolloutBatch:
    more = length - len(part.rollout.mask)
    if more == 0:
        return part

    def repeat_last(leaf: np.ndarray) -> np.ndarray:
        return np.concatenate([leaf, np.repeat(leaf[-1:], more, axis=0)])

    def pad_zeros(leaf: np.ndarray | jax.Array) -> np.ndarray:
        return np.concatenate([leaf, np.zeros((more, *leaf.shape[1:]), leaf.dtype)])

    rollout, record = part.rollout, part.record
    padded = jax.tree.map(repeat_last, replace(rollout, carry_in=None))
    return replace(
        part,
        rollout=replace(
            padded,
            reward=pad_zeros(rollout.reward),
            terminated=pad_zeros(rollout.terminated),
            truncated=pad_zeros(rollout.truncated),
            mask=pad_zeros(rollout.mask),
            carry_in=rollout.carry_in,
        ),
        record=replace(
            jax.tree.map(repeat_last, record),
            ended=pad_zeros(record.ended),
            fault=pad_zeros(record.fault),
        ),
    )


def concatenate_fragments(fragments: Sequence[Fragment]) -> RolloutBatch:
    """Concatenate fragments, in the order of the columns, to a train batch in host memory."""
    parts = pad_to_longest([as_rollout_batch(fragment) for fragment in fragments])
    if len(parts) == 1:
        return parts[0]

    def join(spec: PartitionSpec, *leaves: np.ndarray) -> np.ndarray:
        return (
            _sum_leaves(leaves)
            if spec == REPLICATED
            else np.concatenate(leaves, axis=len(spec) - 1)
        )

    return jax.tree.map(join, data_specs(parts[0]), *parts)


def _sum_leaves(leaves: Sequence[np.ndarray | np.uint32]) -> np.ndarray:
    return np.asarray(sum(leaves), np.asarray(leaves[0]).dtype)


def to_devices(fragments: Sequence[Fragment], devices: Sequence[Device]) -> RolloutBatch:
    """Concatenate fragments to a train batch whose columns are divided over the devices.

    Fragments may be read-only views of shared memory: every array is copied once, into the block of
    its device.

    Args:
        fragments: Fragments in the order of the columns.
        devices: Devices of the learner in the order of the mesh; their number divides the columns.
    """
    if len(devices) == 1:
        return jax.device_put(concatenate_fragments(fragments), devices[0])
    parts = pad_to_longest([as_rollout_batch(fragment) for fragment in fragments])
    mesh = Mesh(np.asarray(devices), (DEVICE_AXIS,))

    def place(spec: PartitionSpec, *leaves: np.ndarray) -> jax.Array:
        if spec == REPLICATED:
            return jax.device_put(_sum_leaves(leaves), NamedSharding(mesh, spec))
        return _shard_columns(leaves, len(spec) - 1, spec, mesh, devices)

    return jax.tree.map(place, data_specs(parts[0]), *parts)


def _shard_columns(
    leaves: Sequence[np.ndarray],
    axis: int,
    spec: PartitionSpec,
    mesh: Mesh,
    devices: Sequence[Device],
) -> jax.Array:
    """Concatenate leaves along an axis that is divided equally over the devices."""
    columns = sum(leaf.shape[axis] for leaf in leaves)
    size = columns // len(devices)
    blocks = [
        jax.device_put(_slice_columns(leaves, axis, i * size, (i + 1) * size), device)
        for i, device in enumerate(devices)
    ]
    shape = list(leaves[0].shape)
    shape[axis] = columns
    return jax.make_array_from_single_device_arrays(tuple(shape), NamedSharding(mesh, spec), blocks)


def _slice_columns(leaves: Sequence[np.ndarray], axis: int, first: int, end: int) -> np.ndarray:
    """Copy the columns from `first` to `end` of the concatenated leaves."""
    pieces: list[np.ndarray] = []
    start = 0
    for leaf in leaves:
        low, high = max(first - start, 0), min(end - start, leaf.shape[axis])
        if low < high:
            pieces.append(leaf[:, low:high] if axis else leaf[low:high])
        start += leaf.shape[axis]
    return np.ascontiguousarray(pieces[0]) if len(pieces) == 1 else np.concatenate(pieces, axis)


def slice_fragment_columns(
    fragments: Sequence[Fragment], part: int, num_parts: int
) -> RolloutBatch:
    """Return an equal part of the columns of the concatenated fragments, for one learner.

    With several agents, it is the same part of the rows of each module. `num_env_steps` is the count
    over all columns.

    Args:
        fragments: Fragments in the order of the columns.
        part: Number of the part, from 0 on.
        num_parts: Number of parts, which divides the environments.
    """
    parts = pad_to_longest([as_rollout_batch(fragment) for fragment in fragments])

    def cut(spec: PartitionSpec, *leaves: np.ndarray) -> np.ndarray:
        if spec == REPLICATED:
            return _sum_leaves(leaves)
        axis = len(spec) - 1
        size = sum(leaf.shape[axis] for leaf in leaves) // num_parts
        return _slice_columns(leaves, axis, part * size, (part + 1) * size)

    return jax.tree.map(cut, data_specs(parts[0]), *parts)
