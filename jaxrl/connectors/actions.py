"""Action connectors: unsquash, clip, and the offset of a Discrete space that starts above 0."""

import dataclasses
from typing import Any

import gymnasium
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array

from jaxrl.connectors.base import ActionConnector
from jaxrl.connectors.pipelines import ActionPipeline
from jaxrl.core.action_space import action_start


def _bounds(space: spaces.Box, ndim: int) -> tuple[Array, Array]:
    """The space's bounds with leading axes for a batch of rank `ndim`."""
    shape = (1,) * (ndim - len(space.shape)) + space.shape
    return (
        jnp.asarray(space.low, jnp.float32).reshape(shape),
        jnp.asarray(space.high, jnp.float32).reshape(shape),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class UnsquashActions(ActionConnector):
    """From [-1, 1] to the bounds of the environment's Box, clipped there."""

    space: spaces.Box

    def module_space(self, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        return spaces.Box(-1.0, 1.0, space.shape, np.float32)

    def __call__(self, action: Array) -> Array:
        low, high = _bounds(self.space, action.ndim)
        return jnp.clip(low + (action + 1.0) * 0.5 * (high - low), low, high)


@dataclasses.dataclass(frozen=True, eq=False)
class ClipActions(ActionConnector):
    """Clip to the bounds of the environment's Box."""

    space: spaces.Box

    def __call__(self, action: Array) -> Array:
        return jnp.clip(action, *_bounds(self.space, action.ndim))


@dataclasses.dataclass(frozen=True, eq=False)
class OffsetActions(ActionConnector):
    """From 0..n-1 to a Discrete or MultiDiscrete space that starts elsewhere."""

    start: int | np.ndarray

    def module_space(self, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        if isinstance(space, spaces.MultiDiscrete):
            return spaces.MultiDiscrete(space.nvec)
        assert isinstance(space, spaces.Discrete)
        return spaces.Discrete(int(space.n))

    def __call__(self, action: Array) -> Array:
        start = jnp.asarray(self.start, action.dtype)
        return action + start.reshape((1,) * (action.ndim - start.ndim) + start.shape)


def default_action_pipeline(
    space: gymnasium.Space[Any],
    *,
    normalize_actions: bool,
    clip_actions: bool,
    extra: tuple[ActionConnector, ...] = (),
) -> ActionPipeline:
    """The user's connectors, then what the settings and the space ask for.

    A Box with an infinite bound cannot be unsquashed; it is left as it is (and clipped to the
    finite bounds if asked).
    """
    connectors: list[ActionConnector] = list(extra)
    start = action_start(space)
    if np.any(start):
        connectors.append(OffsetActions(start))
    if isinstance(space, spaces.Box):
        bounded = bool(np.all(np.isfinite(space.low)) and np.all(np.isfinite(space.high)))
        if normalize_actions and bounded:
            connectors.append(UnsquashActions(space))
        elif clip_actions:
            connectors.append(ClipActions(space))
    return ActionPipeline(tuple(connectors), space)
