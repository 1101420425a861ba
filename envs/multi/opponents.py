"""Opponents written by hand, as modules that play beside those that are trained."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jaxrl.core.types import Key, PyTree
from jaxrl.envs.multi.rock_paper_scissors import NO_MOVE, NUM_MOVES
from jaxrl.modules.scripted import HeuristicRLModule


class AlwaysSame(HeuristicRLModule):
    """Player of rock, paper, scissors with one random move in every round of an episode.

    RLlib's `AlwaysSameHeuristicRLM`.
    """

    def initial_carry(self, batch_size: int) -> Int[Array, " B"]:
        """Return that no move was drawn yet."""
        return jnp.full((batch_size,), NO_MOVE, jnp.int32)

    def act(self, obs: PyTree, carry: PyTree, key: Key) -> tuple[PyTree, PyTree]:
        move = jnp.where(
            carry == NO_MOVE, jax.random.randint(key, (), 0, NUM_MOVES, jnp.int32), carry
        )
        return move, move


class BeatLast(HeuristicRLModule):
    """Player of rock, paper, scissors with what beats its opponent's last move; the first is random.

    RLlib's `BeatLastHeuristicRLM`.
    """

    def act(self, obs: PyTree, carry: PyTree, key: Key) -> tuple[PyTree, PyTree]:
        last = jnp.argmax(obs)  # modules see a Discrete space one-hot
        first = jax.random.randint(key, (), 0, NUM_MOVES, jnp.int32)
        return jnp.where(last == NO_MOVE, first, (last + 1) % NUM_MOVES).astype(jnp.int32), carry
