"""Which lanes can share a program: those whose settings differ in numbers alone."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax

from jaxrl.config.sweep import Lane
from jaxrl.core.hparams import numbers_of
from jaxrl.core.types import Device
from jaxrl.errors import ConfigError
from jaxrl.runners.devices import warn_of_lost_devices

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

OWN_NAMES = ("seed", "run_name", "results_dir", "loggers")
"""Settings that differ between lanes of one program."""


def grouped(lanes: Sequence[Lane]) -> list[list[Lane]]:
    """The lanes that can share a program, group by group, in the order of their first lanes."""
    groups: list[tuple[Any, list[Lane]]] = []
    for lane in lanes:
        structure = _structure(lane.config)
        for other, group in groups:
            if other == structure:
                group.append(lane)
                break
        else:
            groups.append((structure, [lane]))
    return [group for _, group in groups]


def _structure(config: "AlgorithmConfig") -> dict[str, Any]:
    """All that shapes a program: settings but for the numbers that are leaves of the state."""
    numbers = numbers_of(config.training_settings)
    shapes = jax.tree.map(lambda x: x.shape, numbers)
    settings = {n: v for n, v in config.items() if n not in numbers and n not in OWN_NAMES}
    return {**settings, "numbers": shapes, "env_config": _env_structure(config)}


def _env_structure(config: "AlgorithmConfig") -> Any:
    """Of `env_config` what is no number, which may change the environment's structure."""
    given = config.environment_settings.env_config or {}
    return {name: type(x) if isinstance(x, float) else x for name, x in given.items()}


def devices_of(config: "AlgorithmConfig") -> list[Device]:
    """The local devices that may share lanes."""
    devices, learners = jax.local_devices(), config.learners_settings
    if learners.local_device_idx is not None:
        return [devices[learners.local_device_idx]]
    if learners.num_devices != "auto":
        return devices[: learners.num_devices]
    warn_of_lost_devices(lambda count: count)
    return devices


def check_lane(lane: Lane) -> None:
    """Refuse, before anything is built, a lane that could not run.

    Raises:
        ConfigError: Its settings do not fit together, or cannot be kept by several lanes at once.
    """
    lane.config.validate()
    reporting = lane.config.reporting_settings
    if reporting.min_time_s_per_iteration:
        raise ConfigError(
            f"min_time_s_per_iteration={reporting.min_time_s_per_iteration} cannot be kept by all "
            "lanes of a sweep at once; use min_sample_timesteps_per_iteration."
        )
