"""Environments of other JAX packages as `JaxEnv`s: one class around functions of each package."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.core.space_arrays import get_leaf_dtype
from jaxrl.core.spaces import map_leaves
from jaxrl.core.types import Key, PyTree, TimeStep
from jaxrl.envs.base import JaxEnv, ResetMode
from jaxrl.envs.params import get_param, override_params
from jaxrl.envs.wrappers import HasTimeLimit
from jaxrl.errors import EnvError


def call_package(function: Callable[..., Any], *arguments: PyTree) -> Any:
    """Call a function of a package whose shapes mix freely, with keys as words.

    Words are equivalent for `jax.random` but ignored by `jax_debug_key_reuse`: several packages draw
    twice from one key, which is for them to fix.
    """
    plain = [
        jax.random.key_data(x)
        if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        else x
        for x in arguments
    ]
    with jax.numpy_rank_promotion("allow"):
        return function(*plain)


def cast(value: jax.typing.ArrayLike, dtype: jax.typing.DTypeLike) -> jax.Array:
    """Convert to a strongly typed array."""
    return jax.lax.convert_element_type(value, dtype)


def find_state_dtypes(
    reset_and_step: Callable[..., tuple[PyTree, PyTree]], *arguments: PyTree
) -> PyTree:
    """Return the structure of a state, with a dtype per leaf that fits both a reset and a step.

    Args:
        reset_and_step: Function of a key and the arguments that returns a reset's state and a
            step's; it is traced and not run.
        *arguments: Arguments after the key.
    """
    key = jax.eval_shape(lambda: jax.random.key(0))
    first, second = jax.eval_shape(reset_and_step, key, *arguments)
    return jax.tree.map(lambda a, b: jnp.promote_types(a.dtype, b.dtype), first, second)


ACTION_MASK = "action_mask"

Ends: TypeAlias = tuple[PyTree, PyTree, PyTree, PyTree]
"""Observation, reward, and whether the episode terminated and was truncated."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Suite:
    """One environment of a package as functions, without its auto-reset and its time limit.

    `reset(key, params)` returns a state and an observation, `step(key, state, action, params)` the
    next state and its `Ends`; keys are words. Environments with the same `objects`, which the
    functions close over, and the same limit compare equal. `limit` is the package's time limit, which
    has to be off in the functions: it truncates here. Without `observation_space`, that is what a
    reset returns, without bounds. `params` is a pytree that `env_config` overrides by name.
    """

    objects: tuple[object, ...]
    reset: Callable[[Key, PyTree], tuple[PyTree, PyTree]]
    step: Callable[[Key, PyTree, PyTree, PyTree], tuple[PyTree, Ends]]
    action_space: gymnasium.Space[Any]
    observation_space: gymnasium.Space[Any] | None = None
    limit: int | None = None
    params: PyTree = None
    render: Callable[[PyTree, PyTree], np.ndarray] | None = None


