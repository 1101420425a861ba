"""Sweeps: markers for settings with several values, and the lanes that they define."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import numpy as np

from jaxrl.config.markers import is_tune_marker
from jaxrl.core.seeds import make_seed_sequence
from jaxrl.errors import ConfigError

MAX_LANES = 10_000
"""Maximum number of lanes of a sweep; describing more takes longer than a short run."""

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

MarkerKind: TypeAlias = Literal["grid", "choice", "uniform", "loguniform"]
MARKER_KINDS: tuple[MarkerKind, ...] = ("grid", "choice", "uniform", "loguniform")
SettingPath: TypeAlias = tuple[str | int, ...]
"""Name of a setting, followed by the keys inside its value."""


@dataclasses.dataclass(frozen=True)
class Marker:
    """Search marker, which stands for several values of a setting.

    Attributes:
        kind: "grid" for all values; the other kinds sample one value per sample of the sweep.
        values: Values of "grid" and "choice"; the two bounds of "uniform" and "loguniform".
    """

    kind: MarkerKind
    values: tuple[Any, ...]

    def map_values(self, function: Callable[[Any], Any]) -> "Marker":
        """Return the marker with `function` applied to its values."""
        return Marker(self.kind, tuple(function(value) for value in self.values))

    def sample(self, generator: np.random.Generator) -> Any:
        """Sample a value; `kind` must not be "grid"."""
        low, high = self.values[0], self.values[-1]
        if self.kind == "choice":
            return self.values[int(generator.integers(len(self.values)))]
        if self.kind == "uniform":
            return float(generator.uniform(low, high))
        return float(math.exp(generator.uniform(math.log(low), math.log(high))))

    def to_data(self) -> dict[str, list[Any]]:
        """Convert to data as in YAML, such as `{"grid": [0.001, 0.0003]}`."""
        return {self.kind: list(self.values)}

    def __repr__(self) -> str:
        shown = list(self.values) if self.kind in ("grid", "choice") else self.values
        return f"{self.kind}({str(shown).strip('()')})"


def grid(values: list[Any] | tuple[Any, ...]) -> Any:
    """Try every value, each in separate lanes."""
    return _make_marker("grid", values)


def choice(values: list[Any] | tuple[Any, ...]) -> Any:
    """Sample one of the values for each of `sweep(num_samples=...)`."""
    return _make_marker("choice", values)


def uniform(low: float, high: float) -> Any:
    """Sample a number uniformly between the bounds for each of `sweep(num_samples=...)`."""
    return _make_marker("uniform", (low, high))


def loguniform(low: float, high: float) -> Any:
    """Sample a number log-uniformly between the bounds for each of `sweep(num_samples=...)`."""
    return _make_marker("loguniform", (low, high))


def _make_marker(kind: MarkerKind, values: object) -> Marker:
    if not isinstance(values, list | tuple) or not values:
        raise ConfigError(f"{kind}() needs a list of values to try, got {values!r}.")
    values = tuple(cast(list[Any], values))
    if kind in ("uniform", "loguniform"):
        numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
        min_bound = -math.inf if kind == "uniform" else 0.0
        if (
            len(values) != 2
            or len(numbers) != 2
            or not min_bound < values[0] < values[1] < math.inf
        ):
            condition = "" if kind == "uniform" else ", above 0"
            raise ConfigError(
                f"{kind}() needs a lower and a higher finite bound{condition}, got {list(values)}."
            )
    return Marker(kind, values)


def marker_from_data(data: object, name: str) -> Marker:
    """Parse a marker in YAML, such as `{"grid": [0.001, 0.0003]}`; a plain list is a grid.

    Raises:
        ConfigError: If the data is neither; the message names the setting.
    """
    if isinstance(data, list):
        return _make_marker("grid", data)
    entries: Mapping[object, object] = (
        cast(Mapping[Any, Any], data) if isinstance(data, Mapping) else {}
    )
    if len(entries) == 1:
        ((kind, values),) = entries.items()
        if kind in MARKER_KINDS:
            return _make_marker(kind, values)
    raise ConfigError(
        f"sweep has {name}: {data!r}, which must be a list of values, or one of "
        f"{', '.join(MARKER_KINDS)} with its values, such as {{uniform: [0, 0.1]}}."
    )


def as_marker(value: object) -> Marker | None:
    """Convert a marker, or Ray Tune's `grid_search`, to a Marker; return None for other values."""
    if isinstance(value, Marker):
        return value
    if is_tune_marker(value) and isinstance(value, Mapping):
        return _make_marker("grid", cast(Mapping[str, Any], value)["grid_search"])
    return None


