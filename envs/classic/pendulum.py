"""Pendulum-v1; equal to gymnasium's."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrl.core.struct import pytree
from jaxrl.core.types import Key, TimeStep
from jaxrl.envs.base import JaxEnv
from jaxrl.envs.classic.raster import Canvas
from jaxrl.envs.params import scalar


@pytree
class PendulumParams:
    """Constants in meters, kilograms, seconds and radians; `g` is gravity, as in gymnasium."""

    g: Float[Array, ""] = scalar(10.0)
    mass: Float[Array, ""] = scalar(1.0)
    length: Float[Array, ""] = scalar(1.0)
    dt: Float[Array, ""] = scalar(0.05)
    max_speed: Float[Array, ""] = scalar(8.0)
    max_torque: Float[Array, ""] = scalar(2.0)
    init_theta: Float[Array, ""] = scalar(np.pi)
    init_theta_dot: Float[Array, ""] = scalar(1.0)


@pytree
class PendulumState:
    """Angle (0 is upright, not wrapped) and angular velocity."""

    physics: Float[Array, "*batch 2"]


class Pendulum(JaxEnv[PendulumState, PendulumParams]):
    """Swing-up of a pendulum by a torque; angle, speed and torque are costs."""

    name = "Pendulum-v1"
    max_episode_steps = 200

    @property
    def default_params(self) -> PendulumParams:
        return PendulumParams()

    def observation_space(self, params: PendulumParams) -> gymnasium.spaces.Box:
        """Return the space of cosine and sine of the angle, then the velocity."""
        high = np.array([1.0, 1.0, float(params.max_speed)], np.float32)
        return gymnasium.spaces.Box(-high, high, dtype=np.float32)

    def action_space(self, params: PendulumParams) -> gymnasium.spaces.Box:
        max_torque = float(params.max_torque)
        return gymnasium.spaces.Box(-max_torque, max_torque, (1,), np.float32)

    def reset(self, key: Key, params: PendulumParams) -> tuple[PendulumState, Float[Array, "3"]]:
        high = jnp.stack([params.init_theta, params.init_theta_dot])
        physics = high * jax.random.uniform(key, (2,), jnp.float32, -1.0, 1.0)
        return PendulumState(physics=physics), _observe(physics)

    def step(
        self, key: Key, state: PendulumState, action: Float[Array, "1"], params: PendulumParams
    ) -> tuple[PendulumState, TimeStep]:
        """Take one semi-implicit Euler step of `dt` seconds; never terminates."""
        theta, theta_dot = state.physics
        torque = jnp.clip(action[0], -params.max_torque, params.max_torque)
        angle = jnp.mod(theta + jnp.pi, 2 * jnp.pi) - jnp.pi
        cost = angle**2 + 0.1 * theta_dot**2 + 0.001 * torque**2
        inertia = params.mass * params.length**2
        gravity = 1.5 * params.g / params.length * jnp.sin(theta)
        theta_dot = theta_dot + (gravity + 3.0 / inertia * torque) * params.dt
        theta_dot = jnp.clip(theta_dot, -params.max_speed, params.max_speed)
        physics = jnp.stack([theta + theta_dot * params.dt, theta_dot])
        return PendulumState(physics=physics), TimeStep(
            obs=_observe(physics),
            reward=-cost,
            terminated=jnp.zeros((), bool),
            truncated=jnp.zeros((), bool),
            info={},
        )

    def render(self, state: PendulumState, params: PendulumParams) -> np.ndarray:
        """Render `[500, 500, 3]`, as gymnasium's image without the arrow of the torque."""
        theta = float(np.asarray(state.physics)[0])
        canvas = Canvas(height=500, width=500)
        scale, center = 500 / 4.4, np.array([250.0, 250.0])
        along = np.array([-np.sin(theta), np.cos(theta)])
        across = np.array([along[1], -along[0]]) * 0.1 * scale
        end = center + along * scale
        color = (204, 77, 77)
        corners = [center - across, center + across, end + across, end - across]
        canvas.fill_polygon(np.stack(corners), color)
        canvas.fill_circle(center, 0.1 * scale, color)
        canvas.fill_circle(end, 0.1 * scale, color)
        canvas.fill_circle(center, 0.05 * scale, (0, 0, 0))
        return canvas.to_uint8()


def _observe(physics: Float[Array, "2"]) -> Float[Array, "3"]:
    theta, theta_dot = physics
    return jnp.stack([jnp.cos(theta), jnp.sin(theta), theta_dot])
