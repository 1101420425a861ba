"""jaxrl's environments of several agents in random play, vectorized as in training."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.peers.compiled import PlayPeer, open_copies
from benchmarks.peers.jaxrl_worker import get_versions
from benchmarks.peers.protocol import Request, serve_peer
from benchmarks.settings import TASKS, PlaySetting
from jaxrl.envs.multi.base import get_entries
from jaxrl.envs.multi.made import MadeMultiEnv
from jaxrl.envs.multi.vector import MultiVectorEnv


class JaxrlMultiPeer(PlayPeer):
    """Peer with many copies of one task, which continue from run to run."""

    def info(self, request: Request) -> dict[str, Any]:
        """Return versions; one device plays."""
        return {"versions": get_versions(), "devices": 1}

    def setup(self, request: Request) -> dict[str, Any]:
        """Make and reset the copies, and compile the steps of a measurement."""
        setting = PlaySetting.from_dict(request["setting"])
        made, vector, state = open_copies(TASKS[setting.task][0], setting)
        play = make_play(made, vector, setting)
        return self.compile(play, (state, jnp.zeros(())), env_steps=setting.env_steps)


def make_play(made: MadeMultiEnv, vector: MultiVectorEnv, setting: PlaySetting) -> Any:
    """Return a function that plays at random and returns the sum of rewards in the last place."""
    spaces: dict[str, Any] = made.action_spaces

    def sample(key: Any) -> dict[str, Any]:
        return {
            entry.key: jax.random.randint(
                jax.random.fold_in(key, index), entry.shape, 0, int(spaces[entry.agents[0]].n)
            )
            for index, entry in enumerate(get_entries(made.env))
        }

    def play(carry: Any) -> Any:
        def step(carry: Any, inputs: Any) -> tuple[Any, None]:
            state, total = carry
            actions = jax.vmap(sample)(inputs.action_key)
            state, rows = vector.step(state, actions, inputs, made.params)
            return (state, total + sum(x.sum() for x in rows.reward.values())), None

        inputs = vector.make_step_inputs(carry[0], setting.num_steps, made.params)
        return jax.lax.scan(step, (carry[0], jnp.zeros(())), inputs)[0]

    return play


if __name__ == "__main__":
    serve_peer(JaxrlMultiPeer())
