"""Contextual bandits: episodes of one step, in which an arm is chosen for a context."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Float, Int

from jaxrl.core.struct import pytree
from jaxrl.core.types import Key, TimeStep
from jaxrl.envs.base import JaxEnv
from jaxrl.errors import EnvError

REWARDS = ("reward", "regret")


def end_round(
    expected: Float[Array, " K"],
    arm: Int[Array, ""],
    noise: Float[Array, ""],
    obs: Float[Array, " d"],
    *,
    pays_regret: bool,
) -> TimeStep:
    """Return the end of a round.

    Args:
        expected: Expected reward of each arm.
        arm: Chosen arm.
        noise: Noise of its reward.
        obs: Context.
        pays_regret: Whether the reward is how much less than the best arm's the expected one is,
            which is not positive.
    """
    reward = expected[arm] - expected.max() if pays_regret else expected[arm] + noise
    return TimeStep(
        obs=obs,
        reward=reward,
        terminated=jnp.ones((), bool),
        truncated=jnp.zeros((), bool),
        info={},
    )


def check_reward(reward: str) -> bool:
    """Return whether the reward is the regret.

    Raises:
        EnvError: If it is neither.
    """
    if reward not in REWARDS:
        raise EnvError(f"reward={reward!r} must be one of {', '.join(map(repr, REWARDS))}.")
    return reward == "regret"


@pytree
class LinearBanditParams:
    """Coefficients of each arm, and the standard deviation of the rewards' noise."""

    theta: Float[Array, "K d"]
    noise: Float[Array, ""]


class LinearBandit(JaxEnv[Array, LinearBanditParams]):
    """Arms with rewards θₐᵀ x + noise, for contexts x and coefficients θₐ on the unit sphere.

    Args:
        num_arms: Number of arms.
        dimension: Number of features of a context.
        arms_seed: Seed of the arms' coefficients.
        reward: "reward", or "regret" for evaluations.
    """

    name = "LinearBandit-v0"

    def __init__(
        self, num_arms: int = 10, dimension: int = 8, arms_seed: int = 0, reward: str = "reward"
    ) -> None:
        theta = np.random.default_rng(arms_seed).normal(size=(num_arms, dimension))
        self._theta = theta / np.linalg.norm(theta, axis=1, keepdims=True)
        self._pays_regret = check_reward(reward)

    @property
    def default_params(self) -> LinearBanditParams:
        return LinearBanditParams(
            theta=jnp.asarray(self._theta, jnp.float32), noise=jnp.float32(0.1)
        )

    def observation_space(self, params: LinearBanditParams) -> gymnasium.Space[np.ndarray]:
        return spaces.Box(-1.0, 1.0, self._theta.shape[1:], np.float32)

    def action_space(self, params: LinearBanditParams) -> gymnasium.Space[np.int64]:
        return spaces.Discrete(len(self._theta))

    def reset(self, key: Key, params: LinearBanditParams) -> tuple[Array, Array]:
        context = jax.random.normal(key, params.theta.shape[1:], jnp.float32)
        context = context / jnp.linalg.norm(context)
        return context, context

    def step(
        self, key: Key, state: Array, action: Array, params: LinearBanditParams
    ) -> tuple[Array, TimeStep]:
        noise = params.noise * jax.random.normal(key, (), jnp.float32)
        return state, end_round(
            params.theta @ state, action, noise, state, pays_regret=self._pays_regret
        )


@pytree
class WheelBanditParams:
    """Numbers of Riquelme et al. 2018: radius δ, expected rewards, and their noise."""

    delta: Float[Array, ""]
    mean_safe: Float[Array, ""]
    mean_other: Float[Array, ""]
    mean_best: Float[Array, ""]
    noise: Float[Array, ""]


class WheelBandit(JaxEnv[Array, WheelBanditParams]):
    """The wheel bandit (Riquelme et al. 2018, https://arxiv.org/abs/1802.09127, section 5.4).

    Contexts are uniform in the unit disk. Outside of the radius δ one of four arms pays much, by the
    quadrant; everywhere else the first arm is the best. The larger δ is, the rarer is what must be
    explored for.

    Args:
        reward: "reward", or "regret" for evaluations.
    """

    name = "WheelBandit-v0"

    def __init__(self, reward: str = "reward") -> None:
        self._pays_regret = check_reward(reward)

    @property
    def default_params(self) -> WheelBanditParams:
        numbers = {"delta": 0.95, "mean_safe": 1.2, "mean_other": 1.0, "mean_best": 50.0}
        return WheelBanditParams(
            **{name: jnp.float32(x) for name, x in numbers.items()}, noise=jnp.float32(0.01)
        )

    def observation_space(self, params: WheelBanditParams) -> gymnasium.Space[np.ndarray]:
        return spaces.Box(-1.0, 1.0, (2,), np.float32)

    def action_space(self, params: WheelBanditParams) -> gymnasium.Space[np.int64]:
        return spaces.Discrete(5)

    def reset(self, key: Key, params: WheelBanditParams) -> tuple[Array, Array]:
        angle_key, radius_key = jax.random.split(key)
        angle = jax.random.uniform(angle_key, (), jnp.float32, maxval=2.0 * jnp.pi)
        radius = jnp.sqrt(jax.random.uniform(radius_key, (), jnp.float32))
        context = radius * jnp.stack([jnp.cos(angle), jnp.sin(angle)])
        return context, context

    def step(
        self, key: Key, state: Array, action: Array, params: WheelBanditParams
    ) -> tuple[Array, TimeStep]:
        arms = jnp.arange(5, dtype=jnp.int32)
        expected = jnp.where(arms == 0, params.mean_safe, params.mean_other)
        quadrant = 1 + 2 * (state[0] < 0.0).astype(jnp.int32) + (state[1] < 0.0)
        is_outside = jnp.linalg.norm(state) > params.delta
        expected = jnp.where(is_outside & (arms == quadrant), params.mean_best, expected)
        noise = params.noise * jax.random.normal(key, (), jnp.float32)
        return state, end_round(expected, action, noise, state, pays_regret=self._pays_regret)
