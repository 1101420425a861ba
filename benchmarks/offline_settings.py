"""Settings of the benchmark of recorded data, and the rows that all peers read.

Uses the standard library and NumPy alone, because peers in their own virtual environments import it
too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

OURS, D3RLPY, D3RLPY_THREADS = "jaxrl-offline", "d3rlpy", "d3rlpy-threads"
HANDWRITTEN = "handwritten-offline"
RLLIB, RLLIB_THREADS = "rllib-offline", "rllib-offline-threads"
JAX_CORL, JAX_CORL_VARIABLE = "jax-corl", "JAX_CORL"
"""Peer, and environment variable that names its checkout."""
ALGORITHMS = {
    **dict.fromkeys((HANDWRITTEN, JAX_CORL), ("CQL", "IQL", "TD3+BC")),
    **dict.fromkeys((RLLIB, RLLIB_THREADS), ("BC", "CQL", "IQL")),
}
"""Algorithms of the peers that do not have all of them."""
READERS = (OURS, RLLIB)
"""Peers whose reading of Parquet is measured."""
NUM_ROWS, EPISODE_LENGTH = 100_000, 1000
OBS_SIZE, ACTION_SIZE = 17, 6
"""Sizes of HalfCheetah's spaces."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfflineSetting:
    """Setting of an algorithm with networks of two hidden ReLU layers.

    Attributes:
        algorithm: "BC", "CQL", "IQL" or "TD3+BC".
        hidden_size: Units of a hidden layer.
        batch_size: Rows per gradient step.
        num_updates: Gradient steps per measurement.
    """

    algorithm: str
    hidden_size: int
    batch_size: int
    num_updates: int
    lr: float = 3e-4
    gamma: float = 0.99
    tau: float = 0.005

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> OfflineSetting:
        return OfflineSetting(**values)


NUM_UPDATES = {"BC": 4000, "CQL": 400, "IQL": 2000, "TD3+BC": 2000}
"""Gradient steps of a measurement with small networks; a tenth with large ones."""


def make_settings(scale: float = 1.0) -> dict[str, OfflineSetting]:
    """Return the settings by name.

    Args:
        scale: Factor of the lengths of measurements.
    """
    settings: dict[str, OfflineSetting] = {}
    for hidden_size, batch_size, share in ((64, 64, 1.0), (256, 256, 0.1)):
        for algorithm, number in NUM_UPDATES.items():
            settings[f"{algorithm}, 2 x {hidden_size}, {batch_size} rows"] = OfflineSetting(
                algorithm=algorithm,
                hidden_size=hidden_size,
                batch_size=batch_size,
                num_updates=max(2, round(scale * share * number)),
            )
    return settings


def is_supported(peer: str, setting: OfflineSetting) -> bool:
    """Return whether a peer has the algorithm of a setting."""
    return setting.algorithm in ALGORITHMS.get(peer, (setting.algorithm,))


READING = OfflineSetting(algorithm="IQL", hidden_size=64, batch_size=256, num_updates=2)
"""Setting of the reading of Parquet, an algorithm that needs every column."""


def make_rows(num_rows: int) -> dict[str, np.ndarray]:
    """Make random rows in D4RL's columns; the numbers have no effect on speed."""
    rng = np.random.default_rng(0)
    return {
        "observations": rng.normal(size=(num_rows, OBS_SIZE)).astype(np.float32),
        "actions": rng.uniform(-0.95, 0.95, (num_rows, ACTION_SIZE)).astype(np.float32),
        "rewards": rng.normal(size=num_rows).astype(np.float32),
        "terminals": np.zeros(num_rows, np.bool_),
        "timeouts": np.arange(1, num_rows + 1) % EPISODE_LENGTH == 0,
    }


def write_data(path: Path) -> None:
    """Write the rows that are learned from as NumPy's arrays."""
    np.savez(path, **make_rows(NUM_ROWS))  # pyright: ignore[reportArgumentType]
