"""Connect Four in random play: `python -m benchmarks.peers.pgx.worker pgx|adapter|own`.

`pgx` is the package itself with its wrapper that resets, `adapter` is its game as an environment of jaxrl, and
`own` is jaxrl's game. All three are in one virtual environment (see requirements.txt). Legal actions are drawn
uniformly.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.peers.compiled import PlayPeer, open_copies
from benchmarks.peers.protocol import Request, serve_peer
from benchmarks.settings import PlaySetting

Play = Callable[[Any], Any]


class GamePeer(PlayPeer):
    """Peer with many copies of the game, which continue from run to run.

    The reward is the share of steps that win.

    Args:
        make: Function from a setting to the state and a function that plays and returns the state.
    """

    packages = ("pgx", "jax")

    def __init__(self, make: Callable[[PlaySetting], tuple[Any, Play]]) -> None:
        super().__init__()
        self._make = make

    def setup(self, request: Request) -> dict[str, Any]:
        """Make and reset the copies, and compile the steps of a measurement."""
        setting = PlaySetting.from_dict(request["setting"])
        state, play = self._make(setting)
        return self.compile(play, state, env_steps=setting.env_steps)


def sample_legal(key: jax.Array, mask: jax.Array) -> jax.Array:
    """Draw one of the legal actions of each copy."""
    return jax.random.categorical(key, jnp.where(mask, 0.0, -jnp.inf))


def make_pgx(setting: PlaySetting) -> tuple[Any, Play]:
    """Make copies of pgx's game, reset by its own wrapper."""
    from pgx import make  # pyright: ignore
    from pgx.experimental import auto_reset  # pyright: ignore

    env: Any = make("connect_four")
    step_env = auto_reset(env.step, env.init)
    reset_key, key = jax.random.split(jax.random.key(setting.seed))
    state = jax.jit(jax.vmap(env.init))(jax.random.split(reset_key, setting.num_envs))

    def step(carry: Any, _: None) -> tuple[Any, None]:
        key, state, wins = carry
        key, action_key, step_key = jax.random.split(key, 3)
        action = sample_legal(action_key, state.legal_action_mask)
        keys = jax.random.split(step_key, setting.num_envs)
        state = jax.vmap(step_env)(state, action, keys)
        return (key, state, wins + state.rewards.max(-1).sum()), None

    def play(carry: Any) -> Any:
        key, state, _ = carry
        start = (key, state, jnp.zeros(()))
        return jax.lax.scan(step, start, None, length=setting.num_steps)[0]

    return (key, state, jnp.zeros(())), play


def make_jaxrl(name: str, setting: PlaySetting) -> tuple[Any, Play]:
    """Make copies of an environment of jaxrl, vectorized as in training."""
    made, vector, state = open_copies(name, setting)
    players = made.env.possible_agents

    def step(carry: Any, inputs: Any) -> tuple[Any, None]:
        state, wins = carry
        first = state.acts[players[0]][:, None]
        masks = [state.obs[player]["action_mask"] for player in players]
        mask = jnp.where(first, masks[0], masks[1]).astype(bool)
        action = jax.vmap(sample_legal)(inputs.action_key, mask)
        actions = dict.fromkeys(players, action)
        state, rows = vector.step(state, actions, inputs, made.params)
        best = jnp.maximum(rows.reward[players[0]], rows.reward[players[1]])
        return (state, wins + best.sum()), None

    def play(carry: Any) -> Any:
        inputs = vector.make_step_inputs(carry[0], setting.num_steps, made.params)
        return jax.lax.scan(step, (carry[0], jnp.zeros(())), inputs)[0]

    return (state, jnp.zeros(())), play


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("game", choices=("pgx", "adapter", "own"))
    game = parser.parse_args().game
    names = {"adapter": "pgx:connect_four", "own": "ConnectFour-v0"}
    serve_peer(
        GamePeer(
            make_pgx if game == "pgx" else lambda setting: make_jaxrl(names[game], setting),
        )
    )
