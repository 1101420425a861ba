"""The arithmetic of training with replay: steps of a rollout, and updates that follow it."""

import dataclasses
import math
from fractions import Fraction
from typing import TYPE_CHECKING

from jaxrl.config.batch_plan.arithmetic import MAX_COUNT, MAX_SHARDS, BatchPlan, divisors, nearest
from jaxrl.config.batch_plan.on_policy import BatchSizeError
from jaxrl.config.modules import rows_of_a_draw
from jaxrl.config.settings.replay import buffer_settings, n_step_range
from jaxrl.errors import ConfigError

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

MAX_INTENSITY_DENOMINATOR = 10_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplayPlan(BatchPlan):
    """How many of what one training step has, where its updates draw from a buffer.

    A rollout of `num_envs * rollout_fragment_length` steps is followed by `num_minibatches`
    updates of `minibatch_size = train_batch_size` rows each. `num_shards` divides `num_envs` and
    `minibatch_size`.
    """

    buffer_length: int
    """Transitions of each environment in the buffer, a multiple of the rollout's length."""

    def describe(self) -> str:
        """The arithmetic in one line."""
        sampled = self.num_envs * self.rollout_fragment_length
        return (
            f"{self._columns()} x {self.rollout_fragment_length} steps = {sampled} into a buffer "
            f"of {self.buffer_length * self.num_envs}, then {self.num_minibatches} "
            f"update{'s' * (self.num_minibatches > 1)} of {self.train_batch_size}"
        )


def replay_plan(config: "AlgorithmConfig") -> ReplayPlan:
    """The plan of a config with replay; explicit values are kept exactly or refused.

    Raises:
        ConfigError: Sizes that do not divide; one sentence that names what would work.
    """
    training, runners = config.training_settings, config.env_runners_settings
    _check_whole_batches(config)
    n_step_range(training.n_step)
    rows, num_runners = _rows(config), max(1, runners.num_env_runners)
    envs = runners.num_envs_per_env_runner
    if envs == "auto":
        raise ConfigError(
            "num_envs_per_env_runner='auto' is for algorithms that learn from fresh batches: with a "
            "replay buffer more environments put off the updates; set a number, or leave it out for 1."
        )
    envs_per_runner = envs or 1
    num_envs = num_runners * envs_per_runner
    steps = runners.rollout_fragment_length
    _check_countable(rows, num_envs, 1 if steps == "auto" else steps)
    notes: list[str] = []
    intensity = _intensity(training.training_intensity)
    if steps == "auto":
        steps = _free_length(intensity, num_envs, rows)
        notes.append(f"rollout_fragment_length='auto': {steps}.")
    if envs is None:
        notes.append("num_envs_per_env_runner: 1.")
    updates = _updates(config, intensity, num_envs, steps, rows)
    length = _length(config, num_envs, steps)
    return ReplayPlan(
        num_envs=num_envs,
        rollout_fragment_length=steps,
        train_batch_size=rows,
        minibatch_size=rows,
        num_minibatches=updates,
        num_epochs=1,
        num_shards=_shards(config, num_envs, rows),
        num_env_runners=num_runners,
        envs_per_runner=envs_per_runner,
        buffer_length=length,
        notes=(*notes, *_buffer_notes(config, num_envs * length)),
    )


def _check_whole_batches(config: "AlgorithmConfig") -> None:
    """Refuse fragments that differ in length."""
    mode = config.env_runners_settings.batch_mode
    if mode != "truncate_episodes":
        raise ConfigError(
            f"batch_mode={mode!r} gives fragments of many lengths, and a replay buffer takes those "
            "of rollout_fragment_length steps, which may end within an episode; set "
            "batch_mode='truncate_episodes'."
        )


