"""Conversion of foreign columns to trees of arrays in the shapes of spaces."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import gymnasium
import jax
import numpy as np

from jaxrl.core.spaces import get_leaf_spaces
from jaxrl.core.types import PyTree
from jaxrl.errors import DataError
from jaxrl.offline.checks import convert_rewards
from jaxrl.offline.columns import unflatten_paths
from jaxrl.offline.formats.packed import unpack_rows
from jaxrl.offline.formats.rows import (
    ACTIONS,
    DONES,
    EPS_ID,
    EXTRAS,
    NEW_OBS,
    OBS,
    REWARDS,
    TERMINATEDS,
    TRUNCATEDS,
    RowTable,
    T,
)
from jaxrl.offline.formats.settings import ImportSettings

Values = Any
"""Column as read: an array, a list of rows, or a mapping of columns by the keys of a Dict."""


def make_table(columns: Mapping[str, Values], settings: ImportSettings, where: str) -> RowTable:
    """Return the rows of columns by RLlib's names.

    Args:
        columns: Columns by name, with those that are needed.
        settings: Spaces and limits.
        where: Place of the columns, for error messages.

    Raises:
        DataError: If a value has another shape than its space, or is no number.
    """
    observation_space, action_space = settings.observation_space, settings.action_space
    limit = settings.max_group_bytes

    def read(name: str, space: gymnasium.Space[Any]) -> PyTree:
        return read_tree(columns[name], space, f"{where}: {name}", limit)

    def read_numbers(name: str) -> np.ndarray:
        return read_plain(columns[name], f"{where}: {name}", limit).reshape(-1)

    reward = convert_rewards(read_numbers(REWARDS))

    def read_flags(name: str) -> np.ndarray:
        if name not in columns:
            return np.zeros(len(reward), np.bool_)
        return to_flags(read_numbers(name), f"{where}: {name}")

    table = RowTable(
        obs=read(OBS, observation_space),
        action=read(ACTIONS, action_space),
        reward=reward,
        terminated=read_flags(TERMINATEDS if TERMINATEDS in columns else DONES),
        truncated=read_flags(TRUNCATEDS),
        extras={
            name: np.atleast_1d(read_plain(columns[name], f"{where}: {name}", limit))
            for name in EXTRAS
            if name in columns
        },
        new_obs=read(NEW_OBS, observation_space) if NEW_OBS in columns else None,
        eps_id=_read_ids(columns[EPS_ID], f"{where}: {EPS_ID}", limit)
        if EPS_ID in columns
        else None,
        t=_to_times(read_numbers(T), f"{where}: {T}")
        if T in columns and EPS_ID in columns
        else None,
    )
    check_lengths(table, where)
    return table


def to_flags(array: np.ndarray, name: str) -> np.ndarray:
    """Return numbers that are 0 or 1 as booleans.

    Raises:
        DataError: If one is another number.
    """
    if array.dtype.kind != "b":
        is_other = (array != 0) & (array != 1)
        if is_other.any():
            raise DataError(f"{name} has the value {array[is_other][0]}, and flags are 0 or 1.")
    return array.astype(np.bool_)


def _to_times(array: np.ndarray, name: str) -> np.ndarray:
    """Return numbers that are time steps as integers.

    Raises:
        DataError: If one is not a whole number of at least 0.
    """
    is_time = (array >= 0) & (array < 2**62)
    if array.dtype.kind == "f":
        is_time &= np.floor(array) == array
    if not is_time.all():
        raise DataError(f"{name} has the value {array[~is_time][0]}, and time steps count from 0.")
    return array.astype(np.int64)


def _read_ids(values: Values, name: str, max_bytes: int) -> np.ndarray:
    """Return a column of ids as an array of texts.

    Raises:
        DataError: If it is no list of texts or numbers, or takes too much memory.
    """
    if isinstance(values, np.ndarray):
        values = values.reshape(-1)
    elif not (isinstance(values, list) and all(map(_is_id, cast("list[object]", values)))):
        raise DataError(f"{name} must be texts or numbers, one a row.")
    texts = [str(x) for x in values]
    if 4 * len(texts) * max(map(len, texts), default=0) > max_bytes:
        raise DataError(f"{name} has ids of up to {max(map(len, texts))} characters: shorten them.")
    return np.asarray(texts, np.str_)


def _is_id(value: object) -> bool:
    return isinstance(value, str | bytes | int | float)


def check_lengths(table: RowTable, where: str) -> None:
    """Check that all columns have as many rows as there are rewards.

    Raises:
        DataError: If one has another number.
    """
    for name, tree in vars(table).items():
        for leaf in jax.tree.leaves(tree):
            if len(leaf) != len(table):
                raise DataError(
                    f"{where}: {name} has {len(leaf)} rows, and there are {len(table)} rewards."
                )


def read_tree(values: Values, space: gymnasium.Space[Any], name: str, max_bytes: int) -> PyTree:
    """Return a column in the structure and the shapes of a space.

    Raises:
        DataError: If a part is missing, has another shape, or is no number.
    """
    leaves: list[tuple[Any, PyTree]] = []
    for path, leaf in get_leaf_spaces(space):
        part, place = values, name
        for key in path:
            place = f"{place}[{key!r}]"
            part = _pick(part, key, place)
        array = read_plain(part, place, max_bytes)
        leaves.append((path, fit_shape(array, leaf.shape or (), place)))
    return unflatten_paths(leaves)


def fit_shape(array: np.ndarray, shape: tuple[int, ...], name: str) -> np.ndarray:
    """Return an array of rows of this shape, if its rows have it, are flat, or differ in axes of 1.

    Raises:
        DataError: If they have another one.
    """
    if not array.ndim:
        raise DataError(f"{name} is a single number, and it must have one row a step.")
    number, found = len(array), array.shape[1:]
    is_flat = found == (math.prod(shape),)
    if number and not is_flat and _without_ones(found) != _without_ones(shape):
        raise DataError(f"{name} has rows of shape {found}, and its space has {tuple(shape)}.")
    return array.reshape(number, *shape) if number else np.zeros((0, *shape), array.dtype)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def _pick(values: Values, key: str | int, place: str) -> Values:
    """Return a part of every row."""
    try:
        if isinstance(values, Mapping):
            named = cast("Mapping[str, Values]", values)
            return named[key] if key in named else named[f"_index_{key}"]  # type: ignore[index]
        return [row[key] for row in values]
    except (LookupError, TypeError) as error:
        raise DataError(f"{place} is missing.") from error


def read_plain(values: Values, name: str, max_bytes: int) -> np.ndarray:
    """Return a column of numbers as an array; columns that RLlib packed are unpacked.

    Raises:
        DataError: If rows differ in shape, or are no numbers.
    """
    if isinstance(values, str):
        values = unpack_rows([values], name, max_bytes)[0]
    elif isinstance(values, Sequence) and values and isinstance(values[0], str | bytes):
        values = unpack_rows(cast("Sequence[str]", values), name, max_bytes)
    if isinstance(values, Mapping):
        raise DataError(f"{name} has parts {sorted(map(str, values))}, and its space has none.")
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError) as error:
        raise DataError(f"{name} has rows of different shapes.") from error
    if array.dtype.kind not in "biuf":
        raise DataError(f"{name} must be numbers, got the type {array.dtype}.")
    return array


def rename(
    names: Sequence[str],
    schema: Mapping[str, str],
    known: Sequence[str],
    where: str,
    suggest: Callable[[object, Sequence[str]], str],
) -> dict[str, str]:
    """Return the column of the file by RLlib's name, for those that it has.

    Raises:
        DataError: If the schema names a column that does not exist.
    """
    for name, column in schema.items():
        if name not in known:
            raise DataError(
                f"schema has the name {name!r}, which no format knows: names are "
                f"{', '.join(known)}.{suggest(name, known)}"
            )
        if column not in names:
            raise DataError(
                f"{where} has no column {column!r}, which schema[{name!r}] names: it has "
                f"{', '.join(sorted(names))}."
            )
    wanted = {name: schema.get(name, name) for name in known}
    return {name: column for name, column in wanted.items() if column in names}
