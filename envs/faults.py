"""An environment that breaks on purpose, for testing what survives it."""

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
    """The wrapped environment's params; which episodes break, and at which of their steps."""

    inner: PyTree
    at_step: Int[Array, "*batch"] = scalar(1, np.int32)
    """Counted from 1; 0 for never."""
    fraction: Float[Array, "*batch"] = scalar(1.0)
    """Of episodes that break, drawn at their reset."""


@pytree
class FaultyState:
    """The wrapped environment's state, the steps since its reset, and whether it will break."""

    inner: PyTree
    num_steps: Int[Array, "*batch"]
    breaks: Bool[Array, "*batch"]


class FaultyEnv(JaxEnv[FaultyState, FaultyParams]):
    """Returns NaN once per broken episode, as its reward or as its observation.

    The wrapped environment goes on undisturbed. Use it as an instance, with
    `env_config={"at_step": 5}`, or by its class path, with
    `env_config={"env": "CartPole-v1", "kind": "reward", "at_step": 5}`.
    """

    def __init__(
        self, env: JaxEnv[Any, Any] | str, kind: Literal["reward", "obs"] = "reward"
    ) -> None:
        """Wraps an environment, or the one behind an id.

        Raises:
            EnvError: `kind` is neither "reward" nor "obs", or the observation is no float.
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
            raise EnvError(f"{made.id} observes {space.dtype}, which cannot be NaN.")

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
        breaks = jax.random.uniform(key_breaks) < params.fraction
        num_steps = jnp.zeros((), jnp.int32)
        return FaultyState(inner=inner, num_steps=num_steps, breaks=breaks), obs

    def step(
        self, key: Key, state: FaultyState, action: PyTree, params: FaultyParams
    ) -> tuple[FaultyState, TimeStep]:
        inner, step = self.env.step(key, state.inner, action, params.inner)
        num_steps = state.num_steps + 1
        now = state.breaks & (num_steps == params.at_step)
        if self.kind == "reward":
            step = replace(step, reward=jnp.where(now, jnp.nan, step.reward))
        else:
            step = replace(step, obs=jax.tree.map(lambda leaf: _poison(leaf, now), step.obs))
        return FaultyState(inner=inner, num_steps=num_steps, breaks=state.breaks), step

    def render(self, state: FaultyState, params: FaultyParams) -> np.ndarray:
        return self.env.render(state.inner, params.inner)


def _poison(leaf: Array, now: Bool[Array, ""]) -> Array:
    """NaN where the fault strikes; integers stay."""
    return jnp.where(now, jnp.nan, leaf) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf
