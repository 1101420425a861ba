"""Small cooperative games of two, given by tables of what both are paid."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Float, Int

from jaxrl.core.struct import pytree
from jaxrl.core.types import Key, PyTree
from jaxrl.envs.multi.base import (
    ALL,
    MultiAgentJaxEnv,
    MultiStart,
    MultiStep,
    make_flags,
    make_no_ends,
)

AGENTS: tuple[str, ...] = ("agent_0", "agent_1")
CELL_PIXELS = 48
LOW_COLOR, ZERO_COLOR, HIGH_COLOR = (200, 60, 50), (255, 255, 255), (60, 160, 60)
"""Colors of the lowest payoff, of 0 and of the highest one; others are between."""


@pytree
class MatrixGameParams:
    """Empty: the tables are fixed."""


@pytree
class MatrixGameState:
    """Number of the table that is played."""

    table: Int[Array, "*batch"]


class MatrixGame(MultiAgentJaxEnv[MatrixGameState, MatrixGameParams]):
    """Base class of games whose every move is an entry of a table, and the first agent's the next.

    Both agents are paid the entry at their actions, and both observe which table it is, one-hot,
    which is also the global state.
    """

    possible_agents = AGENTS
    teams: Mapping[str, tuple[str, ...]] = {"both": AGENTS}
    render_fps = 1
    payoffs: np.ndarray
    """Payoffs `[tables, actions of agent_0, actions of agent_1]`; the first table is the start."""
    following: np.ndarray
    """Table after each action of `agent_0`, `[tables, actions]`; -1 is the end."""

    @property
    def default_params(self) -> MatrixGameParams:
        return MatrixGameParams()

    def observation_space(self, agent: str, params: MatrixGameParams) -> gymnasium.Space[Any]:
        return self.state_space(params)

    def action_space(self, agent: str, params: MatrixGameParams) -> gymnasium.Space[Any]:
        return spaces.Discrete(self.payoffs.shape[1])

    def state_space(self, params: MatrixGameParams) -> spaces.Box:
        return spaces.Box(0.0, 1.0, (len(self.payoffs),), np.float32)

    def reset(self, key: Key, params: MatrixGameParams) -> tuple[MatrixGameState, MultiStart]:
        """Return the first table; the key is unused."""
        state = MatrixGameState(table=jnp.zeros((), jnp.int32))
        return state, MultiStart(obs=self._observe(state), acts=make_flags(self, value=True))

    def step(
        self,
        key: Key,
        state: MatrixGameState,
        actions: dict[str, PyTree],
        params: MatrixGameParams,
    ) -> tuple[MatrixGameState, MultiStep]:
        """Pay both, and go to the next table; the key is unused."""
        one, other = actions[AGENTS[0]], actions[AGENTS[1]]
        pay = jnp.asarray(self.payoffs, jnp.float32)[state.table, one, other]
        table = jnp.asarray(self.following, jnp.int32)[state.table, one]
        after = MatrixGameState(table=jnp.where(table < 0, state.table, table))
        never = make_no_ends(self)
        return after, MultiStep(
            obs=self._observe(after),
            acts=make_flags(self, value=True),
            reward=_both(pay),
            terminated={**never, ALL: table < 0},
            truncated=never,
        )

    def global_state(
        self, state: MatrixGameState, params: MatrixGameParams
    ) -> Float[Array, " tables"]:
        """Return which table is played, one-hot."""
        return jax.nn.one_hot(state.table, len(self.payoffs), dtype=jnp.float32)

    def _observe(self, state: MatrixGameState) -> dict[str, PyTree]:
        return _both(self.global_state(state, MatrixGameParams()))

    def render(self, state: MatrixGameState, params: MatrixGameParams) -> np.ndarray:
        """Render the table: a row an action of `agent_0`, red below 0 and green above."""
        table = self.payoffs[int(state.table)]
        share = (table / np.abs(self.payoffs).max())[..., None]
        ends = np.where(share < 0, np.array(LOW_COLOR), np.array(HIGH_COLOR))
        cells = np.array(ZERO_COLOR) + np.abs(share) * (ends - np.array(ZERO_COLOR))
        picture = cells.round().astype(np.uint8)
        return picture.repeat(CELL_PIXELS, axis=0).repeat(CELL_PIXELS, axis=1)


def _both(value: Any) -> dict[str, Any]:
    return dict.fromkeys(AGENTS, value)


def _make_branches(risky: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return tables and what follows them, if the first agent chooses a table of 7 or a risky one."""
    number = len(risky)
    payoffs = np.stack([np.zeros_like(risky), np.full_like(risky, 7.0), risky])
    chosen = 1 + (np.arange(number) >= number // 2)
    return payoffs, np.stack([chosen, np.full(number, -1), np.full(number, -1)])


class TwoStep(MatrixGame):
    """The two-step game of Rashid et al. 2018, QMIX, section 5.

    In the first step, `agent_0` chooses by action 0 the table where both are paid 7 whatever they do,
    or by action 1 the table `[[0, 1], [1, 8]]`. Values that are sums over agents (VDN) end at 7.
    """

    name = "TwoStep-v0"
    payoffs, following = _make_branches(np.array([[0.0, 1.0], [1.0, 8.0]]))


class TwoStepAnd(MatrixGame):
    """The two-step game with four actions, of which both must take the last to be paid 8, not 0.

    Actions 0 and 1 of `agent_0` choose the table of 7, and 2 and 3 the other. The risky table is worth
    1/2 to who acts at random, so that learners that are independent leave it alone.
    """

    name = "TwoStepAnd-v0"
    payoffs, following = _make_branches(np.pad(np.array([[8.0]]), ((3, 0), (3, 0))))


class Climb(MatrixGame):
    """The climbing game of Claus & Boutilier 1998, figure 3: one move with heavy penalties.

    The best joint action (0, 0) pays 11, but costs 30 where only one of both takes it.
    """

    name = "Climb-v0"
    payoffs = np.array([[[11.0, -30.0, 0.0], [-30.0, 7.0, 6.0], [0.0, 0.0, 5.0]]])
    following = np.full((1, 3), -1)
