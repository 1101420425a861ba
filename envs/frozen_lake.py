"""A frozen lake of variable size, with one reward at the far corner: a task for curricula.

As in gymnasium's FrozenLake, an agent crosses a lake from corner to corner, holes end the episode,
and only the goal pays. Here, every episode has a lake of its own, the size of the lake is a
parameter, and the agent sees its surroundings and the way to the goal, so that what it learns on a
small lake holds on a large one.
"""

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool, Float, Int

from jaxrl.core.struct import pytree
from jaxrl.core.types import Key, TimeStep
from jaxrl.envs.base import JaxEnv, ResetMode
from jaxrl.envs.params import scalar
from jaxrl.errors import EnvError

MIN_SIZE = 2
VIEW = 2
"""Number of cells that the agent sees in each direction."""
CELL_PIXELS = 16
"""Width and height in pixels of a rendered cell."""

MOVES = np.array([[0, -1], [1, 0], [0, 1], [-1, 0]], np.int32)
"""Change of row and column by left, down, right and up, in gymnasium's order."""
COLORS = np.array([[200, 230, 250], [20, 60, 130], [60, 160, 60], [210, 60, 50]], np.uint8)
"""Colors of ice, holes, the goal and the agent."""


@pytree
class FrozenLakeParams:
    """Size of the lake and its dangers.

    `size` is the number of rows and of columns, `hole_probability` that of a cell beside the path
    that is always free, and `slip_probability` that of moving at a right angle to the action.
    """

    size: Int[Array, ""] = scalar(8, np.int32)
    hole_probability: Float[Array, ""] = scalar(0.2)
    slip_probability: Float[Array, ""] = scalar(0.0)


@pytree
class FrozenLakeState:
    """Holes of the lake, `[max_size, max_size]`, and the agent's row and column."""

    holes: Bool[Array, "*batch rows columns"]
    position: Int[Array, "*batch 2"]


class FrozenLake(JaxEnv[FrozenLakeState, FrozenLakeParams]):
    """Crossing of a frozen lake from the top left to the bottom right corner.

    Moves left (0), down (1), right (2) and up (3). The goal earns 1 and ends the episode, a hole
    ends it with 0. The observation is the 5 x 5 cells around the agent, once for holes and once for
    cells outside of the lake, and the offset of the goal as a share of `max_size`.
    """

    name = "frozen-lake-v0"
    max_episode_steps = 100
    reset_mode: ResetMode = "on_demand"
    render_fps = 8

    def __init__(self, max_size: int = 16) -> None:
        """Create the environment for lakes of up to `max_size` rows.

        Raises:
            EnvError: If `max_size` is not an integer of at least 2.
        """
        if isinstance(max_size, bool) or not isinstance(max_size, int) or max_size < MIN_SIZE:
            raise EnvError(f"max_size={max_size!r} must be an integer of at least {MIN_SIZE}.")
        self.max_size = max_size

    @property
    def default_params(self) -> FrozenLakeParams:
        return FrozenLakeParams(size=np.asarray(min(8, self.max_size), np.int32))

    def observation_space(self, params: FrozenLakeParams) -> spaces.Box:
        self._check_size(params)
        length = 2 * (2 * VIEW + 1) ** 2 + 2
        return spaces.Box(-1.0, 1.0, (length,), np.float32)

    def _check_size(self, params: FrozenLakeParams) -> None:
        """Raise EnvError if the size is known and the lake does not fit."""
        if isinstance(params.size, jax.core.Tracer):
            return
        size = np.asarray(params.size)
        if np.any((size < MIN_SIZE) | (size > self.max_size)):
            raise EnvError(
                f"{self.name}'s parameter 'size' must be from {MIN_SIZE} to "
                f"max_size={self.max_size}, got {size.tolist()!r}; set max_size in env_config."
            )

    def action_space(self, params: FrozenLakeParams) -> gymnasium.Space[Any]:
        return spaces.Discrete(len(MOVES))

    def reset(
        self, key: Key, params: FrozenLakeParams
    ) -> tuple[FrozenLakeState, Float[Array, " obs"]]:
        path_key, hole_key = jax.random.split(key)
        free = self.sample_path(path_key, params)
        shape = (self.max_size, self.max_size)
        holes = jax.random.bernoulli(hole_key, params.hole_probability, shape) & ~free
        state = FrozenLakeState(holes=holes, position=jnp.zeros((2,), jnp.int32))
        return state, self.observe(state, params)

    def step(
        self, key: Key, state: FrozenLakeState, action: Array, params: FrozenLakeParams
    ) -> tuple[FrozenLakeState, TimeStep]:
        slip_key, side_key = jax.random.split(key)
        slips = jax.random.bernoulli(slip_key, params.slip_probability)
        side = jnp.where(jax.random.bernoulli(side_key, jnp.float32(0.5)), 1, 3)
        direction = (action + jnp.where(slips, side, 0)) % len(MOVES)
        position = jnp.clip(state.position + jnp.asarray(MOVES)[direction], 0, params.size - 1)
        after = FrozenLakeState(holes=state.holes, position=position)
        has_arrived = jnp.all(position == params.size - 1)
        return after, TimeStep(
            obs=self.observe(after, params),
            reward=has_arrived.astype(jnp.float32),
            terminated=has_arrived | state.holes[position[0], position[1]],
            truncated=jnp.zeros((), bool),
            info={},
        )

    def sample_path(self, key: Key, params: FrozenLakeParams) -> Bool[Array, "rows columns"]:
        """Sample a shortest path from corner to corner. Consumes the key."""
        steps = jnp.arange(2 * (self.max_size - 1), dtype=jnp.int32)
        is_used = steps < 2 * (params.size - 1)
        draws = jnp.where(is_used, jax.random.uniform(key, steps.shape, jnp.float32), jnp.inf)
        is_down = jnp.argsort(jnp.argsort(draws)) < params.size - 1
        rows = jnp.cumsum(is_down & is_used)
        columns = jnp.cumsum(~is_down & is_used)
        free = jnp.zeros((self.max_size, self.max_size), bool)
        return free.at[0, 0].set(True).at[rows, columns].set(True)

    def observe(self, state: FrozenLakeState, params: FrozenLakeParams) -> Float[Array, " obs"]:
        """Return the observation of a state."""
        width = 2 * VIEW + 1
        row, column = state.position
        padded = jnp.pad(state.holes, VIEW)
        holes = jax.lax.dynamic_slice(padded, (row, column), (width, width))
        offsets = jnp.arange(-VIEW, VIEW + 1, dtype=jnp.int32)
        rows, columns = row + offsets, column + offsets
        is_row = (rows >= 0) & (rows < params.size)
        is_column = (columns >= 0) & (columns < params.size)
        is_inside = is_row[:, None] & is_column[None]
        goal = (params.size - 1 - state.position) / self.max_size
        cells = jnp.stack([holes & is_inside, ~is_inside]).reshape(-1)
        return jnp.concatenate([cells.astype(jnp.float32), goal.astype(jnp.float32)])

    def render(self, state: FrozenLakeState, params: FrozenLakeParams) -> np.ndarray:
        """Render the lake, each cell as a square: ice, holes, the goal and the agent."""
        size = int(params.size)
        cells = np.asarray(state.holes)[:size, :size].astype(np.int32)
        cells[-1, -1] = 2
        cells[tuple(np.asarray(state.position))] = 3
        return COLORS[cells].repeat(CELL_PIXELS, axis=0).repeat(CELL_PIXELS, axis=1)
