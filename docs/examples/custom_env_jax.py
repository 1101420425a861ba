"""An environment of your own, written in JAX: a grid with a goal, and a curriculum over its size.

The environment is a pair of pure functions, so it becomes part of the compiled program. `size` is a
parameter: it is traced, and changing it between iterations does not recompile.
"""

import argparse
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxrl import JaxEnv, PPOConfig
from jaxrl.core.struct import pytree
from jaxrl.core.types import Key, TimeStep
from jaxrl.testing import check_env


@pytree
class GridParams:
    """Number of cells per side."""

    size: Int[Array, ""] | int = 3


@pytree
class GridState:
    """Position of the agent; the goal is the last cell."""

    position: Int[Array, "2"]


class Grid(JaxEnv[GridState, GridParams]):
    """Walk to the corner of a grid; every step costs a little."""

    name = "Grid"
    max_episode_steps = 30

    @property
    def default_params(self) -> GridParams:
        """Return the parameters that `env_config` does not set."""
        return GridParams()

    def observation_space(self, params: GridParams) -> gymnasium.Space[Any]:
        """Return the space of the relative position."""
        return gymnasium.spaces.Box(0.0, 1.0, (2,), np.float32)

    def action_space(self, params: GridParams) -> gymnasium.Space[Any]:
        """Return the space of the four directions."""
        return gymnasium.spaces.Discrete(4)

    def _observe(self, position: Int[Array, "2"], params: GridParams) -> Array:
        return (position / jnp.maximum(params.size - 1, 1)).astype(jnp.float32)

    def reset(self, key: Key, params: GridParams) -> tuple[GridState, Array]:
        """Start somewhere on the first row."""
        column = jax.random.randint(key, (), 0, params.size)
        position = jnp.stack([jnp.zeros((), jnp.int32), column])
        return GridState(position=position), self._observe(position, params)

    def step(
        self, key: Key, state: GridState, action: Array, params: GridParams
    ) -> tuple[GridState, TimeStep]:
        """Move one cell; walls stop the agent."""
        moves = jnp.array([[1, 0], [-1, 0], [0, 1], [0, -1]], jnp.int32)
        position = jnp.clip(state.position + moves[action], 0, params.size - 1)
        arrived = jnp.all(position == params.size - 1)
        return GridState(position=position), TimeStep(
            obs=self._observe(position, params),
            reward=jnp.where(arrived, 1.0, -0.05),
            terminated=arrived,
        )


def main(iterations: int, num_envs: int) -> None:
    """Check the environment, train on it, and enlarge it halfway."""
    check_env(Grid())
    config = (
        PPOConfig()
        .environment(Grid, env_config={"size": 3})
        .env_runners(num_envs_per_env_runner=num_envs)
        .training(
            train_batch_size=32 * num_envs, minibatch_size=8 * num_envs, num_epochs=4, lr=3e-3
        )
        .rl_module(model_config={"fcnet_hiddens": [32]})
        .debugging(loggers=[], max_retraces=0)
    )
    with config.build() as algo:
        for iteration in range(iterations):
            if iteration == iterations // 2:
                algo.set_env_params(size=6)
            runners = algo.train()["env_runners"]
            size = int(algo.env_params.size)
            print(f"{size} x {size} cells: return {runners['episode_return_mean']:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--num-envs", type=int, default=16)
    main(**vars(parser.parse_args()))
