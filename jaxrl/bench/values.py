"""Validation of the values in a suite's file."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from jaxrl.core.seeds import check_seed
from jaxrl.errors import ConfigError, UnknownNameError, did_you_mean


def parse_number(value: object) -> float:
    """Return a finite number as a float.

    Raises:
        TypeError: If the value is anything else, such as a boolean.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    if not abs(value) <= sys.float_info.max:  # NaN as well
        raise TypeError
    return float(value)


def parse_integer(value: object) -> int:
    """Return a whole number above 0.

    Raises:
        TypeError: If the value is anything else.
    """
    parsed = parse_number(value)
    if parsed != int(parsed) or parsed < 1:
        raise TypeError
    return int(parsed)


def parse_nonempty_text(value: object) -> str:
    """Return nonempty text.

    Raises:
        TypeError: If the value is anything else.
    """
    if not isinstance(value, str) or not value.strip():
        raise TypeError(value)
    return value


TASK_VALUES: Mapping[str, tuple[Callable[[object], object], str]] = {
    "budget": (parse_integer, "a number of environment steps"),
    "episodes": (parse_integer, "a number of episodes"),
    "threshold": (parse_number, "a return"),
    "ceiling": (parse_number, "a return"),
    "low": (parse_number, "a return"),
    "high": (parse_number, "a return"),
    "reference": (parse_number, "a return"),
    "source": (parse_nonempty_text, "the origin of the reference, as text"),
    "module": (parse_nonempty_text, "the id of a module of several agents"),
}


def parse_values(
    given: Mapping[str, Any],
    kinds: Mapping[str, tuple[Callable[[object], object], str]],
    where: str,
) -> dict[str, Any]:
    """Parse values by name.

    Args:
        given: Values by name.
        kinds: Parser and description of the expected value, by name.
        where: Place in the file, for error messages.

    Raises:
        ConfigError: If a value is of the wrong kind.
    """
    parsed = {}
    for name, value in given.items():
        parse, expected = kinds[name]
        try:
            parsed[name] = parse(value)
        except TypeError:
            raise ConfigError(f"{where}: {name} must be {expected}, got {value!r}.") from None
    return parsed


def check_mapping(
    data: object, where: str, known: Sequence[str] | None = None
) -> Mapping[str, Any]:
    """Return a mapping with names as keys, empty for None.

    Raises:
        ConfigError: If the data is not a mapping.
        UnknownNameError: If a name is not in `known`.
    """
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where} must map names to values, got {data!r}.")
    values = {str(name): value for name, value in cast(Mapping[Any, Any], data).items()}
    for name in values:
        if known is not None:
            check_known(where, name, known)
    return values


def check_list(data: object, where: str) -> list[Any]:
    """Return a list, empty for None.

    Raises:
        ConfigError: If the data is not a list.
    """
    if data is None:
        return []
    if not isinstance(data, list):
        raise ConfigError(f"{where} must be a list, such as [{data!r}], got {data!r}.")
    return cast(list[Any], data)


def check_known(where: str, name: object, known: Iterable[object]) -> str:
    """Return a name as a string if it is known.

    Raises:
        UnknownNameError: If it is not known.
    """
    names = [str(x) for x in known]
    if name not in names:
        raise UnknownNameError(
            f"{where} has {name!r}, which is not one of "
            f"{', '.join(names) or 'the available names'}."
            f"{did_you_mean(str(name), names)}"
        )
    return str(name)


def parse_positive(name: str, value: object) -> int:
    """Return a whole number above 0.

    Raises:
        ConfigError: If the value is anything else.
    """
    try:
        return parse_integer(value)
    except TypeError:
        raise ConfigError(f"{name} must be a whole number above 0, got {value!r}.") from None


def parse_seeds(value: object) -> tuple[int, ...]:
    """Return seeds from a list, or from their number.

    Raises:
        ConfigError: If the value is neither.
    """
    if isinstance(value, list):
        seeds = cast(list[Any], value)
        if seeds and all(type(seed) is int for seed in seeds) and len(set(seeds)) == len(seeds):
            for seed in seeds:
                check_seed(seed, "each of seeds")
            return tuple(seeds)
    elif type(value) is int and value > 0:
        return tuple(range(value))
    raise ConfigError(f"seeds must be a number above 0 or a list of distinct seeds, got {value!r}.")
