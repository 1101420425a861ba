"""Names of result keys, and functions that read them.

A result is a nested dictionary; a path such as `"env_runners/episode_return_mean"` names one value.
"""

import math
from collections.abc import Mapping
from typing import Any

from jaxrl.errors import ConfigError, UnknownNameError, did_you_mean

ENV_RUNNERS = "env_runners"
LEARNERS = "learners"
EVALUATION = "evaluation"
OFFLINE_EVAL_RUNNERS = "offline_eval_runners"
"""RLlib's key of what held-out recorded episodes give, below `EVALUATION`."""
OFF_POLICY_ESTIMATOR = "off_policy_estimator"
"""RLlib's key of the estimates of `off_policy_estimation_methods`, below `EVALUATION`."""
HELD_OUT_PARTS = OFFLINE_EVAL_RUNNERS, OFF_POLICY_ESTIMATOR
"""Keys below `EVALUATION` that come at `offline_evaluation_interval`."""
REPLAY_BUFFER = "replay_buffer"
TIMERS = "timers"
FAULT_TOLERANCE = "fault_tolerance"
LEAGUE = "league"
COMPILE = "compile"

EPISODE_RETURN_MEAN = "episode_return_mean"
EPISODE_RETURN_MIN = "episode_return_min"
EPISODE_RETURN_MAX = "episode_return_max"
EPISODE_LEN_MEAN = "episode_len_mean"
EPISODE_LEN_MIN = "episode_len_min"
EPISODE_LEN_MAX = "episode_len_max"
NUM_EPISODES = "num_episodes"
NUM_ENV_STEPS_SAMPLED_LIFETIME = "num_env_steps_sampled_lifetime"
NUM_ENV_STEPS_TRAINED_LIFETIME = "num_env_steps_trained_lifetime"

TRAINING_ITERATION = "training_iteration"
TIME_TOTAL_S = "time_total_s"
TIMESTAMP = "timestamp"
PID = "pid"

DEFAULT_MODULE = "default_policy"
"""RLlib's id of the single module, below `learners/`."""

ALL_MODULES = "__all_modules__"
"""RLlib's key of totals over all modules, below `learners/`."""