def find_markers(value: object, path: SettingPath = ()) -> Iterator[tuple[SettingPath, Marker]]:
    """Yield the markers in a setting's value, each with its path."""
    marker = as_marker(value)
    if marker is not None:
        yield path, marker
    elif isinstance(value, Mapping):
        for key, part in cast(Mapping[Any, Any], value).items():
            yield from find_markers(part, (*path, key))


def replace_at_path(value: object, path: SettingPath, new: object) -> object:
    """Return a copy of a setting's value with a part replaced; missing keys are created."""
    if not path:
        return new
    mapping = dict(cast(Mapping[Any, Any], value or {}))
    return {**mapping, path[0]: replace_at_path(mapping.get(path[0]), path[1:], new)}


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
    config: "AlgorithmConfig"

    def __str__(self) -> str:
        values = "".join(f", {name}={value!r}" for name, value in self.values.items())
        return f"lane {self.index}: seed {self.seed}{values}"


def is_sweep(config: "AlgorithmConfig") -> bool:
    """Return whether a config describes a sweep."""
    sweep = config.sweep_settings
    if sweep.seeds is not None or sweep.scheduler is not None:
        return True
    return any(True for _ in _find_marked(config))


def make_lanes(config: "AlgorithmConfig") -> list[Lane]:
    """Return the lanes of a config: every grid point of every sample, with every seed.

    Settings that the scheduler changes and that are not set explicitly are also sampled.

    Raises:
        ConfigError: If a marker is in a setting that cannot vary between lanes, or `num_samples` is
            above 1 and nothing is sampled.
        UnknownNameError: If the scheduler changes a setting that does not exist.
    """
    from jaxrl.config.pbt import get_mutations  # imports this module

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
    generator = np.random.default_rng(make_seed_sequence(config.debugging_settings.seed))
    points: list[dict[SettingPath, Any]] = []
    for _ in range(sweep.num_samples):
        draws = {path: m.sample(generator) for path, m in marked if m.kind != "grid"}
        grids = [[(path, value) for value in m.values] for path, m in marked if m.kind == "grid"]
        points += [{**draws, **dict(point)} for point in itertools.product(*grids)]
    seeds = _get_seeds(config) or [config.debugging_settings.seed]
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


def _find_marked(config: "AlgorithmConfig") -> Iterator[tuple[SettingPath, Marker]]:
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


def _get_seeds(config: "AlgorithmConfig") -> list[int] | None:
    """Return the seeds of every point, or None if `seeds` is not set."""
    seeds, first = config.sweep_settings.seeds, config.debugging_settings.seed
    if isinstance(seeds, int):
        return [first + i for i in range(seeds)]
    return seeds


def _make_lane_config(
    config: "AlgorithmConfig", values: Mapping[SettingPath, Any], seed: int, index: int
) -> "AlgorithmConfig":
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
    "results_dir": "all lanes of a sweep are written to the same folder",
    "loggers": "all lanes use the same loggers",
    "num_devices": "all lanes share the devices",
}


def _check_can_vary(config: "AlgorithmConfig", path: SettingPath, marker: Marker) -> None:
    name = str(path[0])
    group = config.get_name_table().group_by_setting[name]
    fixed_groups = ("resources_settings", "python_environment_settings", "reporting_settings")
    reason = FIXED_SETTINGS.get(name)
    if reason is None and group in fixed_groups:
        reason = "it applies to the whole sweep"
    if reason is not None:
        raise ConfigError(f"{name} cannot vary between lanes, got {marker!r}: {reason}.")
