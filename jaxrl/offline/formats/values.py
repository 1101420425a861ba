"""Conversion of foreign columns to trees of arrays in the shapes of spaces."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import gymnasium
import jax
import numpy as np

from jaxrl.core.spaces import get_leaf_spaces
from jaxrl.core.types import PyTree
from jaxrl.errors import DataError
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

    reward = read_plain(columns[REWARDS], f"{where}: rewards", limit).astype(np.float32).reshape(-1)
    number = len(reward)

    def read_flags(name: str) -> np.ndarray:
        if name not in columns:
            return np.zeros(number, np.bool_)
        return read_plain(columns[name], f"{where}: {name}", limit).astype(np.bool_).reshape(-1)

    table = RowTable(
        obs=read(OBS, observation_space),
        action=read(ACTIONS, action_space),
        reward=reward,
        terminated=read_flags(TERMINATEDS if TERMINATEDS in columns else DONES),
        truncated=read_flags(TRUNCATEDS),
        extras={
            name: read_plain(columns[name], f"{where}: {name}", limit)
            for name in EXTRAS
            if name in columns
        },
        new_obs=read(NEW_OBS, observation_space) if NEW_OBS in columns else None,
        eps_id=np.asarray([str(x) for x in columns[EPS_ID]]) if EPS_ID in columns else None,
        t=read_plain(columns[T], f"{where}: t", limit).reshape(-1).astype(np.int64)
        if T in columns and EPS_ID in columns
        else None,
    )
    check_lengths(table, where)
    return table


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
    """Return an array of rows of this shape, if its rows have as many entries.

    Raises:
        DataError: If they have not.
    """
    number = len(array) if array.ndim else 0
    size = int(np.prod(shape, dtype=np.int64))
    if not array.ndim or array.size != number * size:
        found = array.shape[1:]
        raise DataError(f"{name} has rows of shape {found}, and its space has {tuple(shape)}.")
    return array.reshape(number, *shape)


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
    except ValueError as error:
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