EMPTY_EPISODE_METRICS: Mapping[str, float] = dict.fromkeys(
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
"""Episode metrics before the first episode has ended, so that the keys are always present."""

_EPISODE_KEYS = (
    EPISODE_RETURN_MEAN,
    EPISODE_RETURN_MIN,
    EPISODE_RETURN_MAX,
    EPISODE_LEN_MEAN,
    EPISODE_LEN_MIN,
    EPISODE_LEN_MAX,
    NUM_EPISODES,
    "num_env_steps_sampled",
)
_SAMPLING_KEYS = (
    *_EPISODE_KEYS,
    "num_episodes_lifetime",
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    "num_env_steps_sampled_per_second",
    "num_episodes_not_reported",
    "env_step_fraction",
)
_EVALUATION_KEYS = (
    *_EPISODE_KEYS,
    "episode_return_std",
    "episode_return_normalized",
    "num_episodes_cut",
    "num_nonfinite_env_steps",
)
_REPLAY_KEYS = (
    "capacity",
    "num_env_steps_stored",
    "fill",
    "num_env_steps_added",
    "num_env_steps_added_lifetime",
    "num_env_steps_sampled",
    "num_env_steps_sampled_lifetime",
)
_FAULT_KEYS = (
    "num_nonfinite_updates",
    "num_nonfinite_updates_in_a_row",
    "num_rollbacks",
    "num_nonfinite_env_steps",
)
_RUNNER_KEYS = (
    "learner_wait_fraction",
    "env_runners_wait_fraction",
    "num_fragments_queued",
    "staleness_mean",
    "staleness_max",
)
_RUNNER_FAULT_KEYS = (
    "num_healthy_env_runners",
    "num_env_runner_restarts",
    "num_sub_env_restarts",
    "num_env_steps_received_lifetime",
    "num_env_steps_queued",
    "num_env_steps_maybe_lost_lifetime",
)
_AGENT_FAULT_KEYS = ("num_agent_steps_lost", "num_rewards_without_action")
LEAGUE_KEYS = ("num_opponents", "num_games", "win_rate_mean", "win_rate_min", "elo")
"""Keys of the league's part of a result, of a league of one learner."""
LEARNER_KEYS = ("num_games", "num_snapshots", "win_rate_mean", "win_rate_min", "elo")
"""Keys of each learner of a league of several, below its id."""
KNOWN_KEYS: tuple[str, ...] = (
    TRAINING_ITERATION,
    "time_this_iter_s",
    TIME_TOTAL_S,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    "num_env_steps_trained_lifetime",
    *(f"{ENV_RUNNERS}/{name}" for name in _SAMPLING_KEYS),
    "num_training_step_calls_per_iteration",
    "timestamp",
    *(f"{EVALUATION}/{ENV_RUNNERS}/{name}" for name in _EVALUATION_KEYS),
    *(f"{REPLAY_BUFFER}/{name}" for name in _REPLAY_KEYS),
    *(f"{FAULT_TOLERANCE}/{name}" for name in _FAULT_KEYS),
    *(f"{ENV_RUNNERS}/{name}" for name in _RUNNER_KEYS),
    *(f"{FAULT_TOLERANCE}/{name}" for name in (*_RUNNER_FAULT_KEYS, *_AGENT_FAULT_KEYS)),
    *(f"{LEAGUE}/{name}" for name in LEAGUE_KEYS),
)
"""Result keys that a stop criterion or a checkpoint score may use."""

_AGENT_KEYS = ("agent_episode_returns_mean", "module_episode_returns_mean")
_AGENT_STEP_KEYS = tuple(
    f"num_{of}_steps_sampled{over}" for of in ("agent", "module") for over in ("", "_lifetime")
)
OPEN_PREFIXES = (
    f"{LEARNERS}/",
    f"{TIMERS}/",
    "compile/",
    "system/",
    "curriculum/",
    "custom_metrics/",
    f"{ENV_RUNNERS}/custom_metrics/",
    f"{EVALUATION}/custom_metrics/",
    *(f"{ENV_RUNNERS}/{name}/" for name in (*_AGENT_KEYS, *_AGENT_STEP_KEYS)),
    *(f"{EVALUATION}/{ENV_RUNNERS}/{name}/" for name in _AGENT_KEYS),
    *(f"{EVALUATION}/{part}/" for part in HELD_OUT_PARTS),
)
"""Prefixes below which key names depend on the algorithm, the environment's agents or the user."""

_RENAMED_EPISODE_KEYS = {
    "episode_reward_mean": EPISODE_RETURN_MEAN,
    "episode_reward_min": EPISODE_RETURN_MIN,
    "episode_reward_max": EPISODE_RETURN_MAX,
    "episodes_this_iter": NUM_EPISODES,
}
_MOVED_EPISODE_KEYS = (
    EPISODE_RETURN_MEAN,
    EPISODE_RETURN_MIN,
    EPISODE_RETURN_MAX,
    EPISODE_LEN_MEAN,
    EPISODE_LEN_MIN,
    EPISODE_LEN_MAX,
)
RENAMED_KEYS = {
    "timesteps_total": NUM_ENV_STEPS_SAMPLED_LIFETIME,
    "num_env_steps_sampled": NUM_ENV_STEPS_SAMPLED_LIFETIME,
    "num_env_steps_trained": "num_env_steps_trained_lifetime",
    "num_env_steps_sampled_this_iter": f"{ENV_RUNNERS}/num_env_steps_sampled",
    "timesteps_this_iter": f"{ENV_RUNNERS}/num_env_steps_sampled",
    "episodes_total": f"{ENV_RUNNERS}/num_episodes_lifetime",
    **{
        f"{scope}{place}{old}": f"{scope}{ENV_RUNNERS}/{new}"
        for scope in ("", f"{EVALUATION}/")
        for place, names in (
            ("", dict.fromkeys(_MOVED_EPISODE_KEYS) | _RENAMED_EPISODE_KEYS),
            ("sampler_results/", dict.fromkeys(_MOVED_EPISODE_KEYS) | _RENAMED_EPISODE_KEYS),
            (f"{ENV_RUNNERS}/", _RENAMED_EPISODE_KEYS),
        )
        for old, new in ((old, new or old) for old, new in names.items())
    },
}
"""RLlib's old result keys, mapped to the current ones."""

MOVED_PARTS = {
    f"{scope}custom_metrics": f"{scope}{ENV_RUNNERS}/custom_metrics"
    for scope in ("", f"{EVALUATION}/")
}
"""Old places of what callbacks log, unless a callback has put values of its own there."""


_STEPS_OF_OTHERS = ("total_timesteps", "total_steps", "timesteps", "num_timesteps", "global_step")
"""Names that other libraries have for the number of environment steps."""


def flatten(result: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten a nested dictionary to one level with keys `"a/b"`; drop empty dictionaries."""
    flat: dict[str, Any] = {}
    for key, value in result.items():
        path = f"{prefix}{key}"
        if type(value) is dict or isinstance(value, Mapping):  # isinstance with an ABC is slow
            flat.update(flatten(value, path + "/"))  # pyright: ignore[reportUnknownArgumentType]
        else:
            flat[path] = value
    return flat


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the nested dictionary of values with keys `"a/b"`."""
    result: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, name = path.split("/")
        node = result
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = value
    return result


def lookup(result: Mapping[str, Any], path: str) -> Any:
    """Return the value at a path `"a/b"`, or None if the result does not have it (yet)."""
    value: object = result
    parts = path.split("/")
    for depth, part in enumerate(parts):
        if not isinstance(value, Mapping):
            return None
        if part not in value:  # the user may have written "a/b" as one key, as it is in the files
            rest = "/".join(parts[depth:])
            if rest not in value:
                return None
            return value[rest]  # pyright: ignore[reportUnknownVariableType]
        value = value[part]  # pyright: ignore[reportUnknownVariableType]
    return value  # pyright: ignore[reportUnknownVariableType]


def get_score(result: Mapping[str, Any], path: str) -> float | None:
    """Return the value at a path as a comparable number, or None if it is missing or NaN.

    Raises:
        ConfigError: If the value is not a number.
    """
    value = lookup(result, path)
    if value is None:
        return None
    if isinstance(value, Mapping):
        names = list(flatten(value, f"{path}/"))  # pyright: ignore[reportUnknownArgumentType]
        raise ConfigError(
            f"'{path}' of the result holds several values; name one of them: {', '.join(names[:20])}."
        )
    try:
        is_single = not isinstance(value, str | bytes) and getattr(value, "shape", ()) == ()
        number = float(value) if is_single else None
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None:
        raise ConfigError(f"'{path}' of the result is {str(value)[:80]!r}, which is not a number.")
    return None if math.isnan(number) else number


_OWN_METRICS = (
    " A metric of your own needs a place below 'custom_metrics', as by "
    "metrics_logger.log_value(('custom_metrics', name), value)."
)


def check_key(path: str, used_by: str) -> None:
    """Raise if no result has a path.

    Args:
        path: Result key, such as `"env_runners/episode_return_mean"`.
        used_by: Setting or argument that uses the key, for the error message.

    Raises:
        UnknownNameError: If the key is unknown; the message suggests the closest known one.
    """
    if path in KNOWN_KEYS or path.startswith(OPEN_PREFIXES):
        return
    place, *learner = path.split("/")
    if place == LEAGUE and len(learner) == 2 and learner[1] in LEARNER_KEYS:
        return
    if path in _STEPS_OF_OTHERS:
        raise UnknownNameError(
            f"{used_by} names {path!r}, which no result has. Here it is "
            f"'{NUM_ENV_STEPS_SAMPLED_LIFETIME}'."
        )
    hint = did_you_mean(RENAMED_KEYS.get(path, path), KNOWN_KEYS, RENAMED_KEYS) or _OWN_METRICS
    raise UnknownNameError(f"{used_by} names {path!r}, which no result has.{hint}")
