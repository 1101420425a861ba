"""check_env for gymnasium environments."""

import threading
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

from jaxrl.envs import make
from jaxrl.errors import EnvError
from jaxrl.testing import check_env


class Walk(gymnasium.Env[Any, Any]):
    """A sound environment: a walk that ends beyond 3."""

    observation_space = spaces.Box(-9.0, 9.0, (1,), np.float32)
    action_space = spaces.Discrete(2)
    drift = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.position = self.np_random.uniform(-0.5, 0.5)
        return self.obs(), {}

    def step(self, action: Any) -> Any:
        self.position += 0.4 * (2 * action - 1) + self.np_random.normal(0.0, 0.1) + self.drift
        return self.obs(), 1.0, bool(abs(self.position) > 3.0), False, {}

    def obs(self) -> Any:
        return np.array([self.position], np.float32)


@pytest.mark.parametrize(
    "spec", ["gymnasium:CartPole-v1", "gymnasium:Blackjack-v1", "FrozenLake-v1", Walk]
)
def test_sound_environments(spec: Any) -> None:
    check_env(spec)
    check_env(make(spec))


class Forgets(Walk):
    """Its own generator outlives resets, though its first observations do not show it."""

    generator = np.random.default_rng(0)

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        return obs, float(self.generator.random()), *rest[1:]


class Shares(Walk):
    """Environment whose copies share their state; a reset cleans up."""

    steps: list[int] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps.clear()
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        self.steps.append(1)
        obs, _, *rest = super().step(action)
        return obs, float(len(self.steps)), *rest


class Deaf(TimeLimit[Any, Any]):
    """Says that it is limited, and goes on."""

    def step(self, action: Any) -> Any:
        return self.env.step(action)


BAD: list[tuple[Any, str]] = [
    (Forgets, "two runs from the same seed and actions differ in the reward of step 0"),
    (Shares, "it behaves differently when a second copy is stepped beside it"),
    (lambda context: Deaf(Walk(), 2), "steps, but the time limit is 2"),
]


@pytest.mark.parametrize(("spec", "message"), BAD)
def test_broken_environments(spec: Any, message: str) -> None:
    with pytest.raises(EnvError, match=message):
        check_env(spec)


class Alike(Walk):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.position = 0.0
        return self.obs(), {}

    def step(self, action: Any) -> Any:
        self.position += 0.4 * (2 * action - 1)
        return self.obs(), 1.0, abs(self.position) > 3.0, False, {}


class Endless(Walk):
    def step(self, action: Any) -> Any:
        obs, reward, _, truncated, info = super().step(action)
        self.position = np.clip(self.position, -3.0, 3.0)
        return obs, reward, False, truncated, info


class Punctual(Endless):
    """Its time limit terminates."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.count = 0
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        self.count += 1
        obs, reward, _, truncated, info = super().step(action)
        return obs, reward, self.count == 20, truncated, info


class Locked(Walk):
    def __init__(self, lock: Any) -> None:
        self.lock = lock


LOCK = threading.Lock()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (Alike, "does not depend on its seed"),
        (Endless, "did not end within 2000 steps and has no time limit"),
        (Punctual, "every episode terminated after 20 steps"),
        ((lambda lock: lambda context: Locked(lock))(LOCK), "cannot be sent to another process"),
    ],
)
def test_warnings(spec: Any, message: str) -> None:
    with pytest.warns(UserWarning, match=message):
        check_env(spec)
