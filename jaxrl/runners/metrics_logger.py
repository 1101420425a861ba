"""User-defined metrics, logged in the runners and reduced in the main process.

The logger of a runner collects values; those collected since the last fragment are sent with the
fragment as plain data. The logger of the main process merges the data of all runners and reduces
it.
"""

import functools
import itertools
import math
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias, TypedDict, Unpack, cast, get_args

import numpy as np

from jaxrl.errors import ConfigError, did_you_mean
from jaxrl.metrics import nest

Reduce: TypeAlias = Literal[
    "mean", "ema", "min", "max", "sum", "lifetime_sum", "percentiles", "item"
]
Key: TypeAlias = str | tuple[str, ...]

DEFAULT_EMA_COEFF = 0.01
DEFAULT_PERCENTILES = (0, 50, 75, 90, 95, 99, 100)

_REDUCERS: dict[str, Callable[[list[float]], float]] = {
    "mean": lambda values: float(np.mean(values)),
    "min": min,
    "max": max,
    "sum": sum,
}
_LIFETIME_REDUCTIONS = ("ema", "lifetime_sum")


class LogSettings(TypedDict, total=False):
    """Settings of a logged value, see `MetricsLogger.log_value`."""

    reduce: Reduce | Iterable[Reduce] | None
    window: int | None
    ema_coeff: float | None
    percentiles: Iterable[float] | None
    clear_on_reduce: bool


class LoggedMetrics(dict[str, Any]):
    """Reduced values, nested, of a logger whose values another one can merge.

    Args:
        values: The reduced values.
        data: Data of the logger, as `MetricsLogger.take` returns it.
    """

    def __init__(self, values: Mapping[str, Any], data: dict[str, dict[str, Any]]) -> None:
        super().__init__(values)
        self.data = data

    def __reduce__(self) -> tuple[Any, ...]:
        return LoggedMetrics, (dict(self), self.data)


