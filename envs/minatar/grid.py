"""What MinAtar's games share: a 10 x 10 grid of bits, pictures, sticky actions, random draws.

A board is ten words, one a row, of which bit x is the cell in column x. So everything on a board
moves by one shift, meets everything on another by one `&`, and is drawn by ten shifts.
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
"""Rows and columns of the grid."""
CELL_PIXELS = 16
"""Width and height of a cell in a picture."""

Board: TypeAlias = UInt16[Array, "*batch 10"]
Rows: TypeAlias = UInt16[Array, "*batch"]
Image: TypeAlias = UInt8[Array, "10 10 channels"]

_FULL_ROW = np.uint16(2**SIZE - 1)


class GridGame(JaxEnv[StateT, ParamsT]):
    """A game seen as a 10 x 10 image of zeros and ones, a channel for each kind of thing."""

    num_actions: int
    channels: tuple[str, ...]
    reset_mode: ResetMode = "on_demand"
    render_fps = 10

    def observation_space(self, params: ParamsT) -> gymnasium.spaces.Box:
        return gymnasium.spaces.Box(0, 1, (SIZE, SIZE, len(self.channels)), np.uint8)

    def action_space(self, params: ParamsT) -> gymnasium.Space[Any]:
        return gymnasium.spaces.Discrete(self.num_actions)

    def observe(self, state: StateT, params: ParamsT) -> Image:
        """The image of a state."""
        raise NotImplementedError(f"{type(self).__name__} does not define observe")

    def render(self, state: StateT, params: ParamsT) -> np.ndarray:
        """`[160, 160, 3]`: each cell in its channel's colour, later channels over earlier ones."""
        obs = np.asarray(self.observe(state, params))
        number = np.max(obs * np.arange(1, obs.shape[-1] + 1)[None, None], axis=-1)
        hue = 2 * np.pi * np.arange(obs.shape[-1])[:, None] / obs.shape[-1]
        colours = 140 + 110 * np.cos(hue - np.array([0.0, 2.0, 4.0])[None] * np.pi / 3)
        palette = np.concatenate([np.zeros((1, 3)), colours]).astype(np.uint8)
        return palette[number].repeat(CELL_PIXELS, axis=0).repeat(CELL_PIXELS, axis=1)


def draw_words(key: Key, number: int) -> UInt32[Array, " number"]:
    """All the randomness of a step. Consumes the key."""
    return jax.random.bits(key, (number,), jnp.uint32)


def one_of(word: UInt32[Array, "*batch"], number: int | Int[Array, ""]) -> Int[Array, "*batch"]:
    """0 to number - 1 out of the low 16 bits of a word; the odds are even to one in 65,536."""
    return (((word & 0xFFFF) * jnp.uint32(number)) >> 16).astype(jnp.int32)


def sticky(
    word: UInt32[Array, ""],
    action: Int[Array, ""],
    last_action: Int[Array, ""],
    prob: Float[Array, ""],
) -> Int[Array, ""]:
    """The last action again with this probability, out of the high 16 bits of a word.

    As in the published games it is the last action that was carried out, but an episode begins
    with 0; there it begins with the last episode's.
    """
    drawn = (word >> 16).astype(jnp.float32) * np.float32(2.0**-16)
    return jnp.where(drawn < prob, last_action, action.astype(jnp.int32))


def bit(x: Int[Array, "*batch"]) -> Rows:
    """Column x of a row; nothing if x is outside."""
    inside = (x >= 0) & (x < SIZE)
    column = jnp.where(inside, x, 0).astype(jnp.uint16)
    return jnp.where(inside, jnp.uint16(1) << column, jnp.uint16(0))


def cell(x: Int[Array, ""], y: Int[Array, ""]) -> Board:
    """A board with one cell set; none if x or y is outside."""
    return jnp.where(np.arange(SIZE) == y, bit(x), jnp.uint16(0))


def moved_right(rows: Rows) -> Rows:
    """Everything one column on; what leaves the grid is gone."""
    return (rows << 1) & _FULL_ROW


def moved_left(rows: Rows) -> Rows:
    """Everything one column back; what leaves the grid is gone."""
    return rows >> 1


def union(rows: Rows) -> Rows:
    """All rows of the first axis laid over one another: few, so that no loop is made of them."""
    return functools.reduce(operator.or_, rows)


def count_bits(rows: Rows) -> Int[Array, ""]:
    """The number of set cells."""
    return jnp.sum(jax.lax.population_count(rows), dtype=jnp.int32)


def any_bit(board: Rows) -> Bool[Array, ""]:
    """Whether any cell is set."""
    return jnp.any(board != 0)


def image(*boards: Board) -> Image:
    """The observation of which each board is a channel."""
    rows = jnp.stack(boards, axis=-1)
    first, last = (rows & 0xFF).astype(jnp.uint8), (rows >> 8).astype(jnp.uint8)
    return jnp.concatenate([_columns(first, 8), _columns(last, SIZE - 8)], axis=1)


def _columns(rows: UInt8[Array, "10 channels"], number: int) -> UInt8[Array, "10 number channels"]:
    return (rows[:, None] >> np.arange(number, dtype=np.uint8)[None, :, None]) & 1


def time_step(obs: Image, reward: Array, terminated: Bool[Array, ""]) -> TimeStep:
    """A transition of a game, which only its time limit truncates."""
    return TimeStep(
        obs=obs,
        reward=reward.astype(jnp.float32),
        terminated=terminated,
        truncated=jnp.zeros((), bool),
        info={},
    )
