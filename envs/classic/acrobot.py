"""Acrobot-v1, after Sutton (1996) and Sutton and Barto's book; equal to gymnasium's."""

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxrl.core.struct import pytree
from jaxrl.core.types import Key, TimeStep
from jaxrl.envs.base import JaxEnv
from jaxrl.envs.classic.raster import Canvas
from jaxrl.envs.params import scalar


@pytree
class AcrobotParams:
    """Constants in meters, kilograms, seconds and radians; `link_moi` is each link's inertia."""

    dt: Float[Array, ""] = scalar(0.2)
    gravity: Float[Array, ""] = scalar(9.8)
    link_length_1: Float[Array, ""] = scalar(1.0)
    link_mass_1: Float[Array, ""] = scalar(1.0)
    link_mass_2: Float[Array, ""] = scalar(1.0)
    link_com_pos_1: Float[Array, ""] = scalar(0.5)
    link_com_pos_2: Float[Array, ""] = scalar(0.5)
    link_moi: Float[Array, ""] = scalar(1.0)
    max_vel_1: Float[Array, ""] = scalar(4 * np.pi)
    max_vel_2: Float[Array, ""] = scalar(9 * np.pi)
    torque_mag: Float[Array, ""] = scalar(1.0)
    target_height: Float[Array, ""] = scalar(1.0)
    init_range: Float[Array, ""] = scalar(0.1)


@pytree
class AcrobotState:
    """The first joint's angle (0 hangs down), the second's relative to it, and their velocities."""

    physics: Float[Array, "*batch 4"]


class Acrobot(JaxEnv[AcrobotState, AcrobotParams]):
    """Swing-up of a two-link pendulum's free end above a height by torques of -1, 0 or +1.

    Every step before that costs 1.
    """

    name = "Acrobot-v1"
    max_episode_steps = 500
    render_fps = 15

    @property
    def default_params(self) -> AcrobotParams:
        return AcrobotParams()

    def observation_space(self, params: AcrobotParams) -> gymnasium.spaces.Box:
        """Return the space of cosine and sine of both angles, then the velocities."""
        high = np.array([1, 1, 1, 1, float(params.max_vel_1), float(params.max_vel_2)], np.float32)
        return gymnasium.spaces.Box(-high, high, dtype=np.float32)

    def action_space(self, params: AcrobotParams) -> gymnasium.Space[Any]:
        return gymnasium.spaces.Discrete(3)

    def reset(self, key: Key, params: AcrobotParams) -> tuple[AcrobotState, Float[Array, "6"]]:
        physics = params.init_range * jax.random.uniform(key, (4,), jnp.float32, -1.0, 1.0)
        return AcrobotState(physics=physics), _observe(physics)

    def step(
        self, key: Key, state: AcrobotState, action: Int[Array, ""], params: AcrobotParams
    ) -> tuple[AcrobotState, TimeStep]:
        """Take one Runge-Kutta step of `dt` seconds."""
        torque = (action - 1).astype(jnp.float32) * params.torque_mag
        theta_1, theta_2, velocity_1, velocity_2 = _runge_kutta(state.physics, torque, params)
        physics = jnp.stack(
            [
                _wrap_angle(theta_1),
                _wrap_angle(theta_2),
                jnp.clip(velocity_1, -params.max_vel_1, params.max_vel_1),
                jnp.clip(velocity_2, -params.max_vel_2, params.max_vel_2),
            ]
        )
        height = -jnp.cos(physics[0]) - jnp.cos(physics[1] + physics[0])
        terminated = height > params.target_height
        return AcrobotState(physics=physics), TimeStep(
            obs=_observe(physics),
            reward=terminated.astype(jnp.float32) - 1.0,
            terminated=terminated,
            truncated=jnp.zeros((), bool),
            info={},
        )

    def render(self, state: AcrobotState, params: AcrobotParams) -> np.ndarray:
        """Render `[500, 500, 3]`, as gymnasium's image; the second link is one meter long."""
        theta_1, theta_2 = (float(angle) for angle in np.asarray(state.physics)[:2])
        lengths = float(params.link_length_1), 1.0
        scale, joint = 250 / (sum(lengths) + 0.2), np.array([250.0, 250.0])
        canvas = Canvas(height=500, width=500)
        canvas.draw_curve(np.full(500, 250.0 + float(params.target_height) * scale), (0, 0, 0))
        for angle, length in zip((theta_1, theta_1 + theta_2), lengths, strict=True):
            along = np.array([np.sin(angle), -np.cos(angle)])
            across = np.array([along[1], -along[0]]) * 0.1 * scale
            end = joint + along * length * scale
            corners = [joint - across, joint + across, end + across, end - across]
            canvas.fill_polygon(np.stack(corners), (0, 204, 204))
            canvas.fill_circle(joint, 0.1 * scale, (204, 204, 0))
            joint = end
        return canvas.to_uint8()


