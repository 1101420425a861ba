"""Exploration: its checks, and RLlib's `exploration_config` in the settings that describe the same."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, cast

from jaxrl.config.rllib_names import EXPLORATION_REASON
from jaxrl.core.neutral import get_rllib_name
from jaxrl.errors import ConfigError

if TYPE_CHECKING:
    from jaxrl.config.settings.actor_critic import TD3Training

_EPSILON_DEFAULTS = {
    "initial_epsilon": 1.0,
    "final_epsilon": 0.02,
    "warmup_timesteps": 0,
    "epsilon_timesteps": 10_000,
}
"""Those of RLlib's DQN."""
_GAUSSIAN_DEFAULTS = {
    "stddev": 0.1,
    "random_timesteps": 10_000,
    "initial_scale": 1.0,
    "final_scale": 1.0,
    "scale_timesteps": 1,
}
"""Those of RLlib's TD3, whose noise does not decay."""


def translate_exploration(value: object, known: Collection[str]) -> dict[str, object]:
    """Return the settings that describe the exploration of a config of RLlib's.

    Args:
        value: `exploration_config`, a dictionary with the `type` and its arguments. Without a type
            it is that of the algorithm.
        known: Names of the algorithm's settings.

    Returns:
        Settings by name; empty for what the algorithm does anyway.

    Raises:
        ConfigError: If no setting describes it.
    """
    if value is None or value == {}:
        return {}
    if not isinstance(value, Mapping):
        raise _make_error(value, "it must be a dictionary with a 'type'")
    arguments = dict(cast(Mapping[str, Any], value))
    kind = arguments.pop("type", None)
    name = get_rllib_name(kind) or kind
    if "epsilon" in known and name in (None, "EpsilonGreedy"):
        return _translate_epsilon_greedy(value, arguments)
    if "exploration_noise" in known and name in (None, "GaussianNoise"):
        return _translate_gaussian_noise(value, arguments)
    if (
        "epsilon" in known
        or "exploration_noise" in known
        or name
        not in (
            None,
            "StochasticSampling",
        )
    ):
        raise _make_error(value, _describe_alternative(known))
    timesteps = arguments.pop("random_timesteps", 0)
    if arguments or (timesteps and "initial_random_timesteps" not in known):
        raise _make_error(value, EXPLORATION_REASON)
    return {"initial_random_timesteps": timesteps} if timesteps else {}


def _translate_epsilon_greedy(value: object, arguments: dict[str, Any]) -> dict[str, object]:
    """Return the schedule of epsilon: constant during the warm-up, then linear."""
    merged = {**_EPSILON_DEFAULTS, **arguments}
    if merged.keys() != _EPSILON_DEFAULTS.keys():
        raise _make_error(value, _describe_alternative(("epsilon",)))
    _check_numbers(value, merged)
    first, last, warmup, timesteps = merged.values()
    start = [[0, first], [warmup, first]] if warmup else [[0, first]]
    return {"epsilon": [*start, [warmup + max(1, timesteps), last]]}


def _translate_gaussian_noise(value: object, arguments: dict[str, Any]) -> dict[str, object]:
    merged = {**_GAUSSIAN_DEFAULTS, **arguments}
    if merged.keys() == _GAUSSIAN_DEFAULTS.keys():
        _check_numbers(value, merged)
    is_constant = merged["initial_scale"] == merged["final_scale"] == 1
    if merged.keys() != _GAUSSIAN_DEFAULTS.keys() or not is_constant:
        raise _make_error(value, _describe_alternative(("exploration_noise",)))
    return {
        "exploration_noise": "gaussian",
        "exploration_sigma": merged["stddev"],
        "initial_random_timesteps": merged["random_timesteps"],
    }


def _check_numbers(value: object, arguments: Mapping[str, object]) -> None:
    for name, argument in arguments.items():
        if isinstance(argument, bool) or not isinstance(argument, int | float):
            raise ConfigError(
                f"{name} of 'exploration_config' must be a number, got {argument!r} in {value!r}."
            )


def _describe_alternative(known: Collection[str]) -> str:
    if "epsilon" in known:
        return "training(epsilon=...) is the probability of a random action, or its schedule"
    if "exploration_noise" in known:
        return (
            "training(exploration_noise=..., exploration_sigma=...) is the noise, whose scale is "
            "constant"
        )
    return EXPLORATION_REASON


def _make_error(value: object, reason: str) -> ConfigError:
    return ConfigError(f"'exploration_config' (got {value!r}) has no effect here: {reason}.")


def check_exploration_sigmas(training: "TD3Training", num_envs: int) -> None:
    """Check the deviations between which those of a run's environments are spread.

    Raises:
        ConfigError: If there is nothing between them, or nothing to spread them over.
    """
    low, high = training.exploration_sigma, training.exploration_sigma_max
    if high is not None and high < low:
        raise ConfigError(
            f"exploration_sigma_max must be at least exploration_sigma={low}, got {high}."
        )
    if high is not None and num_envs == 1:
        raise ConfigError(
            f"exploration_sigma_max={high} differs between environments, but there is one: raise "
            "num_envs_per_env_runner, or leave it out."
        )
