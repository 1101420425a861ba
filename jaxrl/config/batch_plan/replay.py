"""Arithmetic of training with replay: the steps of a rollout and the updates that follow it."""

import dataclasses
import math
from fractions import Fraction
from typing import TYPE_CHECKING

from jaxrl.config.batch_plan.arithmetic import (
    MAX_COUNT,
    MAX_SHARDS,
    BatchPlan,
    divisors,
    find_nearest,
)
from jaxrl.config.batch_plan.on_policy import BatchSizeError
from jaxrl.config.modules import get_rows_per_sample
from jaxrl.config.offline import count_source_rows
from jaxrl.config.settings.replay import parse_n_step, resolve_buffer_settings
from jaxrl.errors import ConfigError

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

MAX_INTENSITY_DENOMINATOR = 10_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplayPlan(BatchPlan):
    """Sizes of one training step whose updates sample from a replay buffer.

    A rollout of `num_envs * rollout_fragment_length` steps is followed by `num_minibatches`
    updates of `minibatch_size = train_batch_size` rows each. `num_shards` divides `num_envs` and
    `minibatch_size`.
    """

    buffer_length: int
    """Number of transitions per environment in the buffer, a multiple of the rollout length."""

    @property
    def updates_per_iteration(self) -> int:
        """Number of gradient steps in one training step."""
        return self.num_minibatches

    def describe(self) -> str:
        """Return the arithmetic in one line."""
        sampled = self.num_envs * self.rollout_fragment_length
        return (
            f"{self._describe_columns()} x {self.rollout_fragment_length} steps = {sampled} into a buffer "
            f"of {self.buffer_length * self.num_envs}, then {self.num_minibatches} "
            f"update{'s' * (self.num_minibatches > 1)} of {self.train_batch_size}"
        )


def make_replay_plan(config: "AlgorithmConfig") -> ReplayPlan:
    """Return the plan of a config with replay; explicit values are never changed.

    Raises:
        ConfigError: If sizes are not divisible; the message suggests sizes that are.
    """
    training, runners = config.training_settings, config.env_runners_settings
    _check_batch_mode(config)
    parse_n_step(training.n_step)
    rows, num_runners = compute_num_rows(config), max(1, runners.num_env_runners)
    envs = runners.num_envs_per_env_runner
    if envs == "auto":
        raise ConfigError(
            "num_envs_per_env_runner='auto' is for on-policy algorithms: with a replay buffer, "
            "more environments delay updates; set a number, or leave it out for 1."
        )
    envs_per_runner = envs or 1
    num_envs = num_runners * envs_per_runner
    steps = runners.rollout_fragment_length
    _check_countable(rows, num_envs, 1 if steps == "auto" else steps)
    notes: list[str] = []
    intensity = _parse_intensity(training.training_intensity)
    if steps == "auto":
        steps = _compute_shortest_rollout(intensity, num_envs, rows)
        notes.append(f"rollout_fragment_length='auto': {steps}.")
    if envs is None:
        notes.append("num_envs_per_env_runner: 1.")
    updates = _compute_num_updates(config, intensity, num_envs, steps, rows)
    length = _compute_buffer_length(config, num_envs, steps)
    return ReplayPlan(
        num_envs=num_envs,
        rollout_fragment_length=steps,
        train_batch_size=rows,
        minibatch_size=rows,
        num_minibatches=updates,
        num_epochs=1,
        num_shards=_choose_num_shards(config, num_envs, rows),
        num_env_runners=num_runners,
        envs_per_runner=envs_per_runner,
        buffer_length=length,
        notes=(*notes, *_describe_buffer_sizes(config, num_envs * length)),
    )


def _check_batch_mode(config: "AlgorithmConfig") -> None:
    """Raise if fragments may differ in length."""
    mode = config.env_runners_settings.batch_mode
    if mode != "truncate_episodes":
        raise ConfigError(
            f"batch_mode={mode!r} produces fragments of varying length, but a replay buffer "
            "requires fragments of rollout_fragment_length steps; set "
            "batch_mode='truncate_episodes'."
        )


def _compute_buffer_length(config: "AlgorithmConfig", num_envs: int, steps: int) -> int:
    """Return the number of transitions per environment in the buffer, a multiple of `steps`."""
    capacity = resolve_buffer_settings(config).capacity
    length = capacity // (num_envs * steps) * steps
    if length == 0:
        raise ConfigError(
            f"replay_buffer_config['capacity']={capacity} is less than one rollout of {num_envs} "
            f"environments x {steps} steps; use at least {num_envs * steps}."
        )
    num_stored, setting = length * num_envs, "num_steps_sampled_before_learning_starts"
    learning_starts = config.training_settings.num_steps_sampled_before_learning_starts
    if learning_starts > num_stored and setting in config.explicit:
        raise ConfigError(
            f"{setting}={learning_starts} transitions are more than the buffer holds "
            f"({num_stored}): lower it to {num_stored}, or set replay_buffer_config['capacity'] "
            f"to {_round_up(learning_starts, num_envs * steps)}."
        )
    return length


