"""Connectors: pure transforms with explicit state between environment and module.

One implementation serves the compiled loop, runners on the host, evaluation and
`compute_single_action`. Statistics are frozen during a rollout and updated once after it;
evaluation never updates them. State within an episode is carried from step to step alongside the
module's recurrent state, and is reset with each episode.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar

import gymnasium
from jaxtyping import Array, Bool, Float

from jaxrl.compat import lookup
from jaxrl.core.struct import pytree
from jaxrl.core.types import Key, Metrics, PyTree, Rollout

C = TypeVar("C")


def take_rllib_arguments(**renamed: str) -> Callable[[type[C]], type[C]]:
    """Return a decorator with which a connector's class also takes the arguments of RLlib's piece.

    Args:
        **renamed: Arguments here, by their names in RLlib.
    """

    def decorate(cls: type[C]) -> type[C]:
        init: Callable[..., None] = cls.__init__
        parameters = inspect.signature(init).parameters

        @functools.wraps(init)
        def initialize(self: object, *args: object, **kwargs: object) -> None:
            is_rllibs = kwargs.keys() - parameters or any(
                arg is None or isinstance(arg, gymnasium.Space) for arg in args
            )
            if is_rllibs:
                read = lookup.load("rllib.connectors").read_piece_arguments
                args, kwargs = read(self, parameters, renamed, args, kwargs)
            init(self, *args, **kwargs)

        cls.__init__ = initialize
        return cls

    return decorate


class Connector:
    """Base class of connectors, with a `name` that defaults to the class name."""

    name: str

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Set the default name."""
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__

    @property
    def unwrapped(self) -> "Connector":
        """Wrapped connector if this one only adapts another to its position, else this one."""
        return self


class ObservationConnector(Connector):
    """Transform of the environment's observation. Subclass and override where behavior differs."""

    def bind(
        self, space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
    ) -> "ObservationConnector | None":
        """Return the connector fitted to its position in a pipeline, or None to leave it out.

        Args:
            space: Space of its input observations.
            action_space: Action space of the module.

        Raises:
            SpaceError: If the space is not supported.
        """
        del space, action_space
        return self

    def output_space(self, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        """Return the space of the output.

        Raises:
            SpaceError: If the space is not supported.
        """
        return space

    def init(self, space: gymnasium.Space[Any]) -> PyTree:
        """Return the initial statistics, `()` for none."""
        del space
        return ()

    def __call__(self, state: PyTree, obs: PyTree) -> PyTree:
        """Transform observations with any number of leading batch axes."""
        raise NotImplementedError(f"{type(self).__name__} does not define __call__")

    def update(
        self, state: PyTree, obs: PyTree, mask: Bool[Array, "T B"], axis_name: str | None
    ) -> PyTree:
        """Update the statistics with a rollout's observations, as this connector received them."""
        del obs, mask, axis_name
        return state


@pytree
class Before:
    """Action and reward before an observation, `[B, ...]`.

    `action` is the module's, `reward` the environment's; where `is_first`, both belong to another
    episode or to none.
    """

    is_first: Bool[Array, "*batch"]
    action: PyTree
    reward: Float[Array, "*batch"]


class TemporalConnector(ObservationConnector):
    """Observation connector with state within an episode.

    `carry` is this state for each environment, with a leading axis B. It is reset to that of
    `init_carry` at the first observation of every episode.

    Attributes:
        reads_action: Whether it reads `before.action`.
        reads_reward: Whether it reads `before.reward`, which `compute_single_action` then requires.
    """

    reads_action: bool = True
    reads_reward: bool = True

    def init_carry(self, space: gymnasium.Space[Any], num_envs: int) -> PyTree:
        """Return the carry at an episode's start, `[num_envs, ...]`."""
        raise NotImplementedError(f"{type(self).__name__} does not define init_carry")

    def step(
        self, state: PyTree, carry: PyTree, obs: PyTree, before: Before
    ) -> tuple[PyTree, PyTree]:
        """Return the next carry, and the module's observations `[B, ...]`."""
        raise NotImplementedError(f"{type(self).__name__} does not define step")

    def __call__(self, state: PyTree, obs: PyTree) -> PyTree:
        """Raise TypeError: the output depends on previous steps, so `step` must be called."""
        raise TypeError(f"{self.name} is temporal; call step, not the connector")


class ActionConnector(Connector):
    """Transform of the module's action into the environment's."""

    def bind(self, space: gymnasium.Space[Any]) -> "ActionConnector":
        """Return the connector fitted to its position in a pipeline, with output space `space`."""
        del space
        return self

    def module_space(self, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        """Return the input space for a given output space."""
        return space

    def __call__(self, action: PyTree) -> PyTree:
        """Transform actions with any number of leading batch axes."""
        raise NotImplementedError(f"{type(self).__name__} does not define __call__")

    def inverse(self, action: PyTree) -> PyTree:
        """Return an action of the module that is transformed into this one.

        Required for recorded actions of an environment, which `input_` and `evaluate_offline` read,
        and for `compute_single_action(prev_action=...)`, if a connector reads it.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define inverse")


class LearnerConnector(Connector):
    """Transform of recorded rollouts before learning. `per_env` state has a leading axis B."""

    def at(self, values: Mapping[str, Float[Array, ""]]) -> Self:
        """Return the connector with the run's current hyperparameters, ready to be called.

        A traced setting of `training()` must be read here: a number stored in the connector would
        be shared by all lanes of a sweep and stay constant when training changes the setting.

        Args:
            values: Traced numbers by name, such as `gamma`.
        """
        del values
        return self

    def init(self, key: Key) -> PyTree:
        """Return the initial shared statistics, `()` for none. Consumes the key."""
        del key
        return ()

    def compute_metrics(self, state: PyTree) -> Metrics:
        """Return numbers by name for the results of each update, of the shared statistics."""
        del state
        return {}

    def init_per_env(self, num_envs: int) -> PyTree:
        """Return the state that each environment carries between rollouts, `()` for none."""
        del num_envs
        return ()

    def __call__(
        self, state: PyTree, per_env: PyTree, rollout: Rollout, axis_name: str | None
    ) -> tuple[PyTree, PyTree, Rollout]:
        """Transform a rollout and update the statistics."""
        raise NotImplementedError(f"{type(self).__name__} does not define __call__")
