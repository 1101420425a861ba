"""Board games for two players in turns, whose boards are words of bits."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool, Int, UInt8, UInt16

from jaxrl.core.struct import pytree
from jaxrl.core.types import Key, PyTree
from jaxrl.envs.base import ResetMode
from jaxrl.envs.classic.raster import Canvas
from jaxrl.envs.multi.base import ALL, Acting, MultiAgentJaxEnv, MultiStart, MultiStep, make_no_ends

PLAYERS: tuple[str, ...] = ("player_0", "player_1")
ILLEGAL_REWARD = -1.0
"""Reward of an illegal move; the other player gets 0, and the game is over."""


@pytree
class BoardParams:
    """Empty: the rules have no parameters."""


@pytree
class BoardState:
    """Stones of who moves next and of the other, as words of bits, and the seat of who moves."""

    stones: Array
    mover: Int[Array, "*batch"]


class BoardGame(MultiAgentJaxEnv[BoardState, BoardParams]):
    """Base class of games in which two players place stones in turns until one has a line.

    A player observes `"obs"`, the board with a channel for its own stones and one for the other's,
    and `"action_mask"`, the moves that the board allows, also when it waits. A line earns its player
    1 and the other -1, a full board 0. An illegal move leaves the board as it is and ends the game
    with -1 for who made it and 0 for the other. A coin decides who begins.
    """

    possible_agents = PLAYERS
    teams: Mapping[str, tuple[str, ...]] = {player: (player,) for player in PLAYERS}
    acting: Acting | None = "some"
    max_acting: int | None = 1
    reset_mode: ResetMode = "every_step"
    render_fps = 1
    num_rows: int
    num_columns: int
    num_moves: int
    words: tuple[int, ...] = ()
    """Shape of one player's words."""
    word_dtype: Any = np.uint16

    @property
    def default_params(self) -> BoardParams:
        return BoardParams()

    def observation_space(self, agent: str, params: BoardParams) -> spaces.Dict:
        board = spaces.Box(0, 1, (self.num_rows, self.num_columns, 2), np.uint8)
        return spaces.Dict({"action_mask": spaces.MultiBinary(self.num_moves), "obs": board})

    def action_space(self, agent: str, params: BoardParams) -> gymnasium.Space[Any]:
        return spaces.Discrete(self.num_moves)

    def reset(self, key: Key, params: BoardParams) -> tuple[BoardState, MultiStart]:
        state = BoardState(
            stones=jnp.zeros((2, *self.words), self.word_dtype),
            mover=jax.random.bernoulli(key, jnp.float32(0.5)).astype(jnp.int32),
        )
        return state, MultiStart(obs=self._observe(state), acts=_find_acting(state))

    def step(
        self, key: Key, state: BoardState, actions: dict[str, PyTree], params: BoardParams
    ) -> tuple[BoardState, MultiStep]:
        """Make the move of whose turn it is."""
        move = jnp.where(state.mover == 0, actions[PLAYERS[0]], actions[PLAYERS[1]])
        occupied = state.stones[0] | state.stones[1]
        stone = self.place(occupied, move)
        own = state.stones[0] | stone
        is_legal = jnp.any(stone != 0)
        has_won = is_legal & self.has_line(own)
        after = BoardState(stones=jnp.stack([state.stones[1], own]), mover=1 - state.mover)
        over = ~is_legal | has_won | ~jnp.any(self.find_moves(occupied | stone))
        won = has_won.astype(jnp.float32)
        pay = jnp.where(is_legal, won, ILLEGAL_REWARD)
        never = make_no_ends(self)
        return after, MultiStep(
            obs=self._observe(after),
            acts=_find_acting(after),
            reward={
                name: jnp.where(state.mover == seat, pay, -won) for seat, name in enumerate(PLAYERS)
            },
            terminated={**never, ALL: over},
            truncated=never,
        )

    def place(self, occupied: Array, move: Int[Array, ""]) -> Array:
        """Return the words of a move's stone, zeros if the move is illegal."""
        raise NotImplementedError(f"{type(self).__name__} does not define place")

    def has_line(self, own: Array) -> Bool[Array, ""]:
        """Return whether a player's stones have a line."""
        raise NotImplementedError(f"{type(self).__name__} does not define has_line")

    def find_moves(self, occupied: Array) -> Bool[Array, " moves"]:
        """Return which moves are legal."""
        raise NotImplementedError(f"{type(self).__name__} does not define find_moves")

    def unpack(self, stones: Array) -> UInt8[Array, "2 rows columns"]:
        """Return both players' words as boards, the top row first."""
        raise NotImplementedError(f"{type(self).__name__} does not define unpack")

    def _observe(self, state: BoardState) -> dict[str, PyTree]:
        mask = self.find_moves(state.stones[0] | state.stones[1]).astype(jnp.int8)
        boards = self.unpack(state.stones)
        seen = {seat: jnp.moveaxis(boards[:: 1 - 2 * seat], 0, -1) for seat in (0, 1)}
        return {
            name: {"action_mask": mask, "obs": jnp.where(state.mover == seat, seen[0], seen[1])}
            for seat, name in enumerate(PLAYERS)
        }

    def find_boards(self, state: BoardState) -> np.ndarray:
        """Return the boards of `player_0` and `player_1` for a picture, `[2, rows, columns]`."""
        boards = np.asarray(self.unpack(state.stones))
        return boards if int(state.mover) == 0 else boards[::-1]


