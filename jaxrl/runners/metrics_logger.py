"""Metrics of the user's: logged where something happens, reduced where results are made.

A runner's logger collects; what it has collected since the last fragment travels with the fragment
as plain data. The logger of the main process takes the parts of all runners in and reduces them.
"""

import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias, cast, get_args

import numpy as np

from jaxrl.errors import ConfigError, did_you_mean

Reduce: TypeAlias = Literal[
    "mean", "ema", "min", "max", "sum", "lifetime_sum", "percentiles", "item"
]
Key: TypeAlias = str | tuple[str, ...]

DEFAULT_EMA_COEFF = 0.01
DEFAULT_PERCENTILES = (0, 50, 75, 90, 95, 99, 100)

_OVER_VALUES: dict[str, Callable[[list[float]], float]] = {
    "mean": lambda values: float(np.mean(values)),
    "min": min,
    "max": max,
    "sum": sum,
}
_LASTING = ("ema", "lifetime_sum")


class MetricsLogger:
    """Collects values by key, with RLlib's methods.

    A key is a name or a tuple of names, and leads to that place in the result, below `env_runners`
    for what runners log; `"a/b"` is the same as `("a", "b")`. Without a window, a value counts for
    the one result that comes next; `ema` and `lifetime_sum` go on for ever.
    """

    def __init__(self) -> None:
        self._stats: dict[str, dict[str, Any]] = {}

    def __contains__(self, key: Key) -> bool:
        return _path(key) in self._stats

    def log_value(
        self,
        key: Key,
        value: Any,
        *,
        reduce: Reduce | Iterable[Reduce] | None = None,
        window: int | None = None,
        ema_coeff: float | None = None,
        percentiles: Iterable[float] | None = None,
        clear_on_reduce: bool = True,
    ) -> None:
        """Add a value.

        Args:
            key: Where it stands in the result.
            value: A number; with `reduce="item"` anything, of which the latest stays.
            reduce: What becomes of the values, "mean" if None. Several give a result each, with
                their names appended: `("mean", "max")` of `"x"` gives `x_mean` and `x_max`.
            window: Reduces the latest so many values, also of results before.
            ema_coeff: Weight of a new value with "ema".
            percentiles: Between 0 and 100, with "percentiles".
            clear_on_reduce: False with "sum" is RLlib's older name of "lifetime_sum".

        Raises:
            ConfigError: The settings do not go together, or are not those that the key has.
        """
        if reduce is not None and not isinstance(reduce, str):
            for one in reduce:
                self.log_value(
                    f"{_path(key)}_{one}",
                    value,
                    reduce=one,
                    window=window,
                    ema_coeff=ema_coeff if one == "ema" else None,
                    percentiles=percentiles if one == "percentiles" else None,
                )
            return
        how = "mean" if reduce is None else reduce
        if not clear_on_reduce:
            how = _lasting(key, how, window)
        settings = _settings(key, how, window, ema_coeff, percentiles)
        data = _first(settings, value if how == "item" else float(value))
        self._add(_path(key), settings, data)

    def log_dict(self, values: Mapping[str, Any], *, key: Key = (), **settings: Any) -> None:
        """Add every value of a nested dictionary, below a key."""
        start = () if key == () else tuple(_path(key).split("/"))
        for name, value in values.items():
            if isinstance(value, Mapping):
                self.log_dict(value, key=(*start, name), **settings)  # pyright: ignore[reportUnknownArgumentType]
            else:
                self.log_value((*start, name), value, **settings)

    @contextmanager
    def log_time(self, key: Key, **settings: Any) -> Generator[None]:
        """Add the seconds that a `with` block takes."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.log_value(key, time.perf_counter() - begin, **settings)

    def peek(self, key: Key | None = None, default: Any = None) -> Any:
        """The reduced value of a key as it is now, or of all keys; nothing is cleared.

        Raises:
            KeyError: There is no such key, and no default.
        """
        if key is None:
            return self._nested()
        path = _path(key)
        if path in self._stats:
            return _reduced(self._stats[path])
        below = {p[len(path) + 1 :]: s for p, s in self._stats.items() if p.startswith(path + "/")}
        if below:
            return _nested({p: _reduced(stat) for p, stat in below.items()})
        if default is None:
            raise KeyError(f"Nothing was logged as '{path}'.{did_you_mean(path, self._stats)}")
        return default

    def delete(self, *key: str) -> None:
        """Forget a key, given by its parts, and what is below it."""
        path = "/".join(key)
        for name in [p for p in self._stats if p == path or p.startswith(path + "/")]:
            del self._stats[name]

    def take(self) -> dict[str, dict[str, Any]]:
        """All that was collected, as plain data for `merge`; the logger is empty afterwards."""
        taken, self._stats = self._stats, {}
        return taken

    def merge(self, parts: Iterable[Mapping[str, Mapping[str, Any]]]) -> None:
        """Take in what other loggers have taken out, in this order."""
        for part in parts:
            for path, stat in part.items():
                settings = {name: value for name, value in stat.items() if name != "data"}
                self._add(path, settings, list(stat["data"]))

    def reduce(self) -> dict[str, Any]:
        """The values of a result, nested; what counted for this one is cleared."""
        result = self._nested()
        self._stats = {
            path: stat
            for path, stat in self._stats.items()
            if stat["reduce"] in _LASTING or stat["window"] is not None
        }
        return result

    def get_state(self) -> dict[str, dict[str, Any]]:
        """What `set_state` goes on from, as JSON takes it."""
        return {path: {**stat, "data": list(stat["data"])} for path, stat in self._stats.items()}

    def set_state(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Go on from a state."""
        self._stats = {}
        self.merge([state])

    def _nested(self) -> dict[str, Any]:
        return _nested({path: _reduced(stat) for path, stat in self._stats.items()})

    def _add(self, path: str, settings: dict[str, Any], data: list[Any]) -> None:
        """Join data to what there is."""
        stat = self._stats.get(path)
        if stat is None:
            self._stats[path] = {**settings, "data": data}
            return
        known = {name: value for name, value in stat.items() if name != "data"}
        if known != settings:
            raise ConfigError(
                f"'{path}' was logged with {_in_words(known)} and then with {_in_words(settings)}; "
                "log a key in one way only."
            )
        stat["data"] = _joined(settings, stat["data"], data)


