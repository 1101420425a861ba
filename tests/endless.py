"""An environment whose episodes never end."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl import JaxEnv, TimeStep
from jaxrl.core.struct import pytree


@pytree
class EndlessState:
    """Nothing changes."""

    x: jax.Array


class Endless(JaxEnv[EndlessState, EndlessState]):
    """Never terminates and has no time limit."""

    name = "Endless"

    @property
    def default_params(self) -> EndlessState:
        return EndlessState(x=jnp.zeros(()))

    def observation_space(self, params: EndlessState) -> Any:
        return spaces.Box(-1, 1, (1,), np.float32)

    def action_space(self, params: EndlessState) -> Any:
        return spaces.Discrete(2)

    def reset(self, key: Any, params: EndlessState) -> Any:
        return EndlessState(x=jnp.zeros(())), jnp.zeros((1,))

    def step(self, key: Any, state: EndlessState, action: Any, params: EndlessState) -> Any:
        no = jnp.zeros((), bool)
        step = TimeStep(
            obs=jnp.zeros((1,)), reward=jnp.ones(()), terminated=no, truncated=no, info={}
        )
        return state, step
