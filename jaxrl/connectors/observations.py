"""Non-temporal observation connectors: action masks, flattening and the mean-std filter."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool

from jaxrl.connectors.base import (
    Before,
    Connector,
    ObservationConnector,
    TemporalConnector,
    take_rllib_arguments,
)
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
from jaxrl.modules.rl_module import ACTION_MASK, has_action_mask
from jaxrl.ops.statistics import RunningMoments

OBSERVATIONS_KEY = "observations"
"""Name of the Dict of all parts other than the mask, if there are several."""


@dataclasses.dataclass(frozen=True)
class SeparateMask(ObservationConnector):
    """Splits a Dict with a mask into two parts: `"action_mask"` and the observation.

    A single other part keeps its name; several become one Dict, `"observations"`. Later connectors
    receive the observation alone, and the mask bypasses them.
    """

    key: str

    def bind(
        self, space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
    ) -> "SeparateMask | None":
        """Return None if observations have no mask."""
        if not (isinstance(space, spaces.Dict) and self.key in space.spaces):
            return None
        if len(space.spaces) == 1:
            raise SpaceError(
                f"The observation space {space} holds nothing but the mask {self.key!r}; add "
                "something to observe, if only a constant."
            )
        return self

    def output_space(self, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        assert isinstance(space, spaces.Dict)
        name, others = self._split_mask(space.spaces)
        part = others if isinstance(others, gymnasium.Space) else spaces.Dict(others)
        return spaces.Dict({ACTION_MASK: space.spaces[self.key], name: part})

    def __call__(self, state: PyTree, obs: PyTree) -> PyTree:
        del state
        name, others = self._split_mask(obs)
        return {ACTION_MASK: obs[self.key], name: others}

    def _split_mask(self, parts: Mapping[str, Any]) -> tuple[str, Any]:
        """Return name and content of the observation."""
        others = {name: part for name, part in parts.items() if name != self.key}
        if len(others) > 1:
            return OBSERVATIONS_KEY, others
        ((name, part),) = others.items()
        return OBSERVATIONS_KEY if name == ACTION_MASK else name, part


@dataclasses.dataclass(frozen=True)
class ObserveMask(ObservationConnector):
    """Wraps a Dict as the part `"observations"` of another, so that none of it acts as a mask."""

    def bind(
        self, space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
    ) -> "ObserveMask | None":
        """Return None if no part would be taken for a mask."""
        return self if has_action_mask(space) else None

    def output_space(self, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        return spaces.Dict({OBSERVATIONS_KEY: space})

    def __call__(self, state: PyTree, obs: PyTree) -> PyTree:
        del state
        return {OBSERVATIONS_KEY: obs}


@dataclasses.dataclass(frozen=True, eq=False)
class BesideMask(ObservationConnector):
    """Applies a connector to the observation and passes the mask through unchanged."""

    inner: ObservationConnector

    @property
    def unwrapped(self) -> Connector:
        return self.inner

    def output_space(self, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        assert isinstance(space, spaces.Dict)
        name = get_observed_name(space.spaces)
        return spaces.Dict({**space.spaces, name: self.inner.output_space(space.spaces[name])})

    def init(self, space: gymnasium.Space[Any]) -> PyTree:
        return self.inner.init(get_observed_space(space))

    def __call__(self, state: PyTree, obs: PyTree) -> PyTree:
        name = get_observed_name(obs)
        return {**obs, name: self.inner(state, obs[name])}

    def update(
        self, state: PyTree, obs: PyTree, mask: Bool[Array, "T B"], axis_name: str | None
    ) -> PyTree:
        return self.inner.update(state, obs[get_observed_name(obs)], mask, axis_name)


@dataclasses.dataclass(frozen=True, eq=False)
class TemporalBesideMask(TemporalConnector):
    """`BesideMask` for a temporal connector."""

    inner: TemporalConnector

    @property
    def unwrapped(self) -> Connector:
        return self.inner

    def output_space(self, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        return BesideMask(self.inner).output_space(space)

    def init(self, space: gymnasium.Space[Any]) -> PyTree:
        return self.inner.init(get_observed_space(space))

    def init_carry(self, space: gymnasium.Space[Any], num_envs: int) -> PyTree:
        return self.inner.init_carry(get_observed_space(space), num_envs)

    def step(
        self, state: PyTree, carry: PyTree, obs: PyTree, before: Before
    ) -> tuple[PyTree, PyTree]:
        name = get_observed_name(obs)
        carry, seen = self.inner.step(state, carry, obs[name], before)
        return carry, {**obs, name: seen}

    def update(
        self, state: PyTree, obs: PyTree, mask: Bool[Array, "T B"], axis_name: str | None
    ) -> PyTree:
        return self.inner.update(state, obs[get_observed_name(obs)], mask, axis_name)


def wrap_beside_mask(connector: ObservationConnector) -> ObservationConnector:
    """Wrap a connector for a position after `SeparateMask`."""
    if isinstance(connector, TemporalConnector):
        return TemporalBesideMask(connector)
    return BesideMask(connector)


def get_observed_name(parts: PyTree) -> str:
    """Return the name of the one part other than the mask."""
    return next(name for name in parts if name != ACTION_MASK)


def get_observed_space(space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    """Return the space of the one part other than the mask."""
    assert isinstance(space, spaces.Dict)
    return space.spaces[get_observed_name(space.spaces)]


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
