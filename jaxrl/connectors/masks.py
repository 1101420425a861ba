"""Action masks: a part of the observation that reaches the distribution as it is."""

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

OBSERVATIONS = "observations"
"""What several parts beside a mask are called together."""


@dataclasses.dataclass(frozen=True)
class SeparateMask(ObservationConnector):
    """From a Dict with a mask to one of two parts: `"action_mask"`, and what is observed.

    A single part beside the mask keeps its name; several become one Dict, `"observations"`.
    Connectors after this one get what is beside the mask, and the mask passes by them.
    """

    key: str

    def bind(
        self, space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
    ) -> "SeparateMask | None":
        """None where observations have no mask."""
        if not (isinstance(space, spaces.Dict) and self.key in space.spaces):
            return None
        if len(space.spaces) == 1:
            raise SpaceError(
                f"The observation space {space} holds nothing but the mask {self.key!r}; give "
                "the module something to observe beside it, if only a constant."
            )
        return self

    def output_space(self, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        assert isinstance(space, spaces.Dict)
        name, beside = self._beside(space.spaces)
        part = beside if isinstance(beside, gymnasium.Space) else spaces.Dict(beside)
        return spaces.Dict({ACTION_MASK: space.spaces[self.key], name: part})

    def __call__(self, state: PyTree, obs: PyTree) -> PyTree:
        del state
        name, beside = self._beside(obs)
        return {ACTION_MASK: obs[self.key], name: beside}

    def _beside(self, parts: Mapping[str, Any]) -> tuple[str, Any]:
        """The name and the content of what stands beside the mask."""
        others = {name: part for name, part in parts.items() if name != self.key}
        if len(others) > 1:
            return OBSERVATIONS, others
        ((name, part),) = others.items()
        return OBSERVATIONS if name == ACTION_MASK else name, part


@dataclasses.dataclass(frozen=True)
class ObserveMask(ObservationConnector):
    """A Dict as the one part `"observations"` of another, so that no part of it is a mask."""

    def bind(
        self, space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
    ) -> "ObserveMask | None":
        """None where no part would be taken for a mask."""
        return self if has_action_mask(space) else None

    def output_space(self, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        return spaces.Dict({OBSERVATIONS: space})

    def __call__(self, state: PyTree, obs: PyTree) -> PyTree:
        del state
        return {OBSERVATIONS: obs}


@dataclasses.dataclass(frozen=True, eq=False)
class BesideMask(ObservationConnector):
    """A connector for what stands beside the mask, which passes through untouched."""

    inner: ObservationConnector

    @property
    def unwrapped(self) -> Connector:
        return self.inner

    def output_space(self, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        assert isinstance(space, spaces.Dict)
        name = observed_name(space.spaces)
        return spaces.Dict({**space.spaces, name: self.inner.output_space(space.spaces[name])})

    def init(self, space: gymnasium.Space[Any]) -> PyTree:
        return self.inner.init(observed_space(space))

    def __call__(self, state: PyTree, obs: PyTree) -> PyTree:
        name = observed_name(obs)
        return {**obs, name: self.inner(state, obs[name])}

    def update(
        self, state: PyTree, obs: PyTree, mask: Bool[Array, "T B"], axis_name: str | None
    ) -> PyTree:
        return self.inner.update(state, obs[observed_name(obs)], mask, axis_name)


@dataclasses.dataclass(frozen=True, eq=False)
class RememberBesideMask(TemporalConnector):
    """`BesideMask` for a connector that remembers."""

    inner: TemporalConnector

    @property
    def unwrapped(self) -> Connector:
        return self.inner

    def output_space(self, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        return BesideMask(self.inner).output_space(space)

    def init(self, space: gymnasium.Space[Any]) -> PyTree:
        return self.inner.init(observed_space(space))

    def init_carry(self, space: gymnasium.Space[Any], num_envs: int) -> PyTree:
        return self.inner.init_carry(observed_space(space), num_envs)

    def step(
        self, state: PyTree, carry: PyTree, obs: PyTree, before: Before
    ) -> tuple[PyTree, PyTree]:
        name = observed_name(obs)
        carry, seen = self.inner.step(state, carry, obs[name], before)
        return carry, {**obs, name: seen}

    def update(
        self, state: PyTree, obs: PyTree, mask: Bool[Array, "T B"], axis_name: str | None
    ) -> PyTree:
        return self.inner.update(state, obs[observed_name(obs)], mask, axis_name)


def beside_mask(connector: ObservationConnector) -> ObservationConnector:
    """The connector for its place after `SeparateMask`."""
    if isinstance(connector, TemporalConnector):
        return RememberBesideMask(connector)
    return BesideMask(connector)


def observed_name(parts: PyTree) -> str:
    """The name of the one part beside the mask."""
    return next(name for name in parts if name != ACTION_MASK)


def observed_space(space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    """The space of the one part beside the mask."""
    assert isinstance(space, spaces.Dict)
    return space.spaces[observed_name(space.spaces)]
