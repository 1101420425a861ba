"""Manifest of a folder of recorded data: what they are, how much there is, and each file's digest."""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import math
import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium import spaces

from jaxrl.config.serialize import space_from_data, space_to_data
from jaxrl.core.space_arrays import get_leaf_dtype
from jaxrl.core.spaces import check_supported, format_path, get_leaf_spaces
from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import CheckpointError, ConfigError, DataError, SpaceError
from jaxrl.offline.checks import locate
from jaxrl.offline.columns import (
    ACTIONS,
    AGENT_COLUMNS,
    OBS,
    Columns,
    columns_of_space,
    parse_dtype,
)
from jaxrl.runtime.files import lock_file, open_atomic, read_bounded

_MAX_ENTRIES = 2**26
"""Largest number of entries of a Box that a file may declare."""
_INVALID_SPACE = (
    *(CheckpointError, ValueError, TypeError, KeyError, AttributeError),
    *(OverflowError, RecursionError),
)


def check_shape(shape: tuple[int, ...]) -> None:
    """Check the shape of a Box that a file declares.

    Raises:
        ValueError: If it has a negative size, or is too large.
    """
    entries = math.prod(max(size, 1) for size in shape)
    if len(shape) > 16 or min(shape, default=1) < 0 or entries > _MAX_ENTRIES:
        raise ValueError("an invalid shape")


def encode_space(space: gymnasium.Space[Any], name: str) -> dict[str, Any]:
    """Return a space as data that JSON can hold.

    Args:
        space: Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these.
        name: Name of the space, for the error message.

    Raises:
        DataError: If a part of the space has no fixed shape or no numbers.
    """
    try:
        check_supported(space, name)
        return _shorten_space(space_to_data(name, space))
    except (ConfigError, SpaceError) as error:
        raise DataError(f"{name} cannot be recorded: {error}") from error


def decode_space(data: object, name: str) -> gymnasium.Space[Any]:
    """Return the space with the output of `encode_space`.

    Raises:
        DataError: If the data does not describe a space.
    """
    try:
        return space_from_data(_lengthen(cast("dict[str, Any]", data), depth=32), name)
    except _INVALID_SPACE as error:
        raise DataError(f"{name} must describe a space, got {str(data)[:100]}.") from error


def _shorten_space(data: dict[str, Any]) -> dict[str, Any]:
    """Return the data with one bound for all entries of a Box that are equal."""
    match data["kind"]:
        case "Box":
            low, high = np.asarray(data["low"]), np.asarray(data["high"])
            bounds = {"low": _shorten_bound(low), "high": _shorten_bound(high)}
            return {"kind": "Box", "shape": list(low.shape), "dtype": data["dtype"], **bounds}
        case "Dict":
            parts = cast("dict[str, Any]", data["spaces"])
            return {**data, "spaces": {name: _shorten_space(part) for name, part in parts.items()}}
        case "Tuple":
            return {**data, "spaces": [_shorten_space(part) for part in data["spaces"]]}
        case _:
            return data


def _shorten_bound(bound: np.ndarray) -> object:
    if bound.size and (bound == bound.flat[0]).all():
        return _to_json(bound.flat[0].item())
    return [_to_json(value) for value in bound.ravel().tolist()]


