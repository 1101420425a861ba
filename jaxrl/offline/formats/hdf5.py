"""Files of HDF5: checked reads, D4RL's arrays (also in `.npz`), and Minari's datasets."""

import contextlib
import dataclasses
import json
import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import gymnasium
import jax
import numpy as np
from gymnasium import spaces

from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import DataError, did_you_mean
from jaxrl.offline.checks import convert_rewards, describe_episode
from jaxrl.offline.columns import parse_dtype
from jaxrl.offline.formats.rows import (
    ACTIONS,
    EPS_ID,
    EXTRAS,
    NEW_OBS,
    OBS,
    REWARDS,
    TERMINATEDS,
    TRUNCATEDS,
    ImportSettings,
    RowParts,
    Spaces,
    Values,
    check_columns,
    differs_by_row,
    make_table,
    read_tree,
    rename,
    to_flags,
    unknown_versions,
)
from jaxrl.offline.manifest import Origin, check_shape
from jaxrl.offline.part_files import check_npz, load_arrays, sniff
from jaxrl.runtime.files import read_bounded

Group = Any
"""A group, file or array of h5py, which has no types."""


@contextlib.contextmanager
def open_hdf5(path: Path) -> Generator[Group]:
    """Open a file.

    Raises:
        DataError: If h5py is not installed, or the file is damaged.
    """
    try:
        import h5py
    except ImportError as error:
        raise DataError(
            f"{path} is HDF5, which needs h5py: pip install 'jaxrl[offline]'."
        ) from error
    try:
        with h5py.File(path, "r", locking=False) as file:
            yield file
    except DataError:
        raise
    except (OSError, KeyError, RuntimeError, ValueError, TypeError) as error:
        raise DataError(
            f"{path} cannot be read as HDF5: {str(error)[:200].rstrip('.')}."
        ) from error


def read_array(node: Group, path: Path, max_bytes: int) -> np.ndarray:
    """Return an array after a check of its declared size.

    Raises:
        DataError: If it has no numbers, is stored elsewhere, or exceeds the limit.
    """
    place = f"{path}: {node.name}"
    if not hasattr(node, "shape"):
        raise DataError(f"{place} is a group, and an array is needed.")
    if node.dtype.kind not in "biuf":
        raise DataError(
            f"{place} has the type {node.dtype} (texts, objects, or images packed as JPEG), and numbers "
            "are read."
        )
    if node.external or node.is_virtual:
        raise DataError(f"{place} is stored in another file: give a file that holds its arrays.")
    declared = math.prod(node.shape) * node.dtype.itemsize
    if declared > max_bytes:
        raise DataError(
            f"{place} declares {declared} bytes, and at most {max_bytes} are read at once: raise "
            "max_group_bytes."
        )
    return np.asarray(node[()])


def read_node(node: Group, path: Path, max_bytes: int) -> Any:
    """Return an array, or a mapping of what a group holds.

    Raises:
        DataError: If there is something else than numbers, or too much.
    """
    return _read_members(node, path, _Budget(max_bytes), depth=16)


@dataclasses.dataclass
class _Budget:
    """Number of bytes and of nodes that may still be read: links can lead to one node many times."""

    num_bytes: int
    num_nodes: int = 4096


def _read_members(node: Group, path: Path, budget: _Budget, depth: int) -> Any:
    budget.num_nodes -= 1
    if not depth or budget.num_nodes < 0:
        raise DataError(f"{path}: {node.name} is nested too deep, or has too many members.")
    if hasattr(node, "shape"):
        array = read_array(node, path, budget.num_bytes)
        budget.num_bytes -= array.nbytes
        return array
    return {
        name: _read_members(_get_own(node, name, path), path, budget, depth - 1)
        for name in list_names(node, path)
    }


def _get_own(group: Group, name: str, path: Path) -> Group:
    """Return a member of a group that is in the same file, whichever links lead to it."""
    import h5py

    is_own = not isinstance(group.get(name, getlink=True), h5py.ExternalLink)
    member = group[name] if is_own else None
    if member is None or member.file.filename != group.file.filename:
        raise DataError(
            f"{path}: {group.name}/{name} is a link to another file, which is not read."
        )
    return member


