"""Rows of other libraries' files: values in the shapes of spaces, and parts of episodes made of them."""

import base64
import binascii
import dataclasses
import hashlib
import math
import pickletools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import gymnasium
import jax
import numpy as np

from jaxrl.core.spaces import get_leaf_spaces
from jaxrl.core.types import PyTree
from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import DataError
from jaxrl.offline.checks import convert_rewards, describe_episode, number_id
from jaxrl.offline.columns import ACTIONS, OBS, REWARDS, unflatten_paths

MAX_GROUP_BYTES = 2**30
"""Default limit of the bytes that a file declares to be read at once."""


Spaces = tuple[gymnasium.Space[Any] | None, gymnasium.Space[Any] | None]
"""Observation space and action space, each None where a file does not say it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportSettings:
    """Facts that foreign files do not hold.

    Attributes:
        observation_space: Space of the observations.
        action_space: Space of the environment's actions.
        schema: Column of the file by RLlib's name of it, for those with another name.
        ignore_final_observation: Whether the last step of an episode that was not terminated is
            dropped where the observation after it is not recorded.
        max_group_bytes: Limit of the bytes that a file declares to be read at once.
    """

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    schema: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    ignore_final_observation: bool = False
    max_group_bytes: int = MAX_GROUP_BYTES


def unknown_versions(length: int) -> np.ndarray:
    """Return the versions of steps of which nothing is known."""
    return np.full(length, -1, np.int64)


_PICKLE_MODULES = (
    "numpy",
    *("numpy.core.numeric", "numpy._core.numeric"),
    *("numpy.core.multiarray", "numpy._core.multiarray"),
)

_PICKLE_VALUES = frozenset(
    (
        *("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
        *("SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"),
        *("BININT", "BININT1", "BININT2", "LONG1"),
    )
)
_PICKLE_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_PICKLE_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _PickleMark:
    """Mark on the stack of a pickle."""


@dataclasses.dataclass
class _PickledName:
    """Function or class that a pickle names."""

    name: str


@dataclasses.dataclass
class _PickledArray:
    """Array under construction."""

    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] = ()
    data: bytes = b""
    order: str = "C"


@dataclasses.dataclass
class _PickledDtype:
    """Type under construction."""

    dtype: np.dtype[Any]


def unpack_rows(texts: Sequence[str | bytes], name: str, max_bytes: int) -> list[np.ndarray]:
    """Return the arrays of packed values.

    Args:
        texts: Base64 of LZ4 of pickled arrays.
        name: Column, for error messages.
        max_bytes: Limit of the bytes of all arrays.

    Raises:
        DataError: If lz4 is not installed, or a value is not a packed array of numbers.
    """
    try:
        import lz4.frame
    except ImportError as error:
        raise DataError(
            f"{name} is LZ4-packed: pip install 'jaxrl[offline]' for lz4, or record with "
            "output_compress_columns=[]."
        ) from error
    arrays: list[np.ndarray] = []
    remaining = max_bytes
    for text in texts:
        try:
            decompressor = lz4.frame.LZ4FrameDecompressor()
            packed = base64.b64decode(text, validate=True)
            content: bytes = decompressor.decompress(packed, max_length=remaining)
            is_whole = bool(decompressor.eof)
        except (binascii.Error, ValueError, RuntimeError, EOFError, TypeError) as error:
            raise DataError(
                f"{name} is text and no packed array: give columns of numbers."
            ) from error
        remaining -= len(content)
        if not is_whole or remaining <= 0:
            raise DataError(
                f"{name} unpacks to more than {max_bytes} bytes: raise max_group_bytes, or use "
                "smaller row groups."
            )
        try:
            arrays.append(_unpickle_array(content))
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise DataError(f"{name} packs something else than an array of numbers.") from error
    return arrays


def _unpickle_array(content: bytes) -> np.ndarray:
    """Interpret the operations of a pickle that build an array of numbers.

    Raises:
        ValueError: If there is any other operation.
    """
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    for operation, argument, _ in pickletools.genops(content):
        kind = operation.name
        if kind in ("PROTO", "FRAME"):
            continue
        if kind == "STOP":
            break
        if kind in _PICKLE_VALUES:
            stack.append(argument)
        elif kind in _PICKLE_CONSTANTS:
            stack.append(_PICKLE_CONSTANTS[kind])
        elif kind == "MARK":
            stack.append(_PickleMark())
        elif kind == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif kind in ("BINPUT", "LONG_BINPUT"):
            memo[int(argument or 0)] = stack[-1]
        elif kind in ("BINGET", "LONG_BINGET"):
            stack.append(memo[int(argument or 0)])
        else:
            _apply_operation(kind, argument, stack)
    (result,) = stack
    return _make_array(result)


def _apply_operation(kind: str, argument: object, stack: list[Any]) -> None:
    """Apply an operation that takes values from the stack."""
    if kind in _PICKLE_TUPLES:
        number = _PICKLE_TUPLES[kind]
        stack[-number:] = [tuple(stack[-number:])]
    elif kind == "TUPLE":
        start = max(i for i, value in enumerate(stack) if isinstance(value, _PickleMark))
        stack[start:] = [tuple(stack[start + 1 :])]
    elif kind == "GLOBAL":
        module, _, name = str(argument).partition(" ")
        stack.append(_find_name(module, name))
    elif kind == "STACK_GLOBAL":
        name, module = stack.pop(), stack.pop()
        stack.append(_find_name(module, name))
    elif kind == "REDUCE":
        arguments, function = stack.pop(), stack.pop()
        stack.append(_call(function, arguments))
    elif kind == "BUILD":
        state = stack.pop()
        _set_state(stack[-1], state)
    else:
        raise ValueError(f"the operation {kind}")


def _find_name(module: object, name: object) -> _PickledName:
    if module not in _PICKLE_MODULES or name not in (
        "dtype",
        "ndarray",
        "_frombuffer",
        "_reconstruct",
    ):
        raise ValueError(f"the name {module}.{name}")
    return _PickledName(str(name))


def _call(function: _PickledName, arguments: tuple[Any, ...]) -> object:
    match function.name, arguments:
        case "dtype", (str(code), *_):
            dtype = np.dtype(code)
            if dtype.kind not in "biuf":
                raise ValueError("a type of no numbers")
            return _PickledDtype(dtype)
        case "_frombuffer", (
            bytes() | bytearray() as data,
            _PickledDtype() as kind,
            tuple(shape),
            order,
        ):
            return _PickledArray(kind.dtype, _check_shape(shape), bytes(data), str(order))
        case "_reconstruct", (_PickledName("ndarray"), tuple(), bytes()):
            return _PickledArray()
        case _:
            raise ValueError(f"a call of {function.name}")


def _set_state(target: object, state: tuple[Any, ...]) -> None:
    match target, state:
        case _PickledDtype(), (int(), str(order), None, None, None, *_):
            target.dtype = target.dtype.newbyteorder(">" if order == ">" else "<")
        case _PickledArray(), (
            int(),
            tuple(shape),
            _PickledDtype() as kind,
            bool(is_fortran),
            bytes(data),
        ):
            target.dtype, target.shape, target.data = kind.dtype, _check_shape(shape), data
            target.order = "F" if is_fortran else "C"
        case _:
            raise ValueError("a state of something else")


def _check_shape(shape: tuple[object, ...]) -> tuple[int, ...]:
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError("an invalid shape")
    return tuple(int(str(size)) for size in shape)


def _make_array(result: _PickledArray) -> np.ndarray:
    if result.dtype is None:
        raise ValueError("an array without data")
    values = np.frombuffer(result.data, result.dtype)
    order = "F" if result.order == "F" else "C"
    array = values.reshape(result.shape, order=order)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


NEW_OBS = "new_obs"
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
