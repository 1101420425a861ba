"""Environments that only a policy with a memory can solve."""

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import JaxEnv, TimeStep
from jaxrl.core.struct import pytree
from jaxrl.core.types import Key
from jaxrl.envs.probes import ProbeParams

STEPS = 6


@pytree
class MemoryState:
    """Value to remember, the observation, and the number of steps so far."""

    secret: Any
    obs: Any
    num_steps: Any


class _MemoryProbe(JaxEnv[MemoryState, ProbeParams]):
    """Two actions; one number is observed; +1 for the right action and -1 for the other."""

    @property
    def default_params(self) -> ProbeParams:
        return ProbeParams()

    def observation_space(self, params: ProbeParams) -> gymnasium.Space[Any]:
        return gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def action_space(self, params: ProbeParams) -> gymnasium.Space[Any]:
        return gymnasium.spaces.Discrete(2)

    def after(
        self, key: Key, state: MemoryState, right: Any, action: Any
    ) -> tuple[MemoryState, TimeStep]:
        """The next state of an episode that is truncated after `STEPS` steps."""
        obs = self.observe(key)
        num_steps = state.num_steps + 1
        return MemoryState(secret=self.keep(state), obs=obs, num_steps=num_steps), TimeStep(
            obs=obs,
            reward=jnp.sign(right) * jnp.where(action > 0, 1.0, -1.0).astype(jnp.float32),
            terminated=jnp.zeros((), bool),
            truncated=num_steps >= STEPS,
            info={},
        )

    def observe(self, key: Key) -> Any:
        raise NotImplementedError

    def keep(self, state: MemoryState) -> Any:
        raise NotImplementedError


def coin(key: Key) -> Any:
    return jnp.where(jax.random.bernoulli(key, 0.5, (1,)), 1.0, -1.0).astype(jnp.float32)


class Echo(_MemoryProbe):
    """The right action is what the observation before said; the first step pays nothing."""

    name = "echo"

    def reset(self, key: Key, params: ProbeParams) -> tuple[MemoryState, Any]:
        obs = coin(key)
        zero = jnp.zeros((), jnp.int32)
        return MemoryState(secret=jnp.zeros((1,), jnp.float32), obs=obs, num_steps=zero), obs

    def step(
        self, key: Key, state: MemoryState, action: Any, params: ProbeParams
    ) -> tuple[MemoryState, TimeStep]:
        return self.after(key, state, state.secret[0], action)

    def observe(self, key: Key) -> Any:
        return coin(key)

    def keep(self, state: MemoryState) -> Any:
        return state.obs


class HiddenCoin(_MemoryProbe):
    """One action is right for a whole episode; only past actions and rewards tell which."""

    name = "hidden-coin"

    def reset(self, key: Key, params: ProbeParams) -> tuple[MemoryState, Any]:
        obs, zero = jnp.zeros((1,), jnp.float32), jnp.zeros((), jnp.int32)
        return MemoryState(secret=coin(key), obs=obs, num_steps=zero), obs

    def step(
        self, key: Key, state: MemoryState, action: Any, params: ProbeParams
    ) -> tuple[MemoryState, TimeStep]:
        return self.after(key, state, state.secret[0], action)

    def observe(self, key: Key) -> Any:
        return jnp.zeros((1,), jnp.float32)

    def keep(self, state: MemoryState) -> Any:
        return state.secret


def play(algorithm: Any, env: JaxEnv[Any, Any], num_episodes: int, *, reads: bool) -> list[float]:
    """Returns of episodes played by hand through `compute_single_action`.

    Args:
        algorithm: Whose policy plays, without exploration.
        env: A memory probe.
        num_episodes: How many.
        reads: Whether previous rewards are handed over.
    """
    step, params = jax.jit(env.step), env.default_params
    returns = []
    for i in range(num_episodes):
        key = jax.random.fold_in(jax.random.key(11), i)
        state, obs = jax.jit(env.reset)(key, params)
        memory, given, total, ended = None, {}, 0.0, False
        while not ended:
            action, memory, _ = algorithm.compute_single_action(
                np.asarray(obs), memory, explore=False, full_fetch=True, **given
            )
            key = jax.random.fold_in(key, 1)
            state, moved = step(key, state, jnp.asarray(action), params)
            obs, ended = moved.obs, bool(moved.truncated)
            total += float(moved.reward)
            given = {"prev_reward": float(moved.reward)} if reads else {}
        returns.append(total)
    return returns
