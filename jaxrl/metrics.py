"""Names of result keys, and how to read them.

A result is a nested dictionary; a path such as `"env_runners/episode_return_mean"` names one value.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from jaxrl.errors import UnknownNameError, did_you_mean

ENV_RUNNERS = "env_runners"
LEARNERS = "learners"
EVALUATION = "evaluation"
TIMERS = "timers"
FAULT_TOLERANCE = "fault_tolerance"
COMPILE = "compile"
SYSTEM = "system"
DEFAULT_MODULE = "default_policy"

EPISODE_RETURN_MEAN = "episode_return_mean"
EPISODE_RETURN_MIN = "episode_return_min"
EPISODE_RETURN_MAX = "episode_return_max"
EPISODE_LEN_MEAN = "episode_len_mean"
EPISODE_LEN_MIN = "episode_len_min"
EPISODE_LEN_MAX = "episode_len_max"
NUM_EPISODES = "num_episodes"
NUM_EPISODES_LIFETIME = "num_episodes_lifetime"
NUM_ENV_STEPS_SAMPLED = "num_env_steps_sampled"
NUM_ENV_STEPS_SAMPLED_LIFETIME = "num_env_steps_sampled_lifetime"
NUM_ENV_STEPS_TRAINED = "num_env_steps_trained"
NUM_ENV_STEPS_TRAINED_LIFETIME = "num_env_steps_trained_lifetime"
NUM_ENV_STEPS_SAMPLED_PER_SECOND = "num_env_steps_sampled_per_second"
NUM_ENV_STEPS_DROPPED_LIFETIME = "num_episodes_dropped_lifetime"

TRAINING_ITERATION = "training_iteration"
TIME_THIS_ITER_S = "time_this_iter_s"
TIME_TOTAL_S = "time_total_s"
TIMESTAMP = "timestamp"
DATE = "date"
HOSTNAME = "hostname"
PID = "pid"

POLICY_LOSS = "policy_loss"
VF_LOSS = "vf_loss"
TOTAL_LOSS = "total_loss"
ENTROPY = "entropy"
MEAN_KL_LOSS = "mean_kl_loss"
CURR_LR = "curr_lr"
CURR_KL_COEFF = "curr_kl_coeff"
CURR_ENTROPY_COEFF = "curr_entropy_coeff"
GRAD_NORM = "grad_norm"
VF_EXPLAINED_VAR = "vf_explained_var"

NUM_NONFINITE_UPDATES = "num_nonfinite_updates"
NUM_NONFINITE_UPDATES_LIFETIME = "num_nonfinite_updates_lifetime"
NUM_ROLLBACKS = "num_rollbacks"
NUM_NONFINITE_ENV_STEPS = "num_nonfinite_env_steps"

_EPISODES = (
    EPISODE_RETURN_MEAN,
    EPISODE_RETURN_MIN,
    EPISODE_RETURN_MAX,
    EPISODE_LEN_MEAN,
    EPISODE_LEN_MIN,
    EPISODE_LEN_MAX,
    NUM_EPISODES,
    NUM_EPISODES_LIFETIME,
    NUM_ENV_STEPS_SAMPLED,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    NUM_ENV_STEPS_SAMPLED_PER_SECOND,
)
_TOP = (
    TRAINING_ITERATION,
    TIME_THIS_ITER_S,
    TIME_TOTAL_S,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    NUM_ENV_STEPS_TRAINED_LIFETIME,
)
KNOWN_KEYS: tuple[str, ...] = (
    *_TOP,
    *(f"{ENV_RUNNERS}/{name}" for name in _EPISODES),
    *(f"{EVALUATION}/{ENV_RUNNERS}/{name}" for name in _EPISODES),
    f"{FAULT_TOLERANCE}/{NUM_NONFINITE_UPDATES}",
    f"{FAULT_TOLERANCE}/{NUM_NONFINITE_UPDATES_LIFETIME}",
    f"{FAULT_TOLERANCE}/{NUM_ROLLBACKS}",
    f"{FAULT_TOLERANCE}/{NUM_NONFINITE_ENV_STEPS}",
)
"""Numbers that a stop criterion or a checkpoint score may name."""

OPEN_PREFIXES = (f"{LEARNERS}/", f"{TIMERS}/", "custom_metrics/", f"{EVALUATION}/custom_metrics/")
"""Below these, names depend on the algorithm or the user."""

OLD_KEYS = {
    "timesteps_total": NUM_ENV_STEPS_SAMPLED_LIFETIME,
    "num_env_steps_sampled": NUM_ENV_STEPS_SAMPLED_LIFETIME,
    "episodes_total": f"{ENV_RUNNERS}/{NUM_EPISODES_LIFETIME}",
    "episode_reward_mean": f"{ENV_RUNNERS}/{EPISODE_RETURN_MEAN}",
    "episode_reward_min": f"{ENV_RUNNERS}/{EPISODE_RETURN_MIN}",
    "episode_reward_max": f"{ENV_RUNNERS}/{EPISODE_RETURN_MAX}",
    "episode_return_mean": f"{ENV_RUNNERS}/{EPISODE_RETURN_MEAN}",
    "episode_len_mean": f"{ENV_RUNNERS}/{EPISODE_LEN_MEAN}",
    "sampler_results/episode_reward_mean": f"{ENV_RUNNERS}/{EPISODE_RETURN_MEAN}",
    "evaluation/episode_reward_mean": f"{EVALUATION}/{ENV_RUNNERS}/{EPISODE_RETURN_MEAN}",
    "evaluation/sampler_results/episode_reward_mean": (
        f"{EVALUATION}/{ENV_RUNNERS}/{EPISODE_RETURN_MEAN}"
    ),
    "evaluation/episode_return_mean": f"{EVALUATION}/{ENV_RUNNERS}/{EPISODE_RETURN_MEAN}",
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


def check_key(path: str, used_by: str, extra: Iterable[str] = ()) -> None:
    """Refuses a path that no result has.

    Raises:
        UnknownNameError: Names who used it and the closest known path.
    """
    if path in KNOWN_KEYS or path in extra or path.startswith(OPEN_PREFIXES):
        return
    hint = did_you_mean(path, (*KNOWN_KEYS, *OLD_KEYS))
    raise UnknownNameError(f"{used_by} names '{path}', which no result has.{hint}")
