"""Action masks: a part of the observation that is passed unchanged to the action distribution."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium import spaces
from jaxtyping import Array, Bool

from jaxrl.connectors.base import Before, Connector, ObservationConnector, TemporalConnector
from jaxrl.core.types import PyTree
from jaxrl.errors import SpaceError
from jaxrl.modules.rl_module import ACTION_MASK, has_action_mask

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