def _to_json(value: float) -> float | str:
    """Return a number; an infinite one, for which JSON has no notation, as text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _lengthen(data: Mapping[str, Any], depth: int) -> dict[str, Any]:
    """Return the data with a bound for every entry of a Box."""
    if depth == 0:
        raise ValueError("nested too deep")
    match data["kind"]:
        case "Box":
            shape = tuple(int(size) for size in data["shape"])
            check_shape(shape)
            dtype = parse_dtype(data["dtype"])
            bounds = {side: _lengthen_bound(data[side], shape, dtype) for side in ("low", "high")}
            return {"kind": "Box", "dtype": data["dtype"], **bounds}
        case "Dict":
            parts = cast("dict[str, Any]", data["spaces"])
            return {**data, "spaces": {n: _lengthen(part, depth - 1) for n, part in parts.items()}}
        case "Tuple":
            return {**data, "spaces": [_lengthen(part, depth - 1) for part in data["spaces"]]}
        case _:
            return dict(data)


def _lengthen_bound(bound: object, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    is_list = isinstance(bound, list)
    entries: list[Any] = cast("list[Any]", bound) if is_list else [bound]
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.asarray([float(v) if isinstance(v, str) else v for v in entries]).astype(dtype)
    return values.reshape(shape) if is_list else np.broadcast_to(values[0], shape)


def find_difference(
    recorded: gymnasium.Space[Any], wanted: gymnasium.Space[Any], name: str
) -> str | None:
    """Return the first part in which two spaces differ, as a clause; None if they are equal.

    Types are compared as programs have them: float64 equals float32, and int64 equals int32.

    Args:
        recorded: Space of the data.
        wanted: Space that is expected.
        name: Name of the space.
    """
    ours, theirs = dict(get_leaf_spaces(recorded)), dict(get_leaf_spaces(wanted))
    for path in [*theirs, *ours]:
        mine, other = ours.get(path), theirs.get(path)
        if mine is None or other is None or not _is_same_leaf(mine, other):
            return f"{format_path(name, path)} is {mine or 'missing'} in the data, and {other or 'missing'}"
    return None


def _is_same_leaf(a: gymnasium.Space[Any], b: gymnasium.Space[Any]) -> bool:
    if not (isinstance(a, spaces.Box) and isinstance(b, spaces.Box)):
        return a == b
    dtype = get_leaf_dtype(a)
    if a.shape != b.shape or dtype != get_leaf_dtype(b):
        return False
    pairs = ((a.low, b.low), (a.high, b.high))
    with np.errstate(over="ignore"):
        return all(np.array_equal(x.astype(dtype), y.astype(dtype)) for x, y in pairs)


def dump_json(data: object, indent: int | None = None) -> str:
    """Return data as strict JSON, without NaN or infinity."""
    return json.dumps(data, indent=indent, allow_nan=False)


MANIFEST = "manifest.json"
FORMAT = "jaxrl-episodes"
VERSION = 1

_INVALID = (KeyError, ValueError, TypeError, AttributeError, OverflowError, RecursionError)
MAX_BYTES = 2**26
"""Largest size of a manifest or of a header in a file."""


def _shorten_error(error: Exception) -> str:
    """Return what is wrong as one short line."""
    return " ".join(str(error).split())[:100].rstrip(".")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Returns:
    """Undiscounted returns of the whole episodes, those recorded from their start to their end."""

    num_episodes: int = 0
    mean: float = 0.0
    min: float = math.inf
    max: float = -math.inf

    def merge(self, other: "Returns") -> "Returns":
        """Return the statistics of both sets of episodes."""
        number = self.num_episodes + other.num_episodes
        if not number:
            return self
        total = self.mean * self.num_episodes + other.mean * other.num_episodes
        low, high = min(self.min, other.min), max(self.max, other.max)
        return Returns(num_episodes=number, mean=total / number, min=low, max=high)

    def to_data(self) -> dict[str, Any] | None:
        """Return the statistics as data that JSON can hold; None if there is no episode."""
        return dataclasses.asdict(self) if self.num_episodes else None

    @staticmethod
    def from_data(data: Mapping[str, Any] | None) -> "Returns":
        """Return the statistics with this data."""
        if data is None:
            return Returns()
        numbers = {name: float(data[name]) for name in ("mean", "min", "max")}
        return Returns(num_episodes=int(data["num_episodes"]), **numbers)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counts:
    """Amount of recorded data, and the returns of its whole episodes.

    An episode is counted where its first recorded part is.
    """

    num_steps: int = 0
    num_parts: int = 0
    num_episodes: int = 0
    returns: Returns = Returns()

    def merge(self, other: "Counts") -> "Counts":
        """Return the counts of both."""
        return Counts(
            num_steps=self.num_steps + other.num_steps,
            num_parts=self.num_parts + other.num_parts,
            num_episodes=self.num_episodes + other.num_episodes,
            returns=self.returns.merge(other.returns),
        )

    def to_data(self) -> dict[str, Any]:
        """Return the counts as data that JSON can hold."""
        return {**dataclasses.asdict(self), "returns": self.returns.to_data()}

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> "Counts":
        """Return the counts with this data."""
        numbers = {name: int(data[name]) for name in ("num_steps", "num_parts", "num_episodes")}
        return Counts(**numbers, returns=Returns.from_data(data["returns"]))


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileEntry:
    """File of recorded data.

    Attributes:
        sha256: Digest of the file.
        bytes: Its size.
        counts: Amount of data in it.
        run: Random name of the run that wrote it; None if that is not known.
    """

    sha256: str
    bytes: int
    counts: Counts
    run: str | None = None

    def to_data(self) -> dict[str, Any]:
        """Return the entry as data that JSON can hold."""
        run = {} if self.run is None else {"run": self.run}
        return {"sha256": self.sha256, "bytes": self.bytes, **run, **self.counts.to_data()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Origin:
    """Origin of recorded data, as far as it is known.

    Attributes:
        env: Id of the environment.
        env_params: Parameters of the environment.
        algorithm: Name of the algorithm whose policy acted.
        seed: Seed of the run.
        checkpoint_sha256: Digest of the checkpoint that the policy came from.
        module_id: Module that acted, of a run of several agents; parts then say their agents.
    """

    env: str | None = None
    env_params: Mapping[str, Any] | None = None
    algorithm: str | None = None
    seed: int | None = None
    checkpoint_sha256: str | None = None
    module_id: str | None = None


def merge_origins(origins: Sequence[Origin]) -> Origin:
    """Return the facts on which all origins agree."""
    agreed = {
        field.name: getattr(origins[0], field.name)
        for field in dataclasses.fields(Origin)
        if all(getattr(o, field.name) == getattr(origins[0], field.name) for o in origins)
    }
    return Origin(**agreed)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReferenceReturns:
    """Returns that scores of a task are normalized with: 0 is a random policy, 1 an expert's.

    Attributes:
        random: Mean undiscounted return of uniformly random actions.
        expert: Mean undiscounted return of an expert, above `random`.
    """

    random: float
    expert: float

    def normalize(self, value: float) -> float:
        """Return the normalized score of a mean return."""
        return (value - self.random) / (self.expert - self.random)

    @staticmethod
    def from_data(data: Mapping[str, Any] | None) -> "ReferenceReturns | None":
        """Return the returns with this data; None without any.

        Raises:
            ValueError: If one is not finite, or the expert's is not above the random policy's.
        """
        if data is None:
            return None
        found = ReferenceReturns(random=float(data["random"]), expert=float(data["expert"]))
        if not -math.inf < found.random < found.expert < math.inf:
            raise ValueError(f"reference_returns {dict(data)!r} are not finite and in order")
        return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Header:
    """Facts that every file of recorded data holds itself.

    Attributes:
        observation_space: Space of the observations.
        action_space: Space of the environment's actions.
        columns: Columns of the files.
        has_density: Whether `action_logp` is the log-density that the actions were drawn with.
        actions_are_normalized: Whether the actions are the module's, or else the environment's own.
        origin: Origin of the data.
    """

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    columns: Columns
    has_density: bool
    actions_are_normalized: bool
    origin: Origin = Origin()

    def to_data(self) -> dict[str, Any]:
        """Return the header as data that JSON can hold."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "observation_space": encode_space(self.observation_space, "observation_space"),
            "action_space": encode_space(self.action_space, "action_space"),
            **dataclasses.asdict(self.origin),
            "has_density": self.has_density,
            "actions_are_normalized": self.actions_are_normalized,
            "columns": self.columns.to_data(),
        }

    @staticmethod
    def from_data(data: Mapping[str, Any], where: object) -> "Header":
        """Return the header with this data.

        Args:
            data: Output of `to_data`.
            where: File of the data, for error messages.

        Raises:
            DataError: If it is of a newer format, or damaged.
        """
        check_version(data, where)
        try:
            header = Header(
                observation_space=decode_space(data["observation_space"], "observation_space"),
                action_space=decode_space(data["action_space"], "action_space"),
                columns=Columns.from_data(data["columns"]),
                has_density=bool(data["has_density"]),
                actions_are_normalized=bool(data["actions_are_normalized"]),
                origin=Origin(**{x.name: data.get(x.name) for x in dataclasses.fields(Origin)}),
            )
            header.check_columns()
        except _INVALID as error:
            raise DataError(
                f"{where} is damaged: its header is invalid ({_shorten_error(error)})."
            ) from error
        return header

    def check_columns(self) -> None:
        """Check that the columns are those of the spaces.

        Raises:
            ValueError: If they are not.
        """
        groups = {OBS: self.observation_space}
        if not self.actions_are_normalized:  # those of a module have other types
            groups[ACTIONS] = self.action_space
        for group, space in groups.items():
            if set(self.columns.select(group)) != set(columns_of_space(group, space)):
                raise ValueError(f"its columns of {group} are not those of its space")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """Header, files and counts of a folder.

    Attributes:
        header: Facts about the data.
        files: Complete files by name, in order.
        unfinished: Next time step, return so far, and whether its start is recorded, of each episode
            that may go on in a later file.
        reference: Returns to normalize scores with; None if they are not known.
    """

    header: Header
    files: Mapping[str, FileEntry]
    unfinished: Mapping[str, tuple[int, float, bool]] = dataclasses.field(
        default_factory=dict[str, tuple[int, float, bool]]
    )
    reference: ReferenceReturns | None = None

    @property
    def counts(self) -> Counts:
        """Return the counts of all files."""
        return sum_counts(entry.counts for entry in self.files.values())

    @property
    def next_number(self) -> int:
        """Return the first number above those in the names of all files."""
        return find_next_number(self.files)

    def write(self, folder: Path) -> None:
        """Write the manifest of a folder, in place of an older one."""
        data = {
            **self.header.to_data(),
            **self.counts.to_data(),
            "files": {name: entry.to_data() for name, entry in self.files.items()},
            "unfinished": {name: list(state) for name, state in self.unfinished.items()},
        }
        if self.reference is not None:
            data["reference_returns"] = dataclasses.asdict(self.reference)
        with open_atomic(folder / MANIFEST) as file:
            file.write(dump_json(data, indent=1) + "\n")