def _round_up(number: int, unit: int) -> int:
    """Round a number up to a multiple of the unit."""
    return -(-number // unit) * unit


def _describe_buffer_sizes(config: "AlgorithmConfig", num_stored: int) -> list[str]:
    """Return sentences on buffer sizes that differ from the settings."""
    notes: list[str] = []
    capacity = resolve_buffer_settings(config).capacity
    learning_starts = config.training_settings.num_steps_sampled_before_learning_starts
    if num_stored != capacity:
        notes.append(
            f"replay_buffer_config['capacity']={capacity}: {num_stored}, the most that is a "
            "multiple of a rollout."
        )
    if learning_starts > num_stored:
        notes.append(
            f"num_steps_sampled_before_learning_starts={learning_starts}: {num_stored}, when the "
            "buffer is full."
        )
    return notes


def compute_num_rows(config: "AlgorithmConfig") -> int:
    """Return the number of rows of one update over all learners."""
    training, explicit = config.training_settings, config.explicit
    learners = max(1, config.learners_settings.num_learners)
    share, whole = training.train_batch_size_per_learner, training.train_batch_size
    if share is None:
        if whole % learners:
            raise BatchSizeError(
                f"train_batch_size={whole} is not a multiple of num_learners={learners}; set it to "
                f"{max(1, round(whole / learners)) * learners}."
            )
        return whole
    if "train_batch_size" in explicit and whole != share * learners:
        raise ConfigError(
            f"train_batch_size={whole} is not train_batch_size_per_learner={share} for each of "
            f"{learners} learner{'s' * (learners > 1)}; set only one of them."
        )
    return share * learners


def _check_countable(rows: int, num_envs: int, steps: int) -> None:
    """Raise if sizes exceed MAX_COUNT, before anything is divided."""
    for text, number in (
        (f"train_batch_size={rows}", rows),
        (f"{num_envs} environments x rollout_fragment_length={steps}", num_envs * steps),
    ):
        if number > MAX_COUNT:
            raise BatchSizeError(f"{text} must be at most {MAX_COUNT} rows; set smaller values.")


def _parse_intensity(setting: float | None) -> Fraction | None:
    """Convert the setting to an exact ratio: 0.1 is 1/10, not the nearest float."""
    if setting is None:
        return None
    is_finite = math.isfinite(setting)
    ratio = Fraction(setting if is_finite else 0).limit_denominator(MAX_INTENSITY_DENOMINATOR)
    if not 0 < ratio <= MAX_COUNT:
        raise ConfigError(
            f"training_intensity={setting:g} must be at least {1 / MAX_INTENSITY_DENOMINATOR:g} "
            f"and at most {MAX_COUNT} rows of updates per sampled environment step."
        )
    return ratio


def _compute_shortest_rollout(intensity: Fraction | None, num_envs: int, rows: int) -> int:
    """Return the length of the shortest rollout with a whole number of updates."""
    if intensity is None:
        return 1
    return (intensity * num_envs / rows).denominator


def _compute_num_updates(
    config: "AlgorithmConfig", intensity: Fraction | None, num_envs: int, steps: int, rows: int
) -> int:
    """Return the number of updates per rollout."""
    if intensity is None:
        return 1
    updates = intensity * num_envs * steps / rows
    if updates.denominator == 1 and updates <= MAX_COUNT:
        return updates.numerator
    if updates > MAX_COUNT:
        raise BatchSizeError(
            f"training_intensity={config.training_settings.training_intensity:g} is "
            f"{float(updates):g} updates per rollout, more than the limit of {MAX_COUNT}; lower "
            "it."
        )
    below, above = math.floor(updates), math.ceil(updates)
    ratios = [str(float(Fraction(n * rows, num_envs * steps))) for n in (below, above) if n > 0]
    length = _compute_shortest_rollout(intensity, num_envs, rows)
    raise BatchSizeError(
        f"training_intensity={config.training_settings.training_intensity} with {num_envs} "
        f"environments x rollout_fragment_length={steps} and train_batch_size={rows} is "
        f"{float(updates):g} updates per rollout, not a whole number: set training_intensity "
        f"to {' or '.join(ratios)}, or rollout_fragment_length to {length}."
    )


def _choose_num_shards(config: "AlgorithmConfig", num_envs: int, rows: int) -> int:
    """Return the explicit number of shards, or the largest that fits of 8, 4, 2, 1 per learner."""
    learners = max(1, config.learners_settings.num_learners)
    draws = math.gcd(rows, *count_source_rows(config, rows).values())
    draws //= get_rows_per_sample(config)
    common, wanted = math.gcd(num_envs, draws), config.learners_settings.num_shards
    if num_envs % learners:
        raise BatchSizeError(
            f"{num_envs} environments cannot be divided over num_learners={learners}; set "
            f"num_envs_per_env_runner to {learners}."
        )
    if wanted == "auto":
        sizes = [learners * n for n in (8, 4, 2, 1) if learners * n <= MAX_SHARDS or n == 1]
        return next(size for size in sizes if common % size == 0)
    if common % wanted or wanted % learners:
        each = f" and be a multiple of num_learners={learners}" if learners > 1 else ""
        raise BatchSizeError(
            f"num_shards={wanted} must divide {num_envs} environments and train_batch_size={rows}"
            f"{each}; set it to {find_nearest(divisors(common, learners), wanted)}."
        )
    return wanted
