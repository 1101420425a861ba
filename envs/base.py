"""The environment contract: pure functions of a state, a key and parameters."""

from typing import Any, Generic, Literal, TypeAlias, TypeVar, cast

import gymnasium
import numpy as np

from jaxrl.core.types import Key, PyTree, TimeStep

ResetMode: TypeAlias = Literal["every_step", "on_demand"]
StateT = TypeVar("StateT")
ParamsT = TypeVar("ParamsT")


class JaxEnv(Generic[StateT, ParamsT]):
    """One environment, without auto-reset, vectorisation or time limit: those are wrappers.

    `params` is a pytree of numbers that may change without a recompile (curricula, sweeps).
    Everything but `render` is traced: no Python control flow on values, no side effects. The key
    comes first, as in gymnax; an environment never keeps it.
    """

    name: str = "JaxEnv"
    max_episode_steps: int | None = None
    """The time limit that `make` wraps around, None for no limit."""
    reset_mode: ResetMode = "every_step"
    """How auto-reset is cheapest here, see `jaxrl.envs.vector`."""
    render_fps: float = 30
    """Steps a second in a video."""

    @property
    def default_params(self) -> ParamsT:
        """The parameters unless others are set; None for an environment that has none."""
        return cast(ParamsT, None)

    def observation_space(self, params: ParamsT) -> gymnasium.Space[Any]:
        raise NotImplementedError(f"{type(self).__name__} does not define observation_space")

    def action_space(self, params: ParamsT) -> gymnasium.Space[Any]:
        raise NotImplementedError(f"{type(self).__name__} does not define action_space")

    def reset(self, key: Key, params: ParamsT) -> tuple[StateT, PyTree]:
        """A first state and its observation. Consumes the key."""
        raise NotImplementedError(f"{type(self).__name__} does not define reset")

    def step(
        self, key: Key, state: StateT, action: PyTree, params: ParamsT
    ) -> tuple[StateT, TimeStep]:
        """One transition. `TimeStep.obs` is the successor's observation, also at an end."""
        raise NotImplementedError(f"{type(self).__name__} does not define step")

    def render(self, state: StateT, params: ParamsT) -> np.ndarray:
        """The state as an RGB picture, uint8 `[H, W, 3]`."""
        raise NotImplementedError(f"{type(self).__name__} cannot be rendered")
