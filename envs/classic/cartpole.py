"""CartPole-v1, after Barto, Sutton and Anderson (1983); equal to gymnasium's."""

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Key, TimeStep
from jaxrl.envs.base import JaxEnv
from jaxrl.envs.classic.raster import Canvas
from jaxrl.envs.params import scalar


@pytree
class CartPoleParams:
    """Constants in meters, kilograms, seconds, newtons and radians."""

    gravity: Float[Array, ""] = scalar(9.8)
    mass_cart: Float[Array, ""] = scalar(1.0)
    mass_pole: Float[Array, ""] = scalar(0.1)
    half_length: Float[Array, ""] = scalar(0.5)
    force_mag: Float[Array, ""] = scalar(10.0)
    tau: Float[Array, ""] = scalar(0.02)
    theta_threshold: Float[Array, ""] = scalar(12 * 2 * np.pi / 360)
    x_threshold: Float[Array, ""] = scalar(2.4)
    init_range: Float[Array, ""] = scalar(0.05)


@pytree
class CartPoleState:
    """Position, velocity, pole angle (0 is upright) and angular velocity."""

    physics: Float[Array, "*batch 4"]


class CartPole(JaxEnv[CartPoleState, CartPoleParams]):
    """Balancing of a pole on a cart by pushes to the left (0) or right (1); every step earns 1."""

    name = "CartPole-v1"
    max_episode_steps = 500
    render_fps = 50

    def __init__(self, sutton_barto_reward: bool = False) -> None:
        """Create the environment.

        Args:
            sutton_barto_reward: Whether a step earns 0, and -1 if the pole falls.
        """
        self.sutton_barto_reward = sutton_barto_reward

    @property
    def default_params(self) -> CartPoleParams:
        return CartPoleParams()

    def observation_space(self, params: CartPoleParams) -> gymnasium.spaces.Box:
        """Return bounds of twice the thresholds, so that they contain the final observation."""
        x_limit, theta_limit = 2 * float(params.x_threshold), 2 * float(params.theta_threshold)
        high = np.array([x_limit, np.inf, theta_limit, np.inf], np.float32)
        return gymnasium.spaces.Box(-high, high, dtype=np.float32)

    def action_space(self, params: CartPoleParams) -> gymnasium.Space[Any]:
        return gymnasium.spaces.Discrete(2)

    def reset(self, key: Key, params: CartPoleParams) -> tuple[CartPoleState, Float[Array, "4"]]:
        physics = params.init_range * jax.random.uniform(key, (4,), jnp.float32, -1.0, 1.0)
        return CartPoleState(physics=physics), physics

    def step(
        self, key: Key, state: CartPoleState, action: Int[Array, ""], params: CartPoleParams
    ) -> tuple[CartPoleState, TimeStep]:
        """Take one Euler step of `tau` seconds."""
        x, x_dot, theta, theta_dot = state.physics
        x_acc, theta_acc = _compute_accelerations(theta, theta_dot, action, params)
        x = x + params.tau * x_dot
        theta = theta + params.tau * theta_dot
        x_dot = x_dot + params.tau * x_acc
        theta_dot = theta_dot + params.tau * theta_acc
        physics = jnp.stack([x, x_dot, theta, theta_dot])
        terminated = (jnp.abs(x) > params.x_threshold) | (jnp.abs(theta) > params.theta_threshold)
        if self.sutton_barto_reward:
            reward = -terminated.astype(jnp.float32)
        else:
            reward = jnp.ones((), jnp.float32)
        return CartPoleState(physics=physics), TimeStep(
            obs=physics,
            reward=reward,
            terminated=terminated,
            truncated=jnp.zeros((), bool),
            info={},
        )

    def render(self, state: CartPoleState, params: CartPoleParams) -> np.ndarray:
        """Render `[400, 600, 3]`, as gymnasium's image."""
        x, _, theta, _ = np.asarray(state.physics)
        scale = 600 / (2 * float(params.x_threshold))
        canvas = Canvas(height=400, width=600)
        cart = np.array([x * scale + 300.0, 100.0])
        axle = cart + np.array([0.0, 7.5])
        along = np.array([np.sin(theta), np.cos(theta)])
        across = np.array([along[1], -along[0]])
        pole_length = scale * 2 * float(params.half_length)
        bottom, top = axle - 5.0 * along, axle + (pole_length - 5.0) * along
        canvas.fill_polygon(
            np.array([[0.0, 100.0], [600, 100.0], [600, 101.0], [0, 101.0]]), (0, 0, 0)
        )
        canvas.fill_polygon(
            cart[None] + np.array([[-25, -15], [-25, 15], [25, 15], [25, -15]]), (0, 0, 0)
        )
        canvas.fill_polygon(
            np.stack(
                [bottom - 5 * across, top - 5 * across, top + 5 * across, bottom + 5 * across]
            ),
            (202, 152, 101),
        )
        canvas.fill_circle(axle, 5.0, (129, 132, 203))
        return canvas.to_uint8()


class StatelessCartPole(CartPole):
    """CartPole that observes position and angle alone, so that the policy needs memory."""

    name = "StatelessCartPole-v0"
    has_hidden_state = True

    def observation_space(self, params: CartPoleParams) -> gymnasium.spaces.Box:
        high = super().observation_space(params).high[_OBSERVED]
        return gymnasium.spaces.Box(-high, high, dtype=np.float32)

    def reset(self, key: Key, params: CartPoleParams) -> tuple[CartPoleState, Float[Array, "2"]]:
        state, obs = super().reset(key, params)
        return state, obs[_OBSERVED]

    def step(
        self, key: Key, state: CartPoleState, action: Int[Array, ""], params: CartPoleParams
    ) -> tuple[CartPoleState, TimeStep]:
        state, step = super().step(key, state, action, params)
        return state, replace(step, obs=step.obs[_OBSERVED])


_OBSERVED = np.array([0, 2])


def _compute_accelerations(
    theta: Float[Array, ""],
    theta_dot: Float[Array, ""],
    action: Int[Array, ""],
    params: CartPoleParams,
) -> tuple[Any, Any]:
    """Compute the accelerations of cart and pole.

    The equations are those of https://coneural.org/florian/papers/05_cart_pole.pdf.
    """
    total_mass = params.mass_pole + params.mass_cart
    pole_moment = params.mass_pole * params.half_length
    force = jnp.where(action == 1, params.force_mag, -params.force_mag)
    cos, sin = jnp.cos(theta), jnp.sin(theta)
    push = (force + pole_moment * theta_dot**2 * sin) / total_mass
    theta_acc = (params.gravity * sin - cos * push) / (
        params.half_length * (4.0 / 3.0 - params.mass_pole * cos**2 / total_mass)
    )
    x_acc = push - pole_moment * theta_acc * cos / total_mass
    return x_acc, theta_acc
