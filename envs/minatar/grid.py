"""Base of the MinAtar games: a 10 x 10 grid of bits, images, sticky actions, random draws.

A board is ten words, one per row, of which bit x is the cell in column x. So everything on a board
moves by one shift, is intersected with another board by one `&`, and is rendered by ten shifts.
"""

import functools
import operator
from typing import Any, TypeAlias

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt8, UInt16, UInt32

from jaxrl.core.types import Key, TimeStep
from jaxrl.envs.base import JaxEnv, ParamsT, ResetMode, StateT

SIZE = 10
"""Number of rows and columns of the grid."""
CELL_PIXELS = 16
"""Width and height in pixels of a rendered cell."""

Board: TypeAlias = UInt16[Array, "*batch 10"]
Rows: TypeAlias = UInt16[Array, "*batch"]
Image: TypeAlias = UInt8[Array, "10 10 channels"]

_FULL_ROW = np.uint16(2**SIZE - 1)


class GridGame(JaxEnv[StateT, ParamsT]):
    """Base class of games observed as a 10 x 10 binary image with a channel per kind of object."""

    num_actions: int
    channels: tuple[str, ...]
    reset_mode: ResetMode = "on_demand"
    render_fps = 10

    def observation_space(self, params: ParamsT) -> gymnasium.spaces.Box:
        return gymnasium.spaces.Box(0, 1, (SIZE, SIZE, len(self.channels)), np.uint8)

    def action_space(self, params: ParamsT) -> gymnasium.Space[Any]:
        return gymnasium.spaces.Discrete(self.num_actions)

    def observe(self, state: StateT, params: ParamsT) -> Image:
        """Return the image of a state."""
        raise NotImplementedError(f"{type(self).__name__} does not define observe")

    def render(self, state: StateT, params: ParamsT) -> np.ndarray:
        """Render `[160, 160, 3]`: each cell in its channel's color, later channels on top."""
        obs = np.asarray(self.observe(state, params))
        number = np.max(obs * np.arange(1, obs.shape[-1] + 1)[None, None], axis=-1)
        hue = 2 * np.pi * np.arange(obs.shape[-1])[:, None] / obs.shape[-1]
        colors = 140 + 110 * np.cos(hue - np.array([0.0, 2.0, 4.0])[None] * np.pi / 3)
        palette = np.concatenate([np.zeros((1, 3)), colors]).astype(np.uint8)
        return palette[number].repeat(CELL_PIXELS, axis=0).repeat(CELL_PIXELS, axis=1)


def draw_words(key: Key, number: int) -> UInt32[Array, " number"]:
    """Draw all random words of a step. Consumes the key."""
    return jax.random.bits(key, (number,), jnp.uint32)


def uniform_int(
    word: UInt32[Array, "*batch"], number: int | Int[Array, ""]
) -> Int[Array, "*batch"]:
    """Return a number from 0 to `number` - 1, from the low 16 bits of a word.

    The probabilities are equal up to one in 65,536.
    """
    return (((word & 0xFFFF) * jnp.uint32(number)) >> 16).astype(jnp.int32)


def apply_sticky_action(
    word: UInt32[Array, ""],
    action: Int[Array, ""],
    last_action: Int[Array, ""],
    prob: Float[Array, ""],
) -> Int[Array, ""]:
    """Repeat the last action with probability `prob`, from the high 16 bits of a word.

    The last action is the last one executed, as in the published games; but an episode starts with
    0, while there it starts with the previous episode's last action.
    """
    drawn = (word >> 16).astype(jnp.float32) * np.float32(2.0**-16)
    return jnp.where(drawn < prob, last_action, action.astype(jnp.int32))


def bit(x: Int[Array, "*batch"]) -> Rows:
    """Return a row with column x set, an empty one if x is outside."""
    inside = (x >= 0) & (x < SIZE)
    column = jnp.where(inside, x, 0).astype(jnp.uint16)
    return jnp.where(inside, jnp.uint16(1) << column, jnp.uint16(0))


def cell(x: Int[Array, ""], y: Int[Array, ""]) -> Board:
    """Return a board with one cell set, an empty one if x or y is outside."""
    return jnp.where(np.arange(SIZE) == y, bit(x), jnp.uint16(0))


def shift_right(rows: Rows) -> Rows:
    """Shift every cell one column to the right, off the grid at the edge."""
    return (rows << 1) & _FULL_ROW


def shift_left(rows: Rows) -> Rows:
    """Shift every cell one column to the left, off the grid at the edge."""
    return rows >> 1


def union(rows: UInt16[Array, " number *batch"]) -> Rows:
    """Combine the rows along the first, short axis by OR; unrolled to avoid a loop in XLA."""
    return functools.reduce(operator.or_, rows)


def count_bits(rows: Rows) -> Int[Array, ""]:
    """Count the cells that are set."""
    return jnp.sum(jax.lax.population_count(rows), dtype=jnp.int32)


def has_any_bit(board: Rows) -> Bool[Array, ""]:
    """Return whether any cell is set."""
    return jnp.any(board != 0)


def stack_boards(*boards: Board) -> Image:
    """Stack boards as the channels of an observation."""
    rows = jnp.stack(boards, axis=-1)
    first, last = (rows & 0xFF).astype(jnp.uint8), (rows >> 8).astype(jnp.uint8)
    return jnp.concatenate([_columns(first, 8), _columns(last, SIZE - 8)], axis=1)


def _columns(rows: UInt8[Array, "10 channels"], number: int) -> UInt8[Array, "10 number channels"]:
    return (rows[:, None] >> np.arange(number, dtype=np.uint8)[None, :, None]) & 1


def make_time_step(obs: Image, reward: Array, terminated: Bool[Array, ""]) -> TimeStep:
    """Return a transition of a game; only the time limit truncates."""
    return TimeStep(
        obs=obs,
        reward=reward.astype(jnp.float32),
        terminated=terminated,
        truncated=jnp.zeros((), bool),
        info={},
    )
