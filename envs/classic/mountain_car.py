"""MountainCar-v0 and MountainCarContinuous-v0, after Moore (1990); equal to gymnasium's."""

from typing import Any, TypeVar

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

HeightT = TypeVar("HeightT", float, np.ndarray)


@pytree
class MountainCarParams:
    """Positions, and velocities per step; `force` is the change in velocity by a push."""

    min_position: Float[Array, ""] = scalar(-1.2)
    max_position: Float[Array, ""] = scalar(0.6)
    max_speed: Float[Array, ""] = scalar(0.07)
    goal_position: Float[Array, ""] = scalar(0.5)
    goal_velocity: Float[Array, ""] = scalar(0.0)
    force: Float[Array, ""] = scalar(0.001)
    gravity: Float[Array, ""] = scalar(0.0025)
    init_low: Float[Array, ""] = scalar(-0.6)
    init_high: Float[Array, ""] = scalar(-0.4)


@pytree
class MountainCarContinuousParams:
    """The discrete car's parameters, but `power` for a push of 1, and the range of pushes."""

    min_position: Float[Array, ""] = scalar(-1.2)
    max_position: Float[Array, ""] = scalar(0.6)
    max_speed: Float[Array, ""] = scalar(0.07)
    goal_position: Float[Array, ""] = scalar(0.45)
    goal_velocity: Float[Array, ""] = scalar(0.0)
    power: Float[Array, ""] = scalar(0.0015)
    gravity: Float[Array, ""] = scalar(0.0025)
    min_action: Float[Array, ""] = scalar(-1.0)
    max_action: Float[Array, ""] = scalar(1.0)
    init_low: Float[Array, ""] = scalar(-0.6)
    init_high: Float[Array, ""] = scalar(-0.4)


@pytree
class MountainCarState:
    """Position and velocity."""

    physics: Float[Array, "*batch 2"]


class MountainCar(JaxEnv[MountainCarState, MountainCarParams]):
    """Climbing of a hill by pushing a car left (0), not at all (1) or right (2).

    Every step costs 1.
    """

    name = "MountainCar-v0"
    max_episode_steps = 200

    @property
    def default_params(self) -> MountainCarParams:
        return MountainCarParams()

    def observation_space(self, params: MountainCarParams) -> gymnasium.spaces.Box:
        return _make_observation_space(params)

    def action_space(self, params: MountainCarParams) -> gymnasium.Space[Any]:
        return gymnasium.spaces.Discrete(3)

    def reset(
        self, key: Key, params: MountainCarParams
    ) -> tuple[MountainCarState, Float[Array, "2"]]:
        physics = _sample_start(key, params)
        return MountainCarState(physics=physics), physics

    def step(
        self, key: Key, state: MountainCarState, action: Int[Array, ""], params: MountainCarParams
    ) -> tuple[MountainCarState, TimeStep]:
        push = (action - 1).astype(jnp.float32) * params.force
        physics, terminated = _move(state.physics, push, params)
        return MountainCarState(physics=physics), TimeStep(
            obs=physics,
            reward=-jnp.ones((), jnp.float32),
            terminated=terminated,
            truncated=jnp.zeros((), bool),
            info={},
        )

    def render(self, state: MountainCarState, params: MountainCarParams) -> np.ndarray:
        """Render `[400, 600, 3]`, as gymnasium's image."""
        return _render(state, params)


