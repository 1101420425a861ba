"""Settings with several values to try: markers for them, and the lanes that they make."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import numpy as np

from jaxrl.config.markers import is_marker
from jaxrl.core.seeds import entropy_of
from jaxrl.errors import ConfigError

MAX_LANES = 10_000
"""Of one sweep: beyond it, describing the lanes alone takes longer than a short run."""

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

Kind: TypeAlias = Literal["grid", "choice", "uniform", "loguniform"]
KINDS: tuple[Kind, ...] = ("grid", "choice", "uniform", "loguniform")
Path: TypeAlias = tuple[str | int, ...]
"""A setting's name, and the keys inside its value."""


@dataclasses.dataclass(frozen=True)
class Marker:
    """Values to try in the place of one.

    Args:
        kind: "grid" tries every value, the others draw one for each sample.
        values: To try or to choose from; of "uniform" and "loguniform" the two bounds.
    """

    kind: Kind
    values: tuple[Any, ...]

    def parsed(self, parse: Callable[[Any], Any]) -> "Marker":
        """The marker with its values as the setting keeps them."""
        return Marker(self.kind, tuple(parse(value) for value in self.values))

    def draw(self, generator: np.random.Generator) -> Any:
        """One value, of a kind that draws."""
        low, high = self.values[0], self.values[-1]
        if self.kind == "choice":
            return self.values[int(generator.integers(len(self.values)))]
        if self.kind == "uniform":
            return float(generator.uniform(low, high))
        return float(math.exp(generator.uniform(math.log(low), math.log(high))))

    def to_data(self) -> dict[str, list[Any]]:
        """As YAML has it, such as `{"grid": [0.001, 0.0003]}`."""
        return {self.kind: list(self.values)}

    def __repr__(self) -> str:
        shown = list(self.values) if self.kind in ("grid", "choice") else self.values
        return f"{self.kind}({str(shown).strip('()')})"


def grid(values: list[Any] | tuple[Any, ...]) -> Any:
    """Every one of the values, each in lanes of its own."""
    return _marker("grid", values)


def choice(values: list[Any] | tuple[Any, ...]) -> Any:
    """One of the values, drawn for each of `sweep(num_samples=...)`."""
    return _marker("choice", values)


def uniform(low: float, high: float) -> Any:
    """A number between the bounds, drawn for each of `sweep(num_samples=...)`."""
    return _marker("uniform", (low, high))


def loguniform(low: float, high: float) -> Any:
    """A number between the bounds, its logarithm drawn uniformly."""
    return _marker("loguniform", (low, high))


def _marker(kind: Kind, values: Any) -> Marker:
    if not isinstance(values, list | tuple) or not values:
        raise ConfigError(f"{kind}() needs a list of values to try, got {values!r}.")
    values = tuple(cast(list[Any], values))
    if kind in ("uniform", "loguniform"):
        numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
        least = -math.inf if kind == "uniform" else 0.0
        if len(values) != 2 or len(numbers) != 2 or not least < values[0] < values[1] < math.inf:
            above = "" if kind == "uniform" else ", above 0"
            raise ConfigError(
                f"{kind}() needs a lower and a higher finite bound{above}, got {list(values)}."
            )
    return Marker(kind, values)


def marker_from_data(data: Any, name: str) -> Marker:
    """A marker as YAML has it, such as `{"grid": [0.001, 0.0003]}`; a bare list is a grid.

    Raises:
        ConfigError: It is neither; names the setting.
    """
    if isinstance(data, list):
        return _marker("grid", data)
    entries = cast(Mapping[Any, Any], data) if isinstance(data, Mapping) else {}
    if len(entries) == 1:
        ((kind, values),) = entries.items()
        if kind in KINDS:
            return _marker(kind, values)
    raise ConfigError(
        f"sweep has {name}: {data!r}, which must be a list of values, or one of "
        f"{', '.join(KINDS)} with its values, such as {{uniform: [0, 0.1]}}."
    )


def as_marker(value: Any) -> Marker | None:
    """The marker that a value is; Ray's `grid_search` is one."""
    if isinstance(value, Marker):
        return value
    if is_marker(value) and isinstance(value, Mapping):
        return _marker("grid", cast(Mapping[str, Any], value)["grid_search"])
    return None


def markers_in(value: Any, path: Path = ()) -> Iterator[tuple[Path, Marker]]:
    """The markers in a setting's value, with the way to each."""
    marker = as_marker(value)
    if marker is not None:
        yield path, marker
    elif isinstance(value, Mapping):
        for key, part in cast(Mapping[Any, Any], value).items():
            yield from markers_in(part, (*path, key))


