"""Checks of model settings: each gives the value in its stored form, or says what is wrong."""

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

from jaxrl.errors import ConfigError
from jaxrl.modules.networks import get_activation, parse_conv_filters
from jaxrl.modules.recurrent import make_memory

InitializerSetting: TypeAlias = str | Callable[..., Any] | None
Check: TypeAlias = Callable[[str, Any], Any]
"""`(setting name, value) -> the value in its stored form`, or a ConfigError."""


def hiddens(name: str, value: Any) -> tuple[int, ...]:
    """Positive whole numbers."""
    sizes: list[Any] = list(value) if isinstance(value, list | tuple) else [None]
    if not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in sizes):
        raise ConfigError(
            f"{name} is {value!r}; it must be a list of positive whole numbers, such as [64, 64]."
        )
    return tuple(sizes)


def flag(name: str, value: Any) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}; it must be True or False.")
    return value


def activation(name: str, value: Any) -> str | None:
    """An activation's name."""
    get_activation(value, name)
    return value


def initializer(name: str, value: Any) -> InitializerSetting:
    """An initialiser's name or a callable."""
    if not (value is None or isinstance(value, str) or callable(value)):
        raise ConfigError(f"{name} is {value!r}; it must be an initialiser's name or a callable.")
    return value


def kwargs(name: str, value: Any) -> dict[str, Any] | None:
    """A dict, or None."""
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError(f"{name} is {value!r}; it must be a dict such as {{'gain': 1.0}}.")
    return None if value is None else dict(cast(Mapping[str, Any], value))


def conv_filters(name: str, value: Any) -> Any:
    """Convolutions, or None."""
    return None if value is None else parse_conv_filters(value, name)


def size_or_none(name: str, value: Any) -> int | None:
    """A positive whole number, or None."""
    is_size = isinstance(value, int) and not isinstance(value, bool) and value > 0
    if value is not None and not is_size:
        raise ConfigError(
            f"{name} is {value!r}; it must be a positive whole number, or None for one-hot vectors."
        )
    return value


def log_std_clip(name: str, value: Any) -> float:
    """A number above 0, infinity included."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or math.isnan(value) or value <= 0:
        raise ConfigError(
            f"{name} is {value!r}; it must be a number above 0 (float('inf') for no clamp)."
        )
    return float(value)


def at_least(least: int) -> Check:
    """The check of whole numbers from `least` on."""

    def check(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"{name} is {value!r}; it must be a whole number from {least} on.")
        return value

    return check


def number(name: str, value: Any) -> float:
    """A finite number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
        raise ConfigError(f"{name} is {value!r}; it must be a finite number.")
    return float(value)


def layer_type(name: str, value: Any) -> Any:
    """A kind of recurrent layer."""
    make_memory(value, 1)  # refuses what is none of them
    return value