def _find_acting(state: BoardState) -> dict[str, Bool[Array, ""]]:
    return {name: state.mover == seat for seat, name in enumerate(PLAYERS)}


def split_bits(words: Array, number: int) -> Array:
    """Return the lowest bits of words along a new last axis."""
    places = np.arange(number, dtype=words.dtype).reshape((1,) * words.ndim + (number,))
    return (words[..., None] >> places) & 1


SIZE = 3
LINES = (0o007, 0o070, 0o700, 0o111, 0o222, 0o444, 0o421, 0o124)
"""Rows, columns and diagonals as bits of cells, counted from the top left."""
HAS_LINE = np.array([any(w & line == line for line in LINES) for w in range(2 ** (SIZE * SIZE))])
"""Table of the words that have a line."""
SQUARE_PIXELS = 64
SQUARE_COLORS = ((200, 60, 50), (40, 90, 180))
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
        side, boards = SIZE * SQUARE_PIXELS, self.find_boards(state)
        canvas = Canvas(side, side)
        for at in range(SQUARE_PIXELS, side, SQUARE_PIXELS):
            edges = np.array([[0.0, at - 1], [side, at - 1], [side, at + 1], [0.0, at + 1]])
            canvas.fill_polygon(edges, (0, 0, 0))
            canvas.fill_polygon(edges[:, ::-1], (0, 0, 0))
        for player, row, column in np.argwhere(boards):
            center = (np.array([column, SIZE - 1 - row]) + 0.5) * SQUARE_PIXELS
            if player == 0:
                for turn in (1, -1):
                    arm = np.array([[-20.0, -26], [-26, -20], [20, 26], [26, 20]])
                    canvas.fill_polygon(center + arm * np.array([1, turn]), SQUARE_COLORS[0])
            else:
                canvas.fill_circle(center, 24.0, SQUARE_COLORS[1])
                canvas.fill_circle(center, 17.0, (255, 255, 255))
        return canvas.to_uint8()


NUM_ROWS, NUM_COLUMNS = 6, 7
HOLE_PIXELS = 48
FRAME_COLOR = (30, 80, 180)
STONE_COLORS = ((220, 50, 40), (245, 210, 60))
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
        height, width = NUM_ROWS * HOLE_PIXELS, NUM_COLUMNS * HOLE_PIXELS
        boards = self.find_boards(state)
        canvas = Canvas(height, width)
        corners = np.array([[0.0, 0.0], [width, 0], [width, height], [0, height]])
        canvas.fill_polygon(corners, FRAME_COLOR)
        for row, column in np.ndindex(NUM_ROWS, NUM_COLUMNS):
            stones = boards[:, row, column]
            color = STONE_COLORS[int(np.argmax(stones))] if stones.any() else (255, 255, 255)
            center = (np.array([column, NUM_ROWS - 1 - row]) + 0.5) * HOLE_PIXELS
            canvas.fill_circle(center, 20.0, color)
        return canvas.to_uint8()