def with_value(value: Any, path: Path, new: Any) -> Any:
    """A setting's value with another part at a path of keys, which need not exist yet."""
    if not path:
        return new
    inside = dict(cast(Mapping[Any, Any], value or {}))
    return {**inside, path[0]: with_value(inside.get(path[0]), path[1:], new)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lane:
    """One run of a sweep.

    Args:
        index: Its place: lanes are ordered by point, then by seed.
        point: Which values of the sweep it has.
        seed: Of all its draws.
        values: What it has in the place of each marker, by name: `lr`, `env_config.gravity`.
        config: Of a run by itself.
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
    """Whether the config describes several lanes."""
    sweep = config.sweep_settings
    if sweep.seeds is not None or sweep.scheduler is not None:
        return True
    return any(True for _ in _marked(config))


def lanes_of(config: "AlgorithmConfig") -> list[Lane]:
    """The runs that a config describes: every grid point of every sample, with every seed.

    What a scheduler changes, and the config does not set, is drawn for each sample too.

    Raises:
        ConfigError: A marker is where nothing can vary, or there is nothing to draw twice.
        UnknownNameError: The scheduler changes a setting that there is not.
    """
    from jaxrl.config.pbt import mutations_of  # which knows the markers

    sweep = config.sweep_settings
    marked = list(_marked(config))
    for path, marker in marked:
        _check_can_vary(config, path, marker)
    mutations = mutations_of(config)
    marked += [((name,), m) for name, m in mutations.items() if name not in config.explicit]
    drawn = [path for path, marker in marked if marker.kind != "grid"]
    if sweep.num_samples > 1 and not drawn:
        raise ConfigError(
            f"num_samples={sweep.num_samples} draws values again, but no setting is a uniform(), "
            "loguniform() or choice(); set num_samples=1, or seeds for more runs of each point."
        )
    _check_number(sweep.num_samples, sweep.seeds, [m for _, m in marked if m.kind == "grid"])
    generator = np.random.default_rng(entropy_of(config.debugging_settings.seed))
    points: list[dict[Path, Any]] = []
    for _ in range(sweep.num_samples):
        draws = {path: m.draw(generator) for path, m in marked if m.kind != "grid"}
        grids = [[(path, value) for value in m.values] for path, m in marked if m.kind == "grid"]
        points += [{**draws, **dict(point)} for point in itertools.product(*grids)]
    seeds = _seeds(config) or [config.debugging_settings.seed]
    pairs = itertools.product(enumerate(points), seeds)
    return [
        Lane(
            index=index,
            point=point,
            seed=seed,
            values={".".join(map(str, path)): values[path] for path, _ in marked},
            config=_lane_config(config, values, seed, index),
        )
        for index, ((point, values), seed) in enumerate(pairs)
    ]


def _marked(config: "AlgorithmConfig") -> Iterator[tuple[Path, Marker]]:
    for name, value in config.items():
        if name != "scheduler" or isinstance(value, Marker):  # whose own are no values of lanes
            yield from markers_in(value, (name,))


def _check_number(num_samples: int, seeds: int | list[int] | None, grids: Sequence[Marker]) -> None:
    """Refuse more lanes than a sweep can have, before any of them is made."""
    runs = len(seeds) if isinstance(seeds, list) else seeds or 1
    lanes = num_samples * runs * math.prod(len(marker.values) for marker in grids)
    if lanes > MAX_LANES:
        raise ConfigError(
            f"num_samples={num_samples} x {runs} seeds x the values of {len(grids)} grid() settings "
            f"are {lanes} lanes, and a sweep has at most {MAX_LANES}; set fewer."
        )


def _seeds(config: "AlgorithmConfig") -> list[int] | None:
    """The seeds of every point; None where nothing was said of them."""
    seeds, first = config.sweep_settings.seeds, config.debugging_settings.seed
    if isinstance(seeds, int):
        return [first + i for i in range(seeds)]
    return seeds


def _lane_config(
    config: "AlgorithmConfig", values: Mapping[Path, Any], seed: int, index: int
) -> "AlgorithmConfig":
    lane = config.copy(copy_frozen=False)
    settings: dict[str, Any] = {}
    for (name, *inside), value in values.items():
        name = str(name)
        settings[name] = with_value(settings.get(name, config[name]), tuple(inside), value)
    lane.update_from_dict(settings)
    lane.sweep(seeds=None, num_samples=1, scheduler=None, max_lanes_per_program=None)
    run_name = config.debugging_settings.run_name
    return lane.debugging(
        seed=seed, run_name=None if run_name is None else f"{run_name}_lane_{index:03d}"
    )


CANNOT_VARY = {
    "seed": "use sweep(seeds=...) instead",
    "seeds": "give it a number or a list",
    "num_samples": "give it a number",
    "scheduler": "it is of the whole sweep",
    "max_lanes_per_program": "it is of the whole sweep",
    "run_name": "every lane gets a name of its own",
    "results_dir": "all lanes of a sweep are written to one folder",
    "loggers": "all lanes are written in the same way",
    "num_devices": "all lanes share the devices",
}


def _check_can_vary(config: "AlgorithmConfig", path: Path, marker: Marker) -> None:
    name = str(path[0])
    group = config.name_table().group_of[name]
    of_groups = ("resources_settings", "python_environment_settings", "reporting_settings")
    why = CANNOT_VARY.get(name)
    if why is None and group in of_groups:
        why = "it is of the whole sweep"
    if why is not None:
        raise ConfigError(f"{name} cannot vary between lanes, got {marker!r}: {why}.")
