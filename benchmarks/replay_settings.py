"""Settings of the replay suite, and the length of each peer's measurements.

Uses the standard library alone, because peers in their own virtual environments import it too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

OURS, SB3, SB3_THREADS, SBX = "jaxrl-replay", "sb3-replay", "sb3-replay-threads", "sbx"
REJAX, PRODUCTS = "rejax-replay", "products"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplaySetting:
    """Setting of DQN or SAC with a uniform buffer, one-step targets, and two hidden ReLU layers."""

    algorithm: str
    env: str
    num_envs: int
    steps_per_update: int
    """Environment steps per update, summed over all environments."""
    env_steps: int
    """Environment steps per measurement."""
    batch_size: int
    hidden_size: int
    lr: float
    tau: float
    target_update_freq: int
    """Environment steps between updates of the target network."""
    capacity: int = 50_000
    learning_starts: int = 1_000
    gamma: float = 0.99
    final_epsilon: float = 0.05
    epsilon_steps: int = 2_000
    """Environment steps over which DQN's epsilon falls linearly from 1."""
    seed: int = 0

    @property
    def warmup_steps(self) -> int:
        """Environment steps before measuring: epsilon has fallen, and updates have begun."""
        return max(self.learning_starts, self.epsilon_steps) + 4 * self.steps_per_update

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> ReplaySetting:
        return ReplaySetting(**values)


_DQN: dict[str, Any] = {
    "algorithm": "DQN",
    "env": "CartPole-v1",
    "batch_size": 64,
    "hidden_size": 64,
    "lr": 5e-4,
    "tau": 1.0,
    "target_update_freq": 500,
    "steps_per_update": 4,
}
_VALUES: dict[str, dict[str, Any]] = {
    "dqn": {**_DQN, "num_envs": 1},
    "dqn-4": {**_DQN, "num_envs": 4},
    "sac": {
        "algorithm": "SAC",
        "env": "Pendulum-v1",
        "num_envs": 1,
        "steps_per_update": 1,
        "batch_size": 256,
        "hidden_size": 256,
        "lr": 1e-3,
        "tau": 0.005,
        "target_update_freq": 1,
    },
}
MEASUREMENT_STEPS: dict[str, dict[str, int]] = {
    "dqn": {OURS: 60_000, SB3: 2_000, SBX: 2_000},
    "dqn-4": {OURS: 60_000, REJAX: 2_000},
    "sac": {OURS: 300, SB3: 200, SB3_THREADS: 200, SBX: 200, REJAX: 200, PRODUCTS: 400},
}
"""Environment steps per measurement, about two seconds on two cores, by setting and peer."""
SETTING_NAMES = tuple(_VALUES)


def make_replay_settings(name: str, *, steps: int | None = None) -> dict[str, ReplaySetting]:
    """Return the setting of each peer; they differ only in the length of a measurement.

    Args:
        name: Name of the setting.
        steps: Environment steps per measurement, rounded up to whole updates; None for each peer's
            own number.
    """
    values = _VALUES[name]
    multiple = values["steps_per_update"]
    return {
        peer: ReplaySetting(**values, env_steps=-(-(steps or own) // multiple) * multiple)
        for peer, own in MEASUREMENT_STEPS[name].items()
    }
