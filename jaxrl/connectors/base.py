"""Connectors: pure transforms with explicit state between environment and module.

One implementation serves the compiled loop, evaluation, `compute_single_action` and, from the same
state, any other home of the policy. Statistics are frozen during a rollout and updated once after
it; evaluation never updates them.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import gymnasium
from jaxtyping import Array, Bool

from jaxrl.core.types import PyTree, Rollout


class ObservationConnector:
    """From the environment's observation to the module's. Subclass and override what differs."""

    def output_space(self, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        """The space after this connector; raises SpaceError for one that it cannot take."""
        return space

    def init(self, space: gymnasium.Space[Any]) -> PyTree:
        """The statistics before any data, `()` for none."""
        del space
        return ()

    def __call__(self, state: PyTree, obs: PyTree) -> PyTree:
        """Transform observations with any number of leading batch axes."""
        raise NotImplementedError(f"{type(self).__name__} does not define __call__")

    def update(
        self, state: PyTree, obs: PyTree, mask: Bool[Array, "T B"], axis_name: str | None
    ) -> PyTree:
        """The statistics after a rollout's observations (as this connector received them)."""
        del obs, mask, axis_name
        return state


class ActionConnector:
    """From the module's action to the environment's."""

    def module_space(self, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        """The space that the module acts in, for the space that this connector's output is in."""
        return space

    def __call__(self, action: PyTree) -> PyTree:
        """Transform actions with any number of leading batch axes."""
        raise NotImplementedError(f"{type(self).__name__} does not define __call__")


class LearnerConnector:
    """From what was recorded to what is learned from. `per_env` state has a leading axis B."""

    def init(self) -> PyTree:
        """Shared statistics before any data, `()` for none."""
        return ()

    def init_per_env(self, num_envs: int) -> PyTree:
        """State that each environment carries from one rollout to the next, `()` for none."""
        del num_envs
        return ()

    def __call__(
        self, state: PyTree, per_env: PyTree, rollout: Rollout, axis_name: str | None
    ) -> tuple[PyTree, PyTree, Rollout]:
        """Transform a rollout and update the statistics."""
        raise NotImplementedError(f"{type(self).__name__} does not define __call__")


@dataclasses.dataclass(frozen=True, eq=False)
class ObservationPipeline:
    """Observation connectors one after the other."""

    connectors: tuple[ObservationConnector, ...]
    space: gymnasium.Space[Any]

    @property
    def spaces(self) -> tuple[gymnasium.Space[Any], ...]:
        """The space before each connector, and the module's at the end."""
        spaces = [self.space]
        for connector in self.connectors:
            spaces.append(connector.output_space(spaces[-1]))
        return tuple(spaces)

    def init(self) -> PyTree:
        """Every connector's first statistics."""
        return tuple(
            connector.init(space)
            for connector, space in zip(self.connectors, self.spaces, strict=False)
        )

    def __call__(self, states: PyTree, obs: PyTree) -> PyTree:
        """The module's observations, for any number of leading batch axes."""
        for connector, state in zip(self.connectors, states, strict=True):
            obs = connector(state, obs)
        return obs

    def update(
        self, states: PyTree, obs: PyTree, mask: Bool[Array, "T B"], axis_name: str | None
    ) -> PyTree:
        """Statistics after a rollout's raw observations; each sees its predecessors' output."""
        updated = []
        for connector, state in zip(self.connectors, states, strict=True):
            updated.append(connector.update(state, obs, mask, axis_name))
            obs = connector(state, obs)
        return tuple(updated)


@dataclasses.dataclass(frozen=True, eq=False)
class ActionPipeline:
    """Action connectors, from the module's action to the environment's."""

    connectors: tuple[ActionConnector, ...]
    space: gymnasium.Space[Any]

    @property
    def module_space(self) -> gymnasium.Space[Any]:
        """The space that the module acts in."""
        space = self.space
        for connector in reversed(self.connectors):
            space = connector.module_space(space)
        return space

    def __call__(self, action: PyTree) -> PyTree:
        """The environment's actions, for any number of leading batch axes."""
        for connector in self.connectors:
            action = connector(action)
        return action


@dataclasses.dataclass(frozen=True, eq=False)
class LearnerPipeline:
    """Learner connectors one after the other."""

    connectors: tuple[LearnerConnector, ...]

    def init(self) -> PyTree:
        """Every connector's shared statistics."""
        return tuple(connector.init() for connector in self.connectors)

    def init_per_env(self, num_envs: int) -> PyTree:
        """Every connector's state of each environment."""
        return tuple(connector.init_per_env(num_envs) for connector in self.connectors)

    def __call__(
        self, states: PyTree, per_env: PyTree, rollout: Rollout, axis_name: str | None
    ) -> tuple[PyTree, PyTree, Rollout]:
        """The rollout to learn from, and the states after it."""
        new_states: list[PyTree] = []
        new_per_env: list[PyTree] = []
        for connector, state, env_state in zip(self.connectors, states, per_env, strict=True):
            state, env_state, rollout = connector(state, env_state, rollout, axis_name)
            new_states.append(state)
            new_per_env.append(env_state)
        return tuple(new_states), tuple(new_per_env), rollout


def as_connectors(value: Any, kind: type) -> Sequence[Any]:
    """One connector, several or None, as a sequence of the given kind."""
    if value is None:
        return ()
    items = value if isinstance(value, (list, tuple)) else (value,)
    for item in items:
        if not isinstance(item, kind):
            raise TypeError(f"expected {kind.__name__}s, got {type(item).__name__}")
    return tuple(items)
