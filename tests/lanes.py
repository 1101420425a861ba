"""Sweeps of lanes that differ in whatever a test wants."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from jaxrl import EnvContext, Population
from jaxrl.config.sweep import Lane
from jaxrl.core.struct import replace
from jaxrl.envs.classic.cartpole import CartPole
from jaxrl.errors import ConfigError
from jaxrl.sweeps import base as sweep_runs


class PaidCartPole(CartPole):
    """Rewards as its constructor says."""

    def __init__(self, pay: float = 1.0) -> None:
        super().__init__()
        self.pay = pay

    def step(self, key: Any, state: Any, action: Any, params: Any) -> Any:
        state, step = super().step(key, state, action, params)
        return state, replace(step, reward=self.pay * step.reward)


def paid_cart_pole(context: EnvContext) -> PaidCartPole:
    """A creator that makes another environment of each `env_config`."""
    return PaidCartPole(context.get("pay", 1.0))


BASE = {
    "grad_clip": 1.0,
    "huber_delta": 5.0,
    "epsilon_ladder": 7.0,
    "initial_random_timesteps": 160,
    "bc_coeff": 2.5,
    "exploration_sigma_max": 0.5,
}
"""In the place of defaults with which a setting would have no effect in a short run."""


def sweepable(config: Any) -> list[str]:
    """The traced settings of an algorithm that have an effect."""
    settings = config.get_name_table().groups["training_settings"]
    training = config.training_settings
    refused = set() if getattr(training, "use_critic", True) else {"huber_delta"}
    refused |= set() if training.intrinsic_reward else {"intrinsic_reward_coeff"}
    refused |= set() if getattr(training, "use_target_network", True) else {"tau"}
    return [name for name, setting in settings.items() if setting.sweepable and name not in refused]


def with_effects(config: Any) -> Any:
    """The config with every traced setting a number or a schedule, and rewards normalised."""
    names = sweepable(config)
    config.training(**{name: value for name, value in BASE.items() if name in names})
    return config.env_runners(normalize_rewards=True)


def other_value(config: Any, name: str) -> Any:
    """Another value of a traced setting, of the same structure."""
    setting, value = config.get_name_table().get_setting(name), config[name]
    if isinstance(value, list):
        return [[step, 0.5 * height + 0.01] for step, height in value]
    for candidate in (0.8 * value, 0.5, 2.0):
        try:
            parsed = setting.parse(type(value)(candidate), config.trust)
        except ConfigError:
            continue
        if parsed != value:
            return parsed
    raise AssertionError(f"{name}={value!r} has no other value")


def lanes_at(config: Any, points: Sequence[Mapping[str, Any]]) -> list[Lane]:
    """A lane for each point: its values by setting, `seed` among them."""
    return [
        Lane(
            index=index,
            point=index,
            seed=point.get("seed", 0),
            values=point,
            config=config.copy(copy_frozen=False).update_from_dict(dict(point)),
        )
        for index, point in enumerate(points)
    ]


def population_of(
    config: Any, points: Sequence[Mapping[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> Population:
    """A sweep with a lane for each point."""
    lanes = lanes_at(config, points)
    monkeypatch.setattr(sweep_runs, "make_lanes", lambda _: lanes)
    return Population(config.copy())
