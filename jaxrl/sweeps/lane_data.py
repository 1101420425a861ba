"""Recorded data of a sweep: one copy for all lanes that learn from the same rows."""

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np

from jaxrl.assembly.assemble import Assembly
from jaxrl.buffers.dataset import Dataset
from jaxrl.core.types import Device
from jaxrl.runners.offline import read_dataset
from jaxrl.sweeps.lanes import place_for_all

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class SharedDataset:
    """Recorded rows, and the digest of the data that they were read from."""

    dataset: Dataset
    fingerprint: str

    @property
    def num_bytes(self) -> int:
        """Size of the rows in bytes, on one device."""
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self.dataset))


class LaneData:
    """Datasets of a sweep. Programs that learn from equal rows on the same devices share them."""

    def __init__(self) -> None:
        self._placed: dict[tuple[str, tuple[Device, ...]], Dataset] = {}

    def place(self, data: SharedDataset, devices: Sequence[Device]) -> SharedDataset:
        """Return the data with their rows on each of the devices, where equal ones may be already."""
        key = _hash_arrays(data.dataset), tuple(devices)
        if key not in self._placed:
            self._placed[key] = place_for_all(data.dataset, devices)
        return dataclasses.replace(data, dataset=self._placed[key])


def read_lane_data(
    config: "AlgorithmConfig", assembly: Assembly, device: Device
) -> SharedDataset | None:
    """Read the recorded data of lanes into host memory; None if lanes step environments.

    Args:
        config: Config of one of the lanes.
        assembly: Functions of the lanes.
        device: Device that is to hold the rows.

    Raises:
        JaxrlError: If there are no data, or they are damaged, too large, or do not fit.
    """
    if not assembly.is_offline:
        return None
    sampler = assembly.offline_runner.experience
    dataset, fingerprint = read_dataset(config, assembly, sampler, device)
    return SharedDataset(dataset=dataset, fingerprint=fingerprint)


def _hash_arrays(dataset: Dataset) -> str:
    """Return a digest of the rows as they are learned from."""
    leaves, structure = jax.tree.flatten(dataset)
    digest = hashlib.sha256(str(structure).encode())
    for leaf in leaves:
        digest.update(f"{leaf.shape} {leaf.dtype}".encode())
        digest.update(np.ascontiguousarray(leaf).data)
    return digest.hexdigest()
