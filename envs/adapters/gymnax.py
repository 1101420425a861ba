"""gymnax 1.x environments as `JaxEnv`s (https://github.com/RobertTLange/gymnax).

gymnax's `step` resets the environment at every step, needed or not; this adapter calls `step_env`
and leaves resets to auto-reset. gymnax's own rewards, observations and states have dtypes that
differ between reset and step or are weakly typed, so everything is cast here, once.
"""

import functools
import importlib
import sys
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.space_arrays import get_leaf_dtype
from jaxrl.core.spaces import map_leaves
from jaxrl.core.types import Key, PyTree, TimeStep
from jaxrl.envs.adapters.jax_packages import call_package, cast, find_state_dtypes
from jaxrl.envs.params import get_param, override_params
from jaxrl.envs.wrappers import HasTimeLimit
from jaxrl.errors import EnvError, UnknownNameError, did_you_mean

ENV_IDS = {
    "CartPole-v1": "classic_control.cartpole:CartPole",
    "Pendulum-v1": "classic_control.pendulum:Pendulum",
    "Acrobot-v1": "classic_control.acrobot:Acrobot",
    "MountainCar-v0": "classic_control.mountain_car:MountainCar",
    "MountainCarContinuous-v0": "classic_control.continuous_mountain_car:ContinuousMountainCar",
    "Asterix-MinAtar": "minatar.asterix:MinAsterix",
    "Breakout-MinAtar": "minatar.breakout:MinBreakout",
    "Freeway-MinAtar": "minatar.freeway:MinFreeway",
    "Seaquest-MinAtar": "minatar.seaquest:MinSeaquest",
    "SpaceInvaders-MinAtar": "minatar.space_invaders:MinSpaceInvaders",
    "Catch-bsuite": "bsuite.catch:Catch",
    "DeepSea-bsuite": "bsuite.deep_sea:DeepSea",
    "MemoryChain-bsuite": "bsuite.memory_chain:MemoryChain",
    "UmbrellaChain-bsuite": "bsuite.umbrella_chain:UmbrellaChain",
    "DiscountingChain-bsuite": "bsuite.discounting_chain:DiscountingChain",
    "SimpleBandit-bsuite": "bsuite.bandit:SimpleBandit",
    "FourRooms-misc": "misc.rooms:FourRooms",
    "MetaMaze-misc": "misc.meta_maze:MetaMaze",
    "PointRobot-misc": "misc.point_robot:PointRobot",
    "BernoulliBandit-misc": "misc.bernoulli_bandit:BernoulliBandit",
    "GaussianBandit-misc": "misc.gaussian_bandit:GaussianBandit",
    "Reacher-misc": "misc.reacher:Reacher",
    "Swimmer-misc": "misc.swimmer:Swimmer",
    "Pong-misc": "misc.pong:Pong",
    "FrozenLake-misc": "misc.frozen_lake:FrozenLake",
}
"""Module and class below `gymnax.environments` of each id; MNISTBandit-bsuite is left out."""

_ENVIRONMENT_MODULE = "gymnax.environments.environment"
_GRID_GAMES = ("gymnax.environments.minatar.", "gymnax.environments.misc.pong")
"""Modules whose observations are binary images; resetting all copies at each step is expensive."""

_WIDER_BOUNDS = {
    "gymnax.environments.bsuite.memory_chain": ((slice(2, None), -1.0, 1.0),),
    "gymnax.environments.misc.gaussian_bandit": ((0, -np.inf, np.inf), (3, -1.0, np.inf)),
    "gymnax.environments.misc.bernoulli_bandit": ((3, -np.inf, np.inf),),
    "gymnax.environments.misc.meta_maze": ((-2, -np.inf, np.inf),),
}
"""Index, low and high of observations that leave the space declared by gymnax."""

CELL_PIXELS = 16
"""Width and height in pixels of a grid game's rendered cell."""