class MetricsLogger:
    """Logger that collects values by key, with RLlib's methods.

    A key is a name or a tuple of names and gives the position in the result, below `env_runners`
    for values logged by runners; `"a/b"` is the same as `("a", "b")`. Without a window, a value
    only affects the next result; `ema` and `lifetime_sum` accumulate over all results.
    """

    def __init__(self) -> None:
        self._stats: dict[str, dict[str, Any]] = {}

    def __contains__(self, key: Key) -> bool:
        return _to_path(key) in self._stats

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
        """Log a value.

        Args:
            key: Position in the result.
            value: Number, or any object with `reduce="item"`, which keeps the latest one.
            reduce: Reduction of the values; None for "mean". Several reductions give one result
                each, with the reduction appended: `("mean", "max")` of `"x"` gives `x_mean` and
                `x_max`.
            window: Number of latest values to reduce, including those of earlier results.
            ema_coeff: Weight of a new value, for "ema".
            percentiles: Percentiles between 0 and 100, for "percentiles".
            clear_on_reduce: Whether to clear the values after each result. False is only valid
                with "sum", as RLlib's older form of "lifetime_sum".

        Raises:
            ConfigError: If the arguments are inconsistent, or differ from earlier ones of the key.
        """
        if reduce is not None and not isinstance(reduce, str):
            for each in reduce:
                self.log_value(
                    f"{_to_path(key)}_{each}",
                    value,
                    reduce=each,
                    window=window,
                    ema_coeff=ema_coeff if each == "ema" else None,
                    percentiles=percentiles if each == "percentiles" else None,
                    clear_on_reduce=clear_on_reduce,
                )
            return
        reduction = "mean" if reduce is None else reduce
        if not clear_on_reduce:
            reduction = _check_lifetime_sum(key, reduction, window)
        settings = _check_settings(key, reduction, window, ema_coeff, percentiles)
        data = _init_data(settings, value if reduction == "item" else _to_number(key, value))
        self._add(_to_path(key), settings, data)

    def log_dict(
        self, values: Mapping[str, Any], *, key: Key = (), **settings: Unpack[LogSettings]
    ) -> None:
        """Log every value of a nested dictionary, below a key."""
        start = () if key == () else tuple(_to_path(key).split("/"))
        for name, value in values.items():
            if isinstance(value, Mapping):
                self.log_dict(value, key=(*start, name), **settings)  # pyright: ignore[reportUnknownArgumentType]
            else:
                self.log_value((*start, name), value, **settings)

    @contextmanager
    def log_time(self, key: Key, **settings: Unpack[LogSettings]) -> Generator[None]:
        """Log the duration of a `with` block in seconds."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.log_value(key, time.perf_counter() - begin, **settings)

    def peek(self, key: Key | None = None, default: object = None) -> Any:
        """Return the current reduced value of a key, or of all keys, without clearing anything.

        Raises:
            KeyError: If the key does not exist and there is no default.
        """
        if key is None:
            return self._to_nested()
        path = _to_path(key)
        if path in self._stats:
            return _reduce_stat(self._stats[path])
        below = {p[len(path) + 1 :]: s for p, s in self._stats.items() if p.startswith(path + "/")}
        if below:
            return nest({p: _reduce_stat(stat) for p, stat in below.items()})
        if default is None:
            raise KeyError(f"Nothing was logged as '{path}'.{did_you_mean(path, self._stats)}")
        return default

    def delete(self, *key: str) -> None:
        """Delete a key, given by its parts, and all keys below it."""
        path = "/".join(map(str, key))
        for name in [p for p in self._stats if p == path or p.startswith(path + "/")]:
            del self._stats[name]

    def take(self) -> dict[str, dict[str, Any]]:
        """Return and clear the collected values, as plain data for another logger."""
        stats, self._stats = self._stats, {}
        return stats

    def take_reduced(self) -> LoggedMetrics:
        """Return the reduced values with the data of all values, and clear them."""
        return LoggedMetrics(self._to_nested(), self.take())

    def aggregate(self, parts: Iterable[Mapping[str, Mapping[str, Any]]], *, key: Key = ()) -> None:
        """Merge data taken from other loggers, in the given order.

        Args:
            parts: What `take` of other loggers returned, or `get_metrics` of runners.
            key: Position below which to merge it.
        """
        above = f"{_to_path(key)}/" if key else ""
        for part in parts:
            for path, stat in (part.data if isinstance(part, LoggedMetrics) else part).items():
                settings = {name: value for name, value in stat.items() if name != "data"}
                self._add(f"{above}{path}", settings, list(stat["data"]))

    def aggregate_runners(self, parts: Iterable[tuple[int, Mapping[str, Any]]]) -> None:
        """Merge data that several runners have collected at the same time.

        A window takes as many of the latest values of each runner, and an "ema" is the mean of
        those of the runners.

        Args:
            parts: Index of a runner, and data taken from its logger; in order for each runner.
        """
        loggers: dict[int, MetricsLogger] = {}
        for index, part in parts:
            loggers.setdefault(index, MetricsLogger()).aggregate([part])
        found: dict[str, list[dict[str, Any]]] = {}
        for logger in loggers.values():
            for path, stat in logger.take().items():
                found.setdefault(path, []).append(stat)
        for path, stats in found.items():
            settings = [{name: x for name, x in stat.items() if name != "data"} for stat in stats]
            if all(each == settings[0] for each in settings):
                data = _merge_parallel(settings[0], [stat["data"] for stat in stats])
                self._add(path, settings[0], data)
                continue
            for each, stat in zip(settings, stats, strict=True):
                self._add(path, each, stat["data"])  # raises

    def reduce(self) -> dict[str, Any]:
        """Return the reduced values, nested, and clear those that only affect one result."""
        result = self._to_nested()
        self._stats = {
            path: stat
            for path, stat in self._stats.items()
            if stat["reduce"] in _LIFETIME_REDUCTIONS or stat["window"] is not None
        }
        return result

    def get_state(self) -> dict[str, dict[str, Any]]:
        """Return the state as JSON-compatible data for `set_state`."""
        return {path: {**stat, "data": list(stat["data"])} for path, stat in self._stats.items()}

    def set_state(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore a state returned by `get_state`."""
        self._stats = {}
        self.aggregate([state])

    def _to_nested(self) -> dict[str, Any]:
        return nest({path: _reduce_stat(stat) for path, stat in self._stats.items()})

    def _add(self, path: str, settings: dict[str, Any], data: list[Any]) -> None:
        """Merge data into the statistic of a path, or create it."""
        stat = self._stats.get(path)
        if stat is None:
            self._check_place(path)
            self._stats[path] = {**settings, "data": data}
            return
        known = {name: value for name, value in stat.items() if name != "data"}
        if known != settings:
            raise ConfigError(
                f"'{path}' was logged with {_describe_settings(known)} and then with "
                f"{_describe_settings(settings)}; log a key in one way only."
            )
        stat["data"] = _merge_data(settings, stat["data"], data)

    def _check_place(self, path: str) -> None:
        """Raise if a new path would be both a value and a group of values."""
        for other in self._stats:
            if other.startswith(f"{path}/") or path.startswith(f"{other}/"):
                raise ConfigError(
                    f"'{path}' was logged beside '{other}', so that one of them would be a value and "
                    "a group of values; log one under another name."
                )


