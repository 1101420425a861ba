"""Games of a trained module against random moves, and against the perfect player of TicTacToe."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import Algorithm
from jaxrl.envs import make_multi
from jaxrl.envs.multi.board import PLAYERS

Opponent = Callable[[np.random.Generator, Any], np.ndarray]
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


def choose_random(rng: np.random.Generator, seen: Any) -> np.ndarray:
    """A random legal move for every observation."""
    mask = seen["action_mask"]
    return (rng.random(mask.shape) + mask).argmax(axis=1)


@functools.cache
def score(own: frozenset[int], other: frozenset[int]) -> int:
    """Outcome for who is to move, if both play perfectly: 1, 0 or -1."""
    if any(other.issuperset(line) for line in LINES):
        return -1
    free = set(range(9)) - own - other
    return max((-score(other, own | {move}) for move in free), default=0)


def choose_perfectly(rng: np.random.Generator, seen: Any) -> np.ndarray:
    """One of the best moves of TicTacToe for every observation, by complete search."""
    boards = np.asarray(seen["obs"]).reshape(-1, 9, 2)
    moves = np.zeros(len(boards), int)
    for i, board in enumerate(boards):
        own, other = (frozenset(np.flatnonzero(board[:, side]).tolist()) for side in (0, 1))
        free = sorted(set(range(9)) - own - other)
        if not free or any(line for line in LINES if {*line} <= own or {*line} <= other):
            continue  # the game is over
        values = [-score(other, own | {move}) for move in free]
        moves[i] = rng.choice([m for m, v in zip(free, values, strict=True) if v == max(values)])
    return moves


def play(
    algorithm: Algorithm,
    name: str,
    *,
    number: int,
    begins: bool,
    policy_id: str,
    opponent: Opponent = choose_random,
    seed: int = 0,
) -> dict[str, float]:
    """Shares of won, drawn and lost games of a module's most likely moves against an opponent's.

    Args:
        algorithm: Run of the module.
        name: Id of a board game.
        number: Number of games.
        begins: Whether the module moves first.
        policy_id: Id of the module.
        opponent: Function that chooses the other moves.
        seed: Seed of them.
    """
    env, rng = make_multi(name).env, np.random.default_rng(seed)
    keys = jax.random.split(jax.random.key(seed), number)
    state, start = jax.jit(jax.vmap(env.reset, (0, None)))(keys, None)
    obs, first = jax.device_get(start.obs), np.asarray(state.mover)
    own_seat = first if begins else 1 - first
    step_env = jax.jit(jax.vmap(env.step, (None, 0, 0, None)))
    live, earned, mover = np.ones(number, bool), np.zeros(number), first
    while live.any():
        seen = jax.tree.map(
            lambda x, y, m=mover: np.where(m.reshape((-1,) + (1,) * (x.ndim - 1)) == 0, x, y),
            *(obs[player] for player in PLAYERS),
        )
        rows = [jax.tree.map(lambda x, n=n: x[n], seen) for n in range(number)]
        chosen = algorithm.compute_actions(rows, policy_id=policy_id, explore=False)
        answer = opponent(rng, seen)
        move = jnp.asarray(np.where(mover == own_seat, chosen, answer), jnp.int32)
        state, step = step_env(jax.random.key(0), state, dict.fromkeys(PLAYERS, move), None)
        step = jax.device_get(step)
        reward = np.where(own_seat == 0, step.reward[PLAYERS[0]], step.reward[PLAYERS[1]])
        earned += np.where(live, reward, 0.0)
        live = live & ~step.terminated["__all__"]
        obs, mover = step.obs, 1 - mover
    return {
        "won": float((earned > 0).mean()),
        "drawn": float((earned == 0).mean()),
        "lost": float((earned < 0).mean()),
    }
