"""Gymnasium's spaces as runners see them, and checks of values against them."""

import contextlib
import logging
import math
import re
import warnings
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces

from jaxrl.core.spaces import get_children, is_integer_box, map_leaves, map_spaces
from jaxrl.errors import EnvError

if TYPE_CHECKING:
    from jaxrl.core.types import PyTree

logger = logging.getLogger("jaxrl.envs")

Converter: TypeAlias = "Callable[[object], PyTree]"
"""Function that converts an environment's value to the form of its space; raises EnvError."""

_noticed: set[str] = set()
_COPY_AND_CALL = re.compile(
    r" \(worker_index=\d+, vector_index=\d+\)|(reset|step)'s (?=observation)"
)
"""Parts of a message about one copy and one call, although it holds for all of them."""
_IGNORED_WARNINGS = (
    "is different from the unwrapped version",
    "This is probably too low",
    "This is probably too high",
    "we recommend using a symmetric and normalized space",
    "precision lowered by casting",
    "has no __module__ attribute",  # SWIG modules, which crash if this is an error
)
_ANSI_COLOR = re.compile(r"\x1b\[[0-9;]*m")


def warn_once(sentence: str) -> None:
    """Log a warning, once per process."""
    if sentence not in _noticed:
        _noticed.add(sentence)
        logger.warning(sentence)


@contextlib.contextmanager
def log_warnings(name: str) -> Generator[None]:
    """Log warnings issued in this context, once per message, instead of issuing them.

    Gymnasium's warnings about spaces that jaxrl normalizes are left out.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        text = _ANSI_COLOR.sub("", str(warning.message)).removeprefix("WARN: ")
        if not any(words in text for words in _IGNORED_WARNINGS):
            warn_once(f"{name}: {text}")


def to_runner_space(space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    """Return the space with its Boxes in the dtypes of modules, float32 and uint8.

    Everything else is unchanged; a space without any other Box is returned as it is.
    """
    return map_spaces(_to_runner_leaf, space)


def to_runner_actions(space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    """Return a space of actions with its real Boxes in float32; all else is unchanged."""
    return map_spaces(lambda leaf: leaf if is_integer_box(leaf) else _to_runner_leaf(leaf), space)


def _to_runner_leaf(space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    if isinstance(space, spaces.Box) and str(space.dtype) not in ("float32", "uint8"):
        low, high = (_to_float32(bound) for bound in (space.low, space.high))
        return spaces.Box(low, high, dtype=np.float32)
    return space


def _to_float32(bound: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # values beyond float32 become infinite
        return bound.astype(np.float32)


def describe_casts(label: str, space: gymnasium.Space[Any]) -> list[str]:
    """Return a sentence for each Box whose dtype differs from the runner's space."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return [
            note
            for key, child in get_children(space)
            for note in describe_casts(f"{label}[{key!r}]", child)
        ]
    if to_runner_space(space) is space:
        return []
    return [f"{label} is {space.dtype}; modules see it as float32."]


def is_finite(leaf: np.ndarray) -> bool:
    """Return whether an array has no NaN or infinity.

    The sum of squares takes one pass without a temporary array; the entries are only checked if it
    overflows.
    """
    if leaf.dtype.kind != "f":
        return True
    return math.isfinite(np.vdot(leaf, leaf)) or bool(np.isfinite(leaf).all())


def zeros(space: gymnasium.Space[Any]) -> "PyTree":
    """Return a value of the space's structure, shapes and dtypes: zeros, or a Discrete's start."""
    return map_leaves(_zero, space)


def _zero(space: gymnasium.Space[Any]) -> np.ndarray | int:
    if isinstance(space, spaces.Discrete):
        return int(space.start)
    return np.zeros(space.shape or (), space.dtype)


def make_converter(label: str, space: gymnasium.Space[Any]) -> Converter:
    """Make a converter of values to the space: fast if they fit, with a detailed error otherwise.

    Structure, shapes and dtypes are checked, and the range of a Discrete; the bounds of a Box are
    not.

    Args:
        label: Start of the error message, such as "Env: step's observation".
        space: Space as runners see it.
    """
    if isinstance(space, spaces.Dict):
        return _make_dict_converter(label, space)
    if isinstance(space, spaces.Tuple):
        return _make_tuple_converter(label, space)
    if isinstance(space, spaces.Discrete):
        return _make_discrete_converter(label, space)
    return _make_array_converter(label, space)


def _make_dict_converter(label: str, space: spaces.Dict) -> Converter:
    converters = {
        key: make_converter(f"{label}[{key!r}]", child) for key, child in space.spaces.items()
    }

    def convert(value: object) -> "dict[str, PyTree]":
        if not isinstance(value, dict) or value.keys() != converters.keys():
            got = sorted(value) if isinstance(value, dict) else _describe_type(value)
            raise EnvError(
                f"{label} must be a dictionary with the keys {sorted(converters)}, got {got}."
            )
        return {key: converters[key](value[key]) for key in converters}

    return convert


def _make_tuple_converter(label: str, space: spaces.Tuple) -> Converter:
    converters = [make_converter(f"{label}[{i}]", child) for i, child in enumerate(space.spaces)]

    def convert(value: object) -> "tuple[PyTree, ...]":
        if not isinstance(value, tuple | list) or len(value) != len(converters):
            got = (
                f"{len(value)} of them"
                if isinstance(value, tuple | list)
                else _describe_type(value)
            )
            raise EnvError(f"{label} must be a tuple of {len(converters)}, got {got}.")
        return tuple(
            convert_part(child) for convert_part, child in zip(converters, value, strict=True)
        )

    return convert


def _make_discrete_converter(label: str, space: "spaces.Discrete[Any]") -> Converter:
    low, high = int(space.start), int(space.start + space.n - 1)

    def convert(value: object) -> int | np.integer[Any]:
        if isinstance(value, np.ndarray) and value.shape == () and value.dtype.kind in "iu":
            value = value[()]
        if not isinstance(value, int | np.integer) or isinstance(value, bool):
            raise EnvError(f"{label} must be an integer for {space}, got {_describe_type(value)}.")
        if not low <= value <= high:
            raise EnvError(f"{label} must lie in [{low}, {high}] for {space}, got {value}.")
        return value

    return convert


def _make_array_converter(label: str, space: gymnasium.Space[Any]) -> Converter:
    shape, dtype = tuple(space.shape or ()), np.dtype(space.dtype)

    def convert(value: object) -> np.ndarray:
        if type(value) is np.ndarray and value.dtype == dtype and value.shape == shape:
            return value
        return _cast(label, space, value)

    return convert


def _cast(label: str, space: gymnasium.Space[Any], value: object) -> np.ndarray:
    """Cast a value to the space's array if only precision is lost, else raise."""
    shape, dtype = tuple(space.shape or ()), np.dtype(space.dtype)
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        raise EnvError(
            f"{label} must be {dtype} of shape {shape}, got {_describe_type(value)}."
        ) from None
    if array.shape != shape or not np.can_cast(array.dtype, dtype, "same_kind"):
        got = (
            f"{array.dtype} of shape {array.shape}"
            if array.dtype != object
            else _describe_type(value)
        )
        raise EnvError(f"{label} must be {dtype} of shape {shape} for {space}, got {got}.")
    if array.dtype != dtype:
        warn_once(f"{_COPY_AND_CALL.sub('', label)} is {array.dtype} and is cast to {dtype}.")
    return array.astype(dtype)


def _describe_type(value: object) -> str:
    return f"a {type(value).__name__}"
