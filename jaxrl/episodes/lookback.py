"""Buffer for one kind of an episode's data, including a lookback to earlier time steps."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import gymnasium
import jax
import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike

from jaxrl.core.spaces import map_leaves
from jaxrl.core.types import PyTree
from jaxrl.errors import EpisodeError, EpisodeIndexError

Indices: TypeAlias = int | Sequence[int] | slice | None


class LookbackBuffer:
    """Items in order of time, the first `lookback` of which come before time step 0.

    The items are a list (of trees if they are nested); `finalize` stacks them to NumPy arrays. A
    non-negative index counts from time step 0. A negative one counts from the end or, with
    `neg_index_as_lookback`, backwards from time step 0.
    """

    def __init__(
        self,
        data: PyTree = None,
        lookback: int = 0,
        space: gymnasium.Space[Any] | None = None,
    ) -> None:
        """Initialize the buffer.

        Args:
            data: List of items, or a tree of arrays with a leading time axis.
            lookback: Number of items before time step 0.
            space: Space of the items, used by `fill` and `one_hot_discrete`.
        """
        self.data: PyTree = [] if data is None else data
        self.finalized = not isinstance(self.data, list)
        self.lookback = min(lookback, self.len_incl_lookback())
        self.space = space

    def len_incl_lookback(self) -> int:
        """Return the number of items, including the lookback."""
        return len(jax.tree.leaves(self.data)[0]) if self.finalized else len(self.data)

    def __len__(self) -> int:
        """Return the number of items from time step 0 on."""
        return self.len_incl_lookback() - self.lookback

    def __getitem__(self, indices: Indices) -> PyTree:
        return self.get(indices)

    def __setitem__(self, indices: Indices, value: PyTree) -> None:
        self.set(value, at_indices=indices)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LookbackBuffer) or self.finalized != other.finalized:
            return False
        return (
            (self.lookback, self.space) == (other.lookback, other.space)
            and jax.tree.structure(self.data) == jax.tree.structure(other.data)
            and all(map(np.array_equal, jax.tree.leaves(self.data), jax.tree.leaves(other.data)))
        )

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def append(self, item: PyTree) -> None:
        """Append an item."""
        if self.finalized:
            self.extend(jax.tree.map(lambda leaf: np.asarray(leaf)[None], item))
        else:
            self.data.append(item)

    def extend(self, items: PyTree) -> None:
        """Append items, given as a list or as a tree of arrays."""
        if self.finalized:
            if isinstance(items, list):
                if not items:
                    return
                items = stack_items(items)
            self.data = jax.tree.map(lambda a, b: np.concatenate([a, b]), self.data, items)
        else:
            self.data.extend(items if isinstance(items, list) else unstack_items(items))

    def pop(self) -> None:
        """Remove the last item."""
        if self.finalized:
            self.data = jax.tree.map(lambda leaf: leaf[:-1], self.data)
        else:
            self.data.pop()

    def finalize(self) -> None:
        """Stack the items to arrays; an empty buffer remains a list."""
        if not self.finalized and self.data:
            self.data, self.finalized = stack_items(self.data), True

    def unstack(self) -> None:
        """Turn arrays into a list of items, to which others are appended without a copy."""
        if self.finalized:
            self.data, self.finalized = unstack_items(self.data), False

    def get(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: object = None,
        one_hot_discrete: bool = False,
    ) -> PyTree:
        """Return the item at an index, or several as a list or, once finalized, as arrays.

        Args:
            indices: Index, list of indices, slice, or None for all items from time step 0 on.
            neg_index_as_lookback: Whether negative indices count backwards from time step 0.
            fill: Value of items before the first or after the last one, which a slice omits
                otherwise. If the space is known, it fills a value of the space's structure.
            one_hot_discrete: Whether to encode Discrete and MultiDiscrete parts as one-hot vectors,
                which are `fill` everywhere in filled items.

        Raises:
            EpisodeIndexError: If there is no item at an index and no `fill`.
            EpisodeError: If `one_hot_discrete` is True but the space is not known.
        """
        if one_hot_discrete and self.space is None:
            raise EpisodeError(
                "one_hot_discrete requires the space of the data, which is not known."
            )

        def get_item(position: int) -> PyTree:
            if not 0 <= position < self.len_incl_lookback():
                return self._make_fill_item(fill, one_hot_discrete)
            item = self._get_item(position)
            return one_hot(self.space, item) if one_hot_discrete else item

        if isinstance(indices, int | np.integer):
            position = self._to_position(int(indices), neg_index_as_lookback)
            if fill is None:
                self._check_position(position, indices)
            return get_item(position)
        positions = self._to_positions(indices, neg_index_as_lookback)
        is_range = indices is None or isinstance(indices, slice)
        total = self.len_incl_lookback()
        if fill is None and is_range:
            positions = [p for p in positions if 0 <= p < total]
        elif fill is None:
            for position in positions:
                self._check_position(position, indices)
        if not self.finalized:
            return [get_item(position) for position in positions]
        items = self.data if positions else jax.tree.map(lambda leaf: leaf[:0], self.data)
        if positions and all(0 <= p < total for p in positions):
            items = jax.tree.map(lambda leaf: leaf[_as_slice(positions)], self.data)
        elif positions:
            return stack_items([get_item(position) for position in positions])
        return one_hot(self.space, items) if one_hot_discrete else items

    def set(
        self, new_data: PyTree, *, at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Replace the items at `at_indices`.

        Args:
            new_data: Item for an index, else a list of items or a tree of arrays.
            at_indices: Index, list of indices, slice, or None for all items from time step 0 on.
            neg_index_as_lookback: Whether negative indices count backwards from time step 0.

        Raises:
            EpisodeIndexError: If there is no item at an index, or the number of new items differs.
        """
        if isinstance(at_indices, int | np.integer):
            position = self._to_position(int(at_indices), neg_index_as_lookback)
            self._check_position(position, at_indices)
            self._set_item(position, new_data)
            return
        positions = self._to_positions(at_indices, neg_index_as_lookback)
        if isinstance(at_indices, slice):
            positions = [p for p in positions if 0 <= p < self.len_incl_lookback()]
        items: list[PyTree] = new_data if isinstance(new_data, list) else unstack_items(new_data)
        if len(items) != len(positions):
            raise EpisodeIndexError(
                f"{len(items)} new items cannot replace the {len(positions)} at {at_indices!r}."
            )
        for position in positions:
            self._check_position(position, at_indices)
        for position, item in zip(positions, items, strict=True):
            self._set_item(position, item)

    def get_state(self) -> dict[str, Any]:
        """Return plain data for `from_state`."""
        return {
            "data": list(self.data) if not self.finalized else self.data,
            "lookback": self.lookback,
            "finalized": self.finalized,
            "space": self.space,
        }

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> "LookbackBuffer":
        """Return the buffer with the state that `get_state` returned."""
        return LookbackBuffer(state["data"], state["lookback"], state["space"])

    def _get_item(self, position: int) -> PyTree:
        if self.finalized:
            return jax.tree.map(lambda leaf: leaf[position], self.data)
        return self.data[position]

    def _set_item(self, position: int, item: PyTree) -> None:
        if not self.finalized:
            self.data[position] = item
            return

        def set_row(leaf: np.ndarray, value: ArrayLike) -> np.ndarray:
            copy = leaf.copy()
            copy[position] = value
            return copy

        self.data = jax.tree.map(set_row, self.data, item)

    def _make_fill_item(self, fill: object, one_hot_discrete: bool) -> PyTree:
        if self.space is None:
            if not self.finalized:
                return fill
            return jax.tree.map(lambda leaf: np.full_like(leaf[0], fill), self.data)
        return make_filled(self.space, fill, one_hot_discrete)

    def _to_position(self, index: int, neg_index_as_lookback: bool) -> int:
        """Return the position among all items, which may be out of range."""
        if index >= 0 or neg_index_as_lookback:
            return self.lookback + index
        return self.len_incl_lookback() + index

    def _to_positions(
        self, indices: Sequence[int] | slice | None, neg_index_as_lookback: bool
    ) -> list[int]:
        total = self.len_incl_lookback()
        if indices is None:
            return list(range(self.lookback, total))
        if not isinstance(indices, slice):
            return [self._to_position(int(index), neg_index_as_lookback) for index in indices]
        step = 1 if indices.step is None else indices.step
        first, last = (self.lookback, total) if step > 0 else (total - 1, self.lookback - 1)
        start, stop = (
            default if bound is None else self._to_position(bound, neg_index_as_lookback)
            for bound, default in ((indices.start, first), (indices.stop, last))
        )
        return list(range(start, stop, step))

    def _check_position(self, position: int, indices: Indices) -> None:
        total = self.len_incl_lookback()
        if not 0 <= position < total:
            raise EpisodeIndexError(
                f"There is no item at {indices!r}: the buffer has {total - self.lookback} items "
                f"and a lookback of {self.lookback}; pass `fill` for missing items."
            )


