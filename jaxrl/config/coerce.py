"""One value against one type annotation: accept, convert where nothing is lost, or say no."""

import enum
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, Union, cast

import numpy as np


class MismatchError(Exception):
    """The value does not have the annotated type."""


def coerce(value: Any, annotation: Any) -> Any:
    """The value as the annotated type.

    Integral floats pass as ints (YAML's `1e6`), ints as floats, sequences as the annotated one,
    NumPy scalars as Python's, an enum's member as its value where words are wanted (gymnasium's
    VectorizeMode). Containers are copied, so that a setting is never shared.

    Raises:
        MismatchError: The value does not fit.
    """
    if annotation is Any or isinstance(annotation, TypeVar):
        return copy_containers(value)
    origin = typing.get_origin(annotation)
    if origin in (Union, types.UnionType):
        return _coerce_union(value, typing.get_args(annotation))
    if origin is Literal:
        value = value.value if isinstance(value, enum.Enum) else value
        return _require(value, isinstance(value, str) and value in typing.get_args(annotation))
    if origin is not None:
        return _coerce_generic(value, origin, typing.get_args(annotation))
    return _coerce_plain(value, annotation)


def _require(value: Any, fits: bool) -> Any:
    if not fits:
        raise MismatchError
    return value


def _coerce_union(value: Any, members: tuple[Any, ...]) -> Any:
    for member in members:
        try:
            return coerce(value, member)
        except MismatchError:
            continue
    raise MismatchError


def _coerce_generic(value: Any, origin: Any, args: tuple[Any, ...]) -> Any:
    if origin is Callable:
        return _require(value, callable(value))
    if origin is type:
        return _require(value, isinstance(value, type))
    if origin in (dict, Mapping):
        _require(value, isinstance(value, Mapping))
        return {coerce(k, args[0]): coerce(v, args[1]) for k, v in value.items()}
    return _coerce_sequence(value, origin, args)


def _coerce_sequence(value: Any, origin: Any, args: tuple[Any, ...]) -> Any:
    _require(value, isinstance(value, list | tuple))
    if origin is list:
        return [coerce(item, args[0]) for item in value]
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(coerce(item, args[0]) for item in value)
    _require(value, len(value) == len(args))
    return tuple(coerce(item, arg) for item, arg in zip(value, args, strict=True))


def _coerce_plain(value: Any, annotation: Any) -> Any:
    if annotation is None or annotation is type(None):
        return _require(value, value is None)
    if annotation is bool:
        return bool(_require(value, isinstance(value, bool | np.bool_)))
    if annotation in (int, float) and isinstance(value, bool | np.bool_):
        raise MismatchError
    if annotation is int:
        integral = isinstance(value, int | np.integer) or (
            isinstance(value, float | np.floating) and float(cast(Any, value)).is_integer()
        )
        return int(_require(value, integral))
    if annotation is float:
        _require(value, isinstance(value, int | float | np.integer | np.floating))
        return _require(number := _as_float(value), not math.isnan(number))
    return _require(value, isinstance(value, annotation))


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer beyond all of them
        raise MismatchError from None


def copy_containers(value: Any) -> Any:
    """A copy of nested dicts, lists and tuples; everything else is shared, identity kept."""
    if type(value) is dict:
        mapping = cast(dict[Any, Any], value)
        return {key: copy_containers(item) for key, item in mapping.items()}
    if type(value) in (list, tuple):
        items = (copy_containers(item) for item in value)
        return list(items) if type(value) is list else tuple(items)
    return value


_PLAIN = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a string",
    type(None): "None",
    None: "None",
}


def describe(annotation: Any) -> str:
    """The annotation in words, for error messages and the settings page."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Any:
        return "any value"
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(describe(arg) for arg in args))
    if origin is Literal:
        return " or ".join(repr(arg) for arg in args)
    if origin is Callable:
        return "a function"
    if origin is type:
        return "a class"
    if origin in (dict, Mapping):
        return "a dictionary"
    if origin is list:
        return f"a list of {_plural(describe(args[0]))}"
    if origin is tuple:
        return f"({', '.join(describe(arg) for arg in args)})"
    return _PLAIN.get(annotation) or f"a {annotation.__name__}"


def _plural(words: str) -> str:
    if words.startswith("a list of "):
        return "lists of " + words.removeprefix("a list of ")
    if words.startswith("a ") and " or " not in words:
        return words.removeprefix("a ") + "s"
    return words


def choices(annotation: Any) -> list[str]:
    """The strings that the annotation's literals allow."""
    if typing.get_origin(annotation) is Literal:
        return [arg for arg in typing.get_args(annotation) if isinstance(arg, str)]
    return [name for arg in typing.get_args(annotation) for name in choices(arg)]
