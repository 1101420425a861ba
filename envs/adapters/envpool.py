"""Environments of EnvPool (Weng et al. 2022), whose copies are stepped together in C++ threads."""

import dataclasses
import functools
import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from jaxrl.core.spaces import get_leaf_spaces, is_integer_box, map_leaves, map_spaces
from jaxrl.core.types import PyTree
from jaxrl.envs.adapters.atari import ChannelsLast
from jaxrl.envs.adapters.gym_vector import split_infos
from jaxrl.envs.adapters.gymnasium import describe_env
from jaxrl.envs.adapters.host_spaces import log_warnings
from jaxrl.envs.context import EnvContext
from jaxrl.envs.host import EnvRequest, MadeHostEnv
from jaxrl.errors import EnvError, UnknownNameError, did_you_mean, summarize_exception

PREFIX = "envpool"
ACTION_MASK = "action_mask"

_SET_ELSEWHERE = {
    "base_path": "the environment variable ENVPOOL_ASSETS_PATH names the folder of assets",
    "batch_size": "all copies step together here, so there are no asynchronous pools",
    "env_seed": "debugging(seed=...) seeds every copy",
    "gym_reset_return_info": "a reset returns its info",
    "max_episode_steps": "environment(max_episode_steps=...) sets the time limit",
    "num_envs": "env_runners(num_envs_per_env_runner=...) sets the number of copies",
    "seed": "debugging(seed=...) seeds every copy",
    "task": "the id names the task",
    "task_name": "the id names the task",
}
_FOR_IMAGES: Mapping[str, object] = {
    "from_pixels": False,
    "render_camera_id": 0,
    "render_env_id": 0,
    "render_height": 0,
    "render_mode": "",
    "render_width": 0,
}
"""Arguments beside those of a task, with values of their types."""
_POSITIVE = ("frame_skip", "img_height", "img_width", "noop_max", "stack_num")
"""Numbers with which EnvPool ends the process if they are 0."""
_NO_LIMIT = 2**31 - 1
"""Time limit for none; 0 stands for one that the task draws itself."""
_WIDEST = 1e30
"""Bound of an action beyond which it stands for none."""
_NOTE = (
    "a resumed run begins new episodes in its environments, because EnvPool can neither save nor "
    "restore them."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """EnvPool's description of a task; `config` has its arguments."""

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    config: Any


class Pool(VectorEnv[Any, Any, Any]):
    """A pool as gymnasium's vector environment, in which an episode begins at the next step.

    A copy's episodes depend on its own seed alone, not on the number of copies beside it. Float
    observations have no bounds, since EnvPool declares 0 as the lower one of some that are negative.
    Vectors of integers as actions are a MultiDiscrete, or a Discrete of all combinations where the
    observation's `action_mask` has an entry for each of these; masks are flat.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP, "seeds_each": True}

    def __init__(self, name: str, num_envs: int, arguments: Mapping[str, Any]) -> None:
        """Describe a pool, which the first reset makes."""
        self._name = f"{PREFIX}:{name}"
        self._make = functools.partial(_get_package().make_gymnasium, name, **arguments)
        self._pool: VectorEnv[Any, Any, Any] | None = None
        self._joint: tuple[int, ...] | None = None
        task = _read_task(name, arguments)
        seen = map_spaces(_widen, task.observation_space)
        actions = map_spaces(_to_choices, task.action_space)
        mask = seen.spaces.get(ACTION_MASK) if isinstance(seen, spaces.Dict) else None
        if isinstance(seen, spaces.Dict) and isinstance(mask, spaces.MultiBinary):
            shape = tuple(mask.shape)
            size = int(np.prod(shape))
            seen = spaces.Dict({**seen.spaces, ACTION_MASK: spaces.MultiBinary(size)})
            if isinstance(actions, spaces.MultiDiscrete) and shape == tuple(actions.nvec):
                self._joint, actions = shape, spaces.Discrete(size)
        self.num_envs, self.render_mode = num_envs, arguments.get("render_mode")
        self.single_observation_space, self.single_action_space = seen, actions
        self.observation_space = batch_space(seen, num_envs)
        self.action_space = batch_space(actions, num_envs)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[PyTree, dict[str, Any]]:
        """Begin new episodes; seeds make the pool anew, since it takes them only when it is made."""
        if seed is None and self._pool is None:
            seed = int(self.np_random.integers(2**31))
        if seed is not None:
            each = [seed + row for row in range(self.num_envs)] if isinstance(seed, int) else seed
            seeds = [int(number or 0) % 2**31 for number in each]
            self._pool = None  # ends the threads of the old one first
            self._pool = self._make(num_envs=self.num_envs, seed=seeds)
        assert self._pool is not None
        with log_warnings(self._name):
            obs, infos = self._pool.reset()
        return self._flatten_mask(obs), infos

    def step(
        self, actions: np.ndarray
    ) -> tuple[PyTree, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        if self._joint is not None:
            actions = np.stack(np.unravel_index(actions, self._joint), axis=-1)
        assert self._pool is not None
        obs, reward, terminated, truncated, infos = self._pool.step(actions)
        return self._flatten_mask(obs), reward, terminated, truncated, infos

    def _flatten_mask(self, obs: PyTree) -> PyTree:
        if isinstance(obs, dict) and ACTION_MASK in obs:
            return {**obs, ACTION_MASK: obs[ACTION_MASK].reshape(self.num_envs, -1)}
        return obs

    def render(self) -> tuple[PyTree, ...] | None:
        """Return an image of the first copy, `[height, width, 3]`."""
        return None if self._pool is None else self._pool.render()

    def close_extras(self, **kwargs: object) -> None:
        self._pool = None


class PoolCopy(gymnasium.Env[Any, Any]):
    """A pool of one copy as an environment, for checks and videos."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(self, pool: VectorEnv[Any, Any, Any]) -> None:
        self._pool, self.render_mode = pool, pool.render_mode
        self.observation_space = pool.single_observation_space
        self.action_space = pool.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[PyTree, dict[str, Any]]:
        super().reset(seed=seed)
        obs, infos = self._pool.reset(seed=seed)
        return self._get_obs(obs), split_infos(infos, 1)(0)

    def step(self, action: object) -> tuple[PyTree, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, infos = self._pool.step(np.asarray(action)[None])
        ends = bool(terminated[0]), bool(truncated[0])
        return self._get_obs(obs), float(reward[0]), *ends, split_infos(infos, 1)(0)

    def _get_obs(self, batch: PyTree) -> PyTree:
        return map_leaves(_get_first, self.observation_space, batch)

    def render(self) -> PyTree:
        images = self._pool.render()
        return None if images is None else images[0]

    def close(self) -> None:
        self._pool.close()


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PoolCreator:
    """Creator of an environment of EnvPool; the context's config holds its arguments."""

    name: str
    max_episode_steps: int | None = None

    def __call__(self, context: EnvContext) -> PoolCopy:
        return PoolCopy(self.vector(1, context))

    def vector(self, num_envs: int, context: EnvContext) -> VectorEnv[Any, Any, Any]:
        """Return a pool, on as many threads as the runner has cores unless the config says."""
        threads = min(num_envs, _count_cores())
        pool = Pool(self.name, num_envs, {"num_threads": threads, **context, **self.limit})
        return ChannelsLast(pool) if _has_channels_first(pool.single_observation_space) else pool

    @property
    def limit(self) -> dict[str, int]:
        """Time limit as an argument of EnvPool's, if it replaces the task's own."""
        limit = self.max_episode_steps
        return {} if limit is None else {"max_episode_steps": limit}


def make(name: str, request: EnvRequest, env_id: str) -> MadeHostEnv:
    """Make an environment of EnvPool.

    Args:
        name: EnvPool's id of a task, such as "Pong-v5".
        request: Arguments of `jaxrl.envs.make`; the context's config holds arguments of the task.
        env_id: The same id with its prefix.

    Raises:
        UnknownNameError: If EnvPool has no such task, or the task has no such argument.
        EnvError: If it cannot be made, an argument is wrong, or it has several agents.
    """
    known = list_ids()
    if name not in known:
        raise UnknownNameError(f"EnvPool has no environment {name!r}.{did_you_mean(name, known)}")
    _check_arguments(env_id, request.context, _read_task(name, {}).config._asdict())
    create = PoolCreator(name=name, max_episode_steps=request.max_episode_steps)
    task = _read_task(name, {**request.context, **create.limit})
    if task.config.max_num_players > 1:
        raise EnvError(
            f"{env_id} has {task.config.max_num_players} players, and environments of EnvPool have a single agent "
            "here: 'pgx:' has the board games, 'pettingzoo:' and 'openspiel:' others."
        )
    for _, leaf in get_leaf_spaces(task.action_space):
        if isinstance(leaf, spaces.Box) and float(np.max(leaf.high)) > _WIDEST:
            raise EnvError(
                f"{env_id} has {leaf.shape[0]} buttons without bounds as its action: set "
                "env_config={'use_combined_action': True} for a Discrete of their combinations."
            )
    _check_rendering(env_id, name, request.context)
    made = describe_env(env_id, create, request, vector=create.vector)
    assert isinstance(made, MadeHostEnv)
    limit, is_atari = task.config.max_episode_steps, _get_module(name) == "envpool.atari"
    return dataclasses.replace(
        made,
        max_episode_steps=limit if 0 < limit < _NO_LIMIT else None,
        is_atari=is_atari if request.is_atari is None else request.is_atari,
        prefers_vector=True,
        notes=(f"{env_id}: {_NOTE}", *made.notes),
    )


def list_ids() -> list[str]:
    """List the ids of EnvPool."""
    return list(_get_package().list_all_envs())


def refuse_instance(env: object, env_id: str) -> NoReturn:
    """Raise for a pool that has been made already, or its class.

    Raises:
        EnvError: Always; the message says how to name it.
    """
    spec = getattr(env, "spec", None)
    what = f"{env_id.removeprefix('abc:')} is a pool of EnvPool, whose copies were made already"
    if isinstance(env, type) or spec is None or not hasattr(spec, "config"):
        raise EnvError(
            f"{what}: give the id that it was made from, as in environment('envpool:CartPole-v1')."
        )
    config: dict[str, Any] = spec.config._asdict()
    _, _, name = min(
        (sum(config[key] != value for key, value in own.items()), "/" in name, name)
        for name, (_, known, own) in _get_specs().items()
        if known == type(spec).__name__
    )
    own = _read_task(name, {}).config._asdict()
    changed = {key: value for key, value in config.items() if value != own[key]}
    limit = changed.get("max_episode_steps")
    dropped = {*_SET_ELSEWHERE, "num_threads"}
    arguments = {key: value for key, value in changed.items() if key not in dropped}
    raise EnvError(
        f"{what}: give environment('{PREFIX}:{name}'"
        f"{f', env_config={arguments}' if arguments else ''}"
        f"{f', max_episode_steps={limit}' if limit else ''}) and "
        f"env_runners(num_envs_per_env_runner={config['num_envs']})."
    )


def _read_task(name: str, arguments: Mapping[str, Any]) -> Task:
    """Return EnvPool's description of a task, which starts no thread.

    Raises:
        EnvError: If EnvPool refuses the arguments, or a library of the system is missing.
    """
    try:
        with log_warnings(f"{PREFIX}:{name}"):
            spec = _get_package().make_spec(name, **arguments)
            return Task(
                observation_space=spec.observation_space,
                action_space=spec.action_space,
                config=spec.config,
            )
    except Exception as error:
        raise EnvError(f"{PREFIX}:{name} cannot be made: {summarize_exception(error)}.") from error


def _get_package() -> ModuleType:
    return importlib.import_module("envpool")


def _get_specs() -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Return the module, the class of specs and the arguments of every id."""
    return importlib.import_module("envpool.registration").registry.specs


def _get_module(name: str) -> str:
    return _get_specs()[name][0]


def _check_arguments(env_id: str, config: EnvContext, defaults: Mapping[str, Any]) -> None:
    """Check what EnvPool itself answers with a long signature, or by ending the process."""
    known = {**defaults, **_FOR_IMAGES}
    for key, value in config.items():
        if key in _SET_ELSEWHERE:
            raise EnvError(f"{env_id} takes no {key!r} (env_config): {_SET_ELSEWHERE[key]}.")
        if key not in known:
            raise UnknownNameError(
                f"{env_id} takes no argument {key!r} (env_config).{did_you_mean(key, known)} It takes "
                f"{', '.join(sorted(known.keys() - _SET_ELSEWHERE.keys()))}."
            )
        default = known[key]
        if not isinstance(default, bool | int | float | str):
            continue
        kind = (int, float) if isinstance(default, float) else type(default)
        if not isinstance(value, kind) or isinstance(value, bool) != isinstance(default, bool):
            raise EnvError(
                f"{env_id}: {key} (env_config) must be of type {type(default).__name__}, got "
                f"{value!r}."
            )
        if not isinstance(default, int):
            continue
        least = 1 if key in _POSITIVE else min(default, 0)
        if int(value) < least:
            raise EnvError(f"{env_id}: {key} (env_config) must be at least {least}, got {value}.")


def _check_rendering(env_id: str, name: str, config: EnvContext) -> None:
    """Raise if MuJoCo cannot draw here, which would end the process."""
    draws = config.get("from_pixels") or config.get("render_mode")
    if draws and _get_module(name).startswith("envpool.mujoco") and not _can_draw(name):
        raise EnvError(
            f"{env_id}: MuJoCo cannot draw images on this machine, since it finds no OpenGL driver: "
            "apt-get install libegl1 libgl1-mesa-dri."
        )


@functools.cache
def _can_draw(name: str) -> bool:
    """Return whether another process can draw a task."""
    script = (
        f"import sys; sys.path[:] = {sys.path}; import envpool; "
        f"pool = envpool.make_gymnasium({name!r}, num_envs=1, render_mode='rgb_array'); "
        "pool.reset(); pool.render()"
    )
    command = [sys.executable, "-W", "ignore", "-c", script]
    with tempfile.TemporaryDirectory() as folder:  # MuJoCo writes its last words to a file
        try:
            subprocess.run(command, check=True, capture_output=True, cwd=folder, timeout=60)
        except (OSError, subprocess.SubprocessError):
            return False
    return True


def _count_cores() -> int:
    """Return the number of cores of this runner, which actors have in a variable."""
    limit = os.environ.get("OMP_NUM_THREADS", "")
    if limit.isdecimal() and int(limit):
        return int(limit)
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _has_channels_first(space: gymnasium.Space[Any]) -> bool:
    """Return whether observations are images with fewer channels, in front, than rows or columns."""
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or len(space.shape) != 3:
        return False
    return space.shape[0] < min(space.shape[1:])


def _widen(leaf: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    if isinstance(leaf, spaces.Box) and leaf.dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, leaf.shape, leaf.dtype.type)
    return leaf


def _to_choices(leaf: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    if not is_integer_box(leaf):
        return leaf
    low, high = leaf.low.astype(np.int64), leaf.high.astype(np.int64)
    return spaces.MultiDiscrete(high - low + 1, start=low)


def _get_first(space: gymnasium.Space[Any], batch: np.ndarray) -> int | np.ndarray:
    return int(batch[0]) if isinstance(space, spaces.Discrete) else np.asarray(batch[0])