def _path(key: Key) -> str:
    return key if isinstance(key, str) else "/".join(key)


def _lasting(key: Key, how: str, window: int | None) -> Reduce:
    if how not in ("sum", "lifetime_sum") or window is not None:
        raise ConfigError(
            f"clear_on_reduce=False of '{_path(key)}' goes with reduce='sum' and no window, got "
            f"reduce={how!r}, window={window}."
        )
    return "lifetime_sum"


def _settings(
    key: Key,
    how: str,
    window: int | None,
    ema_coeff: float | None,
    percentiles: Iterable[float] | None,
) -> dict[str, Any]:
    """What makes a statistic, as plain data."""
    path = _path(key)
    known = get_args(Reduce)
    if how not in known:
        raise ConfigError(
            f"reduce={how!r} of '{path}' is none of {', '.join(known)}.{did_you_mean(how, known)}"
        )
    if window is not None and (window < 1 or how not in (*_OVER_VALUES, "percentiles")):
        raise ConfigError(
            f"window={window} of '{path}' must be a positive number of values, and goes with "
            f"{', '.join(_OVER_VALUES)} and percentiles, not {how}."
        )
    if ema_coeff is not None and how != "ema":
        raise ConfigError(f"ema_coeff of '{path}' goes with reduce='ema', got {how!r}.")
    if percentiles is not None and how != "percentiles":
        raise ConfigError(f"percentiles of '{path}' go with reduce='percentiles', got {how!r}.")
    settings: dict[str, Any] = {"reduce": how, "window": window}
    if how == "ema":
        settings["ema_coeff"] = DEFAULT_EMA_COEFF if ema_coeff is None else ema_coeff
    if how == "percentiles":
        settings["percentiles"] = list(DEFAULT_PERCENTILES if percentiles is None else percentiles)
    return settings


