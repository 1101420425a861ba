"""The environment contract: pure functions of a key, a state and parameters."""

from typing import Any, Generic, Literal, TypeAlias, TypeVar, cast

import gymnasium
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxrl.core.types import Key, PyTree, TimeStep
from jaxrl.errors import EnvError

ResetMode: TypeAlias = Literal["every_step", "on_demand"]
StateT = TypeVar("StateT")
ParamsT = TypeVar("ParamsT")


class JaxEnv(Generic[StateT, ParamsT]):
    """Base class of environments written in JAX.

    An environment is a single copy without auto-reset, vectorization or time limit; those are
    wrappers. `params` is a pytree of numbers that may change without a recompile (curricula,
    sweeps). Everything but `render` is traced: no Python control flow on values, no side effects.
    The key comes first, as in gymnax, and must not be stored in the state.
    """

    name: str = "JaxEnv"
    max_episode_steps: int | None = None
    """Time limit that `make` applies, None for no limit."""
    reset_mode: ResetMode = "every_step"
    """Cheapest auto-reset mode for this environment; see `jaxrl.envs.vector`."""
    render_fps: float = 30
    """Environment steps per second of video."""
    has_hidden_state: bool = False
    """True if the state holds what the agent is not to know, so that no search may begin from it."""

    @property
    def default_params(self) -> ParamsT:
        """Default parameters, None if the environment has none."""
        return cast(ParamsT, None)

    def observation_space(self, params: ParamsT) -> gymnasium.Space[Any]:
        raise EnvError(_explain_space(self, "observation_space", "is missing"))

    def action_space(self, params: ParamsT) -> gymnasium.Space[Any]:
        raise EnvError(_explain_space(self, "action_space", "is missing"))

    def get_spaces(self, params: ParamsT) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
        """Return the observation space and the action space.

        Raises:
            EnvError: If one of them is no method, or not defined.
        """
        for name in ("observation_space", "action_space"):
            if not callable(value := getattr(self, name)):
                raise EnvError(_explain_space(self, name, f"is a {type(value).__name__}"))
        return self.observation_space(params), self.action_space(params)

    def reset(self, key: Key, params: ParamsT) -> tuple[StateT, PyTree]:
        """Return an initial state and its observation. Consumes the key."""
        raise NotImplementedError(f"{type(self).__name__} does not define reset")

    def step(
        self, key: Key, state: StateT, action: PyTree, params: ParamsT
    ) -> tuple[StateT, TimeStep]:
        """Take one step. `TimeStep.obs` is the successor's observation, even at the end."""
        raise NotImplementedError(f"{type(self).__name__} does not define step")

    def compute_reward(
        self, achieved_goal: PyTree, desired_goal: PyTree, params: ParamsT
    ) -> tuple[Float[Array, ""], Bool[Array, ""]]:
        """Compute the reward of a step, and whether the episode terminates, from goals alone.

        An environment with goals observes a Dict with `observation`, `achieved_goal` and
        `desired_goal`, as in gymnasium-robotics. What it returns here is what `step` returns for the
        same goals; replay in hindsight asks for other desired goals.

        Args:
            achieved_goal: `achieved_goal` of the step's observation.
            desired_goal: Goal to reach.
            params: Parameters.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define compute_reward")

    def render(self, state: StateT, params: ParamsT) -> np.ndarray:
        """Render the state as an RGB image, uint8 `[H, W, 3]`."""
        raise NotImplementedError(f"{type(self).__name__} cannot be rendered")


def _explain_space(env: object, name: str, fault: str) -> str:
    return (
        f"{type(env).__name__}.{name} {fault}; it must be a method: "
        f"`def {name}(self, params): return ...`, which returns a gymnasium space."
    )