def list_names(group: Group, path: Path) -> list[str]:
    """Return the names of the members of a group.

    Raises:
        DataError: If one is not text.
    """
    names: list[str | bytes] = list(group)
    texts = [name for name in names if isinstance(name, str)]
    if len(texts) < len(names):
        (other, *_) = (name for name in names if isinstance(name, bytes))
        raise DataError(f"{path} is damaged: {group.name} has a member named {other[:40]!r}.")
    return texts


def get_member(group: Group, name: str, path: Path) -> Group:
    """Return a member of a group.

    Raises:
        DataError: If there is none, or it is in another file.
    """
    if name not in group:
        raise DataError(
            f"{path}: {group.name} has no {name!r}, but {sorted(list_names(group, path))[:20]}."
        )
    return _get_own(group, name, path)


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
        columns = _read_array_columns(path, settings)
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


def _read_array_columns(path: Path, settings: ImportSettings) -> dict[str, Values]:
    limit = settings.max_group_bytes
    names, read = _open_arrays(path, limit)
    schema = {name: column for name, column in NAMES.items() if column in names}
    wanted = rename(names, {**schema, **settings.schema}, tuple(NAMES), str(path), did_you_mean)
    check_columns(wanted, path)
    found = read([wanted[name] for name in wanted])
    return {name: found[column] for name, column in wanted.items()}


