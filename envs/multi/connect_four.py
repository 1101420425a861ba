"""Connect Four on a word of bits for each row; lines are found by shifts."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, UInt8

from jaxrl.envs.classic.raster import Canvas
from jaxrl.envs.multi.board import BoardGame, BoardParams, BoardState, split_bits

NUM_ROWS, NUM_COLUMNS = 6, 7
CELL_PIXELS = 48
FRAME_COLOR = (30, 80, 180)
COLORS = ((220, 50, 40), (245, 210, 60))
"""Colors of the stones of `player_0` and of `player_1`."""

Words = UInt8[Array, "6"]
"""A word for each row, the top one first, of which bit x is the cell in column x."""


class ConnectFour(BoardGame):
    """Four in a row, a column or a diagonal of six rows; move x drops a stone in column x."""

    name = "ConnectFour-v0"
    num_rows, num_columns, num_moves = NUM_ROWS, NUM_COLUMNS, NUM_COLUMNS
    words = (NUM_ROWS,)
    word_dtype = np.uint8

    def place(self, occupied: Words, move: Int[Array, ""]) -> Words:
        column = jnp.uint8(1) << move.astype(jnp.uint8)
        is_free = (occupied & column) == 0
        falls_on = jnp.concatenate([is_free[1:], jnp.zeros((1,), bool)])
        return jnp.where(is_free & ~falls_on, column, jnp.uint8(0))

    def has_line(self, own: Words) -> Bool[Array, ""]:
        pairs = own & (own >> 1)
        across = pairs & (pairs >> 2)
        down = own[:3] & own[1:4] & own[2:5] & own[3:]
        rising = own[:3] & (own[1:4] << 1) & (own[2:5] << 2) & (own[3:] << 3)
        falling = own[:3] & (own[1:4] >> 1) & (own[2:5] >> 2) & (own[3:] >> 3)
        return jnp.any(across != 0) | jnp.any((down | rising | falling) != 0)

    def find_moves(self, occupied: Words) -> Bool[Array, " moves"]:
        return split_bits(occupied[0], NUM_COLUMNS) == 0

    def unpack(self, stones: UInt8[Array, "2 6"]) -> UInt8[Array, "2 rows columns"]:
        return split_bits(stones, NUM_COLUMNS)

    def render(self, state: BoardState, params: BoardParams) -> np.ndarray:
        """Render the frame from the front, `[288, 336, 3]`."""
        height, width = NUM_ROWS * CELL_PIXELS, NUM_COLUMNS * CELL_PIXELS
        boards = self.find_boards(state)
        canvas = Canvas(height, width)
        corners = np.array([[0.0, 0.0], [width, 0], [width, height], [0, height]])
        canvas.fill_polygon(corners, FRAME_COLOR)
        for row, column in np.ndindex(NUM_ROWS, NUM_COLUMNS):
            stones = boards[:, row, column]
            color = COLORS[int(np.argmax(stones))] if stones.any() else (255, 255, 255)
            center = (np.array([column, NUM_ROWS - 1 - row]) + 0.5) * CELL_PIXELS
            canvas.fill_circle(center, 20.0, color)
        return canvas.to_uint8()
