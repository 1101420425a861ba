"""Names of result keys, and how to read them.

A result is a nested dictionary; a path such as `"env_runners/episode_return_mean"` names one value.
"""

from collections.abc import Mapping
from typing import Any

from jaxrl.errors import UnknownNameError, did_you_mean

DEFAULT_MODULE = "default_policy"
"""RLlib's id of the only module, below `learners/`."""

_EPISODES = (
    *(f"episode_{what}_{how}" for what in ("return", "len") for how in ("mean", "min", "max")),
    "num_episodes",
    "num_env_steps_sampled",
)
_TRAINING = (
    *_EPISODES,
    "num_episodes_lifetime",
    "num_env_steps_sampled_lifetime",
    "num_env_steps_sampled_per_second",
)
_FAULTS = (
    "num_nonfinite_updates",
    "num_nonfinite_updates_in_a_row",
    "num_rollbacks",
    "num_nonfinite_env_steps",
)
KNOWN_KEYS: tuple[str, ...] = (
    "training_iteration",
    "time_this_iter_s",
    "time_total_s",
    "num_env_steps_sampled_lifetime",
    "num_env_steps_trained_lifetime",
    *(f"env_runners/{name}" for name in _TRAINING),
    *(f"evaluation/env_runners/{name}" for name in _EPISODES),
    *(f"fault_tolerance/{name}" for name in _FAULTS),
)
"""Numbers that a stop criterion or a checkpoint score may name."""

OPEN_PREFIXES = ("learners/", "timers/", "custom_metrics/", "evaluation/custom_metrics/")
"""Below these, names depend on the algorithm or the user."""

_RETURN = "env_runners/episode_return_mean"
OLD_KEYS = {
    "timesteps_total": "num_env_steps_sampled_lifetime",
    "num_env_steps_sampled": "num_env_steps_sampled_lifetime",
    "episodes_total": "env_runners/num_episodes_lifetime",
    "episode_reward_mean": _RETURN,
    "episode_reward_min": "env_runners/episode_return_min",
    "episode_reward_max": "env_runners/episode_return_max",
    "episode_return_mean": _RETURN,
    "episode_len_mean": "env_runners/episode_len_mean",
    "sampler_results/episode_reward_mean": _RETURN,
    "evaluation/episode_reward_mean": f"evaluation/{_RETURN}",
    "evaluation/episode_return_mean": f"evaluation/{_RETURN}",
    "evaluation/sampler_results/episode_reward_mean": f"evaluation/{_RETURN}",
}
"""RLlib's old names of the same values."""


def flatten(result: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested dictionary as one level with paths `"a/b"`; empty dictionaries vanish."""
    flat: dict[str, Any] = {}
    for key, value in result.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat.update(flatten(value, path + "/"))  # pyright: ignore[reportUnknownArgumentType]
        else:
            flat[path] = value
    return flat


def lookup(result: Mapping[str, Any], path: str) -> Any:
    """The value at a path `"a/b"`, or None if the result does not have it (yet)."""
    value: Any = result
    for part in path.split("/"):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]  # pyright: ignore[reportUnknownVariableType]
    return value  # pyright: ignore[reportUnknownVariableType]


def check_key(path: str, used_by: str) -> None:
    """Refuses a path that no result has.

    Raises:
        UnknownNameError: Names who used it and the closest known path.
    """
    if path in KNOWN_KEYS or path.startswith(OPEN_PREFIXES):
        return
    hint = did_you_mean(path, (*KNOWN_KEYS, *OLD_KEYS))
    raise UnknownNameError(f"{used_by} names '{path}', which no result has.{hint}")