def _length(config: "AlgorithmConfig", num_envs: int, steps: int) -> int:
    """Transitions of each environment in the buffer, of whole rollouts."""
    capacity = buffer_settings(config).capacity
    length = capacity // (num_envs * steps) * steps
    if length == 0:
        raise ConfigError(
            f"replay_buffer_config['capacity']={capacity} is less than one rollout of {num_envs} "
            f"environments x {steps} steps; use at least {num_envs * steps}."
        )
    held, setting = length * num_envs, "num_steps_sampled_before_learning_starts"
    starts = config.training_settings.num_steps_sampled_before_learning_starts
    if starts > held and setting in config.explicit:
        raise ConfigError(
            f"{setting}={starts} transitions are more than the buffer holds ({held}): lower it to "
            f"{held}, or set replay_buffer_config['capacity'] to {_whole(starts, num_envs * steps)}."
        )
    return length


def _whole(number: int, unit: int) -> int:
    """The next multiple of the unit."""
    return -(-number // unit) * unit


def _buffer_notes(config: "AlgorithmConfig", held: int) -> list[str]:
    """What of the buffer is not as the settings say."""
    notes: list[str] = []
    capacity = buffer_settings(config).capacity
    starts = config.training_settings.num_steps_sampled_before_learning_starts
    if held != capacity:
        notes.append(
            f"replay_buffer_config['capacity']={capacity}: {held}, the most that is whole rollouts."
        )
    if starts > held:
        notes.append(
            f"num_steps_sampled_before_learning_starts={starts}: {held}, when the buffer is full."
        )
    return notes


def _rows(config: "AlgorithmConfig") -> int:
    """Rows of one update over all learners."""
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
    """Refuse sizes that no array has, before anything is divided."""
    for said, number in (
        (f"train_batch_size={rows}", rows),
        (f"{num_envs} environments x rollout_fragment_length={steps}", num_envs * steps),
    ):
        if number > MAX_COUNT:
            raise BatchSizeError(f"{said} must be at most {MAX_COUNT} rows; set smaller ones.")


def _intensity(setting: float | None) -> Fraction | None:
    """The setting as an exact ratio: 0.1 is a tenth, not the float next to it."""
    if setting is None:
        return None
    is_finite = math.isfinite(setting)
    ratio = Fraction(setting if is_finite else 0).limit_denominator(MAX_INTENSITY_DENOMINATOR)
    if not 0 < ratio <= MAX_COUNT:
        raise ConfigError(
            f"training_intensity={setting:g} must be at least {1 / MAX_INTENSITY_DENOMINATOR:g} and "
            f"at most {MAX_COUNT} rows of updates for each environment step that is sampled."
        )
    return ratio


def _free_length(intensity: Fraction | None, num_envs: int, rows: int) -> int:
    """The shortest rollout after which the number of updates is whole."""
    if intensity is None:
        return 1
    return (intensity * num_envs / rows).denominator


def _updates(
    config: "AlgorithmConfig", intensity: Fraction | None, num_envs: int, steps: int, rows: int
) -> int:
    """Updates for each rollout."""
    if intensity is None:
        return 1
    updates = intensity * num_envs * steps / rows
    if updates.denominator == 1 and updates <= MAX_COUNT:
        return updates.numerator
    if updates > MAX_COUNT:
        raise BatchSizeError(
            f"training_intensity={config.training_settings.training_intensity:g} is {float(updates):g} "
            f"updates for each rollout, of which there can be {MAX_COUNT}; lower it."
        )
    below, above = math.floor(updates), math.ceil(updates)
    ratios = [str(float(Fraction(n * rows, num_envs * steps))) for n in (below, above) if n > 0]
    length = _free_length(intensity, num_envs, rows)
    raise BatchSizeError(
        f"training_intensity={config.training_settings.training_intensity} with {num_envs} "
        f"environments x rollout_fragment_length={steps} and train_batch_size={rows} is "
        f"{float(updates):g} updates for each rollout, not a whole number: set training_intensity "
        f"to {' or '.join(ratios)}, or rollout_fragment_length to {length}."
    )


def _shards(config: "AlgorithmConfig", num_envs: int, rows: int) -> int:
    """The number of shards that was set, or the largest of 8, 4, 2, 1 times what learners need."""
    learners = max(1, config.learners_settings.num_learners)
    draws = rows // rows_of_a_draw(config)
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
            f"{each}; set it to {nearest(divisors(common, learners), wanted)}."
        )
    return wanted
