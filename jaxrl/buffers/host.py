"""Replay buffers in Python, with RLlib's methods, for transitions of host runners."""

import json
from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

import jax
import numpy as np

TransitionColumns: TypeAlias = dict[str, Any]
"""Rows of transitions by column: arrays, or trees of arrays, with a leading axis of rows."""

BATCH_INDEXES, WEIGHTS = "batch_indexes", "weights"


class HostBuffer(Protocol):
    """Methods that a buffer of a user's own has; `update_priorities` and the state are optional."""

    def add(self, batch: TransitionColumns) -> None:
        """Add transitions.

        Args:
            batch: TransitionColumns `obs`, `actions`, `rewards` (n-step sums), `discounts` (γ^n, 0
                after a terminal state), and of the last of the n steps `new_obs`, `terminateds` and
                `truncateds`, each with a leading axis N.
        """
        ...

    def sample(self, num_items: int) -> TransitionColumns:
        """Sample `num_items` transitions.

        Returns:
            The columns that were added. `weights` may be added for the loss, and `batch_indexes`
            for `update_priorities`.
        """
        ...

    def __len__(self) -> int:
        """Return the number of stored transitions."""
        ...


class HostReplayBuffer:
    """Ring of transitions with uniform sampling; a base class for buffers of one's own.

    Args:
        capacity: Maximum number of transitions.
        seed: Seed of the draws.

    Attributes:
        rng: Generator of the draws.
        next_index: Index of the row that the next transition is written to.
    """

    def __init__(self, capacity: int, seed: int = 0) -> None:
        self.capacity = capacity
        self.rng = np.random.default_rng(seed)
        self._rows: TransitionColumns | None = None
        self.next_index, self._size = 0, 0

    def __len__(self) -> int:
        return self._size

    def add(self, batch: TransitionColumns) -> None:
        """Add transitions, overwriting the oldest ones."""
        self.write(batch)

    def write(self, batch: TransitionColumns) -> np.ndarray:
        """Store transitions in the ring and return their indexes `[N]`."""
        number = len(jax.tree.leaves(batch)[0])
        if self._rows is None:
            self._rows = jax.tree.map(
                lambda x: np.zeros((self.capacity, *np.shape(x)[1:]), np.asarray(x).dtype), batch
            )
        indexes = (self.next_index + np.arange(number)) % self.capacity

        def store(rows: np.ndarray, new: np.ndarray) -> None:
            rows[indexes] = new

        jax.tree.map(store, self._rows, batch)
        self.next_index = int((self.next_index + number) % self.capacity)
        self._size = min(self._size + number, self.capacity)
        return indexes

    def sample(self, num_items: int) -> TransitionColumns:
        """Sample transitions uniformly, with replacement."""
        return self.take(self.rng.integers(self._size, size=num_items))

    def take(self, indexes: np.ndarray) -> TransitionColumns:
        """Return the transitions at some indexes, which are their `batch_indexes`."""
        assert self._rows is not None
        return {**jax.tree.map(lambda rows: rows[indexes], self._rows), BATCH_INDEXES: indexes}

    def get_state(self) -> dict[str, Any]:
        """Return everything that a checkpoint stores, as nested dictionaries of arrays."""
        generator = json.dumps(self.rng.bit_generator.state).encode()
        return {
            "rows": self._rows or {},
            "next": np.asarray(self.next_index),
            "size": np.asarray(self._size),
            "rng": np.frombuffer(generator, np.uint8),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state returned by `get_state`.

        Raises:
            ValueError: If it is of another capacity, or its counts do not fit.
        """
        lengths = {len(rows) for rows in jax.tree.leaves(dict(state.get("rows", {})))}
        if lengths - {self.capacity}:
            raise ValueError(f"{min(lengths)} rows were saved, and capacity is {self.capacity}")
        place, size = int(state["next"]), int(state["size"])
        if not (0 <= place < self.capacity and 0 <= size <= self.capacity * len(lengths)):
            raise ValueError(f"next={place} and size={size} do not fit capacity={self.capacity}")
        self._rows = jax.tree.map(np.array, dict(state.get("rows", {}))) or None
        self.next_index, self._size = place, size
        self.rng.bit_generator.state = json.loads(state["rng"].tobytes())
