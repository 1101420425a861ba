"""Search markers, which stand for several values of a setting: jaxrl's own and Ray Tune's."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeAlias, cast

import numpy as np

from jaxrl.config.coerce import check_depth
from jaxrl.errors import ConfigError

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
    if isinstance(values, range) or (isinstance(values, np.ndarray) and values.ndim):
        values = [_to_builtin(value) for value in cast(list[Any], values)]
    if not isinstance(values, list | tuple) or not values:
        raise ConfigError(f"{kind}() needs a list of values to try, got {values!r}.")
    values = tuple(cast(list[Any], values))
    check_depth(values, f"A value of {kind}()")
    nested = next(find_markers(list(values)), None)
    if nested is not None:
        raise ConfigError(
            f"{kind}() needs values to try, got {nested[1]!r} among them; write all values in one "
            "list."
        )
    if kind in ("uniform", "loguniform"):
        values = tuple(_to_builtin(value) for value in values)
        numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
        min_bound = -math.inf if kind == "uniform" else 0.0
        if (
            len(values) != 2
            or len(numbers) != 2
            or not min_bound < numbers[0] < numbers[1] < math.inf
        ):
            condition = "" if kind == "uniform" else ", above 0"
            raise ConfigError(
                f"{kind}() needs a lower and a higher finite bound{condition}, got {list(values)}."
            )
    return Marker(kind, values)


def _to_builtin(value: object) -> object:
    """Convert a number or an array of NumPy to builtin types; return other values unchanged."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


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
    elif isinstance(value, list | tuple):
        for index, part in enumerate(cast(list[Any], value)):
            yield from find_markers(part, (*path, index))


def replace_at_path(value: object, path: SettingPath, new: object) -> object:
    """Return a copy of a setting's value with a part replaced; missing keys are created.

    Raises:
        ConfigError: If there is no such part, because a value on the path is not a dictionary and,
            for an index, not a list that is long enough.
    """
    if not path:
        return new
    key, *rest = path
    if isinstance(value, list | tuple):
        items = list(cast(list[Any], value))
        index = _parse_index(key, len(items))
        items[index] = replace_at_path(items[index], tuple(rest), new)
        return tuple(items) if isinstance(value, tuple) else items
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError(f"'{key}' needs a dictionary to be in, but there is {value!r}.")
    mapping = dict(cast(Mapping[Any, Any], value or {}))
    return {**mapping, key: replace_at_path(mapping.get(key), tuple(rest), new)}


def _parse_index(key: str | int, size: int) -> int:
    """Return a key as an index of a list of this size."""
    if not str(key).isdecimal() or int(key) >= size:
        raise ConfigError(f"'{key}' is not an index of a list of {size}, which begin at 0.")
    return int(key)


def is_tune_marker(value: object) -> bool:
    """Return whether a value is a search marker, as from `tune.grid_search` or `tune.uniform`."""
    if isinstance(value, Mapping):
        entries = cast(Mapping[Any, Any], value)
        return set(entries) == {"grid_search"} and isinstance(entries["grid_search"], list)
    return any(cls.__module__ == "ray.tune.search.sample" for cls in type(value).__mro__)


def contains_tune_marker(value: object) -> bool:
    """Return whether a value is a search marker, or a nested container that holds one."""
    if is_tune_marker(value):
        return True
    if isinstance(value, Mapping):
        return any(contains_tune_marker(item) for item in cast(Mapping[Any, Any], value).values())
    if isinstance(value, list | tuple):
        return any(contains_tune_marker(item) for item in cast(list[Any], value))
    return False