def _as_slice(positions: list[int]) -> slice | list[int]:
    """Return consecutive positions as a slice, which makes a view instead of a copy."""
    first, last = positions[0], positions[-1]
    if positions == list(range(first, last + 1)):
        return slice(first, last + 1)
    return positions


def stack_items(items: Sequence[PyTree]) -> PyTree:
    """Stack trees of the same structure to one tree of arrays with a leading axis."""
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(x) for x in leaves]), *items)


def unstack_items(tree: PyTree) -> list[PyTree]:
    """Return the rows of a tree of arrays."""
    number = len(jax.tree.leaves(tree)[0])
    return [jax.tree.map(lambda leaf, i=i: leaf[i], tree) for i in range(number)]


def one_hot(space: gymnasium.Space[Any] | None, value: PyTree) -> PyTree:
    """Encode the discrete parts of a value as one-hot vectors (float32).

    Args:
        space: Space of the value.
        value: Value, with any number of leading axes.
    """

    def encode(leaf: gymnasium.Space[Any], x: ArrayLike) -> ArrayLike:
        match leaf:
            case spaces.Discrete():
                return np.eye(int(leaf.n), dtype=np.float32)[np.asarray(x) - leaf.start]
            case spaces.MultiDiscrete():
                offset = np.asarray(x) - leaf.start
                entries = offset.reshape(*offset.shape[: offset.ndim - leaf.nvec.ndim], -1)
                parts = np.moveaxis(entries, -1, 0)
                return np.concatenate(
                    [
                        np.eye(int(n), dtype=np.float32)[part]
                        for n, part in zip(leaf.nvec.ravel(), parts, strict=True)
                    ],
                    axis=-1,
                )
            case _:
                return x

    assert space is not None
    return map_leaves(encode, space, value)


def make_filled(space: gymnasium.Space[Any], fill: object, one_hot_discrete: bool) -> PyTree:
    """Return a value of the space's structure that is `fill` everywhere.

    Args:
        space: Space of the value.
        fill: Value of all entries.
        one_hot_discrete: Whether discrete parts are one-hot vectors.
    """

    def fill_leaf(part: gymnasium.Space[Any]) -> np.ndarray:
        match part:
            case spaces.Discrete() if one_hot_discrete:
                return np.full(int(part.n), fill, np.float32)
            case spaces.MultiDiscrete() if one_hot_discrete:
                return np.full(int(part.nvec.sum()), fill, np.float32)
            case _:
                return np.full(part.shape or (), fill, part.dtype)

    return map_leaves(fill_leaf, space)
