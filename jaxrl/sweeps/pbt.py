"""Checks of population based training (Jaderberg et al. 2017) between lanes."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import jax

from jaxrl.assembly.assemble import Assembly
from jaxrl.config.markers import Marker
from jaxrl.config.pbt import PopulationBasedTraining, check_mutable
from jaxrl.config.sweep import Lane
from jaxrl.errors import ConfigError

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


def check_population(
    settings: PopulationBasedTraining, config: "AlgorithmConfig", groups: Sequence[Sequence[Lane]]
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
    interval = config.evaluation_settings.evaluation_interval
    if settings.metric.startswith("evaluation/") and not interval:
        raise ConfigError(
            f"metric={settings.metric!r} is in no result without "
            "evaluation(evaluation_interval=...)."
        )


def check_mutations(mutations: Mapping[str, Marker], assembly: Assembly) -> None:
    """Raise if the scheduler mutates a setting that is not a traced number; see `check_mutable`.

    Args:
        mutations: Markers of the settings that change, by name.
        assembly: Functions of the run whose learner state has the hyperparameters.

    Raises:
        ConfigError: If a mutated setting cannot change during training.
    """
    if mutations:
        for part in assembly.parts.values():
            total = part.plan.total_envs
            make = partial(part.train_step.init_without_envs, total_envs=total)
            check_mutable(mutations, jax.eval_shape(make, jax.random.key(0)).learner)
