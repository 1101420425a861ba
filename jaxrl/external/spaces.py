"""Descriptions of spaces as JSON, and values of spaces as arrays of a frame.

This file of jaxrl-link imports the standard library and NumPy alone, and is copied to simulators.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .frames import LinkError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

BOUNDS_TOLERANCE = 1e-4
"""Tolerance for values outside a Box's bounds, relative to the bound, to allow for rounding."""

_MAX_LISTED = 1024
"""Largest number of bounds that clients are told; of more they get a digest, and check none."""

_NARROW = {"<f8": "<f4", "<i8": "<i4", "<u8": "<u4"}
"""Types as programs of JAX have them."""


def describe_space(space: Any, max_listed: float = _MAX_LISTED) -> dict[str, Any]:
    """Describe a space of gymnasium as JSON.

    Args:
        space: Space.
        max_listed: Largest number of bounds that are listed, rather than their digest.

    Raises:
        LinkError: If spaces of this class are not supported.
    """
    kind = type(space).__name__
    if kind == "Dict":
        items = sorted(space.spaces.items())
        return {"kind": kind, "spaces": {k: describe_space(part, max_listed) for k, part in items}}
    if kind == "Tuple":
        return {"kind": kind, "spaces": [describe_space(x, max_listed) for x in space.spaces]}
    if kind == "Discrete":
        return {"kind": kind, "n": int(space.n), "start": int(space.start)}
    if kind == "MultiDiscrete":
        start = np.broadcast_to(getattr(space, "start", 0), space.nvec.shape)
        return {"kind": kind, "nvec": space.nvec.tolist(), "start": start.tolist()}
    if kind == "MultiBinary":
        return {"kind": kind, "shape": list(space.shape)}
    if kind == "Box":
        dtype = _NARROW.get(np.dtype(space.dtype).str, np.dtype(space.dtype).str)
        return {
            "kind": kind,
            "dtype": dtype,
            "shape": list(space.shape),
            "low": _describe_bounds(space.low, max_listed),
            "high": _describe_bounds(space.high, max_listed),
        }
    raise LinkError(
        f"Spaces of class {kind} are not supported: use Box, Discrete, MultiDiscrete, MultiBinary, "
        "Dict or Tuple."
    )


