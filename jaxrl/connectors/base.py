"""Connectors: pure transforms with explicit state between environment and module.

One implementation serves the compiled loop, runners on the host, evaluation and
`compute_single_action`. Statistics are frozen during a rollout and updated once after it;
evaluation never updates them. What a connector remembers of an episode is carried from step to
step beside the module's own memory, and starts anew with each episode.
"""

from collections.abc import Mapping
from typing import Any, Self

import gymnasium
from jaxtyping import Array, Bool, Float

from jaxrl.core.struct import pytree
from jaxrl.core.types import PyTree, Rollout


class Connector:
    """What all connectors have: a name, that of the class unless it says otherwise."""

    name: str

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Names the class after itself."""
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__

    @property
    def unwrapped(self) -> "Connector":
        """The connector that the user knows, where another one only finds its place for it."""
        return self


class ObservationConnector(Connector):
    """From the environment's observation to the module's. Subclass and override what differs."""

    def bind(
        self, space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
    ) -> "ObservationConnector | None":
        """The connector for its place in a pipeline, None where it has nothing to do.

        Args:
            space: Of the observations that it will get.
            action_space: The module's.

        Raises:
            SpaceError: It cannot take this space.
        """
        del space, action_space
        return self

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


@pytree
class Before:
    """What came before an observation, `[B, ...]`.

    `action` is the module's, `reward` the environment's; where `is_first` both are those of
    another episode, or of none.
    """

    is_first: Bool[Array, "*batch"]
    action: PyTree
    reward: Float[Array, "*batch"]


class TemporalConnector(ObservationConnector):
    """An observation connector that remembers the episode so far.

    `carry` is what it remembers of each environment, with a leading axis B. It is that of
    `init_carry` again at the first observation of every episode.

    Attributes:
        reads_action: Whether it looks at `before.action`.
        reads_reward: Whether it looks at `before.reward`, which `compute_single_action` then asks
            for.
    """

    reads_action: bool = True
    reads_reward: bool = True

    def init_carry(self, space: gymnasium.Space[Any], num_envs: int) -> PyTree:
        """What is remembered at an episode's start, `[num_envs, ...]`."""
        raise NotImplementedError(f"{type(self).__name__} does not define init_carry")

    def step(
        self, state: PyTree, carry: PyTree, obs: PyTree, before: Before
    ) -> tuple[PyTree, PyTree]:
        """What is remembered from here on, and the module's observations `[B, ...]`."""
        raise NotImplementedError(f"{type(self).__name__} does not define step")

    def __call__(self, state: PyTree, obs: PyTree) -> PyTree:
        """Refused: without what came before there is nothing to say."""
        raise TypeError(f"{self.name} goes from step to step; call step, not the connector")


class ActionConnector(Connector):
    """From the module's action to the environment's."""

    def bind(self, space: gymnasium.Space[Any]) -> "ActionConnector":
        """The connector for its place in a pipeline; `space` is that of its output."""
        del space
        return self

    def module_space(self, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        """The space that the module acts in, for the space that this connector's output is in."""
        return space

    def __call__(self, action: PyTree) -> PyTree:
        """Transform actions with any number of leading batch axes."""
        raise NotImplementedError(f"{type(self).__name__} does not define __call__")

    def inverse(self, action: PyTree) -> PyTree:
        """An action of the module that becomes this one.

        Needed by `compute_single_action(prev_action=...)` alone, where a connector reads it.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define inverse")


class LearnerConnector(Connector):
    """From what was recorded to what is learned from. `per_env` state has a leading axis B."""

    def at(self, values: Mapping[str, Float[Array, ""]]) -> Self:
        """The connector at the run's present hyperparameters, which is what gets called.

        A number of `training()` that is traced has to come from here: a number that is written into
        the connector is that of all lanes of a sweep, and stays where training changes it.

        Args:
            values: The traced numbers by name, such as `gamma`.
        """
        del values
        return self

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
