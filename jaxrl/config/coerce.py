"""Values of settings: conversion to annotated types, if it loses nothing, and their nesting.

How deep a recursive function may go depends on the version of Python and on its caller, so that no limit
is left to a `RecursionError`.
"""

import enum
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, Union, cast, overload

import numpy as np

from jaxrl.errors import ConfigError

T = TypeVar("T")

AgentName: TypeAlias = Annotated[str, "also a number"]
"""Id of an agent in a setting: numbers, as RLlib's agents have them, become strings."""


class MismatchError(Exception):
    """A value that does not fit the annotated type."""


@overload
def coerce(value: object, annotation: type[T]) -> T: ...
@overload
def coerce(value: object, annotation: object) -> object: ...
def coerce(value: object, annotation: Any) -> object:
    """Convert a value to an annotated type.

    Accepted are integral floats for ints (YAML's `1e6`), ints for floats, lists and tuples for each
    other, NumPy scalars for Python's, and enum members for string literals (gymnasium's
    VectorizeMode). Containers are copied, so that settings never share them.

    Raises:
        MismatchError: If the value does not fit.
    """
    if annotation is Any or isinstance(annotation, TypeVar):
        return copy_containers(value)
    origin = typing.get_origin(annotation)
    if origin in (Union, types.UnionType):
        return _coerce_union(value, typing.get_args(annotation))
    if origin is Literal:
        value = value.value if isinstance(value, enum.Enum) else value
        return _require_fit(value, isinstance(value, str) and value in typing.get_args(annotation))
    if origin is not None:
        return _coerce_generic(value, origin, typing.get_args(annotation))
    return _coerce_plain(value, annotation)


def _require_fit(value: T, fits: bool) -> T:
    if not fits:
        raise MismatchError
    return value


def _coerce_union(value: object, members: tuple[Any, ...]) -> object:
    for member in members:
        try:
            return coerce(value, member)
        except MismatchError:
            continue
    raise MismatchError


def _coerce_generic(value: Any, origin: Any, args: tuple[Any, ...]) -> object:
    if origin is Callable:
        return _require_fit(value, callable(value))
    if origin is type:
        return _require_fit(value, isinstance(value, type))
    if origin is Annotated:
        is_number = isinstance(value, int | np.integer) and not isinstance(value, bool)
        return coerce(str(value) if is_number else value, args[0])
    if origin in (dict, Mapping):
        _require_fit(value, isinstance(value, Mapping))
        coerced = {coerce(k, args[0]): coerce(v, args[1]) for k, v in value.items()}
        if len(coerced) < len(value):  # 0 and "0" are one agent
            raise ConfigError(f"{value!r} has a key twice, as a number and as text: leave one out.")
        return coerced
    return _coerce_sequence(value, origin, args)


def _coerce_sequence(value: Any, origin: object, args: tuple[Any, ...]) -> object:
    if isinstance(value, set | frozenset) and origin is list and args == (str,):
        value = sorted(map(str, value))  # which has no order of its own, and RLlib takes for ids
    _require_fit(value, isinstance(value, list | tuple))
    if origin is list:
        return [coerce(item, args[0]) for item in value]
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(coerce(item, args[0]) for item in value)
    _require_fit(value, len(value) == len(args))
    return tuple(coerce(item, arg) for item, arg in zip(value, args, strict=True))


def _coerce_plain(value: Any, annotation: type | None) -> object:
    if annotation is None or annotation is type(None):
        return _require_fit(value, value is None)
    if annotation in (bool, int, float) and getattr(value, "shape", None) == ():
        value = value.item()  # a scalar or an array without axes, of NumPy or JAX
    if annotation is bool:
        return bool(_require_fit(value, isinstance(value, bool | np.bool_)))
    if annotation in (int, float) and isinstance(value, bool | np.bool_):
        raise MismatchError
    if annotation is int:
        integral = isinstance(value, int | np.integer) or (
            isinstance(value, float | np.floating) and float(cast(Any, value)).is_integer()
        )
        return int(_require_fit(value, integral))
    if annotation is float:
        _require_fit(value, isinstance(value, int | float | np.integer | np.floating))
        return _require_fit(_as_float(value), not math.isnan(_as_float(value)))
    return _require_fit(value, isinstance(value, annotation))