def without_parts(space: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return the description of a space without some parts of a Dict."""
    if not names:
        return space
    parts = {name: part for name, part in space["spaces"].items() if name not in names}
    return {**space, "spaces": parts}


def _describe_bounds(
    bounds: np.ndarray, max_listed: float
) -> float | str | list[float | str] | dict[str, str]:
    """Return one bound for all if they are equal, else a list or a digest; infinities as text."""
    values = np.asarray(bounds, np.float64)
    if values.size and np.all(values == values.flat[0]):
        return _to_json(float(values.flat[0]))
    if values.size > max_listed:
        return {"sha256": hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()}
    return [_to_json(value) for value in values.ravel().tolist()]


def _to_json(value: float) -> float | str:
    return value if np.isfinite(value) else str(value)


def hash_spaces(observation: dict[str, Any], action: dict[str, Any]) -> str:
    """Return the hash of the descriptions of both spaces."""
    text = json.dumps([observation, action], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


class Leaf(NamedTuple):
    """Array of a space: its name in frames, its place in messages, its type and its bounds."""

    name: str
    path: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    low: np.ndarray
    high: np.ndarray
    is_choice: bool


class SpaceLeaves:
    """Conversion of values of a space to named arrays and back.

    Args:
        description: Description of the space.
        name: Prefix of the names of its arrays, also for messages.
    """

    def __init__(self, description: dict[str, Any], name: str) -> None:
        self._description = description
        self.leaves: list[Leaf] = []
        self._collect(description, name, name)

    def _collect(self, space: dict[str, Any], name: str, path: str) -> None:
        kind = space["kind"]
        if kind == "Dict":
            for key, part in sorted(space["spaces"].items()):
                self._collect(part, name, f"{path}[{key!r}]")
            return
        if kind == "Tuple":
            for i, part in enumerate(space["spaces"]):
                self._collect(part, name, f"{path}[{i}]")
            return
        self.leaves.append(_make_leaf(space, f"{name}.{len(self.leaves)}", path))

    def flatten(self, value: object, optional: Collection[str] = ()) -> dict[str, np.ndarray]:
        """Return the arrays of one value, checked and converted to the types of the space.

        Args:
            value: Value of the space.
            optional: Names of parts of a Dict that are 0, or as close to it as they can be, where the
                value lacks them.

        Raises:
            LinkError: If the value is not in the space; the sentence names the part.
        """
        if isinstance(value, dict):
            absent = [name for name in optional if name not in value]
            parts = {name: SpaceLeaves(self._description["spaces"][name], "") for name in absent}
            value = {**value, **{name: part.make_zeros() for name, part in parts.items()}}
        arrays: dict[str, np.ndarray] = {}
        self._flatten(self._description, value, self.leaves[0].path.split("[")[0], arrays)
        return arrays

    def _flatten(
        self, space: dict[str, Any], value: object, path: str, arrays: dict[str, np.ndarray]
    ) -> None:
        if space["kind"] == "Dict":
            names = sorted(space["spaces"])
            if not isinstance(value, dict) or sorted(value) != names:
                raise LinkError(f"{path} must be a dict of {names}, got {str(value)[:80]}.")
            for key in names:
                self._flatten(space["spaces"][key], value[key], f"{path}[{key!r}]", arrays)
        elif space["kind"] == "Tuple":
            number = len(space["spaces"])
            if not isinstance(value, (tuple, list)) or len(value) != number:
                raise LinkError(f"{path} must be a tuple of {number}, got {str(value)[:80]}.")
            for i, part in enumerate(space["spaces"]):
                self._flatten(part, value[i], f"{path}[{i}]", arrays)
        else:
            leaf = self.leaves[len(arrays)]
            arrays[leaf.name] = _convert(leaf, value)

    def make_zeros(self) -> object:
        """Return the value whose numbers are 0, or as close to it as they can be."""
        zeros = {
            leaf.name: np.clip(np.zeros(leaf.shape), leaf.low, leaf.high).astype(leaf.dtype)
            for leaf in self.leaves
        }
        return self.unflatten(zeros)

    def unflatten(self, arrays: dict[str, np.ndarray]) -> Any:
        """Return the value of which these are the arrays; a choice is an int."""
        remaining = iter(self.leaves)
        return self._unflatten(self._description, arrays, remaining)

    def _unflatten(
        self,
        space: dict[str, Any],
        arrays: dict[str, np.ndarray],
        leaves: Iterator[Leaf],
    ) -> Any:
        if space["kind"] == "Dict":
            parts = sorted(space["spaces"].items())
            return {key: self._unflatten(part, arrays, leaves) for key, part in parts}
        if space["kind"] == "Tuple":
            parts = space["spaces"]
            return tuple(self._unflatten(part, arrays, leaves) for part in parts)
        leaf = next(leaves)
        value = arrays[leaf.name]
        return int(value) if leaf.is_choice and not leaf.shape else np.array(value)

    def check(self, arrays: dict[str, np.ndarray], prefix: str, number: int) -> None:
        """Check the arrays of several values.

        Args:
            arrays: Arrays of a frame.
            prefix: Prefix of their names.
            number: Number of values, the first axis.

        Raises:
            LinkError: If one is missing, of another type, or not in the space.
        """
        for leaf in self.leaves:
            check_array(arrays, prefix + leaf.name, leaf.dtype, (number, *leaf.shape))
            problem = _find_problem(leaf, arrays[prefix + leaf.name])
            if problem is not None:
                raise LinkError(problem)


def check_array(
    arrays: dict[str, np.ndarray], name: str, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> None:
    """Check that a frame has an array of this type.

    Raises:
        LinkError: If it is missing, or of another dtype or shape.
    """
    array = arrays.get(name)
    if array is None:
        raise LinkError(f"The array {name!r} is missing.")
    if array.dtype != dtype or array.shape != shape:
        raise LinkError(
            f"{name} must be {dtype} of shape {shape}, got {array.dtype} of shape {array.shape}."
        )


def _make_leaf(space: dict[str, Any], name: str, path: str) -> Leaf:
    kind = space["kind"]
    if kind == "Discrete":
        low, size = np.asarray(space["start"]), space["n"]
        return Leaf(name, path, np.dtype("<i4"), (), low, low + size - 1, True)
    if kind == "MultiDiscrete":
        low, size = np.asarray(space["start"]), np.asarray(space["nvec"])
        return Leaf(name, path, np.dtype("<i4"), size.shape, low, low + size - 1, True)
    shape = tuple(space["shape"])
    if kind == "MultiBinary":
        return Leaf(name, path, np.dtype("|i1"), shape, np.asarray(0), np.asarray(1), True)
    dtype = np.dtype(space["dtype"])
    low = _read_bounds(space["low"], shape, -np.inf)
    high = _read_bounds(space["high"], shape, np.inf)
    # Values within the bounds are finite, and fit the type.
    if dtype.kind != "f":
        limits = np.iinfo(dtype) if dtype.kind in "iu" else np.iinfo(np.uint8)
        low, high = np.maximum(low, limits.min), np.minimum(high, limits.max)
        return Leaf(name, path, dtype, shape, low, high, False)
    most = np.finfo(dtype).max
    low = np.maximum(low - BOUNDS_TOLERANCE * np.maximum(1.0, np.abs(low)), -most)
    high = np.minimum(high + BOUNDS_TOLERANCE * np.maximum(1.0, np.abs(high)), most)
    return Leaf(name, path, dtype, shape, low.astype(dtype), high.astype(dtype), False)


def _read_bounds(bounds: object, shape: tuple[int, ...], unlisted: float) -> np.ndarray:
    """Return the bounds of a description; those that it does not list are not checked."""
    if isinstance(bounds, dict):
        return np.asarray(unlisted)
    values = np.asarray(bounds, np.float64)
    return values.reshape(shape) if values.ndim else values


def _convert(leaf: Leaf, value: object) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError:
        raise LinkError(
            f"{leaf.path} must be {leaf.dtype} of shape {leaf.shape}, got a list of unequal parts."
        ) from None
    if array.shape != leaf.shape or array.dtype.kind not in "biuf":
        raise LinkError(
            f"{leaf.path} must be {leaf.dtype} of shape {leaf.shape}, got {array.dtype} of shape "
            f"{array.shape}."
        )
    problem = _find_problem(leaf, array[None])
    if problem is not None:
        raise LinkError(problem)
    return array.astype(leaf.dtype)


def _find_problem(leaf: Leaf, values: np.ndarray) -> str | None:
    """Return a sentence on the first of several values that is not in the space, None if all are."""
    is_inside = (values >= leaf.low) & (values <= leaf.high)
    must_be_whole = leaf.dtype.kind != "f" and values.dtype.kind == "f"
    if np.count_nonzero(is_inside) == is_inside.size and not must_be_whole:
        return None
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        index = tuple(np.argwhere(~np.isfinite(values))[0])
        return f"{leaf.path} is {values[index]}{_locate(index)}, which is not finite."
    if must_be_whole and (is_part := values != np.floor(values)).any():
        index = tuple(np.argwhere(is_part)[0])
        got = f"{values[index].item()!r}{_locate(index)}"
        return f"{leaf.path} must be whole numbers, got {got}."
    if is_inside.all():
        return None
    index = tuple(np.argwhere(~is_inside)[0])
    low, high = (np.broadcast_to(side, leaf.shape)[index[1:]] for side in (leaf.low, leaf.high))
    where = f"{values[index]}{_locate(index)}"
    return f"{leaf.path} is {where}, outside its bounds [{low:g}, {high:g}]."


def _locate(index: tuple[np.intp, ...]) -> str:
    """Return the place in one of several values, which a single number does not need."""
    place = [int(i) for i in index[1:]]
    return f" at {place}" if place else ""


def stack_rows(rows: list[np.ndarray]) -> np.ndarray:
    """Stack arrays of one shape; faster than `np.stack` for many small ones."""
    first = rows[0]
    if not first.shape:
        return np.asarray(rows, first.dtype)
    return np.concatenate(rows).reshape(len(rows), *first.shape)
