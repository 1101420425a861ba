"""Lanes of a sweep: single runs, defined by the markers in a config and its seeds."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl.config.markers import (
    Marker,
    SettingPath,
    choice,
    find_markers,
    grid,
    loguniform,
    replace_at_path,
    uniform,
)
from jaxrl.config.pbt import make_scheduler, parse_mutations
from jaxrl.core.seeds import make_seed_sequence
from jaxrl.errors import ConfigError

__all__ = ["Lane", "choice", "grid", "is_sweep", "loguniform", "make_lanes", "uniform"]

MAX_LANES = 10_000
"""Maximum number of lanes of a sweep; describing more takes longer than a short run."""

if TYPE_CHECKING:
    from jaxrl.config.config import Config


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lane:
    """Lane of a sweep: one run, a member of the population.

    Attributes:
        index: Index of the lane; lanes are ordered by point, then by seed.
        point: Index of the lane's combination of values.
        seed: Seed of the run.
        values: Values that replace the markers, by name: `lr`, `env_config.gravity`.
        config: Config of the single run.
    """

    index: int
    point: int
    seed: int
    values: Mapping[str, Any]
    config: "Config"

    def __str__(self) -> str:
        values = "".join(f", {name}={value!r}" for name, value in self.values.items())
        return f"lane {self.index}: seed {self.seed}{values}"


def is_sweep(config: "Config") -> bool:
    """Return whether a config describes a sweep."""
    sweep = config.sweep_settings
    if sweep.seeds is not None or sweep.scheduler is not None or sweep.num_samples > 1:
        return True
    return any(True for _ in _find_marked(config))


def make_lanes(config: "Config") -> list[Lane]:
    """Return the lanes of a config: every grid point of every sample, with every seed.

    Settings that the scheduler changes and that are not set explicitly are also sampled.

    Raises:
        ConfigError: If a marker is in a setting that cannot vary between lanes, or `num_samples` is
            above 1 and nothing is sampled.
        UnknownNameError: If the scheduler changes a setting that does not exist.
    """
    if config.debugging_settings.seed is None:
        config = config.copy(copy_frozen=False)
        config.draw_seed()
    sweep = config.sweep_settings
    marked = list(_find_marked(config))
    for path, marker in marked:
        _check_can_vary(config, path, marker)
    mutations = get_mutations(config)
    marked += [((name,), m) for name, m in mutations.items() if name not in config.explicit]
    sampled = [path for path, marker in marked if marker.kind != "grid"]
    if sweep.num_samples > 1 and not sampled:
        raise ConfigError(
            f"num_samples={sweep.num_samples} samples values repeatedly, but no setting is a "
            "uniform(), loguniform() or choice(); set num_samples=1, or seeds for more runs of "
            "each point."
        )
    _check_num_lanes(sweep.num_samples, sweep.seeds, [m for _, m in marked if m.kind == "grid"])
    generator = np.random.default_rng(make_seed_sequence(config.debugging_settings.run_seed))
    points: list[dict[SettingPath, Any]] = []
    for _ in range(sweep.num_samples):
        draws = {path: m.sample(generator) for path, m in marked if m.kind != "grid"}
        grids = [[(path, value) for value in m.values] for path, m in marked if m.kind == "grid"]
        points += [{**draws, **dict(point)} for point in itertools.product(*grids)]
    seeds = _get_seeds(sweep.seeds, config.debugging_settings.run_seed) or [
        config.debugging_settings.run_seed
    ]
    pairs = itertools.product(enumerate(points), seeds)
    return [
        Lane(
            index=index,
            point=point,
            seed=seed,
            values={".".join(map(str, path)): values[path] for path, _ in marked},
            config=_make_lane_config(config, values, seed, index),
        )
        for index, ((point, values), seed) in enumerate(pairs)
    ]


def get_mutations(config: "Config") -> dict[str, Marker]:
    """Return the settings that a sweep's scheduler changes; see `parse_mutations`."""
    scheduler = make_scheduler(config.sweep_settings.scheduler)
    return parse_mutations(config.get_name_table(), config.trust, scheduler)


def _find_marked(config: "Config") -> Iterator[tuple[SettingPath, Marker]]:
    for name, value in config.items():
        if name != "scheduler" or isinstance(value, Marker):  # its markers are mutations
            yield from find_markers(value, (name,))


def _check_num_lanes(
    num_samples: int, seeds: int | list[int] | None, grids: Sequence[Marker]
) -> None:
    """Raise if there would be more than MAX_LANES lanes, before any is created."""
    num_seeds = len(seeds) if isinstance(seeds, list) else seeds or 1
    num_lanes = num_samples * num_seeds * math.prod(len(marker.values) for marker in grids)
    if num_lanes > MAX_LANES:
        raise ConfigError(
            f"num_samples={num_samples} x {num_seeds} seeds x the values of {len(grids)} grid() "
            f"settings are {num_lanes} lanes, and a sweep has at most {MAX_LANES}; set fewer."
        )


def _get_seeds(seeds: int | list[int] | None, first: int) -> list[int] | None:
    """Return the seeds of every point, or None if `seeds` is not set."""
    if isinstance(seeds, int):
        return [first + i for i in range(seeds)]
    return seeds


def _make_lane_config(
    config: "Config", values: Mapping[SettingPath, Any], seed: int, index: int
) -> "Config":
    lane = config.copy(copy_frozen=False)
    settings: dict[str, Any] = {}
    for (name, *keys), value in values.items():
        name = str(name)
        settings[name] = replace_at_path(settings.get(name, config[name]), tuple(keys), value)
    lane.update_from_dict(settings)
    lane.sweep(seeds=None, num_samples=1, scheduler=None, max_lanes_per_program=None)
    run_name = config.debugging_settings.run_name
    return lane.debugging(
        seed=seed, run_name=None if run_name is None else f"{run_name}_lane_{index:03d}"
    )


FIXED_SETTINGS = {
    "seed": "use sweep(seeds=...) instead",
    "seeds": "set a number or a list",
    "num_samples": "set a number",
    "scheduler": "it applies to the whole sweep",
    "max_lanes_per_program": "it applies to the whole sweep",
    "run_name": "every lane has its own name",
    "output": "lanes are not recorded; run them one by one",
    "results_dir": "all lanes of a sweep are written to the same folder",
    "loggers": "all lanes use the same loggers",
    "num_devices": "all lanes share the devices",
}


def _check_can_vary(config: "Config", path: SettingPath, marker: Marker) -> None:
    name = str(path[0])
    group = config.get_name_table().group_by_setting[name]
    fixed_groups = ("resources_settings", "python_environment_settings", "reporting_settings")
    reason = FIXED_SETTINGS.get(name)
    if reason is None and group in fixed_groups:
        reason = "it applies to the whole sweep"
    if reason is not None:
        raise ConfigError(f"{name} cannot vary between lanes, got {marker!r}: {reason}.")