def _as_float(value: float | np.number[Any]) -> float:
    """Convert a number to a float; integers beyond its range become infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


_LARGEST, _SMALLEST = (float(x) for x in (np.finfo(np.float32).max, np.finfo(np.float32).tiny))
FLOAT32_RANGE = f"0 or between {_SMALLEST:.2g} and {_LARGEST:.2g} in size, as float32 holds it"


def is_outside_float32(value: object) -> bool:
    """Return whether a number, or one in a list, is finite but becomes infinite or 0 in float32."""
    if isinstance(value, list | tuple):
        return any(is_outside_float32(item) for item in cast(list[Any], value))
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.number):
        return False
    size = abs(_as_float(value))
    is_infinite = isinstance(value, float | np.floating) and math.isinf(size)
    return not is_infinite and (size > _LARGEST or 0.0 < size < _SMALLEST)


def accepts_objects(annotation: object) -> bool:
    """Return whether values of a type may be, or contain, classes, functions or other objects."""
    if annotation is Any or isinstance(annotation, TypeVar):
        return True
    if typing.get_origin(annotation) in (Callable, type):
        return True
    if typing.get_origin(annotation) is Literal:
        return False
    return any(accepts_objects(part) for part in typing.get_args(annotation))


def copy_containers(value: Any) -> object:
    """Copy nested dicts, lists and tuples; all other objects are shared."""
    if type(value) is dict:
        mapping = cast(dict[Any, Any], value)
        return {key: copy_containers(item) for key, item in mapping.items()}
    if type(value) in (list, tuple):
        items = (copy_containers(item) for item in value)
        return list(items) if type(value) is list else tuple(items)
    return value


_TYPE_NAMES = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a string",
    type(None): "None",
    None: "None",
}


def describe_type(annotation: Any) -> str:
    """Describe an annotation in words, for error messages and the settings page."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Any:
        return "any value"
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(describe_type(arg) for arg in args))
    if origin is Literal:
        return " or ".join(repr(arg) for arg in args)
    if origin is Callable:
        return "a function"
    if origin is type:
        return "a class"
    if origin in (dict, Mapping):
        return "a dictionary"
    if origin is list:
        return f"a list of {_make_plural(describe_type(args[0]))}"
    if origin is tuple:
        return f"({', '.join(describe_type(arg) for arg in args)})"
    return _TYPE_NAMES.get(annotation) or f"a {annotation.__name__}"


def _make_plural(words: str) -> str:
    if words.startswith("a list of "):
        return "lists of " + words.removeprefix("a list of ")
    if words.startswith("a ") and " or " not in words:
        noun = words.removeprefix("a ")
        return f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return words


def get_choices(annotation: object) -> list[str]:
    """Return the strings that the literals of an annotation allow."""
    if typing.get_origin(annotation) is Literal:
        return [arg for arg in typing.get_args(annotation) if isinstance(arg, str)]
    return [name for arg in typing.get_args(annotation) for name in get_choices(arg)]


MAX_DEPTH = 64
"""Maximum nesting of the value of a setting, and of a file of settings."""
MAX_SAVED_DEPTH = 3 * MAX_DEPTH
"""Maximum nesting of a saved config, in which a tuple is a mapping with a list."""


def walk_depths(value: object) -> Iterator[int]:
    """Yield the depth of a value, 0, and of everything inside, depth first."""
    stack: list[tuple[object, int]] = [(value, 0)]
    while stack:
        inner, depth = stack.pop()
        yield depth
        if isinstance(inner, Mapping):
            inner = list(cast(Mapping[Any, Any], inner).values())
        if isinstance(inner, list | tuple):
            stack.extend((part, depth + 1) for part in cast(list[Any], inner))


def is_deeper(value: object, max_depth: int) -> bool:
    """Return whether a value is nested deeper than a limit, as one that contains itself is."""
    return any(depth > max_depth for depth in walk_depths(value))


def check_depth(value: object, name: str) -> None:
    """Check the nesting of a setting's value.

    Raises:
        ConfigError: If it is nested too deeply or contains itself.
    """
    if is_deeper(value, MAX_DEPTH):
        raise ConfigError(
            f"{name} is nested more than {MAX_DEPTH} levels deep, or contains itself; the values "
            "of settings are a few levels deep."
        )
