"""Fault injection: an environment that returns non-finite values on purpose."""

from typing import Any, Literal

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Key, PyTree, TimeStep
from jaxrl.envs.base import JaxEnv
from jaxrl.envs.host import MadeHostEnv
from jaxrl.envs.params import scalar
from jaxrl.envs.registry import make
from jaxrl.errors import EnvError


@pytree
class FaultyParams:
    """The wrapped environment's params, and which steps of which episodes are faulty."""

    inner: PyTree
    at_step: Int[Array, "*batch"] = scalar(1, np.int32)
    """Step of an episode at which the fault occurs, counted from 1; 0 for never."""
    fraction: Float[Array, "*batch"] = scalar(1.0)
    """Fraction of faulty episodes, drawn at their reset."""


@pytree
class FaultyState:
    """The wrapped environment's state, the steps since its reset, and whether it will be faulty."""

    inner: PyTree
    num_steps: Int[Array, "*batch"]
    breaks: Bool[Array, "*batch"]


class FaultyEnv(JaxEnv[FaultyState, FaultyParams]):
    """Wrapper that returns NaN once per faulty episode, as reward or as observation.

    The wrapped environment continues normally. Use an instance with `env_config={"at_step": 5}`, or
    the class path with `env_config={"env": "CartPole-v1", "kind": "reward", "at_step": 5}`.
    """

    def __init__(
        self, env: JaxEnv[Any, Any] | str, kind: Literal["reward", "obs"] = "reward"
    ) -> None:
        """Wrap an environment, or the one with the given id.

        Raises:
            EnvError: If `kind` is neither "reward" nor "obs", or the observation is not
                floating-point.
        """
        if kind not in ("reward", "obs"):
            raise EnvError(f"kind must be 'reward' or 'obs', got {kind!r}.")
        made = make(env)
        if isinstance(made, MadeHostEnv):
            raise EnvError(f"FaultyEnv wraps JAX environments only, got {made.id}.")
        self.env, self._inner_params = made.env, made.params
        self.kind = kind
        self.name = f"Faulty({self.env.name})"
        self.reset_mode = self.env.reset_mode
        space = self.env.observation_space(self._inner_params)
        if kind == "obs" and space.dtype is not None and space.dtype.kind != "f":
            raise EnvError(f"{made.id} has {space.dtype} observations, which cannot be NaN.")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FaultyEnv) and (self.env, self.kind) == (other.env, other.kind)

    def __hash__(self) -> int:
        return hash((FaultyEnv, self.env, self.kind))

    @property
    def default_params(self) -> FaultyParams:
        return FaultyParams(inner=self._inner_params)

    def observation_space(self, params: FaultyParams) -> gymnasium.Space[Any]:
        return self.env.observation_space(params.inner)

    def action_space(self, params: FaultyParams) -> gymnasium.Space[Any]:
        return self.env.action_space(params.inner)

    def reset(self, key: Key, params: FaultyParams) -> tuple[FaultyState, PyTree]:
        key_inner, key_breaks = jax.random.split(key)
        inner, obs = self.env.reset(key_inner, params.inner)
        breaks = jax.random.uniform(key_breaks, dtype=jnp.float32) < params.fraction
        num_steps = jnp.zeros((), jnp.int32)
        return FaultyState(inner=inner, num_steps=num_steps, breaks=breaks), obs

    def step(
        self, key: Key, state: FaultyState, action: PyTree, params: FaultyParams
    ) -> tuple[FaultyState, TimeStep]:
        inner, step = self.env.step(key, state.inner, action, params.inner)
        num_steps = state.num_steps + 1
        is_faulty = state.breaks & (num_steps == params.at_step)
        if self.kind == "reward":
            step = replace(step, reward=jnp.where(is_faulty, jnp.nan, step.reward))
        else:
            step = replace(step, obs=jax.tree.map(lambda leaf: _poison(leaf, is_faulty), step.obs))
        return FaultyState(inner=inner, num_steps=num_steps, breaks=state.breaks), step

    def render(self, state: FaultyState, params: FaultyParams) -> np.ndarray:
        return self.env.render(state.inner, params.inner)


def _poison(leaf: Array, is_faulty: Bool[Array, ""]) -> Array:
    """Return NaN where the fault occurs; integer leaves are unchanged."""
    return jnp.where(is_faulty, jnp.nan, leaf) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf
