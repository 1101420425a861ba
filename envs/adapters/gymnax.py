"""gymnax 1.x environments as `JaxEnv`s (https://github.com/RobertTLange/gymnax).

gymnax's `step` resets the environment at every step, needed or not; this adapter calls `step_env`
and leaves resets to auto-reset. gymnax's own rewards, observations and states have dtypes that
differ between reset and step or are weakly typed, so everything is cast here, once.
"""

import importlib
from typing import Any

import gymnasium
import jax
import numpy as np

from jaxrl.core.types import Key, PyTree
from jaxrl.envs.adapters.suite_env import Ends, Suite, TimedSuiteEnv
from jaxrl.errors import EnvError

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


def list_ids() -> list[str]:
    """List the ids, which are known without importing gymnax."""
    return list(ENV_IDS)


def find_refused() -> dict[str, str]:
    """Return the reason for each id that is never made."""
    reason = (
        "it downloads its data when it is made; SimpleBandit-bsuite and BernoulliBandit-misc are "
        "bandits without data"
    )
    return {"MNISTBandit-bsuite": reason}


def make(name: str) -> type:
    """Return the gymnax class of an id."""
    module_name, _, class_name = ENV_IDS[name].partition(":")
    return vars(importlib.import_module(f"gymnax.environments.{module_name}"))[class_name]


class GymnaxEnv(TimedSuiteEnv):
    """A gymnax environment, with `params.max_steps_in_episode` as its time limit.

    Rewards are float32. Observations are float32, except for the one-hot images of MinAtar and Pong
    (uint8) and discrete observations (int32). Wrappers of the same gymnax object compare equal.
    """

    limit_name = "max_steps_in_episode"

    def __init__(self, env: Any) -> None:
        self.env = env
        self._is_image = type(env).__module__.startswith(_GRID_GAMES)
        with jax.ensure_compile_time_eval():
            action_space = _to_gymnasium(env.action_space(env.default_params), as_image=False)
        suite = Suite(
            objects=(env,),
            reset=self._reset,
            step=self._step,
            action_space=action_space,
            params=env.default_params,
        )
        super().__init__(str(env.name), suite)
        self.reset_mode = "on_demand" if self._is_image else "every_step"
        self.render_fps = 10 if self._is_image else 30

    def observation_space(self, params: PyTree) -> gymnasium.Space[Any]:
        with jax.ensure_compile_time_eval():
            space = _to_gymnasium(self.env.observation_space(params), as_image=self._is_image)
        for index, low, high in _WIDER_BOUNDS.get(type(self.env).__module__, ()):
            if isinstance(space, gymnasium.spaces.Box):
                lows, highs = space.low.copy(), space.high.copy()
                lows[index], highs[index] = low, high
                space = gymnasium.spaces.Box(lows, highs, dtype=np.float32)
        return space

    def _reset(self, key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
        obs, state = self.env.reset_env(key, params)
        return state, obs

    def _step(self, key: Key, state: PyTree, action: PyTree, params: PyTree) -> tuple[PyTree, Ends]:
        obs, after, reward, terminated, _ = self.env.step_env(key, state, action, params)
        return after, (obs, reward, terminated, self.env.is_truncated(after, params))

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


def adapt(env: Any) -> GymnaxEnv:
    """Return an instance of a gymnax environment as a `JaxEnv`."""
    return GymnaxEnv(env)


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
