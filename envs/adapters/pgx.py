"""Games of pgx as environments of several agents (https://github.com/sotetsuk/pgx).

`pgx:connect_four` and every other id of `pgx.available_envs()`; `env_config` has the arguments of
`pgx.make`.
"""

import importlib
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.core.types import Key, PyTree, strip_weak_types
from jaxrl.envs.adapters.suite_env import call_package
from jaxrl.envs.multi.base import ALL, Acting, MultiAgentJaxEnv, MultiStart, MultiStep, make_no_ends

HIDDEN = (
    *("bridge_bidding", "kuhn_poker", "leduc_holdem"),
    *("sparrow_mahjong", "red_mahjong", "no_red_mahjong"),
)
"""Games with cards or tiles that the other players do not see."""


class PgxEnv(MultiAgentJaxEnv[Any, None]):
    """A game of pgx, whose players are the agents `player_0`, `player_1`, ...

    The player whose turn it is acts; its observation is a dictionary with the game's array under
    "obs" (booleans as uint8) and the legal actions under "action_mask". An illegal action ends the
    game, with pgx's penalty. pgx makes the current player's observation alone, so that nobody else
    has one to bootstrap from, and a time limit is refused.
    """

    acting: Acting | None = "some"
    time_limit_fault = (
        "pgx makes the observation of the player whose turn it is alone, so the other has none to "
        "bootstrap from; leave it out, games of pgx end by their own rules"
    )
    max_acting = 1
    reset_mode = "on_demand"

    def __init__(self, env: Any) -> None:
        """Wrap an environment that `pgx.make` returned."""
        self.env = env
        self.name = f"pgx:{env.id}"
        self.possible_agents = tuple(f"player_{i}" for i in range(env.num_players))
        self.has_hidden_state = env.id in HIDDEN
        self._shape = tuple(env.observation_shape)
        self._num_actions = int(env.num_actions)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PgxEnv) and self.env is other.env

    def __hash__(self) -> int:
        return hash((PgxEnv, id(self.env)))

    def observation_space(self, agent: str, params: None) -> gymnasium.Space[Any]:
        with jax.ensure_compile_time_eval():
            observed = jax.eval_shape(self.env.init, jax.random.key(0)).observation
        board: gymnasium.Space[Any] = spaces.Box(-np.inf, np.inf, self._shape, np.float32)
        if observed.dtype == np.bool_:
            board = spaces.Box(0, 1, self._shape, np.uint8)
        return spaces.Dict({"action_mask": spaces.MultiBinary(self._num_actions), "obs": board})

    def action_space(self, agent: str, params: None) -> gymnasium.Space[Any]:
        return spaces.Discrete(self._num_actions)

    def reset(self, key: Key, params: None) -> tuple[PyTree, MultiStart]:
        state = call_package(self.env.init, key)
        start = MultiStart(obs=self._observe(state), acts=self._find_acting(state))
        return _clean(state), start

    def step(
        self, key: Key, state: PyTree, actions: dict[str, PyTree], params: None
    ) -> tuple[PyTree, MultiStep]:
        chosen = jnp.stack([jnp.asarray(actions[a], jnp.int32) for a in self.possible_agents])
        after = call_package(self.env.step, state, chosen[state.current_player], key)
        never = make_no_ends(self)
        rewards = jnp.asarray(after.rewards, jnp.float32)
        return _clean(after), MultiStep(
            obs=self._observe(after),
            acts=self._find_acting(after),
            reward={agent: rewards[i] for i, agent in enumerate(self.possible_agents)},
            terminated={**never, ALL: jnp.asarray(after.terminated, bool)},
            truncated={**never, ALL: jnp.asarray(after.truncated, bool)},
        )

    def _observe(self, state: PyTree) -> dict[str, PyTree]:
        obs = {
            "action_mask": state.legal_action_mask.astype(jnp.int8),
            "obs": state.observation.astype(
                jnp.uint8 if state.observation.dtype == bool else jnp.float32
            ),
        }
        return dict.fromkeys(self.possible_agents, obs)

    def _find_acting(self, state: PyTree) -> dict[str, jax.Array]:
        return {a: state.current_player == i for i, a in enumerate(self.possible_agents)}


def _clean(state: PyTree) -> PyTree:
    """Return a state of arrays without its observation, which the next step computes anew.

    Some games begin with numbers of Python (Othello's turn).
    """
    bare = state.replace(observation=jnp.zeros((), state.observation.dtype))
    return strip_weak_types(jax.tree.map(jnp.asarray, bare))


def list_ids() -> list[str]:
    """List the games of pgx."""
    return list(importlib.import_module("pgx").available_envs())


def make(name: str, /, **arguments: object) -> PgxEnv:
    """Make a game."""
    return adapt(importlib.import_module("pgx").make(name, **arguments))


def adapt(env: Any) -> PgxEnv:
    """Return a game that `pgx.make` returned."""
    return PgxEnv(env)