def find_next_number(names: Iterable[str]) -> int:
    """Return the first number above those in the names `part-<number>.<format>`."""
    stems = [Path(name).stem for name in names]
    numbers = [int(s[5:]) for s in stems if s.startswith("part-") and s[5:].isdecimal()]
    return max(numbers, default=-1) + 1


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of a folder; None if it has none.

    Raises:
        DataError: If it is no manifest of recorded data, of a newer format, or damaged.
    """
    path = folder / MANIFEST
    try:
        text = read_bounded(path, MAX_BYTES)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}.") from error
    data = parse_header(text, path)
    header = Header.from_data(data, path)
    try:
        files = {str(name): _read_entry(entry) for name, entry in data["files"].items()}
        unfinished = {
            str(name): (int(t), float(total), bool(is_known))
            for name, (t, total, is_known) in data["unfinished"].items()
        }
        reference = ReferenceReturns.from_data(data.get("reference_returns"))
    except _INVALID as error:
        raise DataError(
            f"{path} is damaged: its content is invalid ({_shorten_error(error)})."
        ) from error
    for name in files:
        if Path(name).name != name or name.startswith("."):
            raise DataError(f"{path} is damaged: {name!r} is not the name of a file in its folder.")
    return Manifest(header=header, files=files, unfinished=unfinished, reference=reference)


def record_reference(folder: Path, reference: ReferenceReturns) -> None:
    """Record the returns to normalize scores with in the manifest of a folder.

    Raises:
        DataError: If the folder has no manifest.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        raise DataError(f"{folder} has no {MANIFEST}: record data there first.")
    dataclasses.replace(manifest, reference=reference).write(folder)


