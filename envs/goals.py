"""Tasks with goals and sparse rewards, for replay in hindsight (Andrychowicz et al. 2017).

Both observe a Dict with the parts of gymnasium-robotics: `observation`, `achieved_goal` and
`desired_goal`. A step earns 0 where the goal is achieved, else -1.
"""

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool, Float, Int8

from jaxrl.core.struct import pytree
from jaxrl.core.types import Key, TimeStep
from jaxrl.envs.base import JaxEnv
from jaxrl.envs.params import check_count, scalar


@pytree
class BitFlipParams:
    """Empty: the task has no parameters."""


@pytree
class BitFlipState:
    """The bits, and those to have."""

    bits: Int8[Array, "*batch n"]
    goal: Int8[Array, "*batch n"]


class BitFlip(JaxEnv[BitFlipState, BitFlipParams]):
    """Bits to be made equal to others by flipping one at a time (section 3.1).

    The episode terminates when they are, and is cut after `num_bits` steps. The goal of 10 bits is
    five flips away on average, so that the best policy earns about -4.
    """

    name = "BitFlip-v0"

    def __init__(self, num_bits: int = 10) -> None:
        """Create the environment.

        Raises:
            EnvError: If `num_bits` is not an integer of at least 1.
        """
        self.num_bits = check_count("num_bits", num_bits)
        self.max_episode_steps = self.num_bits

    @property
    def default_params(self) -> BitFlipParams:
        return BitFlipParams()

    def observation_space(self, params: BitFlipParams) -> spaces.Dict:
        parts = ("observation", "achieved_goal", "desired_goal")
        return spaces.Dict({name: spaces.MultiBinary(self.num_bits) for name in parts})

    def action_space(self, params: BitFlipParams) -> gymnasium.Space[Any]:
        return spaces.Discrete(self.num_bits)

    def reset(self, key: Key, params: BitFlipParams) -> tuple[BitFlipState, dict[str, Array]]:
        bits, goal = jax.random.bernoulli(key, jnp.float32(0.5), (2, self.num_bits)).astype(
            jnp.int8
        )
        state = BitFlipState(bits=bits, goal=goal)
        return state, self.observe(state)

    def step(
        self, key: Key, state: BitFlipState, action: Array, params: BitFlipParams
    ) -> tuple[BitFlipState, TimeStep]:
        flips = jnp.arange(self.num_bits, dtype=jnp.int32) == action
        after = BitFlipState(bits=state.bits ^ flips.astype(jnp.int8), goal=state.goal)
        reward, terminated = self.compute_reward(after.bits, after.goal, params)
        return after, TimeStep(obs=self.observe(after), reward=reward, terminated=terminated)

    def compute_reward(
        self,
        achieved_goal: Int8[Array, " n"],
        desired_goal: Int8[Array, " n"],
        params: BitFlipParams,
    ) -> tuple[Float[Array, ""], Bool[Array, ""]]:
        is_achieved = jnp.all(achieved_goal == desired_goal)
        return is_achieved.astype(jnp.float32) - 1.0, is_achieved

    def observe(self, state: BitFlipState) -> dict[str, Array]:
        """Return the observation of a state."""
        return {
            "observation": state.bits,
            "achieved_goal": state.bits,
            "desired_goal": state.goal,
        }


@pytree
class PointReachParams:
    """Distance within which the goal is achieved, acceleration, and share of velocity that stays."""

    threshold: Float[Array, ""] = scalar(0.05)
    acceleration: Float[Array, ""] = scalar(0.05)
    inertia: Float[Array, ""] = scalar(0.5)


@pytree
class PointReachState:
    """Position, velocity and goal in a square from -1 to 1."""

    position: Float[Array, "*batch 2"]
    velocity: Float[Array, "*batch 2"]
    goal: Float[Array, "*batch 2"]


class PointReach(JaxEnv[PointReachState, PointReachParams]):
    """A point in a square that is accelerated to a goal and has to stay there.

    As in gymnasium-robotics' FetchReach, the goal does not end the episode of 50 steps.
    """

    name = "PointReach-v0"
    max_episode_steps = 50

    @property
    def default_params(self) -> PointReachParams:
        return PointReachParams()

    def observation_space(self, params: PointReachParams) -> spaces.Dict:
        square = spaces.Box(-1.0, 1.0, (2,), np.float32)
        motion = spaces.Box(-np.inf, np.inf, (4,), np.float32)
        return spaces.Dict({"observation": motion, "achieved_goal": square, "desired_goal": square})

    def action_space(self, params: PointReachParams) -> gymnasium.Space[Any]:
        return spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, key: Key, params: PointReachParams) -> tuple[PointReachState, dict[str, Array]]:
        position, goal = jax.random.uniform(key, (2, 2), jnp.float32, -1.0, 1.0)
        state = PointReachState(position=position, velocity=jnp.zeros_like(position), goal=goal)
        return state, self.observe(state)

    def step(
        self, key: Key, state: PointReachState, action: Array, params: PointReachParams
    ) -> tuple[PointReachState, TimeStep]:
        force = jnp.clip(action, -1.0, 1.0)
        velocity = params.inertia * state.velocity + params.acceleration * force
        position = jnp.clip(state.position + velocity, -1.0, 1.0)
        after = PointReachState(
            position=position, velocity=position - state.position, goal=state.goal
        )
        reward, terminated = self.compute_reward(position, state.goal, params)
        return after, TimeStep(obs=self.observe(after), reward=reward, terminated=terminated)

    def compute_reward(
        self,
        achieved_goal: Float[Array, "2"],
        desired_goal: Float[Array, "2"],
        params: PointReachParams,
    ) -> tuple[Float[Array, ""], Bool[Array, ""]]:
        distance = jnp.sqrt(jnp.sum((achieved_goal - desired_goal) ** 2))
        reward = (distance <= params.threshold).astype(jnp.float32) - 1.0
        return reward, jnp.zeros((), bool)

    def observe(self, state: PointReachState) -> dict[str, Array]:
        """Return the observation of a state."""
        return {
            "observation": jnp.concatenate([state.position, state.velocity]),
            "achieved_goal": state.position,
            "desired_goal": state.goal,
        }
