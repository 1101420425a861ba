"""Exhaustive test of a policy for a small game of two in turns: every reply of its opponent."""

import dataclasses

import jax
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Int

from jaxrl.core.keys import make_key
from jaxrl.core.spaces import STATE
from jaxrl.core.types import PyTree
from jaxrl.envs.model import find_mover, with_state
from jaxrl.envs.multi.base import ALL
from jaxrl.envs.registry import EnvSpec, make_multi
from jaxrl.errors import EnvError
from jaxrl.policy.inference import ActionRequest
from jaxrl.policy.policy import Policy


@dataclasses.dataclass(frozen=True)
class Replies:
    """Ends of all games of a policy against every reply, as one of the players.

    Attributes:
        lines: Number of games, which differ in the opponent's moves.
        lost: Number of those that the policy lost.
        drawn: Number of those that nobody won.
    """

    lines: int
    lost: int
    drawn: int


def play_all_replies(
    policy: Policy, env: EnvSpec, *, first: bool, seed: int = 0, max_lines: int = 100_000
) -> Replies:
    """Play a policy without exploration against every sequence of legal replies.

    Args:
        policy: Policy of one observation at a time, the same for both players.
        env: Game of two in turns, whose observations have an `action_mask`.
        first: Whether the policy has the first move.
        seed: Seed of the game's start and of its chance moves.
        max_lines: Number of open games at which the test gives up.

    Raises:
        EnvError: If there are more games than `max_lines`, or the game has no mask.
    """
    made = make_multi(env)
    space = policy.observation_space
    if isinstance(space, spaces.Dict) and STATE in space.spaces:
        made = with_state(made)
    agents, game = made.env.possible_agents, made.env
    state, start = game.reset(make_key(seed), made.params)
    if "action_mask" not in start.obs[agents[0]]:
        raise EnvError(f"{made.id} has no 'action_mask' that says which replies are legal.")

    @jax.jit
    @jax.vmap
    def move(state: PyTree, action: Int[Array, ""]) -> tuple[PyTree, ...]:
        state, step = game.step(make_key(seed), state, dict.fromkeys(agents, action), made.params)
        rewards = jax.numpy.stack([step.reward[agent] for agent in agents])
        return state, step.obs, find_mover(agents, step.acts), rewards, step.terminated[ALL]

    def grow(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda x: np.asarray(x)[None], tree)

    mover = grow(find_mover(agents, start.acts))
    seat = int(mover[0]) if first else 1 - int(mover[0])
    states, obs = grow(state), grow(start.obs)
    lines = lost = drawn = 0
    while (number := len(mover)) > 0:
        if number > max_lines:
            raise EnvError(f"{made.id} has more than {max_lines} lines of replies.")
        seen = [jax.tree.map(lambda x, i=i: x[i], obs[agents[who]]) for i, who in enumerate(mover)]
        rows: list[int] = []
        actions: list[int] = []
        own = [i for i, who in enumerate(mover) if who == seat]
        if own:
            wanted = [seen[i] for i in own]
            size = 1 << (len(wanted) - 1).bit_length()
            request = ActionRequest(
                observations=wanted + wanted[:1] * (size - len(wanted)), explore=False
            )
            chosen = np.asarray(policy.compute(request)[0])[: len(own)]
            rows += own
            actions += [int(action) for action in chosen]
        for i, who in enumerate(mover):
            if who != seat:
                legal = np.flatnonzero(seen[i]["action_mask"])
                rows += [i] * len(legal)
                actions += [int(action) for action in legal]
        size = 1 << (len(rows) - 1).bit_length()
        index = np.resize(np.asarray(rows, np.int32), size)
        taken = np.resize(np.asarray(actions, np.int32), size)
        before = jax.tree.map(lambda x, index=index: x[index], states)
        after = jax.device_get(move(before, taken))
        count = len(rows)
        states, obs, mover, rewards, over = jax.tree.map(
            lambda x, count=count: np.asarray(x)[:count], after
        )
        ends = rewards[over, seat]
        lines, lost, drawn = (
            lines + len(ends),
            lost + int((ends < 0).sum()),
            drawn + int((ends == 0).sum()),
        )
        states, obs, mover = jax.tree.map(lambda x, over=over: x[~over], (states, obs, mover))
    return Replies(lines=lines, lost=lost, drawn=drawn)
