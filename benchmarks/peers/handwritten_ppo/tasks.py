"""Tasks of the hand-written PPO: CartPole-v1 by hand, and those of packages, with their auto-resets."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

MAX_EPISODE_STEPS = 500


class Task(NamedTuple):
    reset: Callable[[jax.Array], Any]
    step: Callable[[jax.Array, Any, jax.Array], tuple[Any, jax.Array, jax.Array]]
    """Function of a key, a state and an action to the next state, the reward, and whether the
    episode ended, with auto-reset."""
    observe: Callable[[Any], jax.Array]
    num_actions: int
    """Number of discrete actions, or size of a continuous one."""
    is_continuous: bool = False


class CartPole(NamedTuple):
    physics: jax.Array
    """Position, velocity, angle, and angular velocity, `[4]`."""
    time: jax.Array


def reset(key: jax.Array) -> CartPole:
    physics = jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)
    return CartPole(physics, jnp.zeros((), jnp.int32))


def step(key: jax.Array, env: CartPole, action: jax.Array) -> tuple[CartPole, jax.Array, jax.Array]:
    """Step gymnasium's CartPole-v1; a reset is computed at every step, and used at an end."""
    _, x_dot, theta, theta_dot = env.physics
    force = jnp.where(action == 1, 10.0, -10.0)
    cos, sin = jnp.cos(theta), jnp.sin(theta)
    temp = (force + 0.05 * theta_dot**2 * sin) / 1.1
    theta_acc = (9.8 * sin - cos * temp) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
    x_acc = temp - 0.05 * theta_acc * cos / 1.1
    change = jnp.stack([x_dot, x_acc, theta_dot, theta_acc])
    physics = env.physics + 0.02 * change
    fallen = (jnp.abs(physics[0]) > 2.4) | (jnp.abs(physics[2]) > 12 * 2 * np.pi / 360)
    moved = CartPole(physics, env.time + 1)
    ended = fallen | (moved.time >= MAX_EPISODE_STEPS)
    env = jax.tree.map(lambda new, old: jnp.where(ended, new, old), reset(key), moved)
    return env, jnp.ones(()), ended


def make_task(env: str) -> Task:
    """Return the task of an environment's id."""
    prefix, _, name = env.rpartition(":")
    if prefix == "":
        assert env == "CartPole-v1", env
        return Task(reset, step, lambda env: env.physics, 2)
    return {"brax": make_brax, "xminigrid": make_xminigrid}[prefix](name)


def make_brax(name: str) -> Task:
    """Make a task of Brax as its own training does: its auto-reset restores the first state."""
    env = importlib.import_module("brax.envs").create(name)

    def step(key: jax.Array, state: Any, action: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
        after = env.step(state, action)
        return after, after.reward, after.done > 0.5

    return Task(env.reset, step, lambda state: state.obs, env.action_size, is_continuous=True)


def make_xminigrid(name: str) -> Task:
    """Make a task of XLand-MiniGrid with its own auto-reset, tiles as one vector of numbers."""
    env, params = importlib.import_module("xminigrid").make(name)
    env = importlib.import_module("xminigrid.wrappers").GymAutoResetWrapper(env)

    def step(key: jax.Array, state: Any, action: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
        after = env.step(params, state, action)
        return after, after.reward, after.last()

    return Task(
        lambda key: env.reset(params, key),
        step,
        lambda state: state.observation.reshape(-1).astype(jnp.float32) / 255.0,
        env.num_actions(params),
    )
