"""Files of arrays as D4RL's: all steps one after the other, in HDF5 or `.npz`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import jax
import numpy as np

from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import did_you_mean
from jaxrl.offline.formats.hdf5 import get_member, list_names, open_hdf5, read_node
from jaxrl.offline.formats.rows import (
    ACTIONS,
    EPS_ID,
    EXTRAS,
    NEW_OBS,
    OBS,
    REWARDS,
    TERMINATEDS,
    TRUNCATEDS,
    RowParts,
    check_columns,
    differs_by_row,
)
from jaxrl.offline.formats.settings import ImportSettings
from jaxrl.offline.formats.values import Values, make_table, rename
from jaxrl.offline.npz import check_npz, load_arrays
from jaxrl.offline.sources import sniff

NAMES = {
    OBS: "observations",
    ACTIONS: "actions",
    REWARDS: "rewards",
    TERMINATEDS: "terminals",
    TRUNCATEDS: "timeouts",
    NEW_OBS: "next_observations",
    **{name: name for name in EXTRAS},
}
"""Names of arrays by RLlib's."""


def read_arrays(
    files: Sequence[Path], settings: ImportSettings
) -> Iterator[tuple[Path, EpisodePart]]:
    """Yield the episodes of files.

    An episode ends at a terminal or a timeout. With `next_observations`, it also ends where the next
    row does not begin with what this one led to; without, `ignore_final_observation` is needed for
    episodes that were not terminated.

    Raises:
        DataError: If an array is missing, or has other values than its space.
    """
    for path in files:
        columns = _read_columns(path, settings)
        number = len(np.asarray(columns[REWARDS]).reshape(-1))
        blank = {**columns, EPS_ID: np.full(number, 0)}
        table = make_table(blank, settings, str(path))
        is_last = (table.terminated | table.truncated)[:-1]
        if table.new_obs is not None:
            pairs = zip(jax.tree.leaves(table.obs), jax.tree.leaves(table.new_obs), strict=True)
            for obs, new_obs in pairs:
                is_last = is_last | differs_by_row(obs[1:], new_obs[:-1])
        numbers = np.concatenate([[0], np.cumsum(is_last)])[:number]
        ids = np.asarray([f"{path.name}/{i}" for i in numbers.tolist()])
        table = make_table({**columns, EPS_ID: ids}, settings, str(path))
        parts = RowParts(ignore_final_observation=settings.ignore_final_observation)
        for part in (*parts.add(table, path), *parts.finish()):
            yield path, part


def _read_columns(path: Path, settings: ImportSettings) -> dict[str, Values]:
    limit = settings.max_group_bytes
    names, read = _open(path, limit)
    schema = {name: column for name, column in NAMES.items() if column in names}
    wanted = rename(names, {**schema, **settings.schema}, tuple(NAMES), str(path), did_you_mean)
    check_columns(wanted, path)
    found = read([wanted[name] for name in wanted])
    return {name: found[column] for name, column in wanted.items()}


def _open(
    path: Path, limit: int
) -> tuple[list[str], Callable[[Sequence[str]], Mapping[str, Values]]]:
    """Return the names of the arrays of a file, and a function that reads some of them."""
    if sniff(path) == "zip":
        return list(check_npz(path, limit)), lambda names: load_arrays(path, limit)

    def read(names: Sequence[str]) -> dict[str, Values]:
        with open_hdf5(path) as file:
            return {name: read_node(get_member(file, name, path), path, limit) for name in names}

    with open_hdf5(path) as file:
        return list_names(file, path), read


def is_of_arrays(names: Sequence[str], schema: Mapping[str, str]) -> bool:
    """Return whether these are the names of such a file."""
    return all(schema.get(name, NAMES[name]) in names for name in (OBS, ACTIONS, REWARDS))
