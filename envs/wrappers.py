"""Environment wrappers."""

from collections.abc import Callable
from typing import Any

import gymnasium
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Key, PyTree, TimeStep
from jaxrl.envs.base import JaxEnv
from jaxrl.errors import EnvError


class HasTimeLimit(JaxEnv[Any, Any]):
    """Base class of environments whose `params` hold the time limit; `make` adds no `TimeLimit`."""

    def with_time_limit(self, params: PyTree, max_episode_steps: int) -> PyTree:
        """Return the parameters with another time limit."""
        raise NotImplementedError(f"{type(self).__name__} does not define with_time_limit")

    def get_time_limit(self, params: PyTree) -> int:
        """Return the number of steps after which an episode is truncated."""
        raise NotImplementedError(f"{type(self).__name__} does not define time_limit")


@pytree
class TimeLimitState:
    """The wrapped environment's state and the number of steps since its reset."""

    inner: PyTree
    num_steps: Int[Array, "*batch"]


class TimeLimit(JaxEnv[TimeLimitState, Any]):
    """Wrapper that truncates an episode at step `max_episode_steps`, as gymnasium's TimeLimit.

    A step that terminates at the limit is both terminated and truncated. Equal limits around the
    same environment compare equal, so that `jit` does not compile twice.
    """

    def __init__(self, env: JaxEnv[Any, Any], max_episode_steps: int) -> None:
        """Wrap `env`.

        Raises:
            EnvError: If `max_episode_steps` is not a positive integer.
        """
        self.env = env
        self._limit = check_max_episode_steps(max_episode_steps)
        self.max_episode_steps = self._limit
        self.name = env.name
        self.reset_mode = env.reset_mode
        self.render_fps = env.render_fps
        self.has_hidden_state = env.has_hidden_state

    def get_spaces(self, params: Any) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
        return self.env.get_spaces(params)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, TimeLimit) and self.env == other.env and self._limit == other._limit
        )

    def __hash__(self) -> int:
        return hash((TimeLimit, self.env, self._limit))

    @property
    def default_params(self) -> PyTree:
        return self.env.default_params

    def observation_space(self, params: PyTree) -> gymnasium.Space[Any]:
        return self.env.observation_space(params)

    def action_space(self, params: PyTree) -> gymnasium.Space[Any]:
        return self.env.action_space(params)

    def reset(self, key: Key, params: PyTree) -> tuple[TimeLimitState, PyTree]:
        inner, obs = self.env.reset(key, params)
        return TimeLimitState(inner=inner, num_steps=jnp.zeros((), jnp.int32)), obs

    def step(
        self, key: Key, state: TimeLimitState, action: PyTree, params: PyTree
    ) -> tuple[TimeLimitState, TimeStep]:
        inner, step = self.env.step(key, state.inner, action, params)
        num_steps = state.num_steps + 1
        truncated = step.truncated | (num_steps >= self._limit)
        return TimeLimitState(inner=inner, num_steps=num_steps), replace(step, truncated=truncated)

    def compute_reward(
        self, achieved_goal: PyTree, desired_goal: PyTree, params: PyTree
    ) -> tuple[Float[Array, ""], Bool[Array, ""]]:
        return self.env.compute_reward(achieved_goal, desired_goal, params)

    def render(self, state: TimeLimitState, params: PyTree) -> np.ndarray:
        return self.env.render(state.inner, params)


def find_compute_reward(
    env: JaxEnv[Any, Any],
) -> Callable[[PyTree, PyTree, PyTree], tuple[Float[Array, ""], Bool[Array, ""]]] | None:
    """Return the environment's method `compute_reward`; None if it does not define one."""
    inner = env.env if isinstance(env, TimeLimit) else env
    is_defined = type(inner).compute_reward is not JaxEnv.compute_reward
    return inner.compute_reward if is_defined else None


def check_max_episode_steps(value: object) -> int:
    """Return the value as a positive int.

    Raises:
        EnvError: If it is not a positive integer.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise EnvError(f"max_episode_steps must be a positive integer, got {value!r}.")
    return int(value)
