"""Faults on purpose, to test tolerance of them: values that are not finite, crashes and stalls.

`jaxrl:crashing-cartpole-v0` crashes and stalls; its `env_config` has the names of RLlib's crashing
CartPole example:

    env_config={"p_crash": 1e-4, "p_crash_reset": 1e-3, "crash_on_worker_indices": [1, 2]}

Disable the environment check (`disable_env_checking=True`) if crashes are frequent.
"""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.wrappers import TimeLimit
from jaxtyping import Array, Bool, Float, Int

from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Key, PyTree, TimeStep
from jaxrl.envs.adapters.barrier import StepFailedRecreateEnvError
from jaxrl.envs.base import JaxEnv
from jaxrl.envs.context import EnvContext
from jaxrl.envs.host import MadeHostEnv
from jaxrl.envs.params import scalar
from jaxrl.envs.registry import make
from jaxrl.errors import EnvError, UnknownNameError, did_you_mean


@pytree
class FaultyParams:
    """The wrapped environment's params, and which steps of which episodes are faulty."""

    inner: PyTree
    at_step: Int[Array, "*batch"] = scalar(1, np.int32)
    """Step of an episode at which the fault occurs, counted from 1; 0 for never."""
    fraction: Float[Array, "*batch"] = scalar(1.0)
    """Fraction of faulty episodes, drawn at their reset."""


@pytree
class FaultyState:
    """The wrapped environment's state, the steps since its reset, and whether it will be faulty."""

    inner: PyTree
    num_steps: Int[Array, "*batch"]
    breaks: Bool[Array, "*batch"]


class FaultyEnv(JaxEnv[FaultyState, FaultyParams]):
    """Wrapper that returns NaN once per faulty episode, as reward or as observation.

    The wrapped environment continues normally. Use an instance with `env_config={"at_step": 5}`, or
    the class path with `env_config={"env": "CartPole-v1", "kind": "reward", "at_step": 5}`.
    """

    def __init__(
        self, env: JaxEnv[Any, Any] | str, kind: Literal["reward", "obs"] = "reward"
    ) -> None:
        """Wrap an environment, or the one with the given id.

        Raises:
            EnvError: If `kind` is neither "reward" nor "obs", or the observation is not
                floating-point.
        """
        if kind not in ("reward", "obs"):
            raise EnvError(f"kind must be 'reward' or 'obs', got {kind!r}.")
        made = make(env)
        if isinstance(made, MadeHostEnv):
            raise EnvError(f"FaultyEnv wraps JAX environments only, got {made.id}.")
        self.env, self._inner_params = made.env, made.params
        self.kind = kind
        self.name = f"Faulty({self.env.name})"
        self.reset_mode = self.env.reset_mode
        space = self.env.observation_space(self._inner_params)
        if kind == "obs" and space.dtype is not None and space.dtype.kind != "f":
            raise EnvError(f"{made.id} has {space.dtype} observations, which cannot be NaN.")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FaultyEnv) and (self.env, self.kind) == (other.env, other.kind)

    def __hash__(self) -> int:
        return hash((FaultyEnv, self.env, self.kind))

    @property
    def default_params(self) -> FaultyParams:
        return FaultyParams(inner=self._inner_params)

    def observation_space(self, params: FaultyParams) -> gymnasium.Space[Any]:
        return self.env.observation_space(params.inner)

    def action_space(self, params: FaultyParams) -> gymnasium.Space[Any]:
        return self.env.action_space(params.inner)

    def reset(self, key: Key, params: FaultyParams) -> tuple[FaultyState, PyTree]:
        key_inner, key_breaks = jax.random.split(key)
        inner, obs = self.env.reset(key_inner, params.inner)
        breaks = jax.random.uniform(key_breaks, dtype=jnp.float32) < params.fraction
        num_steps = jnp.zeros((), jnp.int32)
        return FaultyState(inner=inner, num_steps=num_steps, breaks=breaks), obs

    def step(
        self, key: Key, state: FaultyState, action: PyTree, params: FaultyParams
    ) -> tuple[FaultyState, TimeStep]:
        inner, step = self.env.step(key, state.inner, action, params.inner)
        num_steps = state.num_steps + 1
        is_faulty = state.breaks & (num_steps == params.at_step)
        if self.kind == "reward":
            step = replace(step, reward=jnp.where(is_faulty, jnp.nan, step.reward))
        else:
            step = replace(step, obs=jax.tree.map(lambda leaf: _poison(leaf, is_faulty), step.obs))
        return FaultyState(inner=inner, num_steps=num_steps, breaks=state.breaks), step

    def render(self, state: FaultyState, params: FaultyParams) -> np.ndarray:
        return self.env.render(state.inner, params.inner)


def _poison(leaf: Array, is_faulty: Bool[Array, ""]) -> Array:
    """Return NaN where the fault occurs; integer leaves are unchanged."""
    return jnp.where(is_faulty, jnp.nan, leaf) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf


MAX_EPISODE_STEPS = 500

_CRASH_STREAM = 0x0C4A5
"""Separates the draws of crashes and stalls from the cart's own draws."""


