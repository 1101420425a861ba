"""From the fragments of host runners to a train batch on the learner's devices: one copy each."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxrl.core.struct import replace
from jaxrl.core.types import Device, PyTree
from jaxrl.runners.fragment import Fragment
from jaxrl.training.sharding import AXIS, WHOLE, data_specs
from jaxrl.training.train_state import Sampled


def as_sampled(fragment: Fragment) -> Sampled:
    """A fragment's data, NumPy, as the learner takes it."""
    env_index: Any = np.asarray(fragment.env_index, np.int32)
    num_env_steps: Any = np.uint32(fragment.num_env_steps)
    return Sampled(
        rollout=fragment.rollout,
        record=fragment.record,
        env_index=env_index,
        num_env_steps=num_env_steps,
    )


def equally_long(parts: Sequence[Sampled]) -> list[Sampled]:
    """All as long as the longest: fragments of whole episodes differ, and are padded.

    What is added repeats the last row and is no transition.
    """
    longest = max(len(part.rollout.mask) for part in parts)
    return [_padded(part, longest) for part in parts]


def _padded(part: Sampled, length: int) -> Sampled:
    more = length - len(part.rollout.mask)
    if more == 0:
        return part

    def last_again(leaf: Any) -> Any:
        return np.concatenate([leaf, np.repeat(leaf[-1:], more, axis=0)])

    def nothing(leaf: Any) -> Any:
        return np.concatenate([leaf, np.zeros((more, *leaf.shape[1:]), leaf.dtype)])

    rollout, record = part.rollout, part.record
    longer = jax.tree.map(last_again, replace(rollout, carry_in=None))
    return replace(
        part,
        rollout=replace(
            longer,
            reward=nothing(rollout.reward),
            terminated=nothing(rollout.terminated),
            truncated=nothing(rollout.truncated),
            mask=nothing(rollout.mask),
            carry_in=rollout.carry_in,
        ),
        record=replace(
            jax.tree.map(last_again, record),
            ended=nothing(record.ended),
            fault=nothing(record.fault),
        ),
    )


def side_by_side(fragments: Sequence[Fragment]) -> Sampled:
    """The fragments, in the order of the columns, as one train batch in the host's memory."""
    parts = equally_long([as_sampled(fragment) for fragment in fragments])
    if len(parts) == 1:
        return parts[0]

    def join(spec: PartitionSpec, *leaves: Any) -> Any:
        return _total(leaves) if spec == WHOLE else np.concatenate(leaves, axis=len(spec) - 1)

    return jax.tree.map(join, data_specs(parts[0]), *parts)


def _total(leaves: Sequence[Any]) -> Any:
    return np.asarray(sum(leaves), np.asarray(leaves[0]).dtype)


def to_devices(fragments: Sequence[Fragment], devices: Sequence[Device]) -> Sampled:
    """The fragments side by side as one train batch, its columns divided over the devices.

    Fragments may be read-only views of shared memory: every array is copied once, into the block of
    its device.

    Args:
        fragments: In the order of the columns.
        devices: The learner's, in the order of the mesh; their number divides the columns.
    """
    if len(devices) == 1:
        return jax.device_put(side_by_side(fragments), devices[0])
    parts = equally_long([as_sampled(fragment) for fragment in fragments])
    mesh = Mesh(np.asarray(devices), (AXIS,))

    def place(spec: PartitionSpec, *leaves: Any) -> jax.Array:
        if spec == WHOLE:
            return jax.device_put(_total(leaves), NamedSharding(mesh, spec))
        return _divided(leaves, len(spec) - 1, spec, mesh, devices)

    return jax.tree.map(place, data_specs(parts[0]), *parts)


def _divided(
    leaves: Sequence[Any],
    axis: int,
    spec: PartitionSpec,
    mesh: Mesh,
    devices: Sequence[Device],
) -> jax.Array:
    """The leaves joined along an axis, an equal part of it on each device."""
    columns = sum(leaf.shape[axis] for leaf in leaves)
    share = columns // len(devices)
    blocks = [
        jax.device_put(_columns(leaves, axis, i * share, (i + 1) * share), device)
        for i, device in enumerate(devices)
    ]
    shape = list(leaves[0].shape)
    shape[axis] = columns
    return jax.make_array_from_single_device_arrays(tuple(shape), NamedSharding(mesh, spec), blocks)


def _columns(leaves: Sequence[Any], axis: int, first: int, end: int) -> PyTree:
    """The columns from `first` to `end` of the leaves side by side, as an array of their own."""
    pieces: list[np.ndarray] = []
    start = 0
    for leaf in leaves:
        low, high = max(first - start, 0), min(end - start, leaf.shape[axis])
        if low < high:
            pieces.append(leaf[:, low:high] if axis else leaf[low:high])
        start += leaf.shape[axis]
    return np.ascontiguousarray(pieces[0]) if len(pieces) == 1 else np.concatenate(pieces, axis)


def columns_of(fragments: Sequence[Fragment], first: int, end: int) -> Sampled:
    """The columns from `first` to `end` of the fragments side by side, for one of many learners.

    `num_env_steps` is that of all columns.
    """
    parts = equally_long([as_sampled(fragment) for fragment in fragments])

    def cut(spec: PartitionSpec, *leaves: Any) -> Any:
        if spec == WHOLE:
            return _total(leaves)
        return _columns(leaves, len(spec) - 1, first, end)

    return jax.tree.map(cut, data_specs(parts[0]), *parts)
