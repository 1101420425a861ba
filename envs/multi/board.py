"""Base of board games for two players in turns, whose boards are words of bits."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool, Int, UInt8

from jaxrl.core.struct import pytree
from jaxrl.core.types import Key, PyTree
from jaxrl.envs.base import ResetMode
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