def _read_entry(data: Mapping[str, Any]) -> FileEntry:
    counts = Counts.from_data(data)
    run: object = data.get("run")
    return FileEntry(
        sha256=str(data["sha256"]),
        bytes=int(data["bytes"]),
        counts=counts,
        run=None if run is None else str(run),
    )


def parse_header(text: bytes, where: object) -> dict[str, Any]:
    """Return the JSON object in a manifest or a header.

    Raises:
        DataError: If it is not a JSON object.
    """
    try:
        data: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is damaged: it is not JSON ({error}).") from error
    if not isinstance(data, dict):
        raise DataError(f"{where} is damaged: it is not a JSON object.")
    return cast("dict[str, Any]", data)


def check_version(data: Mapping[str, Any], where: object) -> None:
    """Check that a manifest or header is of this format, and of a version that is known.

    Raises:
        DataError: If it is not.
    """
    if data.get("format") != FORMAT:
        raise DataError(
            f"{where} has the format {str(data.get('format'))[:40]!r}, which is unknown: recorded "
            f"data have {FORMAT!r}."
        )
    version: object = data.get("version")
    if type(version) is not int or version < 1:
        raise DataError(f"{where} is damaged: its version is {str(version)[:40]!r}.")
    if version > VERSION:
        raise DataError(
            f"{where} has version {version} of the format, and this jaxrl reads up to {VERSION}: "
            "update jaxrl."
        )


