"""JaxMARL's particle tasks in random play, in their own virtual environment (see requirements.txt).

`env.step` is what its training loops call: it computes a reset of every copy at every step.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.peers.compiled import PlayPeer
from benchmarks.peers.protocol import Request, serve_peer
from benchmarks.settings import TASKS, PlaySetting


class JaxmarlPeer(PlayPeer):
    """Peer with many copies of one task, which continue from run to run."""

    packages = ("jaxmarl", "jax")

    def setup(self, request: Request) -> dict[str, Any]:
        """Make and reset the copies, and compile the steps of a measurement."""
        # It prints while it is imported, which must not come before the protocol has begun.
        from jaxmarl import make  # pyright: ignore[reportAttributeAccessIssue]

        setting = PlaySetting.from_dict(request["setting"])
        env = make(TASKS[setting.task][1])
        reset_key, key = jax.random.split(jax.random.key(setting.seed))
        keys = jax.random.split(reset_key, setting.num_envs)
        obs, state = jax.jit(jax.vmap(env.reset))(keys)
        start = (key, obs, state, jnp.zeros(()))
        return self.compile(make_play(env, setting), start, env_steps=setting.env_steps)


def make_play(env: Any, setting: PlaySetting) -> Any:
    """Return a function that plays at random and returns the sum of rewards in the last place."""

    def play(carry: Any) -> Any:
        def step(carry: Any, _: None) -> tuple[Any, None]:
            key, _, state, total = carry
            key, action_key, step_key = jax.random.split(key, 3)
            actions = {
                agent: jax.vmap(env.action_space(agent).sample)(
                    jax.random.split(jax.random.fold_in(action_key, index), setting.num_envs)
                )
                for index, agent in enumerate(env.agents)
            }
            step_keys = jax.random.split(step_key, setting.num_envs)
            obs, state, reward, _, _ = jax.vmap(env.step)(step_keys, state, actions)
            total = total + sum(reward[agent].sum() for agent in env.agents)
            return (key, obs, state, total), None

        key, obs, state, _ = carry
        start = (key, obs, state, jnp.zeros(()))
        return jax.lax.scan(step, start, None, length=setting.num_steps)[0]

    return play


if __name__ == "__main__":
    serve_peer(JaxmarlPeer())
