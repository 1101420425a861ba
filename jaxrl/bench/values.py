"""Values of a suite's file: what they must be, and what is said where they are not."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from jaxrl.core.seeds import check_seed
from jaxrl.errors import ConfigError, UnknownNameError, did_you_mean


def number(value: Any) -> float:
    """A number; TypeError for anything else, booleans among it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return float(value)


def integer(value: Any) -> int:
    """A whole number above 0; TypeError for anything else."""
    found = number(value)
    if found != int(found) or found < 1:
        raise TypeError
    return int(found)


def words(value: Any) -> str:
    """Text that says something."""
    if not isinstance(value, str) or not value.strip():
        raise TypeError(value)
    return value


OF_TASK: Mapping[str, tuple[Callable[[Any], Any], str]] = {
    "budget": (integer, "a number of environment steps"),
    "threshold": (number, "a return"),
    "low": (number, "a return"),
    "high": (number, "a return"),
    "reference": (number, "a return"),
    "source": (words, "who had the reference, in words"),
}


def typed(
    given: Mapping[str, Any], kinds: Mapping[str, tuple[Callable[[Any], Any], str]], where: str
) -> dict[str, Any]:
    """Values as their names want them.

    Raises:
        ConfigError: One is of a wrong kind; names the place.
    """
    found = {}
    for name, value in given.items():
        parse, wanted = kinds[name]
        try:
            found[name] = parse(value)
        except TypeError:
            raise ConfigError(f"{where}: {name} must be {wanted}, got {value!r}.") from None
    return found


def mapping(data: Any, where: str, known: Sequence[str] | None = None) -> Mapping[str, Any]:
    """What is said of names, empty for nothing.

    Raises:
        ConfigError: It is no mapping.
        UnknownNameError: It has a name that is none of `known`.
    """
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where} must map names to what is said of them, got {data!r}.")
    found = {str(name): value for name, value in cast(Mapping[Any, Any], data).items()}
    for name in found:
        if known is not None:
            known_name(where, name, known)
    return found


def known_name(where: str, name: Any, known: Any) -> str:
    """A name that exists.

    Raises:
        UnknownNameError: It does not; says which do.
    """
    names = [str(x) for x in known]
    if name not in names:
        raise UnknownNameError(
            f"{where} has {name!r}, which is none of {', '.join(names) or 'those that exist'}."
            f"{did_you_mean(str(name), names)}"
        )
    return str(name)


def positive(name: str, value: Any) -> int:
    """A whole number above 0.

    Raises:
        ConfigError: It is none.
    """
    try:
        return integer(value)
    except TypeError:
        raise ConfigError(f"{name} must be a whole number above 0, got {value!r}.") from None


def seeds_of(value: Any) -> tuple[int, ...]:
    """Seeds from their number, or as they are.

    Raises:
        ConfigError: They are neither.
    """
    if isinstance(value, list):
        seeds = cast(list[Any], value)
        if seeds and len(set(seeds)) == len(seeds) and all(type(seed) is int for seed in seeds):
            for seed in seeds:
                check_seed(seed, "each of seeds")
            return tuple(seeds)
    elif type(value) is int and value > 0:
        return tuple(range(value))
    raise ConfigError(f"seeds must be a number above 0 or a list of different ones, got {value!r}.")