def sum_counts(counts: Iterable[Counts]) -> Counts:
    """Return the sum of counts."""
    total = Counts()
    for entry in counts:
        total = total.merge(entry)
    return total


def hash_file(path: Path) -> str:
    """Return the SHA-256 digest of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_file(path: Path, entry: FileEntry) -> None:
    """Check that a file is as its manifest says.

    Raises:
        DataError: If it is missing or has changed.
    """
    try:
        size = os.stat(path).st_size
        is_same = size == entry.bytes and hash_file(path) == entry.sha256
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing, and its manifest lists it.") from error
    if not is_same:
        raise DataError(
            f"{path} has changed since it was recorded: its digest is not that of its manifest."
        )


_MAX_UNFINISHED = 4096
"""Largest number of unfinished episodes whose returns are kept; the oldest are forgotten."""

Unfinished = tuple[int, float, bool]
"""Next time step of an episode, its return so far, and whether it is recorded from its start."""


class EpisodeCounter:
    """Counts of the parts that are added.

    Args:
        files: Files of the folder so far.
        unfinished: Episodes that may go on, by id.
    """

    def __init__(
        self, files: Iterable[FileEntry] = (), unfinished: Mapping[str, Unfinished] | None = None
    ) -> None:
        self._before = sum_counts(entry.counts for entry in files)
        self._new = Counts()
        self.unfinished: dict[str, Unfinished] = dict(unfinished or {})

    @property
    def total(self) -> Counts:
        """Return the counts of all parts."""
        return self._before.merge(self._new)

    def take(self) -> Counts:
        """Return the counts since the last call."""
        taken, self._new = self._new, Counts()
        self._before = self._before.merge(taken)
        return taken

    def add(self, part: EpisodePart) -> None:
        """Count a part."""
        t, total, is_known = self.unfinished.pop(part.episode_id, (part.t_started, 0.0, None))
        is_new = is_known is None or t != part.t_started
        if is_new:
            total, is_known = 0.0, part.t_started == 0
        total += float(np.sum(part.reward, dtype=np.float64))
        returns = Returns()
        if (part.terminated or part.truncated) and is_known:
            returns = Returns(num_episodes=1, mean=total, min=total, max=total)
        if not part.is_last:
            self.unfinished[part.episode_id] = part.t_started + len(part), total, bool(is_known)
            if len(self.unfinished) > _MAX_UNFINISHED:
                del self.unfinished[next(iter(self.unfinished))]
        self._new = self._new.merge(
            Counts(num_steps=len(part), num_parts=1, num_episodes=int(is_new), returns=returns)
        )


_LOCK = ".lock"


class FolderLock:
    """Lock of a folder by one writer, until `release`, or the end of the object or the process.

    Args:
        folder: Folder that exists.

    Raises:
        DataError: If another writer has it.
        OSError: If the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / _LOCK
        try:
            handle = lock_file(path)
        except BlockingIOError as error:
            raise DataError(
                f"{folder} is being recorded to by process {error.strerror}: end that run with stop(), "
                "or its writer with close(), or record into another folder."
            ) from error
        self._finalize = weakref.finalize(self, _unlock_folder, path, handle, os.getpid())

    def release(self) -> None:
        """Let another writer have the folder; safe to call more than once."""
        self._finalize()