class SuiteEnv(JaxEnv[PyTree, PyTree]):
    """An environment of another package.

    Rewards are float32; observations and states have the dtypes of their first reset or step,
    whichever is wider. NamedTuples and dataclasses of observations become Dicts; booleans are uint8,
    and a part `"action_mask"` is a flat MultiBinary. Where the mask is of combinations of several
    discrete actions, the action is a Discrete of all combinations.
    """

    reset_mode: ResetMode = "on_demand"

    def __init__(self, name: str, suite: Suite) -> None:
        self.name, self.suite = name, suite
        self.max_episode_steps = suite.limit

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SuiteEnv) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[object, ...]:
        return type(self), self.suite.limit, *(id(value) for value in self.suite.objects)

    @property
    def default_params(self) -> PyTree:
        """Default parameters of the package, with every number strongly typed."""
        with jax.ensure_compile_time_eval():
            return jax.tree.map(_strong_numpy, self.suite.params)

    def observation_space(self, params: PyTree) -> gymnasium.Space[Any]:
        return self.suite.observation_space or self._observed

    def action_space(self, params: PyTree) -> gymnasium.Space[Any]:
        combined = self._combined
        return self.suite.action_space if combined is None else spaces.Discrete(_count(combined))

    def reset(self, key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
        state, obs = call_package(self.suite.reset, key, jax.tree.map(jnp.asarray, params))
        return jax.tree.map(cast, state, self._state_dtypes), self._cast_obs(obs)

    def step(
        self, key: Key, state: PyTree, action: PyTree, params: PyTree
    ) -> tuple[PyTree, TimeStep]:
        if (combined := self._combined) is not None:
            action = jnp.stack(jnp.unravel_index(action, combined))
        params = jax.tree.map(jnp.asarray, params)
        after, (obs, reward, terminated, truncated) = call_package(
            self.suite.step, key, state, action, params
        )
        if (shape := jnp.shape(reward)) and _count(shape) != 1:
            raise EnvError(
                f"{self.name} returns rewards of shape {shape}, one for each of its agents; jaxrl "
                "takes environments of this package with one reward."
            )
        return jax.tree.map(cast, after, self._state_dtypes), TimeStep(
            obs=self._cast_obs(obs),
            reward=cast(jnp.reshape(reward, ()), np.float32),
            terminated=cast(jnp.reshape(terminated, ()), np.bool_),
            truncated=cast(jnp.reshape(truncated, ()), np.bool_),
            info={},
        )

    def render(self, state: PyTree, params: PyTree) -> np.ndarray:
        if self.suite.render is None:
            raise NotImplementedError(f"{self.name} cannot be rendered")
        with jax.numpy_rank_promotion("allow"):
            return np.asarray(self.suite.render(state, params))

    def _cast_obs(self, obs: PyTree) -> PyTree:
        def fit(space: gymnasium.Space[Any], value: jax.Array) -> jax.Array:
            return cast(jnp.reshape(value, space.shape or ()), get_leaf_dtype(space))

        return map_leaves(fit, self._space, _to_dicts(obs))

    @functools.cached_property
    def _space(self) -> gymnasium.Space[Any]:
        return self.observation_space(self.default_params)

    @functools.cached_property
    def _first_obs(self) -> PyTree:
        """Shapes and dtypes of a reset's observation."""

        def reset(key: Key, params: PyTree) -> PyTree:
            return _to_dicts(call_package(self.suite.reset, key, params)[1])

        key = jax.eval_shape(lambda: jax.random.key(0))
        return jax.eval_shape(reset, key, self.default_params)

    @functools.cached_property
    def _observed(self) -> gymnasium.Space[Any]:
        return _to_space(self._first_obs)

    @functools.cached_property
    def _combined(self) -> tuple[int, ...] | None:
        """Numbers of the discrete actions whose combinations are masked; None for any other."""
        space = self.suite.action_space
        if not isinstance(space, spaces.MultiDiscrete):
            return None
        mask = self._first_obs.get(ACTION_MASK) if isinstance(self._first_obs, dict) else None
        sizes = tuple(int(size) for size in space.nvec.flat)
        return sizes if mask is not None and mask.shape == sizes else None

    @functools.cached_property
    def _state_dtypes(self) -> PyTree:
        """Structure of the state, with a dtype per leaf that fits both a reset and a step."""
        space = self.suite.action_space

        def reset_and_step(key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
            first, _ = call_package(self.suite.reset, key, params)
            action = jnp.zeros(space.shape or (), get_leaf_dtype(space))
            return first, call_package(self.suite.step, key, first, action, params)[0]

        return find_state_dtypes(reset_and_step, self.default_params)


class TimedSuiteEnv(SuiteEnv, HasTimeLimit):
    """An environment of another package one of whose parameters is its time limit."""

    limit_name: str

    def with_time_limit(self, params: PyTree, max_episode_steps: int) -> PyTree:
        return override_params(self.name, params, {self.limit_name: max_episode_steps})

    def get_time_limit(self, params: PyTree) -> int:
        return int(get_param(params, self.limit_name))


def remove_layers(env: Any, inner: str, layers: Mapping[str, str]) -> Any:
    """Remove the wrappers around an environment for which jaxrl has its own.

    Args:
        env: Environment, which may be wrapped.
        inner: Attribute of a wrapper that holds the wrapped environment.
        layers: Settings that do a wrapper's work, by the name of its class.

    Raises:
        EnvError: If another wrapper is around one of them.
    """
    while type(env).__name__ in layers:
        env = vars(env)[inner]
    layer = env
    while inner in vars(layer):
        layer = vars(layer)[inner]
        if (name := type(layer).__name__) in layers:
            raise EnvError(
                f"{type(env).__name__} wraps {name}, whose work is jaxrl's ({layers[name]}): wrap "
                "the environment before it, or leave it out."
            )
    return env


def read_dm_step(step: Any) -> Ends:
    """Read a time step of dm_env's kind: its last one terminates where the discount is 0."""
    is_last, is_over = step.last(), step.discount == 0
    return step.observation, step.reward, is_last & is_over, is_last & ~is_over


def _to_dicts(obs: PyTree) -> PyTree:
    """Return an observation whose NamedTuples, dataclasses and mappings are dictionaries."""
    if hasattr(obs, "_asdict"):
        obs = obs._asdict()
    elif dataclasses.is_dataclass(obs):
        obs = {field.name: getattr(obs, field.name) for field in dataclasses.fields(obs)}
    return {k: _to_dicts(v) for k, v in obs.items()} if isinstance(obs, Mapping) else obs


def _to_space(obs: PyTree, name: str = "") -> gymnasium.Space[Any]:
    """Return the space of an observation of these shapes and dtypes."""
    if isinstance(obs, dict):
        return spaces.Dict({key: _to_space(part, key) for key, part in obs.items()})
    if isinstance(obs, tuple | list):
        return spaces.Tuple([_to_space(part) for part in obs])
    if name == ACTION_MASK:
        return spaces.MultiBinary(_count(obs.shape))
    if obs.dtype == np.bool_:
        return spaces.Box(0, 1, obs.shape, np.uint8)
    if np.issubdtype(obs.dtype, np.integer):
        limits = np.iinfo(obs.dtype)
        return spaces.Box(limits.min, limits.max, obs.shape, obs.dtype)
    return spaces.Box(-np.inf, np.inf, obs.shape, np.float32)


def _count(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape))


def _strong_numpy(value: jax.typing.ArrayLike) -> np.ndarray:
    array = np.asarray(value)
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype))
