"""Action connectors: unsquash, clip, and the offset of a Discrete space that starts above 0."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import gymnasium
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array

from jaxrl.connectors.base import ActionConnector
from jaxrl.connectors.pipelines import ActionPipeline
from jaxrl.core.action_space import action_start
from jaxrl.errors import SpaceError


def _bounds(space: spaces.Box | None, ndim: int) -> tuple[Array, Array]:
    """The space's bounds with leading axes for a batch of rank `ndim`."""
    assert space is not None, "the connector has not found its place in a pipeline"
    shape = (1,) * (ndim - len(space.shape)) + space.shape
    return (
        jnp.asarray(space.low, jnp.float32).reshape(shape),
        jnp.asarray(space.high, jnp.float32).reshape(shape),
    )


def _box(connector: ActionConnector, space: gymnasium.Space[Any]) -> spaces.Box:
    if isinstance(space, spaces.Box):
        return space
    raise SpaceError(f"{connector.name} is for the actions of a Box, not of {space}; move it.")


@dataclasses.dataclass(frozen=True, eq=False)
class UnsquashActions(ActionConnector):
    """From [-1, 1] to the bounds of the environment's Box, clipped there.

    `space` is filled in when the connector finds its place; so it is in the others.
    """

    space: spaces.Box | None = None

    def bind(self, space: gymnasium.Space[Any]) -> "UnsquashActions":
        return dataclasses.replace(self, space=_box(self, space))

    def module_space(self, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        return spaces.Box(-1.0, 1.0, space.shape, np.float32)

    def __call__(self, action: Array) -> Array:
        low, high = _bounds(self.space, action.ndim)
        return jnp.clip(low + (action + 1.0) * 0.5 * (high - low), low, high)

    def inverse(self, action: Array) -> Array:
        low, high = _bounds(self.space, action.ndim)
        return 2.0 * (action - low) / jnp.maximum(high - low, 1e-8) - 1.0


@dataclasses.dataclass(frozen=True, eq=False)
class ClipActions(ActionConnector):
    """Clip to the bounds of the environment's Box."""

    space: spaces.Box | None = None

    def bind(self, space: gymnasium.Space[Any]) -> "ClipActions":
        return dataclasses.replace(self, space=_box(self, space))

    def __call__(self, action: Array) -> Array:
        return jnp.clip(action, *_bounds(self.space, action.ndim))

    def inverse(self, action: Array) -> Array:
        return action


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
        return action + self._start(action)

    def inverse(self, action: Array) -> Array:
        return action - self._start(action)

    def _start(self, action: Array) -> Array:
        start = jnp.asarray(self.start, action.dtype)
        return start.reshape((1,) * (action.ndim - start.ndim) + start.shape)


def default_action_connectors(
    space: gymnasium.Space[Any], *, normalize_actions: bool, clip_actions: bool
) -> tuple[ActionConnector, ...]:
    """What the settings and the environment's action space ask for.

    A Box with an infinite bound cannot be unsquashed; it is left as it is (and clipped to the
    finite bounds if asked).
    """
    connectors: list[ActionConnector] = []
    start = action_start(space)
    if np.any(start):
        connectors.append(OffsetActions(start))
    if isinstance(space, spaces.Box):
        bounded = bool(np.all(np.isfinite(space.low)) and np.all(np.isfinite(space.high)))
        if normalize_actions and bounded:
            connectors.append(UnsquashActions(space))
        elif clip_actions:
            connectors.append(ClipActions(space))
    return tuple(connectors)


def fitted_action_pipeline(
    connectors: Sequence[ActionConnector], space: gymnasium.Space[Any]
) -> ActionPipeline:
    """The connectors, each fitted to the space of its output.

    Args:
        connectors: In their order, from the module to the environment.
        space: The environment's actions.
    """
    fitted: list[ActionConnector] = []
    current = space
    for connector in reversed(connectors):
        fitted.insert(0, connector.bind(current))
        current = fitted[0].module_space(current)
    return ActionPipeline(tuple(fitted), space)