def get_env_class(name: str) -> type:
    """Return the gymnax class of an id.

    Raises:
        UnknownNameError: If gymnax has no such environment.
        EnvError: If gymnax is not installed, or the environment does not work offline.
    """
    if name == "MNISTBandit-bsuite":
        raise EnvError(
            "gymnax:MNISTBandit-bsuite downloads its data when it is made, so jaxrl refuses it; "
            "gymnax:SimpleBandit-bsuite and gymnax:BernoulliBandit-misc are bandits without data."
        )
    if name not in ENV_IDS:
        raise UnknownNameError(
            f"gymnax has no environment {name!r}.{did_you_mean(name, ENV_IDS)} "
            f"Known: {', '.join(ENV_IDS)}."
        )
    module_name, _, class_name = ENV_IDS[name].partition(":")
    try:
        module = importlib.import_module(f"gymnax.environments.{module_name}")
    except ModuleNotFoundError as error:
        raise EnvError(
            f"gymnax:{name} needs the package {error.name!r}, which is not installed: "
            f"pip install 'gymnax>=1.0,<2' six."
        ) from error
    return vars(module)[class_name]


def is_gymnax(value: object) -> bool:
    """Return whether the value is a gymnax environment; never imports gymnax."""
    return is_gymnax_class(type(value))


def is_gymnax_class(cls: type) -> bool:
    """Return whether the class is a gymnax environment's; never imports gymnax."""
    module = sys.modules.get(_ENVIRONMENT_MODULE)
    return module is not None and issubclass(cls, vars(module)["Environment"])


