"""A task in which half of the actions end the episode, and a mask marks them.

Four of eight doors are mined, others at every step; each of the rest pays the number written on it.
The mask is 1 where there is no mine. Opening a mined door costs 100 and ends the episode, which
otherwise has ten steps. A policy that never opens one earns what the best safe doors pay.
"""

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool, Float, Int

from jaxrl.core.struct import pytree
from jaxrl.core.types import Key, TimeStep
from jaxrl.envs.base import JaxEnv

NUM_DOORS, EPISODE_LENGTH, CRASH_REWARD = 8, 10, -100.0


@pytree
class MinefieldParams:
    """Empty: the task has no parameters."""


@pytree
class MinefieldState:
    """Mines and pay of the doors, and the number of steps since the reset."""

    is_safe: Bool[Array, "*batch doors"]
    pay: Float[Array, "*batch doors"]
    num_steps: Int[Array, "*batch"]


class Minefield(JaxEnv[MinefieldState, MinefieldParams]):
    """The task; observes `pay` of each door, the `action_mask`, and the current `step`."""

    name = "minefield-v0"
    has_hidden_state = True

    @property
    def default_params(self) -> MinefieldParams:
        return MinefieldParams()

    def observation_space(self, params: MinefieldParams) -> spaces.Dict:
        return spaces.Dict(
            {
                "action_mask": spaces.MultiBinary(NUM_DOORS),
                "pay": spaces.Box(0.0, 1.0, (NUM_DOORS,), np.float32),
                "step": spaces.Discrete(EPISODE_LENGTH + 1),
            }
        )

    def action_space(self, params: MinefieldParams) -> gymnasium.Space[Any]:
        return spaces.Discrete(NUM_DOORS)

    def reset(self, key: Key, params: MinefieldParams) -> tuple[MinefieldState, dict[str, Array]]:
        state = self.sample_doors(key, jnp.zeros((), jnp.int32))
        return state, self.observe(state)

    def step(
        self, key: Key, state: MinefieldState, action: Array, params: MinefieldParams
    ) -> tuple[MinefieldState, TimeStep]:
        opened = jnp.arange(NUM_DOORS, dtype=jnp.int32) == action
        crashed = ~jnp.any(opened & state.is_safe)
        pay = jnp.sum(jnp.where(opened, state.pay, 0.0))
        after = self.sample_doors(key, state.num_steps + 1)
        return after, TimeStep(
            obs=self.observe(after),
            reward=jnp.where(crashed, jnp.float32(CRASH_REWARD), pay),
            terminated=crashed | (after.num_steps >= EPISODE_LENGTH),
            truncated=jnp.zeros((), bool),
            info={},
        )

    def sample_doors(self, key: Key, num_steps: Int[Array, ""]) -> MinefieldState:
        """Sample mines and pay. Consumes the key."""
        mine_key, pay_key = jax.random.split(key)
        order = jax.random.permutation(mine_key, NUM_DOORS)
        pay = jax.random.uniform(pay_key, (NUM_DOORS,), jnp.float32)
        return MinefieldState(is_safe=order < NUM_DOORS // 2, pay=pay, num_steps=num_steps)

    def observe(self, state: MinefieldState) -> dict[str, Array]:
        """Return the observation of a state."""
        mask = state.is_safe.astype(jnp.int8)
        return {"action_mask": mask, "pay": state.pay, "step": state.num_steps}
