"""Checks of model settings; each returns the value in its stored form or raises."""

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

from jaxrl.errors import ConfigError, did_you_mean
from jaxrl.modules.networks import ConvFilter, get_activation, parse_conv_filters
from jaxrl.modules.recurrent import RecurrentLayer, make_recurrent_core

InitializerSetting: TypeAlias = str | Callable[..., Any] | None
Check: TypeAlias = Callable[[str, Any], Any]
"""Function `(setting name, value) -> value in its stored form` that may raise ConfigError."""


def hiddens(name: str, value: object) -> tuple[int, ...]:
    """Check a list of positive whole numbers."""
    sizes: list[Any] = list(value) if isinstance(value, list | tuple) else [None]
    if not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in sizes):
        raise ConfigError(
            f"{name} is {value!r}; it must be a list of positive whole numbers, such as [64, 64]."
        )
    return tuple(sizes)


def hiddens_or_none(name: str, value: object) -> tuple[int, ...] | None:
    """Check a list of positive whole numbers; None is allowed."""
    return None if value is None else hiddens(name, value)


def one_of(*known: str) -> Check:
    """Return a check of names."""

    def check(name: str, value: object) -> object:
        if value not in known:
            raise ConfigError(
                f"{name} is {value!r}; it must be {' or '.join(map(repr, known))}."
                f"{did_you_mean(str(value), known)}"
            )
        return value

    return check


def flag(name: str, value: object) -> bool:
    """Check for True or False."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}; it must be True or False.")
    return value


def activation(name: str, value: str | None) -> str | None:
    """Check the name of an activation."""
    get_activation(value, name)
    return value


def initializer(name: str, value: object) -> InitializerSetting:
    """Check for the name of an initializer or a callable."""
    if not (value is None or isinstance(value, str) or callable(value)):
        raise ConfigError(f"{name} is {value!r}; it must be an initializer's name or a callable.")
    return value


def kwargs(name: str, value: object) -> dict[str, Any] | None:
    """Check for a dict or None."""
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError(f"{name} is {value!r}; it must be a dict such as {{'gain': 1.0}}.")
    return None if value is None else dict(cast(Mapping[str, Any], value))


def names(name: str, value: object) -> tuple[str, ...]:
    """Check a list of different names."""
    given: list[Any] = list(value) if isinstance(value, list | tuple) else [None]
    if not all(isinstance(each, str) for each in given) or len(set(given)) < len(given):
        raise ConfigError(
            f"{name} is {value!r}; it must be a list of different names, such as ['privileged_state']."
        )
    return tuple(given)


def conv_filters(name: str, value: object) -> tuple[ConvFilter, ...] | None:
    """Check and parse convolutions; None is allowed."""
    return None if value is None else parse_conv_filters(value, name)


def size_or_none(name: str, value: int | None) -> int | None:
    """Check for a positive whole number or None."""
    is_size = isinstance(value, int) and not isinstance(value, bool) and value > 0
    if value is not None and not is_size:
        raise ConfigError(
            f"{name} is {value!r}; it must be a positive whole number, or None for one-hot vectors."
        )
    return value


def log_std_clip(name: str, value: float) -> float:
    """Check for a number above 0, infinity included."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or math.isnan(value) or value <= 0:
        raise ConfigError(
            f"{name} is {value!r}; it must be a number above 0 (float('inf') for no clamp)."
        )
    return float(value)


def at_least(least: int) -> Check:
    """Return a check of whole numbers with a lower bound."""

    def check(name: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(
                f"{name} is {value!r}; it must be a whole number of at least {least}."
            )
        return value

    return check


def number(name: str, value: float) -> float:
    """Check for a finite number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
        raise ConfigError(f"{name} is {value!r}; it must be a finite number.")
    return float(value)


def layer_type(name: str, value: RecurrentLayer) -> RecurrentLayer:
    """Check for a kind of recurrent layer."""
    make_recurrent_core(value, 1)  # raises for an unknown kind
    return value
