"""Hyperparameters as leaves of the state: changing one never recompiles a program."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl.core.types import Progress
from jaxrl.ops.schedules import Schedule

HParams = dict[str, "Float[Array, ''] | Schedule"]


def hyperparameters(settings: Any) -> HParams:
    """The sweepable numbers of a settings group, each a float32 leaf or a schedule's knots.

    Fields that are None are left out: whether something is None shapes the program.
    """
    leaves: HParams = {}
    for field in dataclasses.fields(settings):
        value = vars(settings)[field.name]
        if not field.metadata.get("sweepable", False) or value is None:
            continue
        if isinstance(value, (list, tuple)):
            leaves[field.name] = Schedule.from_setting(value, name=field.name)
        else:
            leaves[field.name] = jnp.asarray(value, jnp.float32)
    return leaves


def current_values(
    hparams: Mapping[str, "Float[Array, ''] | Schedule"], progress: Progress
) -> dict[str, Float[Array, ""]]:
    """Each hyperparameter at the run's present number of environment steps."""
    steps = progress.env_steps.as_float()
    return {
        name: value.value_at(steps) if isinstance(value, Schedule) else value
        for name, value in hparams.items()
    }