def log_custom_metrics(logger: MetricsLogger, custom_data: Mapping[str, Any]) -> None:
    """Log the numbers that callbacks of RLlib's older form left in an episode that has ended."""
    for name, value in custom_data.get("custom_metrics", {}).items():
        logger.log_value(("custom_metrics", name), value, reduce=("mean", "min", "max"))


def _to_path(key: Key) -> str:
    return key if isinstance(key, str) else "/".join(map(str, key))


def _to_number(key: Key, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"'{_to_path(key)}' was logged with {str(value)[:80]!r}, which is not a number; "
            "reduce='item' keeps the latest value of any kind."
        ) from error


def _check_lifetime_sum(key: Key, reduction: str, window: int | None) -> Reduce:
    if reduction not in ("sum", "lifetime_sum") or window is not None:
        raise ConfigError(
            f"clear_on_reduce=False of '{_to_path(key)}' requires reduce='sum' and window=None, "
            f"got reduce={reduction!r}, window={window}."
        )
    return "lifetime_sum"


def _check_settings(
    key: Key,
    reduction: str,
    window: int | None,
    ema_coeff: float | None,
    percentiles: Iterable[float] | None,
) -> dict[str, Any]:
    """Return the settings of a statistic as plain data.

    Raises:
        ConfigError: If a setting is invalid or requires another reduction.
    """
    path = _to_path(key)
    if not path:
        raise ConfigError(f"A value is logged under a name, or a tuple of names, got {key!r}.")
    known = get_args(Reduce)
    if reduction not in known:
        raise ConfigError(
            f"reduce={reduction!r} of '{path}' is not one of {', '.join(known)}."
            f"{did_you_mean(reduction, known)}"
        )
    if window is not None and not (_is_number(window) and window >= 1 and window % 1 == 0):
        raise ConfigError(f"window of '{path}' must be a number of values above 0, got {window!r}.")
    if window is not None and reduction not in (*_REDUCERS, "percentiles"):
        raise ConfigError(
            f"window={window} of '{path}' requires {', '.join(_REDUCERS)} or percentiles, not "
            f"{reduction}."
        )
    if ema_coeff is not None and reduction != "ema":
        raise ConfigError(f"ema_coeff of '{path}' requires reduce='ema', got {reduction!r}.")
    if percentiles is not None and reduction != "percentiles":
        raise ConfigError(
            f"percentiles of '{path}' requires reduce='percentiles', got {reduction!r}."
        )
    if ema_coeff is not None and not (_is_number(ema_coeff) and 0.0 < ema_coeff <= 1.0):
        raise ConfigError(
            f"ema_coeff of '{path}' must be above 0 and at most 1, got {ema_coeff!r}."
        )
    window = None if window is None else int(window)
    settings: dict[str, Any] = {"reduce": reduction, "window": window}
    if reduction == "ema":
        settings["ema_coeff"] = DEFAULT_EMA_COEFF if ema_coeff is None else float(ema_coeff)
    if reduction == "percentiles":
        settings["percentiles"] = _list_percentiles(path, percentiles)
    return settings


def _list_percentiles(path: str, percentiles: Iterable[float] | None) -> list[float]:
    """Return percentiles as plain numbers."""
    given = DEFAULT_PERCENTILES if percentiles is None else percentiles
    listed = list(given) if isinstance(given, Iterable) else [float("nan")]
    if not all(_is_number(p) and 0 <= p <= 100 for p in listed):
        raise ConfigError(
            f"percentiles of '{path}' must be a list of numbers from 0 to 100, got {given!r}."
        )
    return [p if isinstance(p, int) else float(p) for p in listed]


