"""Checks of population based training (Jaderberg et al. 2017) between lanes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxrl.config.pbt import DEFAULT_METRIC, PopulationBasedTraining
from jaxrl.config.sweep import Lane
from jaxrl.errors import ConfigError
from jaxrl.metrics import (
    DEFAULT_MODULE,
    ENV_RUNNERS,
    EVALUATION,
    HELD_OUT_PARTS,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    NUM_ENV_STEPS_TRAINED_LIFETIME,
    OFF_POLICY_ESTIMATOR,
    TRAINING_ITERATION,
)

if TYPE_CHECKING:
    from jaxrl.config.config import Config


def check_population(
    settings: PopulationBasedTraining, config: "Config", groups: Sequence[Sequence[Lane]]
) -> None:
    """Raise if lanes cannot be copied to one another; called before anything is built.

    Args:
        settings: User settings of the scheduler.
        config: Config of the sweep.
        groups: Lanes that can share a program, one sequence per program.

    Raises:
        ConfigError: If there are fewer than two lanes, they differ in more than numbers of
            `training()`, or no result will have the metric.
    """
    lanes = [lane for group in groups for lane in group]
    if len(lanes) < 2:
        raise ConfigError(
            "PopulationBasedTraining compares lanes, but there is only one: set sweep(seeds=8), or "
            "sweep(num_samples=8) to draw initial values."
        )
    training = config.get_name_table().groups["training_settings"]
    for name in lanes[0].values:
        if name not in training or not training[name].sweepable:
            raise ConfigError(
                f"{name} cannot be swept with a scheduler, which copies everything but the keys "
                "from one lane to another: sweep only traced numbers of training()."
            )
    if len(groups) > 1:
        raise ConfigError(
            f"The lanes need {len(groups)} different programs, but a scheduler can copy lanes only "
            f"within one: {', '.join(lanes[0].values)} must be numbers, or schedules of the same "
            "length, in all lanes."
        )
    _check_time(settings.time_attr, config)
    _check_metric(settings.metric, config)


def _check_time(time_attr: str, config: "Config") -> None:
    """Raise if a scheduler measures time by what a run does not count, or not alike in all lanes."""
    sampled, trained = NUM_ENV_STEPS_SAMPLED_LIFETIME, NUM_ENV_STEPS_TRAINED_LIFETIME
    if config.is_offline and time_attr == sampled:
        raise ConfigError(
            f"time_attr={time_attr!r} stays at 0 in runs that learn from recorded data: set "
            f"{trained!r}, the rows trained on, or {TRAINING_ITERATION!r}."
        )
    if not config.is_offline and time_attr == trained:
        raise ConfigError(
            f"time_attr={time_attr!r} may differ between lanes that step environments: set "
            f"{sampled!r} or {TRAINING_ITERATION!r}."
        )


def _check_metric(metric: str, config: "Config") -> None:
    """Raise if no result will have the metric of a scheduler."""
    evaluation = config.evaluation_settings
    held_out = tuple(f"{EVALUATION}/{part}/" for part in HELD_OUT_PARTS)
    if metric.startswith(held_out):
        if not evaluation.offline_evaluation_interval:
            raise ConfigError(
                f"metric={metric!r} is in no result without "
                "evaluation(offline_evaluation_interval=...)."
            )
        named = evaluation.off_policy_estimation_methods
        estimate = metric.removeprefix(f"{EVALUATION}/{OFF_POLICY_ESTIMATOR}/")
        if estimate != metric and estimate.partition("/")[0] not in named:
            raise ConfigError(
                f"metric={metric!r} is in no result: off_policy_estimation_methods names "
                f"{', '.join(sorted(named)) or 'no estimate'}."
            )
    elif metric.startswith(f"{EVALUATION}/"):
        if not evaluation.evaluation_interval:
            raise ConfigError(
                f"metric={metric!r} is in no result without evaluation(evaluation_interval=...)."
            )
    elif config.is_offline and metric.startswith(f"{ENV_RUNNERS}/"):
        raise ConfigError(
            f"metric={metric!r} is in no result of runs that learn from recorded data: set "
            f"metric='{EVALUATION}/{DEFAULT_METRIC}' and evaluation(evaluation_interval=1) to compare "
            f"returns in an environment, or metric='{held_out[0]}{DEFAULT_MODULE}/total_eval_loss', "
            "mode='min' and evaluation(offline_evaluation_interval=1) to compare losses."
        )
