"""A task that requires reading an image, a vector and a discrete value together.

The observation shows a code of three digits: the first as the brighter half of an image, the second
as the sign of a vector's sum, the third as one of three choices. The correct one of four actions is
twice the first digit plus the other two, modulo four, and earns 1; every step shows another code,
and an episode has ten steps. A policy that reads all three parts earns 10, one that ignores the
image or the vector at most 5, one that ignores the choice at most 3⅓ on average.
"""

from typing import Any, TypeVar

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Float, Int

from jaxrl.core.struct import pytree
from jaxrl.core.types import Key, TimeStep
from jaxrl.envs.base import JaxEnv
from jaxrl.envs.context import EnvContext

NUM_ACTIONS, NUM_CHOICES, SIDE = 4, 3, 6
EPISODE_LENGTH = 10
SPACE = spaces.Dict(
    {
        "choice": spaces.Discrete(NUM_CHOICES),
        "image": spaces.Box(0, 255, (SIDE, SIDE, 1), np.uint8),
        "vector": spaces.Box(-1.0, 1.0, (2,), np.float32),
    }
)
DigitT = TypeVar("DigitT", int, np.ndarray, Array)


def right_action(first: DigitT, second: DigitT, third: DigitT) -> DigitT:
    """Return the correct action for a code."""
    return (2 * first + second + third) % NUM_ACTIONS


@pytree
class ThreePartsParams:
    """Empty: the task has no parameters."""


@pytree
class ThreePartsState:
    """The current code, and the number of steps since the reset."""

    code: Int[Array, "*batch 3"]
    num_steps: Int[Array, "*batch"]


class ThreeParts(JaxEnv[ThreePartsState, ThreePartsParams]):
    """The task as a `JaxEnv`."""

    name = "three-parts-v0"

    @property
    def default_params(self) -> ThreePartsParams:
        return ThreePartsParams()

    def observation_space(self, params: ThreePartsParams) -> spaces.Dict:
        return SPACE

    def action_space(self, params: ThreePartsParams) -> gymnasium.Space[Any]:
        return spaces.Discrete(NUM_ACTIONS)

    def reset(self, key: Key, params: ThreePartsParams) -> tuple[ThreePartsState, dict[str, Array]]:
        code, obs = self.sample_code(key)
        return ThreePartsState(code=code, num_steps=jnp.zeros((), jnp.int32)), obs

    def step(
        self, key: Key, state: ThreePartsState, action: Array, params: ThreePartsParams
    ) -> tuple[ThreePartsState, TimeStep]:
        code, obs = self.sample_code(key)
        num_steps = state.num_steps + 1
        right = action == right_action(state.code[0], state.code[1], state.code[2])
        return ThreePartsState(code=code, num_steps=num_steps), TimeStep(
            obs=obs,
            reward=right.astype(jnp.float32),
            terminated=num_steps >= EPISODE_LENGTH,
            truncated=jnp.zeros((), bool),
            info={},
        )

    def sample_code(self, key: Key) -> tuple[Int[Array, "3"], dict[str, Array]]:
        """Sample a code and an observation that shows it. Consumes the key."""
        code_key, image_key, vector_key = jax.random.split(key, 3)
        code = jax.random.randint(code_key, (3,), 0, jnp.array([2, 2, NUM_CHOICES]), jnp.int32)
        pixels = jax.random.randint(image_key, (SIDE, SIDE, 1), 0, 128, jnp.int32)
        is_bright = jnp.arange(SIDE, dtype=jnp.int32) // (SIDE // 2) == code[0]
        image = pixels + 128 * is_bright[:, None, None]
        first = jax.random.uniform(vector_key, (), jnp.float32, -0.45, 0.45)
        sign: Float[Array, ""] = 2.0 * code[1].astype(jnp.float32) - 1.0
        return code, {
            "choice": code[2],
            "image": image.astype(jnp.uint8),
            "vector": jnp.stack([first, 0.5 * sign - first]),
        }


class HostThreeParts(gymnasium.Env[Any, Any]):
    """The task as a gymnasium environment, in NumPy."""

    observation_space = SPACE
    action_space = spaces.Discrete(NUM_ACTIONS)

    def __init__(self, context: EnvContext | None = None) -> None:
        del context
        self._code, self._num_steps = (0, 0, 0), 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self._num_steps = 0
        return self._next_obs(), {}

    def step(self, action: object) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        reward = float(action == right_action(*self._code))
        self._num_steps += 1
        return self._next_obs(), reward, self._num_steps >= EPISODE_LENGTH, False, {}

    def _next_obs(self) -> dict[str, Any]:
        rng = self.np_random
        first, second, third = (int(rng.integers(n)) for n in (2, 2, NUM_CHOICES))
        self._code = (first, second, third)
        image = rng.integers(128, size=(SIDE, SIDE, 1), dtype=np.uint8)
        half = SIDE // 2
        image[first * half : (first + 1) * half] += 128
        at = rng.uniform(-0.45, 0.45)
        vector = np.array([at, second - 0.5 - at], np.float32)
        return {"choice": third, "image": image, "vector": vector}
