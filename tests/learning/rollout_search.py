"""Plain MCTS with random rollouts (Coulom 2006), as an opponent at games of two in turns.

Its priors are uniform and its values are the results of moves at random to the end of the game, so that it
shares nothing with a policy but the rules.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import mctx
import numpy as np

from jaxrl.core.spaces import STATE
from jaxrl.core.types import PyTree
from jaxrl.envs.model import find_mover, with_state
from jaxrl.envs.multi.base import ALL
from jaxrl.envs.registry import make_multi
from jaxrl.policy.inference import ActionRequest

EXPLORATION = 4.0
"""Weight of the uniform priors among what is visited next; values are scaled to [0, 1]."""


def play_rollout_search(
    policy: Any, env: str, *, num_rollouts: int, num_games: int, first: bool, seed: int = 0
) -> float:
    """Return a policy's share of points, without exploration, after a first move at random.

    Args:
        policy: Policy of one observation at a time.
        env: Game of two in turns, whose observations have an `action_mask`.
        num_rollouts: Number of rollouts of each move of the opponent.
        num_games: Number of games, which are played side by side.
        first: Whether the policy has the first move, the one at random.
        seed: Seed of the games.
    """
    made = make_multi(env)
    made = with_state(made) if STATE in policy.observation_space.spaces else made
    game, agents, params = made.env, made.env.possible_agents, made.params
    search = make_rollout_search(game, params, num_rollouts)
    key, reset_key = jax.random.split(jax.random.key(seed))
    # Who begins is drawn: the same in all games.
    state, start = jax.vmap(lambda key: game.reset(key, params))(
        jnp.broadcast_to(reset_key, (num_games,))
    )
    move = jax.jit(
        jax.vmap(lambda key, state, a: game.step(key, state, dict.fromkeys(agents, a), params))
    )
    mover = int(find_mover(agents, jax.tree.map(lambda x: x[0], start.acts)))
    seat = mover if first else 1 - mover
    obs, is_over, points = start.obs, np.zeros(num_games, bool), np.zeros(num_games)
    rng, is_first_move = np.random.default_rng(seed), True
    while not is_over.all():
        key, search_key, move_key = jax.random.split(key, 3)
        seen = jax.device_get(obs[agents[mover]])
        legal = seen["action_mask"].astype(bool) | is_over[:, None]
        if is_first_move:
            actions = np.asarray([rng.choice(np.flatnonzero(row)) for row in legal])
        elif mover == seat:
            rows = [jax.tree.map(lambda x, i=i: x[i], seen) for i in range(num_games)]
            request = ActionRequest(observations=rows, explore=False)
            actions = np.asarray(policy.compute(request)[0])
        else:
            movers = np.full(num_games, mover, np.int32)
            actions = np.asarray(search(search_key, state, legal, movers, is_over))
        keys = jax.random.split(move_key, num_games)
        state, step = move(keys, state, jnp.asarray(actions, jnp.int32))
        ends = np.asarray(step.terminated[ALL]) & ~is_over
        points[ends] = (np.sign(np.asarray(step.reward[agents[seat]])[ends]) + 1.0) / 2.0
        is_over, obs = is_over | ends, step.obs
        mover, is_first_move = 1 - mover, False
    return float(points.mean())


def make_rollout_search(game: Any, params: PyTree, num_rollouts: int) -> Callable[..., Any]:
    """Make the search: from states, legal moves, movers and whether games are over `[B]`, to moves."""
    agents = game.possible_agents

    def step(key: Any, state: PyTree, action: Any) -> tuple[Any, ...]:
        state, after = game.step(key, state, dict.fromkeys(agents, action), params)
        mover = find_mover(agents, after.acts)
        legal = jnp.stack([after.obs[agent]["action_mask"] for agent in agents])[mover] > 0
        reward = jnp.stack([after.reward[agent] for agent in agents])
        return state, legal, mover, after.terminated[ALL], reward

    def finish(key: Any, state: PyTree, legal: Any, mover: Any, is_over: Any) -> Any:
        """Return what moves at random to the end bring to who is to move."""

        def play(carry: tuple[Any, ...]) -> tuple[Any, ...]:
            key, state, legal, _, total = carry
            key, action_key, step_key = jax.random.split(key, 3)
            action = jax.random.categorical(action_key, jnp.where(legal, 0.0, -jnp.inf))
            state, legal, _, is_over, reward = step(step_key, state, action)
            return key, state, legal, is_over, total + reward[mover]

        start = (key, state, legal, is_over, jnp.float32(0.0))
        return jax.lax.while_loop(lambda carry: ~carry[3], play, start)[4]

    def imagine(_: Any, raw: Any, action: Any, node: tuple[Any, ...]) -> tuple[Any, Any]:
        def one(key: Any, action: Any, node: tuple[Any, ...]) -> tuple[Any, Any]:
            step_key, finish_key = jax.random.split(key)
            state, _, mover, was_over = node
            state, legal, next_mover, is_over, reward = step(step_key, state, action)
            is_over = is_over | was_over
            legal = legal | is_over
            value = finish(finish_key, state, legal, next_mover, is_over)
            sign = jnp.where(next_mover == mover, 1.0, -1.0)
            out = mctx.RecurrentFnOutput(
                reward=jnp.where(was_over, 0.0, reward[mover]),
                discount=jnp.where(is_over, 0.0, sign),
                prior_logits=jnp.where(legal, 0.0, -1e9),
                value=jnp.where(is_over, 0.0, value),
            )
            return out, (state, legal, next_mover, is_over)

        keys = jax.random.split(jax.random.wrap_key_data(raw), action.shape[0])
        return jax.vmap(one)(keys, action, node)

    def search(key: Any, state: PyTree, legal: Any, mover: Any, is_over: Any) -> Any:
        finish_key, search_key = jax.random.split(key)
        keys = jax.random.split(finish_key, mover.shape[0])
        root = mctx.RootFnOutput(
            prior_logits=jnp.where(legal, 0.0, -1e9),
            value=jax.vmap(finish)(keys, state, legal, mover, is_over),
            embedding=(state, legal, mover, is_over),
        )
        found = mctx.muzero_policy(
            {},
            jax.random.key_data(search_key),
            root,
            imagine,
            num_rollouts,
            invalid_actions=~legal,
            dirichlet_fraction=0.0,
            temperature=0.0,
            pb_c_init=EXPLORATION,
            qtransform=lambda tree, node: (tree.qvalues(node) + 1.0) / 2.0,
        )
        return found.action

    return jax.jit(search)