class GymnaxEnv(HasTimeLimit):
    """A gymnax environment, with `params.max_steps_in_episode` as its time limit.

    Rewards are float32. Observations are float32, except for the one-hot images of MinAtar and Pong
    (uint8) and discrete observations (int32). Wrappers of the same gymnax object compare equal.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.name = str(env.name)
        self._is_image = type(env).__module__.startswith(_GRID_GAMES)
        self.reset_mode = "on_demand" if self._is_image else "every_step"
        self.render_fps = 10 if self._is_image else 30

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GymnaxEnv) and self.env is other.env

    def __hash__(self) -> int:
        return hash((GymnaxEnv, id(self.env)))

    @property
    def default_params(self) -> PyTree:
        """Default parameters of gymnax, with every number strongly typed."""
        with jax.ensure_compile_time_eval():
            return jax.tree.map(_strong_numpy, self.env.default_params)

    def with_time_limit(self, params: PyTree, max_episode_steps: int) -> PyTree:
        changes = {"max_steps_in_episode": max_episode_steps}
        return override_params(self.name, params, changes)

    def get_time_limit(self, params: PyTree) -> int:
        return int(get_param(params, "max_steps_in_episode"))

    def observation_space(self, params: PyTree) -> gymnasium.Space[Any]:
        with jax.ensure_compile_time_eval():
            space = _to_gymnasium(self.env.observation_space(params), as_image=self._is_image)
        for index, low, high in _WIDER_BOUNDS.get(type(self.env).__module__, ()):
            if isinstance(space, gymnasium.spaces.Box):
                lows, highs = space.low.copy(), space.high.copy()
                lows[index], highs[index] = low, high
                space = gymnasium.spaces.Box(lows, highs, dtype=np.float32)
        return space

    def action_space(self, params: PyTree) -> gymnasium.Space[Any]:
        with jax.ensure_compile_time_eval():
            return _to_gymnasium(self.env.action_space(params), as_image=False)

    def reset(self, key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
        params = jax.tree.map(jnp.asarray, params)
        obs, state = call_package(self.env.reset_env, key, params)
        return jax.tree.map(cast, state, self._state_dtypes), self._cast_obs(obs)

    def step(
        self, key: Key, state: PyTree, action: PyTree, params: PyTree
    ) -> tuple[PyTree, TimeStep]:
        params = jax.tree.map(jnp.asarray, params)
        obs, next_state, reward, terminated, _ = call_package(
            self.env.step_env, key, state, action, params
        )
        truncated = call_package(self.env.is_truncated, next_state, params)
        return jax.tree.map(cast, next_state, self._state_dtypes), TimeStep(
            obs=self._cast_obs(obs),
            reward=cast(jnp.reshape(reward, ()), np.float32),
            terminated=cast(jnp.reshape(terminated, ()), np.bool_),
            truncated=cast(jnp.reshape(truncated, ()), np.bool_),
            info={},
        )

    def render(self, state: PyTree, params: PyTree) -> np.ndarray:
        """Render a grid game, `[16 height, 16 width, 3]`, each cell in its channel's color.

        Later channels are drawn over earlier ones.
        """
        if not self._is_image:
            raise NotImplementedError(f"gymnax:{self.name} cannot be rendered")
        with jax.numpy_rank_promotion("allow"):
            obs = np.asarray(self.env.get_obs(state, params)) > 0
        number = np.max(obs * np.arange(1, obs.shape[-1] + 1)[None, None], axis=-1)
        hue = 2 * np.pi * np.arange(obs.shape[-1])[:, None] / obs.shape[-1]
        colors = 140 + 110 * np.cos(hue - np.array([0.0, 2.0, 4.0])[None] * np.pi / 3)
        palette = np.concatenate([np.zeros((1, 3)), colors]).astype(np.uint8)
        return palette[number].repeat(CELL_PIXELS, axis=0).repeat(CELL_PIXELS, axis=1)

    def _cast_obs(self, obs: PyTree) -> PyTree:
        return jax.tree.map(cast, obs, self._obs_dtypes)

    @functools.cached_property
    def _obs_dtypes(self) -> PyTree:
        """Structure of an observation, with the dtype of each leaf."""
        return map_leaves(get_leaf_dtype, self.observation_space(self.default_params))

    @functools.cached_property
    def _state_dtypes(self) -> PyTree:
        """Structure of the state, with a dtype per leaf that fits both a reset and a step."""
        params = self.default_params
        action_space = self.action_space(params)

        def reset_and_step(key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
            _, first = call_package(self.env.reset_env, key, params)
            action = jnp.zeros(action_space.shape, get_leaf_dtype(action_space))
            return first, call_package(self.env.step_env, key, first, action, params)[1]

        return find_state_dtypes(reset_and_step, params)


def _strong_numpy(value: jax.typing.ArrayLike) -> np.ndarray:
    array = np.asarray(value)
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype))


def _to_gymnasium(space: Any, *, as_image: bool) -> gymnasium.Space[Any]:
    """Return the gymnasium space of the cast observation or action.

    Raises:
        EnvError: If the gymnax space is not supported.
    """
    kind = type(space).__name__
    if kind == "Discrete":
        return gymnasium.spaces.Discrete(int(space.n))
    if kind == "Box" and as_image:
        return gymnasium.spaces.Box(0, 1, space.shape, np.uint8)
    if kind == "Box":
        low = _to_infinity(np.broadcast_to(np.asarray(space.low, np.float32), space.shape))
        high = _to_infinity(np.broadcast_to(np.asarray(space.high, np.float32), space.shape))
        return gymnasium.spaces.Box(low, high, dtype=np.float32)
    if kind == "Dict":
        children = {k: _to_gymnasium(v, as_image=as_image) for k, v in space.spaces.items()}
        return gymnasium.spaces.Dict(children)
    if kind == "Tuple":
        return gymnasium.spaces.Tuple(
            tuple(_to_gymnasium(child, as_image=as_image) for child in space.spaces)
        )
    raise EnvError(f"The gymnax space {space!r} is not supported: Box, Discrete, Dict, Tuple are.")


def _to_infinity(bound: np.ndarray) -> np.ndarray:
    """Replace the largest float32, which gymnax uses for a missing bound, by infinity."""
    largest = np.finfo(np.float32).max
    return np.where(np.abs(bound) >= largest, np.copysign(np.float32(np.inf), bound), bound)