def _observe(physics: Float[Array, "4"]) -> Float[Array, "6"]:
    theta_1, theta_2, velocity_1, velocity_2 = physics
    angles = [jnp.cos(theta_1), jnp.sin(theta_1), jnp.cos(theta_2), jnp.sin(theta_2)]
    return jnp.stack([*angles, velocity_1, velocity_2])


def _wrap_angle(angle: Float[Array, ""]) -> Float[Array, ""]:
    """Wrap an angle to [-pi, pi] by whole turns; both ends stay unchanged."""
    turns = jnp.ceil((jnp.abs(angle) - jnp.pi) / (2 * jnp.pi))
    return angle - jnp.sign(angle) * 2 * jnp.pi * jnp.maximum(turns, 0.0)


def _runge_kutta(
    physics: Float[Array, "4"], torque: Float[Array, ""], params: AcrobotParams
) -> Float[Array, "4"]:
    """Take one step of the fourth-order Runge-Kutta method."""
    half = params.dt / 2
    k_1 = _compute_derivative(physics, torque, params)
    k_2 = _compute_derivative(physics + half * k_1, torque, params)
    k_3 = _compute_derivative(physics + half * k_2, torque, params)
    k_4 = _compute_derivative(physics + params.dt * k_3, torque, params)
    return physics + params.dt / 6 * (k_1 + 2 * k_2 + 2 * k_3 + k_4)


def _compute_derivative(
    physics: Float[Array, "4"], torque: Float[Array, ""], params: AcrobotParams
) -> Float[Array, "4"]:
    """Evaluate the book's equations (gymnasium's default), with cos(x - pi/2) as sin(x)."""
    theta_1, theta_2, velocity_1, velocity_2 = physics
    mass_1, mass_2, inertia = params.link_mass_1, params.link_mass_2, params.link_moi
    length, com_1, com_2 = params.link_length_1, params.link_com_pos_1, params.link_com_pos_2
    sin_2, cos_2 = jnp.sin(theta_2), jnp.cos(theta_2)
    d_1 = mass_1 * com_1**2 + 2 * inertia
    d_1 = d_1 + mass_2 * (length**2 + com_2**2 + 2 * length * com_2 * cos_2)
    d_2 = mass_2 * (com_2**2 + length * com_2 * cos_2) + inertia
    phi_2 = mass_2 * com_2 * params.gravity * jnp.sin(theta_1 + theta_2)
    phi_1 = (
        -mass_2 * length * com_2 * velocity_2 * (velocity_2 + 2 * velocity_1) * sin_2
        + (mass_1 * com_1 + mass_2 * length) * params.gravity * jnp.sin(theta_1)
        + phi_2
    )
    centrifugal = mass_2 * length * com_2 * velocity_1**2 * sin_2
    acceleration_2 = (torque + d_2 / d_1 * phi_1 - centrifugal - phi_2) / (
        mass_2 * com_2**2 + inertia - d_2**2 / d_1
    )
    acceleration_1 = -(d_2 * acceleration_2 + phi_1) / d_1
    return jnp.stack([velocity_1, velocity_2, acceleration_1, acceleration_2])
