"""Minari's datasets in HDF5: one group an episode, spaces as JSON beside it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium import spaces

from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import DataError
from jaxrl.offline.checks import convert_rewards, describe_episode
from jaxrl.offline.columns import parse_dtype
from jaxrl.offline.formats.hdf5 import (
    Group,
    get_member,
    list_names,
    open_hdf5,
    read_array,
    read_node,
)
from jaxrl.offline.formats.settings import ImportSettings, Spaces, unknown_versions
from jaxrl.offline.formats.values import read_tree, to_flags
from jaxrl.offline.manifest import Origin
from jaxrl.offline.space_json import check_shape
from jaxrl.runtime.files import read_bounded

_MAX_METADATA_BYTES = 2**26
_MAX_TEXT = 1000
_PREFIX = "episode_"
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
            names = [name for name in list_names(file, path) if name.startswith(_PREFIX)]
            numbers = [int(name.removeprefix(_PREFIX)) for name in names]
            for number in sorted(numbers):
                group = get_member(file, f"{_PREFIX}{number}", path)
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
