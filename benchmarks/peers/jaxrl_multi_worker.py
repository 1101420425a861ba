"""jaxrl's environments of several agents in random play, vectorized as in training."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.multi_settings import TASKS, PlaySetting
from benchmarks.peers.jaxrl_worker import get_versions
from benchmarks.peers.protocol import serve_peer
from jaxrl.envs.multi.base import get_entries
from jaxrl.envs.multi.made import MadeMultiEnv
from jaxrl.envs.multi.vector import MultiVectorEnv
from jaxrl.envs.registry import make_multi


class JaxrlMultiPeer:
    """Peer with many copies of one task, which continue from run to run."""

    def __init__(self) -> None:
        self._num_steps = 0
        self._play: Any = None
        self._state: Any = None

    def info(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"versions": get_versions(), "devices": 1}

    def setup(self, request: dict[str, Any]) -> dict[str, Any]:
        """Make and reset the copies, and compile the steps of a measurement."""
        setting = PlaySetting.from_dict(request["setting"])
        made = make_multi(TASKS[setting.task][0])
        vector = MultiVectorEnv(made.env, made.env.reset_mode)
        index = jnp.arange(setting.num_envs)
        state = jax.jit(vector.reset)(jax.random.key(setting.seed), index, made.params)
        self._state = (state, jnp.zeros(()))
        self._num_steps = setting.num_envs * setting.num_steps
        start = time.perf_counter()
        self._play = jax.jit(make_play(made, vector, setting)).lower(self._state).compile()
        return {"compile_s": time.perf_counter() - start}

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run one measurement."""
        start = time.perf_counter()
        self._state = jax.block_until_ready(self._play(self._state))
        seconds = time.perf_counter() - start
        reward = float(self._state[-1]) / self._num_steps
        return {"seconds": seconds, "env_steps": self._num_steps, "reward_mean": reward}

    def evaluate(self, request: dict[str, Any]) -> dict[str, Any]:
        return {}


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


def main() -> None:
    serve_peer(JaxrlMultiPeer())


if __name__ == "__main__":
    main()
