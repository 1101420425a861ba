"""Action connectors: unsquashing, clipping, rounding, and offsets of Discrete spaces."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Self

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax.typing import ArrayLike
from jaxtyping import Array

from jaxrl.connectors.base import ActionConnector
from jaxrl.connectors.pipelines import ActionPipeline
from jaxrl.core.space_arrays import get_leaf_dtype
from jaxrl.core.spaces import get_leaf_spaces, is_integer_box, map_leaves, map_spaces
from jaxrl.core.types import PyTree
from jaxrl.distributions.from_space import get_action_start
from jaxrl.errors import SpaceError


def _bounds(space: spaces.Box, ndim: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the space's bounds with leading axes for a batch of rank `ndim`."""
    shape = (1,) * (ndim - len(space.shape)) + space.shape
    return (
        np.asarray(space.low, np.float32).reshape(shape),
        np.asarray(space.high, np.float32).reshape(shape),
    )


def has_box(space: gymnasium.Space[Any]) -> bool:
    """Return whether any part of the space is a Box."""
    return any(isinstance(leaf, spaces.Box) for _, leaf in get_leaf_spaces(space))


def _has_bound(space: gymnasium.Space[Any]) -> bool:
    """Return whether the space is a Box with a finite bound."""
    return isinstance(space, spaces.Box) and bool(
        np.any(np.isfinite(space.low)) or np.any(np.isfinite(space.high))
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _BoxConnector(ActionConnector):
    """Connector for the Boxes of a space; other parts pass unchanged.

    `space` is set by `bind`.
    """

    space: gymnasium.Space[Any] | None = None

    def bind(self, space: gymnasium.Space[Any]) -> Self:
        if not has_box(space):
            raise SpaceError(f"{self.name} requires actions of a Box, got {space}; move it.")
        return dataclasses.replace(self, space=space)

    def _map_boxes(self, function: Callable[[spaces.Box, Array], Array], action: PyTree) -> PyTree:
        assert self.space is not None, "bind() has not been called"

        def apply(leaf: gymnasium.Space[Any], value: Array) -> Array:
            return function(leaf, value) if isinstance(leaf, spaces.Box) else value

        return map_leaves(apply, self.space, action)


def _clip(box: spaces.Box, action: Array) -> Array:
    return jnp.clip(action, *_bounds(box, action.ndim)).astype(action.dtype)


@dataclasses.dataclass(frozen=True, eq=False)
class UnsquashActions(_BoxConnector):
    """Maps [-1, 1] to the bounds of the environment's Boxes, and clips there.

    An entry with an infinite bound is only clipped to its finite one. `space` is set by `bind`.
    """

    def module_space(self, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        def squash_space(leaf: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
            if not isinstance(leaf, spaces.Box):
                return leaf
            bounded = np.isfinite(leaf.low) & np.isfinite(leaf.high)
            low, high = np.where(bounded, -1.0, leaf.low), np.where(bounded, 1.0, leaf.high)
            return spaces.Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)

        return map_spaces(squash_space, space)

    def __call__(self, action: PyTree) -> PyTree:
        return self._map_boxes(self._unsquash, action)

    def _unsquash(self, box: spaces.Box, action: Array) -> Array:
        low, high = _bounds(box, action.ndim)
        bounded = np.isfinite(low) & np.isfinite(high)
        if bounded.all():
            return jnp.clip(low + (action + 1.0) * 0.5 * (high - low), low, high)
        first, last = (np.where(bounded, bound, 0.0) for bound in (low, high))
        moved = first + (action + 1.0) * 0.5 * (last - first)
        chosen = jnp.where(bounded, moved, action)
        return jnp.clip(chosen, low, high)

    def inverse(self, action: PyTree) -> PyTree:
        return self._map_boxes(self._squash, action)

    def _squash(self, box: spaces.Box, action: Array) -> Array:
        low, high = _bounds(box, action.ndim)
        bounded = np.isfinite(low) & np.isfinite(high)
        first, last = (np.where(bounded, bound, 0.0) for bound in (low, high))
        squashed = 2.0 * (action - first) / np.maximum(last - first, 1e-8) - 1.0
        return squashed if bounded.all() else jnp.where(bounded, squashed, action)


@dataclasses.dataclass(frozen=True, eq=False)
class ClipActions(_BoxConnector):
    """Clips to the bounds of the environment's Boxes. `space` is set by `bind`."""

    def __call__(self, action: PyTree) -> PyTree:
        return self._map_boxes(_clip, action)

    def inverse(self, action: PyTree) -> PyTree:
        return action


@dataclasses.dataclass(frozen=True, eq=False)
class RoundActions(_BoxConnector):
    """Rounds to the whole numbers of the environment's integer Boxes. `space` is set by `bind`."""

    def module_space(self, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        def to_real(leaf: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
            if not is_integer_box(leaf):
                return leaf
            return spaces.Box(*_get_real_bounds(leaf), dtype=np.float32)

        return map_spaces(to_real, space)

    def __call__(self, action: PyTree) -> PyTree:
        return self._map_boxes(self._round, action)

    def _round(self, box: spaces.Box, action: Array) -> Array:
        if not is_integer_box(box):
            return action
        low, high = (
            jnp.expand_dims(bound, range(action.ndim - bound.ndim))
            for bound in _get_real_bounds(box)
        )
        return jnp.clip(jnp.round(action), low, high).astype(get_leaf_dtype(box))

    def inverse(self, action: PyTree) -> PyTree:
        return self._map_boxes(
            lambda box, leaf: leaf.astype(jnp.float32) if is_integer_box(box) else leaf, action
        )


def _get_real_bounds(box: spaces.Box) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of an integer Box as float32 that its dtype in a program can hold."""
    limits = np.iinfo(get_leaf_dtype(box))
    low, high = (np.clip(bound, limits.min, limits.max) for bound in (box.low, box.high))
    below, above = low.astype(np.float32), high.astype(np.float32)
    inf = np.float32(np.inf)
    below = np.where(below.astype(np.float64) < low, np.nextafter(below, inf), below)
    above = np.where(above.astype(np.float64) > high, np.nextafter(above, -inf), above)
    return below, above


@dataclasses.dataclass(frozen=True, eq=False)
class OffsetActions(ActionConnector):
    """Maps 0..n-1 to a Discrete or MultiDiscrete space that starts at another number.

    `start` has the structure of the actions, with 0 for unchanged parts.
    """

    start: PyTree

    def module_space(self, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        def from_zero(leaf: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
            if isinstance(leaf, spaces.MultiDiscrete):
                return spaces.MultiDiscrete(leaf.nvec)
            return spaces.Discrete(int(leaf.n)) if isinstance(leaf, spaces.Discrete) else leaf

        return map_spaces(from_zero, space)

    def __call__(self, action: PyTree) -> PyTree:
        return jax.tree.map(lambda start, x: x + _broadcast_start(start, x), self.start, action)

    def inverse(self, action: PyTree) -> PyTree:
        return jax.tree.map(lambda start, x: x - _broadcast_start(start, x), self.start, action)


def _broadcast_start(start: ArrayLike, action: Array) -> Array:
    first = jnp.asarray(start, action.dtype)
    return first.reshape((1,) * (action.ndim - first.ndim) + first.shape)


def default_action_connectors(
    space: gymnasium.Space[Any], *, normalize_actions: bool, clip_actions: bool
) -> tuple[ActionConnector, ...]:
    """Return the default connectors for the settings and the environment's action space.

    A Box without finite bounds has none.
    """
    connectors: list[ActionConnector] = []
    start = get_action_start(space)
    if any(np.any(leaf) for leaf in jax.tree.leaves(start)):
        connectors.append(OffsetActions(start))
    if has_box(space):
        if normalize_actions and any(_has_bound(leaf) for _, leaf in get_leaf_spaces(space)):
            connectors.append(UnsquashActions(space))
        elif clip_actions:
            connectors.append(ClipActions(space))
    return tuple(connectors)


def fit_action_pipeline(
    connectors: Sequence[ActionConnector], space: gymnasium.Space[Any]
) -> ActionPipeline:
    """Fit each connector to its output space; integer Boxes are rounded to last.

    Args:
        connectors: Connectors in order, from the module to the environment.
        space: Action space of the environment.
    """
    fitted: list[ActionConnector] = []
    current = space
    if any(is_integer_box(leaf) for _, leaf in get_leaf_spaces(space)):
        connectors = [*connectors, RoundActions()]
    for connector in reversed(connectors):
        fitted.insert(0, connector.bind(current))
        current = fitted[0].module_space(current)
    return ActionPipeline(tuple(fitted), space)