def _open_arrays(
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


_MAX_METADATA_BYTES = 2**26
_MAX_TEXT = 1000
_EPISODE = "episode_"
_INVALID = (
    *(ValueError, TypeError, LookupError, AttributeError, AssertionError),
    *(OverflowError, RecursionError),
)


def read_minari(
    files: Sequence[Path], settings: ImportSettings
) -> Iterator[tuple[Path, EpisodePart]]:
    """Yield the episodes of files.

    An episode that is terminated and truncated is terminated; one that is neither is cut.

    Raises:
        DataError: If an episode is damaged, or has other values than its spaces.
    """
    for path in files:
        dataset = _get_text(_read_metadata(path), "dataset_id") or path.stem
        with open_hdf5(path) as file:
            names = [name for name in list_names(file, path) if name.startswith(_EPISODE)]
            numbers = [int(name.removeprefix(_EPISODE)) for name in names]
            for number in sorted(numbers):
                group = get_member(file, f"{_EPISODE}{number}", path)
                yield path, _read_episode(group, f"{dataset}/{number}", settings, path)


def _read_episode(group: Group, name: str, settings: ImportSettings, path: Path) -> EpisodePart:
    limit, where = settings.max_group_bytes, f"{path}, {describe_episode(name)}"

    def read(member: str) -> np.ndarray:
        return read_array(get_member(group, member, path), path, limit).reshape(-1)

    def read_values(member: str, space: gymnasium.Space[Any]) -> Any:
        values = read_node(get_member(group, member, path), path, limit)
        return read_tree(values, space, f"{where}: {member}", limit)

    def read_flags(member: str) -> np.ndarray:
        return to_flags(read(member), f"{where}: {member}")

    reward = convert_rewards(read("rewards"))
    terminations, truncations = read_flags("terminations"), read_flags("truncations")
    if len(terminations) != len(reward) or len(truncations) != len(reward) or not len(reward):
        raise DataError(
            f"{where} has {len(reward)} rewards, {len(terminations)} terminations and "
            f"{len(truncations)} truncations."
        )
    if terminations[:-1].any() or truncations[:-1].any():
        t = int(np.argmax(terminations | truncations))
        raise DataError(f"{where} goes on after its end at t={t}.")
    terminated = bool(terminations[-1])
    truncated = bool(truncations[-1]) and not terminated
    return EpisodePart(
        episode_id=name,
        t_started=0,
        obs=read_values("observations", settings.observation_space),
        action=read_values("actions", settings.action_space),
        reward=reward,
        extras={},
        version=unknown_versions(len(reward)),
        terminated=terminated,
        truncated=truncated,
        is_cut=not (terminated or truncated),
    )


def read_minari_spaces(path: Path) -> Spaces:
    """Return the spaces that a dataset says.

    Raises:
        DataError: If they cannot be read.
    """
    metadata = _read_metadata(path)
    found = [
        _decode_space(metadata[name], f"{path}: {name}") if name in metadata else None
        for name in ("observation_space", "action_space")
    ]
    return found[0], found[1]


def read_minari_origin(path: Path) -> Origin:
    """Return environment and algorithm of a dataset, as far as it says them."""
    metadata = _read_metadata(path)
    try:
        spec: object = json.loads(metadata.get("env_spec", "{}"))
    except (ValueError, TypeError, RecursionError):
        spec = None
    env = cast("dict[str, Any]", spec) if isinstance(spec, dict) else {}
    return Origin(env=_get_text(env, "id"), algorithm=_get_text(metadata, "algorithm_name"))


def _get_text(data: Mapping[str, Any], name: str) -> str | None:
    """Return an entry that is a text; None for any other."""
    value: object = data.get(name)
    return value[:_MAX_TEXT] if isinstance(value, str) and value else None


def _read_metadata(path: Path) -> dict[str, Any]:
    """Return what `metadata.json` beside a file says, or the file's attributes."""
    beside = path.parent / "metadata.json"
    if beside.is_file():
        try:
            data: object = json.loads(read_bounded(beside, _MAX_METADATA_BYTES))
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(f"{beside} cannot be read: {str(error)[:100].rstrip('.')}.") from error
        if not isinstance(data, dict):
            raise DataError(f"{beside} is damaged: it is not a JSON object.")
        return cast("dict[str, Any]", data)
    with open_hdf5(path) as file:
        return {name: value for name, value in file.attrs.items() if isinstance(value, str)}


def _decode_space(text: object, name: str) -> gymnasium.Space[Any]:
    try:
        data: object = json.loads(text) if isinstance(text, str) else text
        return _make_space(cast("Mapping[str, Any]", data), depth=32)
    except _INVALID as error:
        shown = f", {text[:100]}" if isinstance(text, str) else ""
        raise DataError(
            f"{name} is no space that is read{shown}: pass observation_space and action_space."
        ) from error


def _read_shape(sizes: Sequence[object]) -> tuple[int, ...]:
    """Return the shape of a space.

    Raises:
        ValueError: If it has no valid sizes, or too many entries.
    """
    shape = tuple(size for size in sizes if type(size) is int)
    if len(shape) < len(sizes):
        raise ValueError("an invalid shape")
    check_shape(shape)
    return shape


def _make_space(data: Mapping[str, Any], depth: int) -> gymnasium.Space[Any]:
    if not depth:
        raise ValueError("nested too deep")
    match data["type"]:
        case "Box":
            dtype, shape = parse_dtype(data["dtype"]), _read_shape(data["shape"])
            low, high = (np.asarray(data[side], np.float64) for side in ("low", "high"))
            with np.errstate(over="ignore", invalid="ignore"):
                bounds = [np.broadcast_to(side, shape).astype(dtype) for side in (low, high)]
            return spaces.Box(bounds[0], bounds[1], shape, dtype.type)
        case "Discrete":
            return spaces.Discrete(int(data["n"]), start=int(data.get("start", 0)))
        case "MultiDiscrete":
            return spaces.MultiDiscrete(data["nvec"], start=data.get("start"))
        case "MultiBinary":
            n = data["n"]
            _read_shape(n if isinstance(n, list) else [n])
            return spaces.MultiBinary(n)
        case "Dict":
            parts: Mapping[str, Any] = data["subspaces"]
            return spaces.Dict({name: _make_space(p, depth - 1) for name, p in parts.items()})
        case "Tuple":
            return spaces.Tuple([_make_space(part, depth - 1) for part in data["subspaces"]])
        case kind:
            raise ValueError(f"a space of type {kind}")
