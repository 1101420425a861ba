"""Gymnasium's spaces as runners see them, and what an environment returns held against them.

Nothing here imports JAX: the processes of an asynchronous vector environment do without it.
"""

import contextlib
import logging
import re
import warnings
from collections.abc import Callable, Generator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from jaxrl.core.spaces import children, map_leaves, map_spaces
from jaxrl.errors import EnvError

logger = logging.getLogger("jaxrl.envs")

Fit = Callable[[Any], Any]
"""From what an environment returned to the value that its space asks for; raises EnvError."""

_noticed: set[str] = set()
_COPY = re.compile(r" \(worker_index=\d+, vector_index=\d+\)|(reset|step)'s (?=observation)")
"""What a sentence says of one copy and one call, though it holds for all of them."""
_NO_ADVICE = (
    "is different from the unwrapped version",
    "This is probably too low",
    "This is probably too high",
    "we recommend using a symmetric and normalized space",
    "precision lowered by casting",
    "has no __module__ attribute",  # SWIG's modules, which crash where this is an error
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def notice(sentence: str) -> None:
    """Log a sentence as a warning, once in a process."""
    if sentence not in _noticed:
        _noticed.add(sentence)
        logger.warning(sentence)


@contextlib.contextmanager
def advice(name: str) -> Generator[None]:
    """Log what is warned of meanwhile, once a sentence, instead of warning.

    What gymnasium says about spaces that jaxrl normalises itself is left out.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        text = _COLOUR.sub("", str(warning.message)).removeprefix("WARN: ")
        if not any(words in text for words in _NO_ADVICE):
            notice(f"{name}: {text}")


def runner_space(space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    """The space with its Boxes in the dtypes that modules work with, float32 and uint8.

    Everything else is as it was, and a space without such a Box is returned itself.
    """
    return map_spaces(_runner_leaf, space)


def _runner_leaf(space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    if isinstance(space, spaces.Box) and str(space.dtype) not in ("float32", "uint8"):
        low, high = (_to_float32(bound) for bound in (space.low, space.high))
        return spaces.Box(low, high, dtype=np.float32)
    return space


def _to_float32(bound: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # beyond float32 is infinite
        return bound.astype(np.float32)


def cast_notes(what: str, space: gymnasium.Space[Any]) -> list[str]:
    """A sentence for each Box whose dtype is not that of the runner's space."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return [
            note for key, child in children(space) for note in cast_notes(f"{what}[{key!r}]", child)
        ]
    if runner_space(space) is space:
        return []
    return [f"{what} is {space.dtype}; modules see it as float32."]


def zeros(space: gymnasium.Space[Any]) -> Any:
    """A value of the space's structure, shapes and dtypes; where 0 is no member, the first is."""
    return map_leaves(_zero, space)


def _zero(space: gymnasium.Space[Any]) -> Any:
    if isinstance(space, spaces.Discrete):
        return int(space.start)
    return np.zeros(space.shape or (), space.dtype)


def make_fit(what: str, space: gymnasium.Space[Any]) -> Fit:
    """What holds values against the space: quick where they fit, precise where they do not.

    Shapes, dtypes and structure are looked at, and the range of a Discrete; the bounds of a Box
    are not.

    Args:
        what: Begins the sentence of an error, such as "Env: step's observation".
        space: As runners see it.
    """
    if isinstance(space, spaces.Dict):
        return _fit_dict(what, space)
    if isinstance(space, spaces.Tuple):
        return _fit_tuple(what, space)
    if isinstance(space, spaces.Discrete):
        return _fit_discrete(what, space)
    return _fit_array(what, space)


def _fit_dict(what: str, space: spaces.Dict) -> Fit:
    fits = {key: make_fit(f"{what}[{key!r}]", child) for key, child in space.spaces.items()}

    def fit(value: Any) -> Any:
        if not isinstance(value, dict) or value.keys() != fits.keys():
            got = sorted(value) if isinstance(value, dict) else _kind(value)
            raise EnvError(f"{what} must be a dictionary with the keys {sorted(fits)}, got {got}.")
        return {key: fits[key](value[key]) for key in fits}

    return fit


def _fit_tuple(what: str, space: spaces.Tuple) -> Fit:
    fits = [make_fit(f"{what}[{i}]", child) for i, child in enumerate(space.spaces)]

    def fit(value: Any) -> Any:
        if not isinstance(value, tuple | list) or len(value) != len(fits):
            got = f"{len(value)} of them" if isinstance(value, tuple | list) else _kind(value)
            raise EnvError(f"{what} must be a tuple of {len(fits)}, got {got}.")
        return tuple(part(child) for part, child in zip(fits, value, strict=True))

    return fit


def _fit_discrete(what: str, space: "spaces.Discrete[Any]") -> Fit:
    low, high = int(space.start), int(space.start + space.n - 1)

    def fit(value: Any) -> Any:
        if isinstance(value, np.ndarray) and value.shape == () and value.dtype.kind in "iu":
            value = value[()]
        if not isinstance(value, int | np.integer) or isinstance(value, bool):
            raise EnvError(f"{what} must be an integer for {space}, got {_kind(value)}.")
        if not low <= value <= high:
            raise EnvError(f"{what} must lie in [{low}, {high}] for {space}, got {value}.")
        return value

    return fit


def _fit_array(what: str, space: gymnasium.Space[Any]) -> Fit:
    shape, dtype = tuple(space.shape or ()), np.dtype(space.dtype)

    def fit(value: Any) -> Any:
        if type(value) is np.ndarray and value.dtype == dtype and value.shape == shape:
            return value
        return _cast(what, space, value)

    return fit


def _cast(what: str, space: gymnasium.Space[Any], value: Any) -> np.ndarray:
    """The value as the space's array, if nothing but precision is lost."""
    shape, dtype = tuple(space.shape or ()), np.dtype(space.dtype)
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        raise EnvError(f"{what} must be {dtype} of shape {shape}, got {_kind(value)}.") from None
    if array.shape != shape or not np.can_cast(array.dtype, dtype, "same_kind"):
        got = f"{array.dtype} of shape {array.shape}" if array.dtype != object else _kind(value)
        raise EnvError(f"{what} must be {dtype} of shape {shape} for {space}, got {got}.")
    if array.dtype != dtype:
        notice(f"{_COPY.sub('', what)} is {array.dtype} and is cast to {dtype}.")
    return array.astype(dtype)


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}"