def _first(settings: Mapping[str, Any], value: Any) -> list[Any]:
    """The data of a single value."""
    if settings["window"] is None and settings["reduce"] == "mean":
        return [value, 1]
    if settings["reduce"] == "ema":
        coeff = settings["ema_coeff"]
        return [value, 1.0 - coeff, coeff * value]
    return [value]


def _joined(settings: Mapping[str, Any], old: list[Any], new: list[Any]) -> list[Any]:
    """The data of what was logged before and of what came after it."""
    how = settings["reduce"]
    if settings["window"] is not None:
        return [*old, *new][-settings["window"] :]
    match how:
        case "percentiles":
            return [*old, *new]
        case "item":
            return new
        case "mean":
            return [old[0] + new[0], old[1] + new[1]]
        case "ema":
            # E -> decay * E + added, one after the other, from the first value on.
            first, decay, added = old
            return [first, decay * new[1], new[1] * added + new[2]]
        case "lifetime_sum":
            return [old[0] + new[0]]
        case _:
            return [_OVER_VALUES[how]([old[0], new[0]])]


def _reduced(stat: Mapping[str, Any]) -> Any:
    data, how = stat["data"], stat["reduce"]
    match how:
        case "percentiles":
            values = np.percentile(data, stat["percentiles"])
            return {f"{p:g}": float(v) for p, v in zip(stat["percentiles"], values, strict=True)}
        case "mean" if stat["window"] is None:
            return data[0] / data[1]
        case "ema":
            return data[1] * data[0] + data[2]
        case "item" | "lifetime_sum":
            return data[0]
        case _:
            return _OVER_VALUES[how](data)


def problem_of_state(state: Mapping[str, Any]) -> str | None:
    """What is wrong with a state of `MetricsLogger.get_state`, as the end of a sentence; None if nothing."""
    for path, stat in state.items():
        if not _is_stat(path, stat):
            return f"has {str(stat)[:80]!r} as {path[:80]!r}, which no logger has written"
    above = {path[:i] for path in state for i, letter in enumerate(path) if letter == "/"}
    both = sorted(above & state.keys())
    return f"has {both[0][:80]!r} as a value and as a group of values" if both else None


def _is_stat(path: str, stat: Any) -> bool:
    settings, data = _parts(stat)
    try:
        known = _settings(
            path,
            settings.get("reduce", ""),
            settings.get("window"),
            settings.get("ema_coeff"),
            settings.get("percentiles"),
        )
        if known != settings or not _are_data(known, data):
            return False
        _reduced({**known, "data": data})
    except (ConfigError, TypeError, ValueError, ArithmeticError):
        return False
    return True


def _parts(stat: Any) -> tuple[dict[str, Any], Any]:
    """What makes a statistic, and its data; nothing where it is none."""
    if not isinstance(stat, dict):
        return {}, None
    parts = cast(dict[str, Any], stat)
    return {name: value for name, value in parts.items() if name != "data"}, parts.get("data")


def _are_data(settings: Mapping[str, Any], data: Any) -> bool:
    """Whether this is what `_first` and `_joined` leave behind with such settings."""
    if not isinstance(data, list):
        return False
    values, how, window = cast(list[Any], data), settings["reduce"], settings["window"]
    if how == "item":
        return len(values) == 1
    if not all(map(_is_number, [*values, settings.get("ema_coeff", 0.0)])):
        return False
    if window is not None:
        return type(window) is int and 1 <= len(values) <= window
    if how == "percentiles":
        return bool(values)
    return len(values) == {"mean": 2, "ema": 3}.get(how, 1)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Paths `"a/b"` as dictionaries in one another."""
    result: dict[str, Any] = {}
    for path, value in flat.items():
        *above, name = path.split("/")
        place = result
        for part in above:
            place = place.setdefault(part, {})
        place[name] = value
    return result


def _in_words(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in settings.items() if value is not None)
