"""Manifest of a folder of recorded data: what they are, how much there is, and each file's digest."""

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import gymnasium

from jaxrl.errors import DataError
from jaxrl.offline.columns import ACTIONS, OBS, Columns, columns_of_space
from jaxrl.offline.space_json import decode_space, dump_json, encode_space
from jaxrl.runtime.files import open_atomic, read_bounded

MANIFEST = "manifest.json"
FORMAT = "jaxrl-episodes"
VERSION = 1

_INVALID = (KeyError, ValueError, TypeError, AttributeError, OverflowError, RecursionError)
MAX_BYTES = 2**26
"""Largest size of a manifest or of a header in a file."""


def _shorten(error: Exception) -> str:
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
                f"{where} is damaged: its header is invalid ({_shorten(error)})."
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
            f"{path} is damaged: its content is invalid ({_shorten(error)})."
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
