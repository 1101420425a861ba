"""Environments of any spaces, in JAX and for gymnasium, which say whether actions lie in theirs."""

from typing import Any, ClassVar

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl import JaxEnv, TimeStep
from jaxrl.core.space_arrays import get_leaf_dtype
from jaxrl.core.spaces import get_leaf_spaces, map_leaves
from jaxrl.envs.probes import ProbeParams

NUM_STEPS = 5


def within(space: Any) -> tuple[np.ndarray, np.ndarray]:
    """The least and the largest value of a simple space, within what tests draw."""
    match space:
        case spaces.Box():
            low, high = np.clip(space.low, -3, 3), np.clip(space.high, -3, 3)
            return (low, high) if space.dtype.kind != "u" else (space.low, space.high)
        case spaces.Discrete():
            return np.asarray(space.start), np.asarray(space.start + space.n - 1)
        case spaces.MultiDiscrete():
            return space.start, space.start + space.nvec - 1
        case _:
            return np.zeros(space.shape, int), np.ones(space.shape, int)


def drawn(space: Any, key: Any) -> Any:
    """A value of any space, in JAX."""
    leaves = get_leaf_spaces(space)
    keys = dict(zip((path for path, _ in leaves), jax.random.split(key, len(leaves)), strict=True))

    def draw(path: Any, leaf: Any) -> Any:
        low, high = (np.asarray(bound, np.float32) for bound in within(leaf))
        unit = jax.random.uniform(keys[path], leaf.shape)
        value = low + unit * (high - low)
        if get_leaf_dtype(leaf).kind != "f":
            value = jnp.clip(jnp.floor(low + unit * (high - low + 1)), low, high)
        return value.astype(get_leaf_dtype(leaf))

    return walked(space, draw)


def walked(space: Any, function: Any, path: tuple[Any, ...] = ()) -> Any:
    """The function of every path and simple space, as a tree of that structure."""
    match space:
        case spaces.Dict():
            return {k: walked(part, function, (*path, k)) for k, part in space.spaces.items()}
        case spaces.Tuple():
            return tuple(walked(p, function, (*path, i)) for i, p in enumerate(space.spaces))
        case _:
            return function(path, space)


def contained(space: Any, value: Any) -> Any:
    """Return whether a value lies within every part's bounds, in JAX; its structure must be the space's."""

    def inside(leaf: Any, x: Any) -> Any:
        low, high = (leaf.low, leaf.high) if isinstance(leaf, spaces.Box) else within(leaf)
        assert x.shape == leaf.shape
        return jnp.all((x >= low) & (x <= high))

    assert jax.tree.structure(value) == jax.tree.structure(walked(space, lambda path, leaf: 0))
    return jnp.all(jnp.stack(jax.tree.leaves(map_leaves(inside, space, value))))


class AnySpaces(JaxEnv[Any, Any]):
    """Random observations; a reward of 1, and of NaN, which is a fault, for actions outside."""

    name = "any-spaces"
    observations: ClassVar[Any] = None
    actions: ClassVar[Any] = None
    default_params = ProbeParams()

    def observation_space(self, params: Any) -> Any:
        return self.observations

    def action_space(self, params: Any) -> Any:
        return self.actions

    def reset(self, key: Any, params: Any) -> Any:
        return jnp.zeros((), jnp.int32), drawn(self.observations, key)

    def step(self, key: Any, state: Any, action: Any, params: Any) -> Any:
        reward = jnp.where(contained(self.actions, action), 1.0, jnp.nan).astype(jnp.float32)
        return state + 1, TimeStep(
            obs=drawn(self.observations, key),
            reward=reward,
            terminated=state + 1 >= NUM_STEPS,
            truncated=jnp.zeros((), bool),
            info={},
        )


class AnyGymSpaces(gymnasium.Env[Any, Any]):
    """The same as a gymnasium environment, which raises at an action outside."""

    def __init__(self, observations: Any, actions: Any) -> None:
        self.observation_space, self.action_space = observations, actions
        self.t = 0

    def _obs(self) -> Any:
        def draw(path: Any, leaf: Any) -> Any:
            low, high = within(leaf)
            if isinstance(leaf, spaces.Box) and leaf.dtype.kind == "f":
                value = self.np_random.uniform(low, high)
            else:
                value = self.np_random.integers(low, np.asarray(high).astype(int) + 1)
            value = np.asarray(value, leaf.dtype)
            return int(value) if isinstance(leaf, spaces.Discrete) else value.reshape(leaf.shape)

        return walked(self.observation_space, draw)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self.t += 1
        return self._obs(), 1.0, self.t >= NUM_STEPS, False, {}


def jax_env(observations: Any, actions: Any) -> type[AnySpaces]:
    """A JAX environment of these spaces."""
    return type("AnySpaces", (AnySpaces,), {"observations": observations, "actions": actions})
