"""Rows of transitions, one a step, as parts of episodes."""

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import jax
import numpy as np

from jaxrl.core.types import PyTree
from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import DataError
from jaxrl.offline.checks import describe_episode, number_id
from jaxrl.offline.formats.settings import unknown_versions

OBS, NEW_OBS, ACTIONS, REWARDS = "obs", "new_obs", "actions", "rewards"
TERMINATEDS, TRUNCATEDS, DONES = "terminateds", "truncateds", "dones"
EPS_ID, T = "eps_id", "t"
EXTRAS = ("action_logp", "action_dist_inputs")
_Key = tuple[Path, str]
"""Folder and id of an episode."""
COLUMNS = (OBS, ACTIONS, REWARDS, NEW_OBS, TERMINATEDS, TRUNCATEDS, DONES, EPS_ID, T, *EXTRAS)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RowTable:
    """Consecutive rows of a file; trees of arrays `[N, ...]`.

    `new_obs`, `eps_id` and `t` are None in a file that does not say them.
    """

    obs: PyTree
    action: PyTree
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    extras: dict[str, np.ndarray]
    new_obs: PyTree = None
    eps_id: np.ndarray | None = None
    t: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.reward)

    def take(self, rows: "np.ndarray | slice") -> "RowTable":
        """Return some of the rows."""
        fields = {name: jax.tree.map(lambda leaf: leaf[rows], x) for name, x in vars(self).items()}
        return RowTable(**fields)

    def join(self, other: "RowTable") -> "RowTable":
        """Return these rows and others."""
        fields = {
            name: jax.tree.map(lambda a, b: np.concatenate([a, b]), x, getattr(other, name))
            for name, x in vars(self).items()
        }
        return RowTable(**fields)


def check_columns(found: Mapping[str, object], path: Path) -> None:
    """Check that a file has the columns without which it has no transitions.

    Raises:
        DataError: If one is missing; the sentence names it and those of the file.
    """
    missing = [name for name in (OBS, ACTIONS, REWARDS) if name not in found]
    if not missing and not {TERMINATEDS, DONES} & found.keys():
        missing = [TERMINATEDS]
    if missing:
        raise DataError(
            f"{path} has no column {missing[0]!r}, but {sorted(found)}: rename columns with "
            f"schema={{{missing[0]!r}: 'name in the file'}}."
        )


