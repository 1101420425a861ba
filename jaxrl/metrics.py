"""Names of result keys, and how to read them.

A result is a nested dictionary; a path such as `"env_runners/episode_return_mean"` names one value.
"""

import math
from collections.abc import Mapping
from typing import Any

from jaxrl.errors import UnknownNameError, did_you_mean

ENV_RUNNERS = "env_runners"
LEARNERS = "learners"
EVALUATION = "evaluation"
REPLAY_BUFFER = "replay_buffer"
TIMERS = "timers"
FAULT_TOLERANCE = "fault_tolerance"
COMPILE = "compile"

EPISODE_RETURN_MEAN = "episode_return_mean"
EPISODE_RETURN_MIN = "episode_return_min"
EPISODE_RETURN_MAX = "episode_return_max"
EPISODE_LEN_MEAN = "episode_len_mean"
EPISODE_LEN_MIN = "episode_len_min"
EPISODE_LEN_MAX = "episode_len_max"
NUM_EPISODES = "num_episodes"
NUM_ENV_STEPS_SAMPLED_LIFETIME = "num_env_steps_sampled_lifetime"

TRAINING_ITERATION = "training_iteration"
TIME_TOTAL_S = "time_total_s"
TIMESTAMP = "timestamp"
PID = "pid"

DEFAULT_MODULE = "default_policy"
"""RLlib's id of the only module, below `learners/`."""

NO_EPISODE: Mapping[str, float] = dict.fromkeys(
    (
        EPISODE_RETURN_MEAN,
        EPISODE_RETURN_MIN,
        EPISODE_RETURN_MAX,
        EPISODE_LEN_MEAN,
        EPISODE_LEN_MIN,
        EPISODE_LEN_MAX,
    ),
    math.nan,
)
"""What a result says of episodes as long as none has ended: the keys are there from the start."""

_EPISODES = (
    EPISODE_RETURN_MEAN,
    EPISODE_RETURN_MIN,
    EPISODE_RETURN_MAX,
    EPISODE_LEN_MEAN,
    EPISODE_LEN_MIN,
    EPISODE_LEN_MAX,
    NUM_EPISODES,
    "num_env_steps_sampled",
)
_TRAINING = (
    *_EPISODES,
    "num_episodes_lifetime",
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    "num_env_steps_sampled_per_second",
)
_REPLAY = (
    "capacity",
    "num_env_steps_stored",
    "fill",
    "num_env_steps_added",
    "num_env_steps_added_lifetime",
    "num_env_steps_sampled",
    "num_env_steps_sampled_lifetime",
)
_FAULTS = (
    "num_nonfinite_updates",
    "num_nonfinite_updates_in_a_row",
    "num_rollbacks",
    "num_nonfinite_env_steps",
)
_RUNNERS = (
    "learner_wait_fraction",
    "env_runners_wait_fraction",
    "num_fragments_queued",
    "staleness_mean",
    "staleness_max",
)
_RUNNER_FAULTS = (
    "num_healthy_env_runners",
    "num_env_runner_restarts",
    "num_sub_env_restarts",
    "num_env_steps_received_lifetime",
    "num_env_steps_queued",
    "num_env_steps_maybe_lost_lifetime",
)
KNOWN_KEYS: tuple[str, ...] = (
    TRAINING_ITERATION,
    "time_this_iter_s",
    TIME_TOTAL_S,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    "num_env_steps_trained_lifetime",
    *(f"{ENV_RUNNERS}/{name}" for name in _TRAINING),
    *(f"{EVALUATION}/{ENV_RUNNERS}/{name}" for name in _EPISODES),
    *(f"{REPLAY_BUFFER}/{name}" for name in _REPLAY),
    *(f"{FAULT_TOLERANCE}/{name}" for name in _FAULTS),
    *(f"{ENV_RUNNERS}/{name}" for name in _RUNNERS),
    *(f"{FAULT_TOLERANCE}/{name}" for name in _RUNNER_FAULTS),
)
"""Numbers that a stop criterion or a checkpoint score may name."""

OPEN_PREFIXES = (
    f"{LEARNERS}/",
    f"{TIMERS}/",
    "custom_metrics/",
    f"{ENV_RUNNERS}/custom_metrics/",
    f"{EVALUATION}/custom_metrics/",
)
"""Below these, names depend on the algorithm or the user."""

_RETURN = f"{ENV_RUNNERS}/{EPISODE_RETURN_MEAN}"
OLD_KEYS = {
    "timesteps_total": NUM_ENV_STEPS_SAMPLED_LIFETIME,
    "num_env_steps_sampled": NUM_ENV_STEPS_SAMPLED_LIFETIME,
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
        if type(value) is dict or isinstance(value, Mapping):  # the second question is dear
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


def score(result: Mapping[str, Any], path: str) -> float | None:
    """The value at a path as a number to compare, or None where there is none or it is NaN."""
    value = lookup(result, path)
    return None if value is None or math.isnan(value) else float(value)


def check_key(path: str, used_by: str) -> None:
    """Refuses a path that no result has.

    Raises:
        UnknownNameError: Names who used it and the closest known path.
    """
    if path in KNOWN_KEYS or path.startswith(OPEN_PREFIXES):
        return
    hint = did_you_mean(path, (*KNOWN_KEYS, *OLD_KEYS))
    raise UnknownNameError(f"{used_by} names {path!r}, which no result has.{hint}")
