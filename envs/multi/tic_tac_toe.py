"""Tic-tac-toe on words of nine bits; whether a word has a line is looked up."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, UInt8, UInt16

from jaxrl.envs.classic.raster import Canvas
from jaxrl.envs.multi.board import BoardGame, BoardParams, BoardState, split_bits

SIZE = 3
LINES = (0o007, 0o070, 0o700, 0o111, 0o222, 0o444, 0o421, 0o124)
"""Rows, columns and diagonals as bits of cells, counted from the top left."""
HAS_LINE = np.array([any(w & line == line for line in LINES) for w in range(2 ** (SIZE * SIZE))])
"""Table of the words that have a line."""
CELL_PIXELS = 64
COLORS = ((200, 60, 50), (40, 90, 180))
"""Colors of the crosses of `player_0` and of the noughts of `player_1`."""


class TicTacToe(BoardGame):
    """Three in a row, a column or a diagonal of nine cells; move i fills cell i, row by row."""

    name = "TicTacToe-v0"
    num_rows, num_columns, num_moves = SIZE, SIZE, SIZE * SIZE

    def place(self, occupied: UInt16[Array, ""], move: Int[Array, ""]) -> UInt16[Array, ""]:
        return (jnp.uint16(1) << move.astype(jnp.uint16)) & ~occupied

    def has_line(self, own: UInt16[Array, ""]) -> Bool[Array, ""]:
        return jnp.asarray(HAS_LINE)[own]

    def find_moves(self, occupied: UInt16[Array, ""]) -> Bool[Array, " moves"]:
        return split_bits(occupied, SIZE * SIZE) == 0

    def unpack(self, stones: UInt16[Array, " 2"]) -> UInt8[Array, "2 rows columns"]:
        return split_bits(stones, SIZE * SIZE).astype(jnp.uint8).reshape(2, SIZE, SIZE)

    def render(self, state: BoardState, params: BoardParams) -> np.ndarray:
        """Render crosses of `player_0` and noughts of `player_1`, `[192, 192, 3]`."""
        side, boards = SIZE * CELL_PIXELS, self.find_boards(state)
        canvas = Canvas(side, side)
        for at in range(CELL_PIXELS, side, CELL_PIXELS):
            edges = np.array([[0.0, at - 1], [side, at - 1], [side, at + 1], [0.0, at + 1]])
            canvas.fill_polygon(edges, (0, 0, 0))
            canvas.fill_polygon(edges[:, ::-1], (0, 0, 0))
        for player, row, column in np.argwhere(boards):
            center = (np.array([column, SIZE - 1 - row]) + 0.5) * CELL_PIXELS
            if player == 0:
                for turn in (1, -1):
                    arm = np.array([[-20.0, -26], [-26, -20], [20, 26], [26, 20]])
                    canvas.fill_polygon(center + arm * np.array([1, turn]), COLORS[0])
            else:
                canvas.fill_circle(center, 24.0, COLORS[1])
                canvas.fill_circle(center, 17.0, (255, 255, 255))
        return canvas.to_uint8()