def _unlock_folder(path: Path, handle: int, process: int) -> None:
    if os.getpid() != process:  # a fork, whose parent still writes
        return
    with contextlib.suppress(OSError):
        os.unlink(path)
    with contextlib.suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_UN)  # forks have the handle, too
    os.close(handle)


def set_module(part: EpisodePart, header: Header) -> EpisodePart:
    """Return a part as one of the module whose data a folder has.

    Raises:
        DataError: If it is of another one.
    """
    module_id = header.origin.module_id
    if module_id is None or part.module_id == module_id:
        return part
    if part.module_id is not None:
        raise DataError(
            f"{locate(part, '')}: it is of the module {part.module_id!r}, and the writer of "
            f"module_id={module_id!r}: give each module a folder of its own."
        )
    return dataclasses.replace(part, module_id=module_id)


def check_same_module(folder: Path, recorded: str | None, wanted: str | None) -> None:
    """Check that what is recorded next is of the module whose data a folder has.

    Raises:
        DataError: If it is of another one, or one of both is of a single agent.
    """
    if recorded != wanted:
        found, here = (
            "a single agent" if name is None else f"the module {name!r}"
            for name in (recorded, wanted)
        )
        raise DataError(f"{folder} has data of {found}, not of {here}: record into another folder.")


def check_agent_columns(columns: Columns, module_id: str | None) -> None:
    """Check that no extra has the name of a column that says whose a part is.

    Raises:
        DataError: If one has.
    """
    names = {column.name for column in columns.leaves}
    taken = next((name for name in AGENT_COLUMNS if name in names), None)
    if module_id is not None and taken is not None:
        raise DataError(
            f"Two columns would have the name {taken!r}, which says whose a part is: rename the extra."
        )


def find_module_folders(folder: Path) -> dict[str, Path]:
    """Return the folders in a folder that have the data of a module, by its id."""
    if (folder / MANIFEST).exists():
        return {}
    return _find_modules(path.parent for path in sorted(folder.glob(f"*/{MANIFEST}")))


def check_one_module(source: str, files: Iterable[Path]) -> None:
    """Check that one source to learn from does not have the data of several modules.

    Args:
        source: Source as it was given.
        files: Its files.

    Raises:
        DataError: If it has.
    """
    found = _find_modules(sorted({path.parent for path in files}))
    if len(found) > 1:
        folders = [str(path) for path in found.values()]
        raise DataError(
            f"{source} has recorded data of {len(found)} modules, {', '.join(found)}: give the folder "
            f"of one, such as {folders[0]!r}, or a list of those to learn from together, "
            f"input_={folders}."
        )


def _find_modules(folders: Iterable[Path]) -> dict[str, Path]:
    """Return those of the folders that have the data of a module, by its id."""
    modules = {path: _read_module(path) for path in folders}
    return {module: path for path, module in modules.items() if module is not None}


def _read_module(folder: Path) -> str | None:
    """Return the module whose data a folder has; None without one, or without recorded data."""
    try:
        data: object = json.loads(read_bounded(folder / MANIFEST, MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return None  # it is no manifest, or reading the data says what is wrong with it
    if not isinstance(data, dict):
        return None
    facts = cast("dict[str, object]", data)
    module_id = facts.get("module_id")
    return module_id if facts.get("format") == FORMAT and isinstance(module_id, str) else None