class RowParts:
    """Conversion of the rows of files, one after the other, to parts of episodes.

    Rows of an episode follow one another. Where the observation after a row is not that of the
    next one, which is not its successor then, another episode begins, with the next time step; a
    time step that is missing is an error where the parts are read. A row that is terminated and truncated is terminated.
    Without `eps_id`, every row is an episode of one step. An id that comes again after its end, or
    in another folder, is another episode.

    Args:
        ignore_final_observation: Whether a part that is not terminated, and whose final observation
            is not recorded, repeats its last one.
    """

    def __init__(self, *, ignore_final_observation: bool) -> None:
        self._ignore_final = ignore_final_observation
        self._unfinished: dict[_Key, tuple[int, bytes]] = {}
        self._times: dict[_Key, int] = {}
        self._pending: tuple[RowTable, Path] | None = None
        self._names: list[str] | None = None
        self._num_rows = 0

    def add(self, table: RowTable, path: Path) -> Iterator[EpisodePart]:
        """Yield the parts of rows; the last one may wait for its next observation."""
        if not len(table):
            return
        self._check_names(table, path)
        if table.eps_id is None:
            yield from self._add_single_rows(table, path)
            return
        if self._pending is not None and self._pending[1].parent != path.parent:
            yield from self.finish()
        if self._pending is not None:
            table, self._pending = self._pending[0].join(table), None
        table = _order_by_episode(table)
        borders = _find_borders(table)
        for first, end in zip(borders, [*borders[1:], len(table)], strict=True):
            rows = table.take(slice(first, end))
            is_open = not (rows.terminated[-1] or rows.truncated[-1])
            if end == len(table) and rows.new_obs is None and is_open:
                self._pending = rows, path
            else:
                yield self._make_part(rows, path)

    def _check_names(self, table: RowTable, path: Path) -> None:
        """Check that all tables have the same columns."""
        fields = {NEW_OBS: table.new_obs, EPS_ID: table.eps_id, T: table.t, **table.extras}
        names = [name for name, values in fields.items() if values is not None]
        if self._names is None:
            self._names = names
        if names != self._names:
            name = min(set(names) ^ set(self._names))
            raise DataError(
                f"{path} has the column {name!r} in some rows and not in others: give files of equal "
                "columns."
            )

    def finish(self) -> Iterator[EpisodePart]:
        """Yield the part that waited for its next observation, if there is one."""
        if self._pending is not None:
            (rows, path), self._pending = self._pending, None
            yield self._make_part(rows, path)

    def _add_single_rows(self, table: RowTable, path: Path) -> Iterator[EpisodePart]:
        first = self._num_rows
        self._num_rows += len(table)
        final = table.new_obs
        if final is None:
            is_lost = ~table.terminated & (not self._ignore_final)
            for i in np.flatnonzero(is_lost)[:1].tolist():
                self._build(table.take(slice(i, i + 1)), f"row-{first + i}", 0, path)  # raises
            final = table.obs
        obs = jax.tree.map(lambda *ends: np.stack(ends, axis=1), table.obs, final)
        others = table.action, table.reward, table.extras, unknown_versions(len(table))
        rows = iter_rows((obs, *jax.tree.map(lambda leaf: leaf[:, None], others)))
        flags = zip(table.terminated.tolist(), table.truncated.tolist(), strict=True)
        for i, (row, (terminated, truncated)) in enumerate(zip(rows, flags, strict=True)):
            yield EpisodePart(
                episode_id=f"row-{first + i}",
                t_started=0,
                obs=row[0],
                action=row[1],
                reward=row[2],
                extras=row[3],
                version=row[4],
                terminated=terminated,
                truncated=truncated and not terminated,
            )

    def _make_part(self, rows: RowTable, path: Path) -> EpisodePart:
        assert rows.eps_id is not None
        name = str(rows.eps_id[0])
        key = path.parent, name
        expected, successor = self._unfinished.pop(key, (0, b""))
        t = expected if rows.t is None else int(rows.t[0])
        times = self._times.get(key, 1)
        if successor and t == expected and successor != _hash_row(rows.obs, 0):
            times = self._times[key] = times + 1
        part = self._build(rows, name if times == 1 else number_id(name, times), t, path)
        if part.is_last:
            self._times[key] = times + 1
        else:
            successor = b"" if rows.new_obs is None else _hash_row(rows.new_obs, -1)
            self._unfinished[key] = t + len(rows), successor
        return part

    def _build(self, rows: RowTable, episode_id: str, t_started: int, path: Path) -> EpisodePart:
        terminated = bool(rows.terminated[-1])
        if rows.new_obs is not None:
            final = jax.tree.map(lambda leaf: leaf[-1:], rows.new_obs)
        elif terminated or self._ignore_final:
            final = jax.tree.map(lambda leaf: leaf[-1:], rows.obs)
        else:
            raise DataError(
                f"{path}, {describe_episode(episode_id)}: the observation after t="
                f"{t_started + len(rows) - 1} is not recorded, as there is no column 'new_obs'; with "
                "ignore_final_observation=True, nothing is bootstrapped from it."
            )
        obs = jax.tree.map(lambda leaf, last: np.concatenate([leaf, last]), rows.obs, final)
        return EpisodePart(
            episode_id=episode_id,
            t_started=t_started,
            obs=obs,
            action=rows.action,
            reward=rows.reward,
            extras=dict(rows.extras),
            version=unknown_versions(len(rows)),
            terminated=terminated,
            truncated=bool(rows.truncated[-1]) and not terminated,
        )


def _hash_row(tree: PyTree, row: int) -> bytes:
    """Return a digest of one row of observations."""
    digest = hashlib.blake2b(digest_size=16)
    for leaf in jax.tree.leaves(tree):
        digest.update((_as_compared(leaf[row]) + 0.0).tobytes())  # 0.0 and -0.0 are equal
    return digest.digest()


def _as_compared(values: np.ndarray) -> np.ndarray:
    """Return values as they are compared: floats as in a program, whatever type a file has."""
    if values.dtype.kind == "f":
        with np.errstate(over="ignore"):
            values = values.astype(np.float32)
    return values.astype(np.float64)


def iter_rows(tree: PyTree) -> Iterator[PyTree]:
    """Yield the rows of a tree of arrays `[N, ...]`."""
    leaves, structure = jax.tree.flatten(tree)
    for row in zip(*leaves, strict=True):
        yield structure.unflatten(row)


def _order_by_episode(table: RowTable) -> RowTable:
    """Return the rows with those of each episode side by side, in the order that they had."""
    assert table.eps_id is not None
    if (table.eps_id[1:] == table.eps_id[:-1]).all():
        return table
    _, first, inverse = np.unique(table.eps_id, return_index=True, return_inverse=True)
    order = np.argsort(first[inverse], kind="stable")
    is_ordered = (order == np.arange(len(order))).all()
    return table if is_ordered else table.take(order)


def differs_by_row(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return whether rows differ in any entry."""
    differs = np.asarray(_as_compared(one) != _as_compared(other))
    return np.asarray(differs.any(axis=tuple(range(1, differs.ndim))))


def _find_borders(table: RowTable) -> list[int]:
    """Return the rows at which parts begin."""
    assert table.eps_id is not None
    is_border = table.eps_id[1:] != table.eps_id[:-1]
    is_border |= table.terminated[:-1] | table.truncated[:-1]
    if table.t is not None:
        is_border |= table.t[1:] != table.t[:-1] + 1
    if table.new_obs is not None:
        pairs = zip(jax.tree.leaves(table.obs), jax.tree.leaves(table.new_obs), strict=True)
        for obs, new_obs in pairs:
            is_border |= differs_by_row(obs[1:], new_obs[:-1])
    return [0, *(np.flatnonzero(is_border) + 1).tolist()]
