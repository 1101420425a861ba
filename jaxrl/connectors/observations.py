"""Non-temporal observation connectors: flattening and the mean-std filter."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool

from jaxrl.connectors.base import ObservationConnector, take_rllib_arguments
from jaxrl.connectors.masks import ObserveMask, SeparateMask, get_observed_space, wrap_beside_mask
from jaxrl.connectors.pipelines import ObservationPipeline
from jaxrl.core.space_arrays import flatten, get_flat_size
from jaxrl.core.spaces import (
    OBSERVATION_SPACE,
    check_supported,
    get_leaf_spaces,
    is_nested,
    map_leaves,
    map_spaces,
)
from jaxrl.core.types import PyTree
from jaxrl.errors import SpaceError
from jaxrl.ops.statistics import RunningMoments


@take_rllib_arguments()
@dataclasses.dataclass(frozen=True, eq=False)
class FlattenObservations(ObservationConnector):
    """Flattens any (nested) space to one float32 vector; integers become one-hot.

    Vectors of float32 and images pass unchanged.

    Args:
        keep_nested: Whether a Dict or Tuple also passes, for a module that encodes its parts.
        space: Input space, set by `bind`.
    """

    keep_nested: bool = False
    space: gymnasium.Space[Any] | None = None

    def bind(
        self, space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
    ) -> "FlattenObservations | None":
        """Return None if there is nothing to flatten."""
        if _is_plain(space) or (self.keep_nested and is_nested(space)):
            return None
        return dataclasses.replace(self, space=space)

    def output_space(self, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        return spaces.Box(-np.inf, np.inf, (get_flat_size(space),), np.float32)

    def __call__(self, state: PyTree, obs: PyTree) -> Array:
        del state
        assert self.space is not None
        return flatten(self.space, obs)


@take_rllib_arguments(clip_by_value="clip")
@dataclasses.dataclass(frozen=True, eq=False)
class MeanStdFilter(ObservationConnector):
    """`(x - mean) / std` with running statistics, clipped to `[-clip, clip]` (RLlib's filter).

    In a Dict or Tuple, each real-valued part has its own statistics, and the other parts pass
    unchanged.

    Args:
        clip: Bound of the output, None for none.
        space: Input space, set by `bind`.
    """

    clip: float | None = 10.0
    space: gymnasium.Space[Any] | None = None

    def bind(
        self, space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
    ) -> "MeanStdFilter":
        return dataclasses.replace(self, space=space)

    def output_space(self, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        if not any(_is_real(leaf) for _, leaf in get_leaf_spaces(space)):
            raise SpaceError(
                f'observation_filter="MeanStdFilter" needs real-valued observations, got {space}; '
                'use "NoFilter"'
            )
        return map_spaces(self._filter_space, space)

    def _filter_space(self, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        if not _is_real(space):
            return space
        return spaces.Box(-self._bound, self._bound, space.shape, np.float32)

    @property
    def _bound(self) -> float:
        return np.inf if self.clip is None else self.clip

    def init(self, space: gymnasium.Space[Any]) -> PyTree:
        """Return moments for each real-valued part, None for the others."""
        return map_leaves(
            lambda leaf: RunningMoments.zeros(leaf.shape) if _is_real(leaf) else None, space
        )

    def __call__(self, state: PyTree, obs: PyTree) -> PyTree:
        def apply(leaf: gymnasium.Space[Any], moments: RunningMoments | None, x: Array) -> Array:
            return x if moments is None else moments.normalize(x, clip=self._bound)

        return map_leaves(apply, self._bound_space(), state, obs)

    def update(
        self, state: PyTree, obs: PyTree, mask: Bool[Array, "T B"], axis_name: str | None
    ) -> PyTree:
        def update_leaf(
            leaf: gymnasium.Space[Any], moments: RunningMoments | None, x: Array
        ) -> RunningMoments | None:
            return None if moments is None else moments.update(x, mask, axis_name)

        return map_leaves(update_leaf, self._bound_space(), state, obs)

    def _bound_space(self) -> gymnasium.Space[Any]:
        assert self.space is not None, "bind() has not been called"
        return self.space


def _is_real(space: gymnasium.Space[Any]) -> bool:
    return isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating)


def default_observation_connectors(
    observation_filter: str, action_mask_key: str | None, *, flatten_observations: bool = False
) -> tuple[ObservationConnector, ...]:
    """Return the default connectors: mask separation, flattening, then the filter.

    The module finds the part under `action_mask_key` as `obs["action_mask"]`, next to one part with
    everything else; neither flattening nor the filter applies to the mask. The parts of a Dict or
    Tuple are kept apart unless `flatten_observations`.
    """
    mask = ObserveMask() if action_mask_key is None else SeparateMask(action_mask_key)
    connectors: list[ObservationConnector] = [mask]
    connectors.append(FlattenObservations(keep_nested=not flatten_observations))
    if observation_filter == "MeanStdFilter":
        connectors.append(MeanStdFilter())
    return tuple(connectors)


def fit_observation_pipeline(
    connectors: Sequence[ObservationConnector],
    space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
) -> ObservationPipeline:
    """Fit each connector to its input space, leaving out connectors that have nothing to do.

    Args:
        connectors: Connectors in order.
        space: Observation space of the environment.
        action_space: Action space of the module.

    Raises:
        SpaceError: If a connector does not support its input space, or a part of the last space is
            not supported.
    """
    check_supported(space, OBSERVATION_SPACE)
    fitted: list[ObservationConnector] = []
    current, separated = space, False
    for connector in connectors:
        bound = connector.bind(get_observed_space(current) if separated else current, action_space)
        if bound is None:
            continue
        fitted.append(wrap_beside_mask(bound) if separated else bound)
        current = fitted[-1].output_space(current)
        separated = separated or isinstance(bound, SeparateMask)
    check_supported(current, OBSERVATION_SPACE)
    return ObservationPipeline(tuple(fitted), space)


def _is_plain(space: gymnasium.Space[Any]) -> bool:
    """Return whether values are real-valued vectors or images, which the module takes unchanged."""
    return isinstance(space, spaces.Box) and (
        len(space.shape) == 3 or (len(space.shape) == 1 and space.dtype == np.float32)
    )
