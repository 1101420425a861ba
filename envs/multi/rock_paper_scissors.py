"""Rock, paper, scissors in rounds, any number of games side by side."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Int

from jaxrl.core.struct import pytree
from jaxrl.core.types import Key, PyTree
from jaxrl.envs.classic.raster import Canvas
from jaxrl.envs.multi.base import (
    ALL,
    MultiAgentJaxEnv,
    MultiStart,
    MultiStep,
    make_flags,
    make_no_ends,
    number_agents,
)
from jaxrl.envs.params import check_count

NUM_MOVES = 3
"""Rock (0), paper (1) and scissors (2); each beats the one before it."""
NO_MOVE = NUM_MOVES
"""Observation before the first round."""
CELL_PIXELS = 96


@pytree
class RockPaperScissorsParams:
    """Empty: the rules have no parameters."""


@pytree
class RockPaperScissorsState:
    """Last move of every player, and the number of rounds played."""

    moves: Int[Array, "*batch players"]
    num_rounds: Int[Array, "*batch"]


class RockPaperScissors(MultiAgentJaxEnv[RockPaperScissorsState, RockPaperScissorsParams]):
    """Games of two who move at once, again and again: 1 for who wins a round, -1 for who loses it.

    A player observes its opponent's last move, and 3 before the first round. With several games,
    `player_0` plays against `player_1`, `player_2` against `player_3`, and so on, so that one module
    can learn from games against several opponents.
    """

    name = "RockPaperScissors-v0"
    render_fps = 1

    def __init__(self, num_rounds: int = 10, num_games: int = 1) -> None:
        """Create the environment.

        Args:
            num_rounds: Rounds of an episode.
            num_games: Games side by side, of two players each.

        Raises:
            EnvError: If one of them is not a positive integer.
        """
        self.num_rounds = check_count("num_rounds", num_rounds)
        self.possible_agents = number_agents("player", 2 * check_count("num_games", num_games))
        self.teams: Mapping[str, tuple[str, ...]] = {p: (p,) for p in self.possible_agents}

    @property
    def default_params(self) -> RockPaperScissorsParams:
        return RockPaperScissorsParams()

    def observation_space(
        self, agent: str, params: RockPaperScissorsParams
    ) -> gymnasium.Space[Any]:
        return spaces.Discrete(NUM_MOVES + 1)

    def action_space(self, agent: str, params: RockPaperScissorsParams) -> gymnasium.Space[Any]:
        return spaces.Discrete(NUM_MOVES)

    def reset(
        self, key: Key, params: RockPaperScissorsParams
    ) -> tuple[RockPaperScissorsState, MultiStart]:
        """Return a game without a move; the key is unused."""
        moves = jnp.full((len(self.possible_agents),), NO_MOVE, jnp.int32)
        state = RockPaperScissorsState(moves=moves, num_rounds=jnp.zeros((), jnp.int32))
        return state, MultiStart(obs=self._by_agent(moves), acts=make_flags(self, value=True))

    def step(
        self,
        key: Key,
        state: RockPaperScissorsState,
        actions: dict[str, PyTree],
        params: RockPaperScissorsParams,
    ) -> tuple[RockPaperScissorsState, MultiStep]:
        """Play one round of every game; the key is unused."""
        moves = jnp.stack([actions[agent] for agent in self.possible_agents]).astype(jnp.int32)
        seen = moves.reshape(-1, 2)[:, ::-1].reshape(-1)
        ahead = (moves - seen) % NUM_MOVES  # 1 beats, 2 is beaten
        reward = jnp.where(ahead == 2, -1, ahead).astype(jnp.float32)
        after = RockPaperScissorsState(moves=moves, num_rounds=state.num_rounds + 1)
        never = make_no_ends(self)
        return after, MultiStep(
            obs=self._by_agent(seen),
            acts=make_flags(self, value=True),
            reward=self._by_agent(reward),
            terminated={**never, ALL: after.num_rounds >= self.num_rounds},
            truncated=never,
        )

    def _by_agent(self, rows: Array) -> dict[str, Array]:
        return {agent: rows[index] for index, agent in enumerate(self.possible_agents)}

    def render(self, state: RockPaperScissorsState, params: RockPaperScissorsParams) -> np.ndarray:
        """Render the last round, `[96 games, 192, 3]`: a row a game, nothing before the first."""
        moves = np.asarray(state.moves).reshape(-1, 2)
        canvas = Canvas(len(moves) * CELL_PIXELS, 2 * CELL_PIXELS)
        for (game, player), move in np.ndenumerate(moves):
            row = len(moves) - 1 - game
            center = (np.array([player, row]) + 0.5) * CELL_PIXELS
            _draw_move(canvas, center, int(move))
        return canvas.to_uint8()


def _draw_move(canvas: Canvas, center: np.ndarray, move: int) -> None:
    """Draw a stone, a sheet or a pair of scissors."""
    if move == 0:
        canvas.fill_circle(center, 28.0, (120, 120, 120))
    elif move == 1:
        corners = np.array([[-22.0, -30.0], [22, -30], [22, 30], [-22, 30]])
        canvas.fill_polygon(center + corners, (70, 130, 200))
    elif move == 2:
        for side in (1, -1):
            blade = np.array([[-14.0, -16], [-8, -18], [18, 34], [14, 36]])
            turn = np.array([side, 1])
            canvas.fill_polygon(center + blade * turn, (200, 60, 50))
            ring = center + np.array([-15.0, -24.0]) * turn
            canvas.fill_circle(ring, 10.0, (200, 60, 50))
            canvas.fill_circle(ring, 5.0, (255, 255, 255))