def _init_data(settings: Mapping[str, Any], value: object) -> list[Any]:
    """Return the data of a single value."""
    if settings["window"] is None and settings["reduce"] == "mean":
        return [value, 1]
    if settings["reduce"] == "ema":
        coeff = settings["ema_coeff"]
        return [value, 1.0 - coeff, coeff * value]
    return [value]


def _merge_data(settings: Mapping[str, Any], old: list[Any], new: list[Any]) -> list[Any]:
    """Merge the data of earlier values with that of later ones; NaN counts only if alone."""
    reduction = settings["reduce"]
    if reduction != "item" and (_is_missing(old) or _is_missing(new)):
        return old if _is_missing(new) else new
    if settings["window"] is not None:
        return [*old, *new][-settings["window"] :]
    match reduction:
        case "percentiles":
            return [*old, *new]
        case "item":
            return new
        case "mean":
            return [old[0] + new[0], old[1] + new[1]]
        case "ema":
            # Composition of the affine maps E -> decay * E + added, from the first value on.
            first, decay, added = old
            return [first, decay * new[1], new[1] * added + new[2]]
        case "lifetime_sum":
            return [old[0] + new[0]]
        case _:
            return [_REDUCERS[reduction]([old[0], new[0]])]


def _merge_parallel(settings: Mapping[str, Any], parts: list[list[Any]]) -> list[Any]:
    """Merge the data of values that were logged at the same time."""
    if settings["reduce"] != "item":
        parts = [part for part in parts if not _is_missing(part)] or parts[:1]
    if settings["window"] is not None:
        rounds = itertools.zip_longest(*(reversed(part) for part in parts))
        newest = [value for values in rounds for value in values if value is not None]
        return newest[: settings["window"]][::-1]
    if settings["reduce"] == "ema":
        return [float(np.mean(numbers)) for numbers in zip(*parts, strict=True)]
    return functools.reduce(functools.partial(_merge_data, settings), parts)


def _is_missing(data: list[float]) -> bool:
    """Return whether data is that of NaN, which is merged with no other value."""
    return math.isnan(data[0])


def _reduce_stat(stat: Mapping[str, Any]) -> object:
    data, reduction = stat["data"], stat["reduce"]
    match reduction:
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
            return _REDUCERS[reduction](data)


def find_state_problem(state: Mapping[str, Any]) -> str | None:
    """Return the end of a message about an invalid `MetricsLogger` state; None if it is valid."""
    for path, stat in state.items():
        if not _is_stat(path, stat):
            return f"has {str(stat)[:80]!r} as {path[:80]!r}, which is not data of a logger"
    parents = {path[:i] for path in state for i, letter in enumerate(path) if letter == "/"}
    both = sorted(parents & state.keys())
    return f"has {both[0][:80]!r} as a value and as a group of values" if both else None


def _is_stat(path: str, stat: object) -> bool:
    settings, data = _split_stat(stat)
    try:
        known = _check_settings(
            path,
            settings.get("reduce", ""),
            settings.get("window"),
            settings.get("ema_coeff"),
            settings.get("percentiles"),
        )
        if known != settings or not _is_valid_data(known, data):
            return False
        _reduce_stat({**known, "data": data})
    except (ConfigError, TypeError, ValueError, ArithmeticError):
        return False
    return True


def _split_stat(stat: object) -> tuple[dict[str, Any], object]:
    """Split a statistic into its settings and its data; both are empty for other objects."""
    if not isinstance(stat, dict):
        return {}, None
    entries = cast(dict[str, Any], stat)
    return {name: value for name, value in entries.items() if name != "data"}, entries.get("data")


def _is_valid_data(settings: Mapping[str, Any], data: object) -> bool:
    """Return whether data has the form that `_init_data` and `_merge_data` produce."""
    if not isinstance(data, list):
        return False
    values, reduction, window = cast(list[Any], data), settings["reduce"], settings["window"]
    if reduction == "item":
        return len(values) == 1
    if not all(map(_is_number, [*values, settings.get("ema_coeff", 0.0)])):
        return False
    if window is not None:
        return type(window) is int and 1 <= len(values) <= window
    if reduction == "percentiles":
        return bool(values)
    return len(values) == {"mean": 2, "ema": 3}.get(reduction, 1)


def _is_number(value: object) -> bool:
    numbers = (int, float, np.integer, np.floating)
    return isinstance(value, numbers) and not isinstance(value, bool)


def _describe_settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in settings.items() if value is not None)
