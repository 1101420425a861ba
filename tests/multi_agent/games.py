"""Games of a trained module against random moves."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import Algorithm
from jaxrl.envs import make_multi
from jaxrl.envs.multi.board import PLAYERS


def play_random(
    algorithm: Algorithm, name: str, *, number: int, begins: bool, policy_id: str, seed: int = 0
) -> dict[str, float]:
    """Shares of won, drawn and lost games of a module's most likely moves against random ones.

    Args:
        algorithm: Run of the module.
        name: Id of a board game.
        number: Number of games.
        begins: Whether the module moves first.
        policy_id: Id of the module.
        seed: Seed of the random moves.
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
        mask = seen["action_mask"]
        rows = [jax.tree.map(lambda x, n=n: x[n], seen) for n in range(number)]
        chosen = algorithm.compute_actions(rows, policy_id=policy_id, explore=False)
        random = (rng.random(mask.shape) + mask).argmax(axis=1)
        move = jnp.asarray(np.where(mover == own_seat, chosen, random), jnp.int32)
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
