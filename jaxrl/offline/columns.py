"""Columns of recorded data: one for every leaf of observations, actions, extras and states."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self, cast

import gymnasium
import jax
import numpy as np

from jaxrl.core.space_arrays import get_leaf_dtype
from jaxrl.core.spaces import get_leaf_spaces
from jaxrl.core.types import PyTree
from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import DataError

OBS, ACTIONS, EXTRAS, STATE = "obs", "actions", "extras", "state_in"
REWARDS, VERSION = "rewards", "weights_version"
EPISODE_ID, T_STARTED, LENGTH = "episode_id", "t_started", "length"
TERMINATED, TRUNCATED, IS_CUT = "terminated", "truncated", "is_cut"
FLAGS = (TERMINATED, TRUNCATED, IS_CUT)
AGENT_COLUMNS = ("agent_id", "module_id", "multi_agent_episode_id")
"""Columns that recordings of several agents have, named as the fields of `EpisodePart`."""
HAS_STATE, HEADER = "has_state", "jaxrl_header"
RESERVED = (REWARDS, VERSION, EPISODE_ID, T_STARTED, LENGTH, *FLAGS, HAS_STATE, HEADER)

Path = tuple[str | int, ...]
"""Keys of dicts and indices of tuples, outermost first."""

_MAX_RANK = 16
_MAX_DEPTH = 64
_MAX_NAME = 2**12
_MAX_ROW_BYTES = 2**28


def parse_dtype(code: object) -> np.dtype[Any]:
    """Return the type of numbers that a file names.

    Raises:
        ValueError: If it is none, or one of another machine.
    """
    try:
        dtype = np.dtype(code) if isinstance(code, str) else None
    except (TypeError, SyntaxError):
        dtype = None
    if dtype is None or dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise ValueError("an array has no type of numbers")
    return dtype


@dataclasses.dataclass(frozen=True)
class Column:
    """Leaf of a recorded tree: its name in files, its place, and the type of one row."""

    name: str
    group: str
    path: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Number of bytes of one row."""
        return self.size * self.dtype.itemsize

    @property
    def size(self) -> int:
        """Number of entries of one row."""
        return int(np.prod(self.shape, dtype=np.int64))

    def count_rows(self, length: int) -> int:
        """Return the number of rows that a part of this length has."""
        return {OBS: length + 1, STATE: 1}.get(self.group, length)

    def to_data(self) -> dict[str, Any]:
        """Return the column as data that JSON can hold."""
        return {
            "name": self.name,
            "group": self.group,
            "path": list(self.path),
            "dtype": self.dtype.str,
            "shape": list(self.shape),
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """Return the column with this data.

        Raises:
            ValueError: If the data does not describe a column of numbers.
        """
        dtype, shape = parse_dtype(data["dtype"]), tuple(int(size) for size in data["shape"])
        path = tuple(key if isinstance(key, int) else str(key) for key in data["path"])
        name, group = data["name"], data["group"]
        is_name = isinstance(name, str) and len(name) <= _MAX_NAME
        if not is_name or group not in (OBS, ACTIONS, EXTRAS, STATE):
            raise ValueError("not a column")
        if len(path) > _MAX_DEPTH or not dtype.isnative:
            raise ValueError("a column is nested too deep, or of another byte order")
        column = cls(name, group, path, dtype, shape)
        if len(shape) > _MAX_RANK or min(shape, default=1) < 0:
            raise ValueError("invalid shape of a column")
        if math.prod(max(size, 1) for size in shape) * dtype.itemsize > _MAX_ROW_BYTES:
            raise ValueError(f"a row exceeds {_MAX_ROW_BYTES} bytes")
        return column


@dataclasses.dataclass(frozen=True)
class Columns:
    """All columns of recorded data."""

    leaves: tuple[Column, ...]

    @staticmethod
    def from_part(
        part: EpisodePart,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        actions_are_normalized: bool,
        state_like: PyTree = None,
    ) -> "Columns":
        """Return the columns of the spaces, and those of a part's extras and of a policy's state.

        Args:
            part: Part of an episode.
            observation_space: Space of the observations.
            action_space: Space of the environment's actions.
            actions_are_normalized: Whether the actions are the module's, whose leaves are those of
                the part.
            state_like: Tree of arrays `[N, ...]` like the policy's state; None without one.

        Raises:
            DataError: If two leaves would have the same name.
        """
        if actions_are_normalized:
            actions = _columns_of(ACTIONS, part.action)
        else:
            actions = columns_of_space(ACTIONS, action_space)
        leaves = (
            *columns_of_space(OBS, observation_space),
            *actions,
            *_columns_of(EXTRAS, part.extras),
            *_columns_of(STATE, state_like),
        )
        return Columns(leaves).checked()

    def checked(self) -> "Columns":
        """Return the columns if their names differ.

        Raises:
            DataError: If two leaves have the same name.
        """
        names = [*RESERVED, *(column.name for column in self.leaves)]
        twice = [name for i, name in enumerate(names) if name in names[:i]]
        if twice:
            raise DataError(
                f"Two columns would have the name {twice[0]!r}: rename a key of the spaces or an "
                "extra, whose keys are joined by dots."
            )
        return self

    def to_data(self) -> list[dict[str, Any]]:
        """Return the columns as data that JSON can hold."""
        return [column.to_data() for column in self.leaves]

    @staticmethod
    def from_data(data: Iterable[Mapping[str, Any]]) -> "Columns":
        """Return the columns with this data.

        Raises:
            ValueError: If the data does not describe columns of numbers.
        """
        columns = Columns(tuple(Column.from_data(entry) for entry in data)).checked()
        try:
            columns.unflatten({column.name: np.zeros(0) for column in columns.leaves})
        except (LookupError, TypeError) as error:
            raise ValueError("columns that make no tree") from error
        return columns

    def select(self, group: str) -> tuple[Column, ...]:
        """Return the columns of a group."""
        return tuple(column for column in self.leaves if column.group == group)

    @property
    def step_bytes(self) -> int:
        """Number of bytes of one step."""
        return 12 + sum(column.row_bytes for column in self.leaves if column.group != STATE)

    def flatten(self, part: EpisodePart) -> dict[str, np.ndarray | None]:
        """Return the arrays of a part by column; None for a state that the part does not have.

        Raises:
            DataError: If a leaf is missing, left over, or of another shape or type.
        """
        trees = {OBS: part.obs, ACTIONS: part.action, EXTRAS: part.extras, STATE: part.carry}
        arrays: dict[str, np.ndarray | None] = {}
        for group, tree in trees.items():
            columns = self.select(group)
            if group == STATE and not jax.tree.leaves(tree):
                arrays.update(dict.fromkeys(column.name for column in columns))
                continue
            leaves = dict(flatten_paths(tree))
            left_over = leaves.keys() - {column.path for column in columns}
            if left_over:
                path = min(left_over, key=str)
                raise DataError(f"{_name(group, path)} is no column of these data.")
            for column in columns:
                arrays[column.name] = _read_leaf(column, leaves, column.count_rows(len(part)))
        return arrays

    def unflatten(self, arrays: Mapping[str, np.ndarray | None]) -> dict[str, PyTree]:
        """Return the trees of a part from its arrays, by the names of `EpisodePart`."""
        fields = {OBS: "obs", ACTIONS: "action", EXTRAS: "extras", STATE: "carry"}
        trees: dict[str, PyTree] = {}
        for group, field in fields.items():
            columns = self.select(group)
            is_none = any(arrays[column.name] is None for column in columns)
            leaves = [(column.path, arrays[column.name]) for column in columns]
            empty: PyTree = {} if group == EXTRAS else None
            trees[field] = unflatten_paths(leaves) if leaves and not is_none else empty
        return trees


def find_agent_columns(names: Iterable[str], columns: Columns) -> list[str]:
    """Return which columns of a file say whose a part is.

    Args:
        names: Names of all columns of the file.
        columns: Its columns of leaves, of which an extra may have such a name.
    """
    own = set(names).difference(column.name for column in columns.leaves)
    return [name for name in AGENT_COLUMNS if name in own]


def find_column_difference(recorded: Columns, other: Columns) -> str | None:
    """Return how other columns differ from those of recorded data; None if parts of both fit.

    Types and the states of policies may differ.
    """
    shapes, others = (
        {column.name: column.shape for column in columns.leaves if column.group != STATE}
        for columns in (recorded, other)
    )
    for name in sorted(shapes.keys() | others.keys()):
        if name not in others:
            return f"{name} is missing here"
        if name not in shapes:
            return f"{name} is missing in the data"
        if shapes[name] != others[name]:
            return f"{name} has the shape {shapes[name]} in the data, and {others[name]} here"
    return None


def columns_of_space(group: str, space: gymnasium.Space[Any]) -> tuple[Column, ...]:
    """Return the columns of a space, typed as in a program."""
    return tuple(
        Column(_name(group, path), group, path, get_leaf_dtype(leaf), tuple(leaf.shape or ()))
        for path, leaf in get_leaf_spaces(space)
    )


def _columns_of(group: str, tree: PyTree) -> tuple[Column, ...]:
    """Return the columns of a tree of arrays `[N, ...]`, typed as in a program."""
    columns: list[Column] = []
    for path, leaf in flatten_paths(tree):
        array = np.asarray(leaf)
        if array.dtype.kind not in "biuf":
            raise DataError(f"{_name(group, path)} must be numbers, got {array.dtype}.")
        dtype = np.dtype(jax.dtypes.canonicalize_dtype(array.dtype))
        columns.append(Column(_name(group, path), group, path, dtype, array.shape[1:]))
    return tuple(columns)


def _name(group: str, path: Path) -> str:
    keys = path if group == EXTRAS else (group, *path)
    return ".".join(str(key) for key in keys)


def _read_leaf(column: Column, leaves: Mapping[Path, object], num_rows: int) -> np.ndarray:
    if column.path not in leaves:
        raise DataError(f"{column.name} is missing.")
    array = np.asarray(leaves[column.path])
    if column.group == STATE:
        array = array[:1]
    if array.shape != (num_rows, *column.shape):
        raise DataError(
            f"{column.name} must have the shape {(num_rows, *column.shape)}, got {array.shape}."
        )
    return convert(array, column.dtype, column.name)


def convert(array: np.ndarray, dtype: np.dtype[Any], name: str) -> np.ndarray:
    """Return an array of another type with the same values, rounded if they are floats.

    Raises:
        DataError: If the values are no numbers, or integers are wanted and they are not.
    """
    if array.dtype == dtype:
        return array
    if array.dtype.kind not in "biuf":
        raise DataError(f"{name} must be numbers, got the type {array.dtype}.")
    with np.errstate(invalid="ignore", over="ignore"):
        converted = array.astype(dtype)
        if dtype.kind != "f" and not np.array_equal(converted, array):
            wrong = array[converted != array].flat[0]
            raise DataError(f"{name} has the value {wrong}, which {dtype} does not have.")
    return converted


def flatten_paths(tree: PyTree) -> list[tuple[Path, PyTree]]:
    """Return the leaves of a tree with their paths, in the tree's order."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [(tuple(_get_key(key) for key in path), leaf) for path, leaf in leaves]


def _get_key(key: object) -> str | int:
    match key:
        case jax.tree_util.SequenceKey():
            return key.idx
        case jax.tree_util.DictKey():
            return str(key.key)
        case jax.tree_util.GetAttrKey():
            return key.name
        case _:
            return str(key)


def unflatten_paths(leaves: Sequence[tuple[Path, PyTree]]) -> PyTree:
    """Return the tree of dicts and tuples with these leaves."""
    if len(leaves) == 1 and not leaves[0][0]:
        return leaves[0][1]
    groups: dict[str | int, list[tuple[Path, PyTree]]] = {}
    for path, leaf in leaves:
        groups.setdefault(path[0], []).append((path[1:], leaf))
    parts = {key: unflatten_paths(group) for key, group in groups.items()}
    if all(isinstance(key, int) for key in parts):
        return tuple(parts[key] for key in sorted(cast("dict[int, PyTree]", parts)))
    return parts


def restore_structure(like: PyTree, recorded: PyTree) -> PyTree:
    """Return recorded leaves in the structure of another tree, such as a policy's state.

    Files keep the names of leaves, and neither classes nor the order of fields.

    Raises:
        DataError: If the trees have different leaves.
    """
    wanted, leaves = flatten_paths(like), dict(flatten_paths(recorded))
    names = [path for path, _ in wanted]
    if set(names) != set(leaves):
        path = min(set(names) ^ set(leaves), key=str)
        raise DataError(
            f"The recorded state and the policy's differ in {'.'.join(map(str, path))}."
        )
    return jax.tree.unflatten(jax.tree.structure(like), [leaves[path] for path in names])
