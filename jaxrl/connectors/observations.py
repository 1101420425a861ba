"""Observation connectors without memory: flatten and mean-std filter."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool

from jaxrl.connectors.base import ObservationConnector
from jaxrl.connectors.masks import ObserveMask, SeparateMask, beside_mask, observed_space
from jaxrl.connectors.pipelines import ObservationPipeline
from jaxrl.core.spaces import (
    OBSERVATION_SPACE,
    check_supported,
    flat_size,
    flatten,
    is_nested,
    leaf_spaces,
    map_leaves,
    map_spaces,
)
from jaxrl.core.types import PyTree
from jaxrl.errors import SpaceError
from jaxrl.ops.statistics import RunningMoments


@dataclasses.dataclass(frozen=True, eq=False)
class FlattenObservations(ObservationConnector):
    """Any (nested) space to one float32 vector; integers become one-hot.

    Vectors of float32 and images pass as they are.

    Args:
        keep_nested: Whether a Dict or Tuple passes too, for a module that takes its parts.
        space: Filled in when the connector finds its place.
    """

    keep_nested: bool = False
    space: gymnasium.Space[Any] | None = None

    def bind(
        self, space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
    ) -> "FlattenObservations | None":
        """None where there is nothing to flatten."""
        if _is_plain(space) or (self.keep_nested and is_nested(space)):
            return None
        return dataclasses.replace(self, space=space)

    def output_space(self, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        return spaces.Box(-np.inf, np.inf, (flat_size(space),), np.float32)

    def __call__(self, state: PyTree, obs: PyTree) -> Array:
        del state
        assert self.space is not None
        return flatten(self.space, obs)


@dataclasses.dataclass(frozen=True, eq=False)
class MeanStdFilter(ObservationConnector):
    """`(x - mean) / std` with running statistics, clipped to `[-clip, clip]` (RLlib's filter).

    Of a Dict or Tuple each part of real numbers has statistics of its own, and the others pass.

    Args:
        clip: Bound of what comes out.
        space: Filled in when the connector finds its place.
    """

    clip: float = 10.0
    space: gymnasium.Space[Any] | None = None

    def bind(
        self, space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
    ) -> "MeanStdFilter":
        return dataclasses.replace(self, space=space)

    def output_space(self, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        if not any(_is_real(leaf) for _, leaf in leaf_spaces(space)):
            raise SpaceError(
                f'observation_filter="MeanStdFilter" needs real-valued observations, got {space}; '
                'use "NoFilter"'
            )
        return map_spaces(self._filtered, space)

    def _filtered(self, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        if not _is_real(space):
            return space
        return spaces.Box(-self.clip, self.clip, space.shape, np.float32)

    def init(self, space: gymnasium.Space[Any]) -> PyTree:
        """Moments in the place of each part; None for one that passes."""
        return map_leaves(
            lambda leaf: RunningMoments.zero(leaf.shape) if _is_real(leaf) else None, space
        )

    def __call__(self, state: PyTree, obs: PyTree) -> PyTree:
        def apply(leaf: Any, moments: RunningMoments | None, x: Array) -> Array:
            return x if moments is None else moments.normalize(x, clip=self.clip)

        return map_leaves(apply, self._bound(), state, obs)

    def update(
        self, state: PyTree, obs: PyTree, mask: Bool[Array, "T B"], axis_name: str | None
    ) -> PyTree:
        def updated(leaf: Any, moments: RunningMoments | None, x: Array) -> Any:
            return None if moments is None else moments.update(x, mask, axis_name)

        return map_leaves(updated, self._bound(), state, obs)

    def _bound(self) -> gymnasium.Space[Any]:
        assert self.space is not None, "the connector has not found its place in a pipeline"
        return self.space


def _is_real(space: gymnasium.Space[Any]) -> bool:
    return isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating)


def default_observation_connectors(
    observation_filter: str, action_mask_key: str | None, *, flatten_observations: bool = False
) -> tuple[ObservationConnector, ...]:
    """Flatten where the module takes no such space, then the filter; neither touches a mask.

    The module finds what the space holds under `action_mask_key` as `obs["action_mask"]`, beside
    one part with everything else. The parts of a Dict or Tuple are kept apart unless
    `flatten_observations`.
    """
    mask = ObserveMask() if action_mask_key is None else SeparateMask(action_mask_key)
    connectors: list[ObservationConnector] = [mask]
    connectors.append(FlattenObservations(keep_nested=not flatten_observations))
    if observation_filter == "MeanStdFilter":
        connectors.append(MeanStdFilter())
    return tuple(connectors)


def fitted_observation_pipeline(
    connectors: Sequence[ObservationConnector],
    space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
) -> ObservationPipeline:
    """The connectors, each fitted to the space before it; those with nothing to do are left out.

    Args:
        connectors: In their order.
        space: The environment's observations.
        action_space: The module's.

    Raises:
        SpaceError: A connector cannot take the space before it, or a part of the last one is not
            supported.
    """
    check_supported(space, OBSERVATION_SPACE)
    fitted: list[ObservationConnector] = []
    current, separated = space, False
    for connector in connectors:
        bound = connector.bind(observed_space(current) if separated else current, action_space)
        if bound is None:
            continue
        fitted.append(beside_mask(bound) if separated else bound)
        current = fitted[-1].output_space(current)
        separated = separated or isinstance(bound, SeparateMask)
    check_supported(current, OBSERVATION_SPACE)
    return ObservationPipeline(tuple(fitted), space)


def _is_plain(space: gymnasium.Space[Any]) -> bool:
    """Vectors of real numbers and images go to the module as they are."""
    return isinstance(space, spaces.Box) and (
        len(space.shape) == 3 or (len(space.shape) == 1 and space.dtype == np.float32)
    )