class SimulatedCrash(RuntimeError):  # noqa: N818  (a crash is an error)
    """Exception raised by a simulated crash."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CrashConfig:
    """Probabilities, times and places of crashes and stalls.

    A pair of numbers is the range of a uniform draw. Indices of None stand for all.

    Args:
        p_crash: Probability of a crash at each step.
        p_crash_reset: Probability of a crash at each reset.
        crash_after_n_steps: Step of an episode at which to crash.
        crash_on_worker_indices: Workers whose copies crash.
        crash_on_vector_indices: Copies of a worker that crash.
        crash_silently: Whether to raise `StepFailedRecreateEnvError`, which requests a silent
            restart.
        p_stall: Probability of a stall at each step.
        p_stall_reset: Probability of a stall at each reset.
        stall_after_n_steps: Step of an episode at which to stall.
        stall_time_sec: Duration of a stall in seconds.
        stall_on_worker_indices: Workers whose copies stall.
        init_time_s: Duration of the constructor in seconds.
    """

    p_crash: float = 0.0
    p_crash_reset: float = 0.0
    crash_after_n_steps: int | Sequence[int] | None = None
    crash_on_worker_indices: Sequence[int] | None = None
    crash_on_vector_indices: Sequence[int] | None = None
    crash_silently: bool = False
    p_stall: float = 0.0
    p_stall_reset: float = 0.0
    stall_after_n_steps: int | Sequence[int] | None = None
    stall_time_sec: float | Sequence[float] = 1.0
    stall_on_worker_indices: Sequence[int] | None = None
    init_time_s: float | Sequence[float] = 0.0

    @classmethod
    def from_env_config(cls, env_config: Mapping[str, Any]) -> "CrashConfig":
        """Create the config from an `env_config`.

        Raises:
            UnknownNameError: If a name is not one of the fields.
            EnvError: If a probability is outside of [0, 1].
        """
        names = [field.name for field in dataclasses.fields(cls)]
        for name in env_config:
            if name not in names:
                raise UnknownNameError(
                    f"jaxrl:crashing-cartpole-v0 takes no argument {name!r} (env_config)."
                    f"{did_you_mean(name, names)} It takes {', '.join(names)}."
                )
        config = cls(**env_config)
        for name in ("p_crash", "p_crash_reset", "p_stall", "p_stall_reset"):
            value = getattr(config, name)
            if not 0.0 <= value <= 1.0:
                raise EnvError(f"{name} (env_config) must lie in [0, 1], got {value}.")
        return config


class CrashingCartPole(CartPoleEnv):
    """Gymnasium's CartPole with simulated crashes and stalls.

    Crashes and stalls have a random generator of their own, seeded by the reset, so that without a
    crash the transitions are CartPole's.
    """

    def __init__(self, config: EnvContext | None = None) -> None:
        context = EnvContext() if config is None else config
        super().__init__()
        self.context = context
        self.settings = CrashConfig.from_env_config(context)
        self._can_crash = _includes(self.settings.crash_on_worker_indices, context.worker_index)
        self._can_crash &= _includes(self.settings.crash_on_vector_indices, context.vector_index)
        self._can_stall = _includes(self.settings.stall_on_worker_indices, context.worker_index)
        self._rng = np.random.default_rng()
        self._num_steps = 0
        self._crash_at: float | None = None
        self._stall_at: float | None = None
        _sleep(self._sample(self.settings.init_time_s))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        if seed is not None:
            self._rng = np.random.default_rng((seed, _CRASH_STREAM))
        settings = self.settings
        self._num_steps = 0
        self._crash_at = self._sample_step(settings.crash_after_n_steps)
        self._stall_at = self._sample_step(settings.stall_after_n_steps)
        self._maybe_crash("reset", settings.p_crash_reset, is_due=False)
        self._maybe_stall(settings.p_stall_reset, is_due=False)
        return super().reset(seed=seed, options=options)

    def step(
        self, action: int | np.ndarray
    ) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._num_steps += 1
        self._maybe_crash("step", self.settings.p_crash, is_due=self._num_steps == self._crash_at)
        self._maybe_stall(self.settings.p_stall, is_due=self._num_steps == self._stall_at)
        return super().step(action)

    def _maybe_crash(self, what: str, probability: float, *, is_due: bool) -> None:
        is_drawn = self._rng.random() < probability
        if not self._can_crash or not (is_drawn or is_due):
            return
        where = f"worker {self.context.worker_index}, copy {self.context.vector_index}"
        error = StepFailedRecreateEnvError if self.settings.crash_silently else SimulatedCrash
        raise error(f"simulated crash in {what} ({where})")

    def _maybe_stall(self, probability: float, *, is_due: bool) -> None:
        is_drawn = self._rng.random() < probability
        if self._can_stall and (is_drawn or is_due):
            _sleep(self._sample(self.settings.stall_time_sec))

    def _sample_step(self, setting: int | Sequence[int] | None) -> float | None:
        return None if setting is None else round(self._sample(setting))

    def _sample(self, value: float | Sequence[float]) -> float:
        if isinstance(value, Sequence):
            low, high = value
            return float(self._rng.uniform(low, high))
        return float(value)


def crashing_cartpole(context: EnvContext) -> gymnasium.Env[Any, Any]:
    """Return a `CrashingCartPole` with CartPole-v1's time limit."""
    return TimeLimit(CrashingCartPole(context), MAX_EPISODE_STEPS)


def _includes(indices: Sequence[int] | None, index: int) -> bool:
    return indices is None or index in indices


def _sleep(seconds: float) -> None:
    if seconds > 0.0:
        time.sleep(seconds)
