"""A CartPole that crashes and stalls: for trying out what survives it.

`jaxrl:crashing-cartpole-v0`, with the names that RLlib's example of a crashing CartPole gave to its
`env_config`:

    env_config={"p_crash": 1e-4, "p_crash_reset": 1e-3, "crash_on_worker_indices": [1, 2]}

Disable the environment check (`disable_env_checking=True`) where it is to crash often.
"""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.wrappers import TimeLimit

from jaxrl.envs.adapters.barrier import StepFailedRecreateEnvError
from jaxrl.envs.context import EnvContext
from jaxrl.errors import EnvError, UnknownNameError, did_you_mean

MAX_EPISODE_STEPS = 500

_CRASH_STREAM = 0x0C4A5
"""Keeps what crashes and stalls draw apart from what the cart draws."""


class SimulatedCrash(RuntimeError):  # noqa: N818  (the word says it)
    """What a crash raises."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CrashConfig:
    """When to crash and when to stall.

    A pair of numbers means a uniform draw from between them. Indices of None mean all.

    Args:
        p_crash: Probability of a crash at each step.
        p_crash_reset: Probability of a crash at each reset.
        crash_after_n_steps: Crash at this step of an episode.
        crash_on_worker_indices: Which workers' copies crash.
        crash_on_vector_indices: Which copies of a worker crash.
        crash_silently: Raise `StepFailedRecreateEnvError`, which asks for a silent restart.
        p_stall: Probability of a stall at each step.
        p_stall_reset: Probability of a stall at each reset.
        stall_after_n_steps: Stall at this step of an episode.
        stall_time_sec: Seconds that a stall lasts.
        stall_on_worker_indices: Which workers' copies stall.
        init_time_s: Seconds that making a copy takes.
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
    def of(cls, env_config: Mapping[str, Any]) -> "CrashConfig":
        """From an `env_config`.

        Raises:
            UnknownNameError: It has a name that is none of these.
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
    """Gymnasium's CartPole, which raises or sleeps as it is told.

    What it draws for that comes from the seed of its reset, and the cart's own draws are not
    touched: without a crash its transitions are CartPole's.
    """

    def __init__(self, config: EnvContext | None = None) -> None:
        context = EnvContext() if config is None else config
        super().__init__()
        self.context = context
        self.settings = CrashConfig.of(context)
        self._crashes = _among(self.settings.crash_on_worker_indices, context.worker_index)
        self._crashes &= _among(self.settings.crash_on_vector_indices, context.vector_index)
        self._stalls = _among(self.settings.stall_on_worker_indices, context.worker_index)
        self._draws = np.random.default_rng()
        self._num_steps = 0
        self._crash_at: float | None = None
        self._stall_at: float | None = None
        _sleep(self._between(self.settings.init_time_s))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._draws = np.random.default_rng((seed, _CRASH_STREAM))
        settings = self.settings
        self._num_steps = 0
        self._crash_at = self._drawn_step(settings.crash_after_n_steps)
        self._stall_at = self._drawn_step(settings.stall_after_n_steps)
        self._maybe_crash("reset", settings.p_crash_reset, now=False)
        self._maybe_stall(settings.p_stall_reset, now=False)
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        self._num_steps += 1
        self._maybe_crash("step", self.settings.p_crash, now=self._num_steps == self._crash_at)
        self._maybe_stall(self.settings.p_stall, now=self._num_steps == self._stall_at)
        return super().step(action)

    def _maybe_crash(self, what: str, probability: float, *, now: bool) -> None:
        drawn = self._draws.random() < probability
        if not self._crashes or not (drawn or now):
            return
        where = f"worker {self.context.worker_index}, copy {self.context.vector_index}"
        error = StepFailedRecreateEnvError if self.settings.crash_silently else SimulatedCrash
        raise error(f"simulated crash in {what} ({where})")

    def _maybe_stall(self, probability: float, *, now: bool) -> None:
        drawn = self._draws.random() < probability
        if self._stalls and (drawn or now):
            _sleep(self._between(self.settings.stall_time_sec))

    def _drawn_step(self, setting: int | Sequence[int] | None) -> float | None:
        return None if setting is None else round(self._between(setting))

    def _between(self, value: float | Sequence[float]) -> float:
        if isinstance(value, Sequence):
            low, high = value
            return float(self._draws.uniform(low, high))
        return float(value)


def crashing_cartpole(context: EnvContext) -> gymnasium.Env[Any, Any]:
    """`CrashingCartPole` with CartPole-v1's time limit."""
    return TimeLimit(CrashingCartPole(context), MAX_EPISODE_STEPS)


def _among(indices: Sequence[int] | None, index: int) -> bool:
    return indices is None or index in indices


def _sleep(seconds: float) -> None:
    if seconds > 0.0:
        time.sleep(seconds)