class MountainCarContinuous(JaxEnv[MountainCarState, MountainCarContinuousParams]):
    """Climbing of a hill (worth 100) by pushes in [-1, 1], each costing 0.1 times its square."""

    name = "MountainCarContinuous-v0"
    max_episode_steps = 999

    @property
    def default_params(self) -> MountainCarContinuousParams:
        return MountainCarContinuousParams()

    def observation_space(self, params: MountainCarContinuousParams) -> gymnasium.spaces.Box:
        return _make_observation_space(params)

    def action_space(self, params: MountainCarContinuousParams) -> gymnasium.spaces.Box:
        return gymnasium.spaces.Box(
            float(params.min_action), float(params.max_action), (1,), np.float32
        )

    def reset(
        self, key: Key, params: MountainCarContinuousParams
    ) -> tuple[MountainCarState, Float[Array, "2"]]:
        physics = _sample_start(key, params)
        return MountainCarState(physics=physics), physics

    def step(
        self,
        key: Key,
        state: MountainCarState,
        action: Float[Array, "1"],
        params: MountainCarContinuousParams,
    ) -> tuple[MountainCarState, TimeStep]:
        """Take one step; the push is clipped to its range, but the cost is not."""
        push = jnp.clip(action[0], params.min_action, params.max_action) * params.power
        physics, terminated = _move(state.physics, push, params)
        return MountainCarState(physics=physics), TimeStep(
            obs=physics,
            reward=100.0 * terminated.astype(jnp.float32) - 0.1 * action[0] ** 2,
            terminated=terminated,
            truncated=jnp.zeros((), bool),
            info={},
        )

    def render(self, state: MountainCarState, params: MountainCarContinuousParams) -> np.ndarray:
        """Render `[400, 600, 3]`, as gymnasium's image."""
        return _render(state, params)


def _make_observation_space(
    params: MountainCarParams | MountainCarContinuousParams,
) -> gymnasium.spaces.Box:
    max_speed = float(params.max_speed)
    low = np.array([float(params.min_position), -max_speed], np.float32)
    high = np.array([float(params.max_position), max_speed], np.float32)
    return gymnasium.spaces.Box(low, high, dtype=np.float32)


def _sample_start(
    key: Key, params: MountainCarParams | MountainCarContinuousParams
) -> Float[Array, "2"]:
    """Sample a position near the valley's bottom, at rest."""
    position = jax.random.uniform(key, (), jnp.float32, params.init_low, params.init_high)
    return jnp.stack([position, jnp.zeros((), jnp.float32)])


def _move(
    physics: Float[Array, "2"],
    push: Float[Array, ""],
    params: MountainCarParams | MountainCarContinuousParams,
) -> tuple[Float[Array, "2"], Array]:
    """Return the next position and velocity, and whether the goal is reached.

    The left wall stops the car; the right end of the track stops only its position.
    """
    position, velocity = physics
    velocity = velocity + (push - params.gravity * jnp.cos(3 * position))
    velocity = jnp.clip(velocity, -params.max_speed, params.max_speed)
    position = jnp.clip(position + velocity, params.min_position, params.max_position)
    at_wall = (position <= params.min_position) & (velocity < 0)
    velocity = jnp.where(at_wall, 0.0, velocity)
    reached = (position >= params.goal_position) & (velocity >= params.goal_velocity)
    return jnp.stack([position, velocity]), reached


def _track_height(position: HeightT) -> HeightT:
    """Return the height of the track."""
    return np.sin(3 * position) * 0.45 + 0.55


def _render(
    state: MountainCarState, params: MountainCarParams | MountainCarContinuousParams
) -> np.ndarray:
    """Render the car on its track, with a flag at the goal."""
    position, left = float(np.asarray(state.physics)[0]), float(params.min_position)
    scale = 600 / (float(params.max_position) - left)
    canvas = Canvas(height=400, width=600)
    columns = (np.arange(600) + 0.5) / scale + left
    canvas.draw_curve(_track_height(columns) * scale, (0, 0, 0))
    slope = np.cos(3 * position)
    along = np.array([np.cos(slope), np.sin(slope)])
    up = np.array([-along[1], along[0]])
    axle = np.array([(position - left) * scale, _track_height(position) * scale + 10.0])
    back, front = axle - 20 * along, axle + 20 * along
    canvas.fill_polygon(np.stack([back, back + 20 * up, front + 20 * up, front]), (0, 0, 0))
    for side in (-10.0, 10.0):
        canvas.fill_circle(axle + side * along, 8.0, (128, 128, 128))
    goal = float(params.goal_position)
    foot = np.array([(goal - left) * scale, _track_height(goal) * scale])
    pole = np.array([[-0.5, 0.0], [0.5, 0.0], [0.5, 50.0], [-0.5, 50.0]])
    canvas.fill_polygon(foot[None] + pole, (0, 0, 0))
    flag = np.array([[0.0, 50.0], [0.0, 40.0], [25.0, 45.0]])
    canvas.fill_polygon(foot[None] + flag, (204, 204, 0))
    return canvas.to_uint8()
