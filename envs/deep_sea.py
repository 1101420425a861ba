"""Deep sea (Osband et al. 2020, https://arxiv.org/abs/1908.03568): rewards that dithering never finds."""

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Float, Int

from jaxrl.core.struct import pytree
from jaxrl.core.types import Key, TimeStep
from jaxrl.envs.base import JaxEnv
from jaxrl.errors import EnvError


@pytree
class DeepSeaParams:
    """Cost of going right all the way."""

    move_cost: Float[Array, ""]


@pytree
class DeepSeaState:
    """Row and column of the diver."""

    row: Int[Array, "*batch"]
    column: Int[Array, "*batch"]


class DeepSea(JaxEnv[DeepSeaState, DeepSeaParams]):
    """Grid in which the diver sinks by a row at each step, from the upper left.

    Going right at every step costs 0.01 in all and earns 1 at the bottom, so that the optimum is 0.99;
    one step to the left forfeits it. Which of two actions goes right differs by cell, so that a random
    policy finds the treasure once in 2^N episodes.

    Args:
        size: Number N of rows and of columns.
        mapping_seed: Seed of the actions that go right.
    """

    name = "DeepSea-v0"

    def __init__(self, size: int = 15, mapping_seed: int = 0) -> None:
        if size < 2:
            raise EnvError(f"size={size} must be at least 2.")
        self.size = size
        self._right = np.random.default_rng(mapping_seed).integers(0, 2, (size, size))

    @property
    def default_params(self) -> DeepSeaParams:
        return DeepSeaParams(move_cost=jnp.float32(0.01))

    def observation_space(self, params: DeepSeaParams) -> gymnasium.Space[Any]:
        return spaces.Box(0.0, 1.0, (self.size * self.size,), np.float32)

    def action_space(self, params: DeepSeaParams) -> gymnasium.Space[Any]:
        return spaces.Discrete(2)

    def reset(self, key: Key, params: DeepSeaParams) -> tuple[DeepSeaState, Array]:
        zero = jnp.zeros((), jnp.int32)
        state = DeepSeaState(row=zero, column=zero)
        return state, self.observe(state)

    def step(
        self, key: Key, state: DeepSeaState, action: Array, params: DeepSeaParams
    ) -> tuple[DeepSeaState, TimeStep]:
        right = jnp.asarray(self._right, jnp.int32)[state.row, state.column]
        goes_right = (action == right).astype(jnp.int32)
        row, last = state.row + 1, self.size - 1
        column = jnp.clip(state.column + 2 * goes_right - 1, 0, last)
        is_over = row == self.size
        is_found = is_over & (state.column == last) & (goes_right == 1)
        cost = params.move_cost / self.size * goes_right
        after = DeepSeaState(row=row, column=column)
        return after, TimeStep(
            obs=self.observe(after),
            reward=is_found.astype(jnp.float32) - cost,
            terminated=is_over,
            truncated=jnp.zeros((), bool),
            info={},
        )

    def observe(self, state: DeepSeaState) -> Float[Array, " n"]:
        """Return the cell one-hot, all zeros below the last row."""
        cell = state.row * self.size + state.column
        return jax.nn.one_hot(cell, self.size * self.size, dtype=jnp.float32)
