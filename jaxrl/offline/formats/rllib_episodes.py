"""RLlib's episodes: Parquet with one column of msgpack, in which arrays are msgpack-numpy's.

Arrays of Python objects would be pickles, and are refused.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from jaxrl.core.types import PyTree
from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import DataError
from jaxrl.offline.checks import convert_rewards, describe_episode
from jaxrl.offline.columns import parse_dtype
from jaxrl.offline.formats.rows import EXTRAS
from jaxrl.offline.formats.settings import ImportSettings, unknown_versions
from jaxrl.offline.formats.values import read_plain, read_tree
from jaxrl.offline.parquet import open_parquet

_INVALID = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
_MAX_ID = 1000


def read_episodes(
    files: Sequence[Path], settings: ImportSettings
) -> Iterator[tuple[Path, EpisodePart]]:
    """Yield the parts of files of episodes; a chunk without steps has none.

    Raises:
        DataError: If msgpack is not installed, or an episode is damaged.
    """
    for path, content in _iter_contents(files, settings):
        part = _read_episode(content, settings, path)
        if part is not None:
            yield path, part


def _iter_contents(files: Sequence[Path], settings: ImportSettings) -> Iterator[tuple[Path, bytes]]:
    """Yield the packed episodes of files, one group of rows at a time."""
    for path in files:
        with open_parquet(path, settings.max_group_bytes) as file:
            for i in range(file.metadata.num_row_groups):
                yield from ((path, row) for row in file.read_row_group(i).column(0).to_pylist())


def _read_episode(content: bytes, settings: ImportSettings, path: Path) -> EpisodePart | None:
    state = _unpack(content, path)
    limit = settings.max_group_bytes
    try:
        name, t_started = str(state["id_"])[:_MAX_ID], _get_count(state, "t_started")
        length = _get_count(state, "t") - t_started
        where = f"{path}, {describe_episode(name)}"
        rewards = read_plain(_get_items(state["rewards"], length), f"{where}: rewards", limit)
        terminated, truncated = (_get_flag(state, f"is_{x}") for x in ("terminated", "truncated"))
        outputs: Mapping[str, Any] = state["extra_model_outputs"] or {}
        extras = {
            extra: read_plain(_get_items(outputs[extra], length), f"{where}: {extra}", limit)
            for extra in EXTRAS
            if extra in outputs
        }
        obs = _get_items(state["observations"], length + 1)
        actions = _get_items(state["actions"], length)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} has an episode that is damaged: {str(error)[:100]}.") from error
    if length < 1:
        return None
    return EpisodePart(
        episode_id=name,
        t_started=t_started,
        obs=read_tree(obs, settings.observation_space, f"{where}: obs", limit),
        action=read_tree(actions, settings.action_space, f"{where}: actions", limit),
        reward=convert_rewards(rewards.reshape(-1)),
        extras=extras,
        version=unknown_versions(length),
        terminated=terminated,
        truncated=truncated and not terminated,
    )


def _get_count(state: Mapping[str, Any], name: str) -> int:
    """Return an entry that is a whole number of at least 0."""
    value: object = state[name]
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise ValueError(f"{name} must be a whole number of at least 0")
    return int(value)


def _get_flag(state: Mapping[str, Any], name: str) -> bool:
    value: object = state[name]
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be a boolean")
    return bool(value)


def _get_items(buffer: Mapping[str, Any], number: int) -> PyTree:
    """Return an episode's own items, without its lookback.

    Buffers that were finalized hold arrays, in a tree of their structure.
    """
    data: object = buffer["data"]
    lookback = _get_count(buffer, "lookback")
    if buffer["finalized"] and isinstance(data, list):  # a tuple of arrays
        data = dict(enumerate(cast("list[Any]", data)))
    if isinstance(data, list | np.ndarray):
        items = cast("list[Any]", data)[lookback:]
        if len(items) != number:
            raise ValueError(f"there are {len(items)} items, and {number} are needed")
        return items
    if isinstance(data, dict):
        parts = cast("dict[str | int, Any]", data)
        return {key: _get_items({**buffer, "data": part}, number) for key, part in parts.items()}
    raise ValueError("the items of a buffer are neither a list nor an array")


def _unpack(content: bytes, path: Path) -> dict[str, Any]:
    """Return the state of an episode.

    Raises:
        DataError: If msgpack is not installed, or the content is no state.
    """
    try:
        import msgpack
    except ImportError as error:
        raise DataError(
            f"{path} has RLlib's episodes, which need msgpack: pip install 'jaxrl[offline]'."
        ) from error
    try:
        state: object = msgpack.unpackb(
            content, object_hook=_decode, strict_map_key=False, max_ext_len=0
        )
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    except (*_INVALID, msgpack.UnpackException) as error:
        raise DataError(f"{path} has an episode that is damaged: {str(error)[:100]}.") from error
    if not isinstance(state, dict):
        raise DataError(f"{path} has an episode that is damaged: it is no mapping.")
    return cast("dict[str, Any]", state)


def _decode(data: dict[Any, Any]) -> object:
    """Return the array or number that msgpack-numpy encoded, None for one of another type.

    Other mappings are unchanged.

    Raises:
        DataError: If it is of Python objects.
    """
    if b"nd" not in data and "nd" not in data:
        return data
    entries = {key if isinstance(key, bytes) else str(key).encode(): x for key, x in data.items()}
    kind: object = entries.get(b"kind", b"")
    code: object = entries.get(b"type")
    if kind not in (b"", "") or not isinstance(code, str | bytes):
        raise DataError("an episode has an array of Python objects, which would be a pickle.")
    try:
        dtype = parse_dtype(code.decode() if isinstance(code, bytes) else code)
    except ValueError:
        return None  # texts and dates, as infos have them
    values = np.frombuffer(entries[b"data"], dtype)
    if not entries[b"nd"]:
        return values[0]
    shape = tuple(int(size) for size in entries[b"shape"])
    if min(shape, default=0) < 0 or math.prod(shape) != values.size:
        raise ValueError("an array of another shape than its data")
    return values.reshape(shape)
