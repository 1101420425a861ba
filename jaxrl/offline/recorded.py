"""Reader of recorded data: `open_data` finds the format, and checks what it yields."""

import dataclasses
import functools
import glob
import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np

from jaxrl.config.datasets import PREFIX, find_dataset
from jaxrl.core.types import PyTree
from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import DataError
from jaxrl.offline.checks import (
    EpisodeNames,
    MaskChecker,
    OrderChecker,
    PartChecker,
    check_flags,
    check_steps,
    convert_rewards,
    locate,
)
from jaxrl.offline.columns import ACTIONS, OBS, Columns, flatten_paths
from jaxrl.offline.formats import Format, find_format
from jaxrl.offline.formats.rows import MAX_GROUP_BYTES, ImportSettings, iter_rows, unknown_versions
from jaxrl.offline.manifest import (
    MANIFEST,
    Counts,
    FileEntry,
    Header,
    Manifest,
    ReferenceReturns,
    check_file,
    check_one_module,
    find_difference,
    hash_file,
    merge_origins,
    read_manifest,
    sum_counts,
)
from jaxrl.offline.part_files import (
    import_pyarrow,
    iter_npz,
    iter_parquet,
    read_npz_header,
    read_parquet_header,
    sniff,
)
from jaxrl.offline.trial import find_fatal

Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A folder, a file, a pattern such as "data/*.parquet", a data set such as "dataset:cartpole-expert",
or a list of these."""

_NO_DATA = frozenset((MANIFEST, "metadata.json"))
"""Files that say what is in those beside them."""


_MAX_DEEP = 2
"""Largest number of '**' in a pattern, whose time grows with the number of folders to this power."""


def find_files(source: Source) -> list[Path]:
    """Return the files of a source, those of a folder and of a pattern in the order of their names.

    Raises:
        DataError: If there are none, or a data set has not been made.
        UnknownNameError: If there is no data set of a name.
    """
    entries = [source] if isinstance(source, str | os.PathLike) else list(source)
    files: list[Path] = []
    for entry in entries:
        name = os.fspath(entry)
        is_dataset = name.startswith(PREFIX)
        found = _find_entry(find_dataset(name) if is_dataset else Path(name).expanduser())
        if not found:
            raise DataError(
                f"No file matches {os.fspath(entry)!r}: give a folder, a file, or a pattern such as "
                "'data/*.parquet'."
            )
        check_one_module(name, found)
        files.extend(found)
    if not files:
        raise DataError("The source of recorded data is an empty list: give a folder or a file.")
    seen: set[Path] = set()
    for path in files:
        if path in seen:
            raise DataError(f"{path} is given twice: its steps would count twice.")
        seen.add(path)
    return files


def _find_entry(path: Path) -> list[Path]:
    if path.is_dir():
        return _find_in_folder(path)
    if path.exists():
        _check_regular(path)
        return [path.absolute()]
    if path.parts.count("**") > _MAX_DEEP:
        raise DataError(
            f"The pattern {str(path)!r} has more than {_MAX_DEEP} '**', each of which matches all "
            "folders beneath the others: one finds the same files."
        )
    found: list[Path] = []
    for name in sorted(glob.glob(str(path), recursive=True)):
        matched = Path(name)
        found += _find_in_folder(matched) if matched.is_dir() else [matched.absolute()]
    for match in found:
        _check_regular(match)
    return [match for match in found if match.name not in _NO_DATA]


def _check_regular(path: Path) -> None:
    """Check that a path is that of a file, and of nothing that may be waited for."""
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is a pipe or a device: give a file or a folder.")


def _find_in_folder(folder: Path) -> list[Path]:
    """Return the files of a folder and of those in it, without hidden ones."""
    return [
        path.absolute()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.name not in _NO_DATA
        and not any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)
    ]


_MAX_BLOCK, _MAX_BLOCK_BYTES = 1024, 2**24
"""Maximum number of single steps that are checked at once, and of their bytes."""


def _take_every_second(obs: PyTree, first: int) -> PyTree:
    """Return every second row, and the last one once more."""
    return jax.tree.map(lambda x: np.concatenate([x[first::2], x[-1:]]), obs)


Spaces = Mapping[str, gymnasium.Space[Any] | None]
"""Spaces by "observation_space" and "action_space"; None for one that is not known."""

FolderManifest = Manifest | DataError | None
"""Manifest of a folder; None without one, or the reason why it cannot be read."""

PartReader = Callable[[], Iterator[tuple[Path, EpisodePart]]]
"""Function that yields the parts of files as these have them, each with its file."""


class RecordedData:
    """Recorded data of one format, made by `open_data`.

    Attributes:
        kind: "jaxrl", "rllib_columns", "rllib_episodes", "rllib_json", "minari" or "d4rl".
        files: Files, in order.
        observation_space: Space of the observations.
        action_space: Space of the environment's actions.
        actions_are_normalized: Whether the actions are a module's, or else the environment's own.
        has_density: Whether the extra `action_logp` is the log-density of the actions.
        has_past: Whether it is known which steps follow one another. If not, each part has one step.
        has_schema: Whether the columns of files may have other names, which a schema gives.
        columns: Columns of the parts: names, types and shapes of all leaves.
        counts: Numbers of steps, parts and episodes, and returns; None if the files do not say.
        origin: Environment, algorithm, seed and checkpoint, as far as they are known.
        reference: Returns to normalize scores with, if all folders have the same; otherwise None.
    """

    def __init__(
        self,
        kind: str,
        files: Sequence[Path],
        header: Header,
        read: PartReader,
        *,
        has_past: bool,
        has_schema: bool,
        counts: Counts | None,
        entries: Mapping[Path, FileEntry],
        reference: ReferenceReturns | None,
        action_mask_key: str | None,
        is_transformed: bool,
    ) -> None:
        self.kind = kind
        self.files = tuple(files)
        self.observation_space = header.observation_space
        self.action_space = header.action_space
        self.actions_are_normalized = header.actions_are_normalized
        self.has_density = header.has_density
        self.has_past = has_past
        self.has_schema = has_schema
        self.columns = header.columns
        self.counts = counts
        self.origin = header.origin
        self.reference = reference
        self._read = read
        self._entries = entries
        self._checker = PartChecker(
            self.columns,
            self.observation_space,
            self.action_space,
            actions_are_normalized=self.actions_are_normalized,
        )
        self._is_transformed = is_transformed
        self._masks = MaskChecker.make(
            self.observation_space,
            self.action_space,
            action_mask_key,
            actions_are_normalized=self.actions_are_normalized,
        )

    @property
    def step_bytes(self) -> int:
        """Number of bytes of one step in memory, with its observation, action, reward and extras."""
        return self.columns.step_bytes

    def get_fingerprint(self, *, is_quick: bool = False) -> str:
        """Return the digest of all files, in order.

        Args:
            is_quick: Whether a file without a recorded digest has that of its name and size, and is
                not read.
        """
        digest = hashlib.sha256()
        for path in self.files:
            entry = self._entries.get(path)
            if entry is not None:
                digest.update(entry.sha256.encode())
            elif is_quick:
                digest.update(f"{path.name} {path.stat().st_size}".encode())
            else:
                digest.update(hash_file(path).encode())
        return digest.hexdigest()

    def iter_parts(self) -> Iterator[EpisodePart]:
        """Yield the parts of all episodes, those of one episode in order of time.

        An id that begins again in another folder or by another writer is that of another episode,
        and has a number after it.

        Leaves are typed as in a program and may be read-only. `version` is -1 where it is unknown.
        `carry` has one row, the state before the first step, or is None: at an episode's start, or
        for a policy without memory; `columns.restore_structure` gives it the policy's classes.

        Raises:
            DataError: If a file is damaged or has changed, a value is not in its space or not finite,
                an action is illegal, or the parts of an episode overlap or miss a step.
        """
        if not self.has_past:
            yield from self._iter_single_steps()
            return
        order = OrderChecker()
        names = EpisodeNames(order)
        runs = {path: entry.run for path, entry in self._entries.items()}
        is_divided = len({(path.parent, runs.get(path)) for path in self.files}) > 1
        for path, part in self._read():
            if is_divided:
                part = names.rename(part, path.parent, runs.get(path))
            checked = self._check_read(part, str(path))
            order.check(part, str(path))
            yield checked

    def _iter_single_steps(self) -> Iterator[EpisodePart]:
        """Yield parts of one step each, of which many are checked at once."""
        parts = self._read()
        number = max(1, min(_MAX_BLOCK, _MAX_BLOCK_BYTES // self.step_bytes))
        while block := list(itertools.islice(parts, number)):
            try:
                checked = self._check_together([part for _, part in block])
            except ValueError:  # to be named, or different in their structure
                checked = [self._check_read(part, str(path)) for path, part in block]
            yield from checked

    def _check_together(self, parts: Sequence[EpisodePart]) -> list[EpisodePart]:
        """Return parts of one step each, after checks as of two episodes, with either observation."""
        for part in parts:
            check_flags(part, "")

        def lay(name: str) -> PyTree:
            trees = [getattr(part, name) for part in parts]
            return jax.tree.map(lambda *x: np.concatenate(x), *trees)

        fields = {name: lay(name) for name in ("action", "reward", "extras", "version")}
        like, obs = dataclasses.replace(parts[0], terminated=False, truncated=False), lay("obs")
        acted_on, later = (
            dataclasses.replace(like, obs=_take_every_second(obs, i), **fields) for i in (0, 1)
        )
        first, last = self._check_read(acted_on, ""), self._check(later, self.columns, "")
        ends = jax.tree.map(lambda a, b: np.stack([a[:-1], b[:-1]], 1), first.obs, last.obs)
        others = jax.tree.map(lambda leaf: leaf[:, None], (first.action, first.extras))
        return [
            dataclasses.replace(part, obs=row[0], action=row[1], extras=row[2])
            for part, row in zip(parts, iter_rows((ends, *others)), strict=True)
        ]

    def check_changed(self, part: EpisodePart, where: str) -> EpisodePart:
        """Return a part that a function has made of one of these, typed as in a program.

        Its extras may be others.

        Args:
            part: Part of an episode.
            where: Name of the function, for error messages.

        Raises:
            DataError: If an array has another length or shape, a value is not in its space or not
                finite, or an action is illegal.
        """
        reward, version = np.asarray(part.reward), np.asarray(part.version)
        if reward.ndim == 1 and version.shape != reward.shape:  # nothing is learned from them
            version = unknown_versions(len(reward))
        part = dataclasses.replace(part, reward=reward, version=version)
        check_steps(part, where)
        kept = Columns((*self.columns.select(OBS), *self.columns.select(ACTIONS)))
        plain = dataclasses.replace(part, reward=convert_rewards(reward), extras={}, carry=None)
        checked = self._check(plain, kept, where)
        extras = jax.tree.map(np.asarray, part.extras)
        for name, leaf in flatten_paths(extras):
            if leaf.shape[:1] != reward.shape:
                raise DataError(
                    f"{locate(part, where)}: {'.'.join(map(str, name))} must have {len(reward)} rows, "
                    f"got the shape {leaf.shape}."
                )
        return self._check_legal(dataclasses.replace(checked, extras=extras), where)

    def _check(self, part: EpisodePart, columns: Columns, where: str) -> EpisodePart:
        """Return a part typed as in a program, after checks of its values."""
        try:
            arrays = columns.flatten(part)
        except DataError as error:
            raise DataError(f"{locate(part, where)}: {error}") from error
        self._checker.check(part, arrays, where)
        return dataclasses.replace(part, **columns.unflatten(arrays))

    def _check_read(self, part: EpisodePart, where: str) -> EpisodePart:
        """Return a part that was read, typed as in a program, after checks of its values."""
        checked = self._check(part, self.columns, where)
        return checked if self._is_transformed else self._check_legal(checked, where)

    def _check_legal(self, part: EpisodePart, where: str) -> EpisodePart:
        """Return a part with values in their spaces, if its actions are legal."""
        if self._masks is not None:
            self._masks.check(part, where)
        return part


def open_data(
    source: Source,
    *,
    observation_space: gymnasium.Space[Any] | None = None,
    action_space: gymnasium.Space[Any] | None = None,
    actions_are_normalized: bool | None = None,
    schema: Mapping[str, str] | None = None,
    ignore_final_observation: bool = False,
    max_group_bytes: int = MAX_GROUP_BYTES,
    ignore_unused_schema: bool = False,
    action_mask_key: str | None = None,
    is_transformed: bool = False,
    is_tried: bool = False,
) -> RecordedData:
    """Open recorded data, of which the format is found by content.

    Formats are those of `EpisodeWriter`, RLlib's (columns and episodes in Parquet, lines of JSON),
    Minari's (HDF5), and files of arrays as D4RL's (HDF5 and `.npz`).

    Args:
        source: A folder, a file, a pattern such as "data/*.parquet", or a list of these.
        observation_space: Space of the observations. Data that have their own must have this one;
            those that have none need it.
        action_space: Space of the environment's actions, likewise.
        actions_are_normalized: Whether actions are those of a module, before the action connectors,
            or else the environment's own; None for what the data say, and False if they do not.
        schema: Column of the file by RLlib's name of it, for those with another name.
        ignore_final_observation: Whether the last step of an episode that was not terminated is
            dropped where the observation after it is not recorded; otherwise, that is an error.
        max_group_bytes: Limit of the bytes that a file may declare to be read at once: a row group,
            or all arrays of an `.npz` file.
        ignore_unused_schema: Whether a schema may be given for a format in which columns have fixed
            names; otherwise, that is an error.
        action_mask_key: Key of the action mask in a Dict of observations, for which the actions that
            are read must be legal; None if they need not be.
        is_transformed: Whether a function changes the parts, so that those must be legal that
            `check_changed` is given, and not those that are read.
        is_tried: Whether Parquet files without a recorded digest need no trial in a process of their
            own, as another process has opened them.

    Raises:
        DataError: If no file matches, a format is unknown or newer, the spaces differ, a schema has
            no effect, or there are no steps.
    """
    files = find_files(source)
    given = {"observation_space": observation_space, "action_space": action_space}
    manifests = _read_manifests(files)
    if not is_tried:
        _try_unlisted(files, manifests)
    headers = _read_headers(files, manifests, max_group_bytes)
    found = None if headers else find_format(files, schema or {}, max_group_bytes)
    kind, has_past, has_schema = (
        ("jaxrl", True, False) if found is None else (found.kind, found.has_past, found.has_schema)
    )
    if schema and not ignore_unused_schema and not has_schema:
        raise DataError(
            f"schema={schema!r} has no effect on {files[0]}, a file of the format {kind}, in which "
            "columns have fixed names: leave it out."
        )
    counts, entries, reference = None, dict[Path, FileEntry](), None
    if found is None:
        _check_agreement(headers, given, actions_are_normalized)
        header = _merge_headers(list(headers.values()))
        files, entries = _select_listed(files, manifests)
        if len(entries) == len(files):
            counts = sum_counts(entry.counts for entry in entries.values())
        if not files or (counts is not None and not counts.num_steps):
            folder = next(iter(headers)).parent
            raise DataError(f"{folder} has no steps: record some, or give another folder.")
        reference = _merge_references(manifests.values())
        read = _make_reader(files, entries, header.columns, max_group_bytes)
    else:
        spaces = _choose_spaces(files[0], found, given)
        settings = ImportSettings(
            **spaces,
            schema=schema or {},
            ignore_final_observation=ignore_final_observation,
            max_group_bytes=max_group_bytes,
        )
        header = _make_header(files, found, settings, are_normalized=bool(actions_are_normalized))
        read = functools.partial(found.read, files, settings)
    return RecordedData(
        kind,
        files,
        header,
        read,
        has_past=has_past,
        has_schema=has_schema,
        counts=counts,
        entries=entries,
        reference=reference,
        action_mask_key=action_mask_key,
        is_transformed=is_transformed,
    )


def read_reference(source: Source) -> ReferenceReturns | None:
    """Return the returns to normalize scores with, of which no file but manifests is read.

    Raises:
        DataError: If no file matches, or a manifest is damaged.
    """
    folders = {path.parent for path in find_files(source)}
    return _merge_references([read_manifest(folder) for folder in folders])


def _merge_references(manifests: Iterable[FolderManifest]) -> ReferenceReturns | None:
    """Return the returns that all manifests have; None if they differ."""
    references = {m.reference if isinstance(m, Manifest) else None for m in manifests}
    return references.pop() if len(references) == 1 else None


def _read_manifests(files: Sequence[Path]) -> dict[Path, FolderManifest]:
    """Return the manifest of each folder."""
    found: dict[Path, FolderManifest] = {}
    for folder in {path.parent: None for path in files}:
        try:
            found[folder] = read_manifest(folder)
        except DataError as error:  # of no matter where the files are of another format
            found[folder] = error
    return found


def _get_entry(path: Path, manifests: Mapping[Path, FolderManifest]) -> FileEntry | None:
    """Return the entry of a file in its folder's manifest, if there is one."""
    manifest = manifests[path.parent]
    return manifest.files.get(path.name) if isinstance(manifest, Manifest) else None


def _try_unlisted(files: Sequence[Path], manifests: Mapping[Path, FolderManifest]) -> None:
    """Try the Parquet files of which no digest says that they are as they were written.

    Raises:
        DataError: If one would end this process.
    """
    unlisted = [path for path in files if _get_entry(path, manifests) is None]
    tried = [path for path in unlisted if sniff(path) == "parquet"]
    if not tried:
        return
    import_pyarrow()
    try:
        fatal = find_fatal(tried)
    except OSError as error:
        raise DataError(
            f"{tried[0]} cannot be tried in a process of its own ({error.strerror or error}), and "
            "no manifest has its digest: give it enough memory and processes."
        ) from error
    if fatal is not None:
        path, end = fatal
        raise DataError(f"{path} is damaged: it {end}.")


def _read_headers(
    files: Sequence[Path], manifests: Mapping[Path, FolderManifest], max_group_bytes: int
) -> dict[Path, Header]:
    """Return the headers of files that `EpisodeWriter` wrote; empty if they have another format.

    A file that a manifest lists is not opened before its digest was compared: its header is the
    manifest's.
    """
    headers: dict[Path, Header] = {}
    for path in files:
        manifest = manifests[path.parent]
        if isinstance(manifest, Manifest) and path.name in manifest.files:
            headers[path] = manifest.header
            continue
        read = {"parquet": read_parquet_header, "zip": read_npz_header}.get(sniff(path))
        data = None if read is None else read(path, max_group_bytes)
        if data is None:
            continue
        if isinstance(manifest, DataError):
            raise manifest
        headers[path] = Header.from_data(data, path)
    if headers and len(headers) < len(files):
        other = next(path for path in files if path not in headers)
        raise DataError(
            f"{other} has another format than {next(iter(headers))}: open them one after the other."
        )
    return headers


def _check_agreement(
    headers: Mapping[Path, Header], given: Spaces, actions_are_normalized: bool | None
) -> None:
    """Check that files can be read as one set of data, and are as a caller says."""
    first_path, first = next(iter(headers.items()))
    for path, header in headers.items():
        for name, space in given.items():
            _check_space(path, name, getattr(header, name), space)
        for name in given:
            _check_space(path, name, getattr(header, name), getattr(first, name), first_path)
        if header.actions_are_normalized != first.actions_are_normalized:
            raise DataError(
                f"{path} has actions_are_normalized={header.actions_are_normalized}, and {first_path} "
                f"has {first.actions_are_normalized}: open them one after the other."
            )
        different = set(header.columns.leaves) ^ set(first.columns.leaves)
        if different:
            raise DataError(
                f"{path} and {first_path} differ in the column {min(c.name for c in different)!r}: "
                "open them one after the other."
            )
        if actions_are_normalized not in (None, header.actions_are_normalized):
            raise DataError(
                f"actions_are_normalized={actions_are_normalized} contradicts {path}, which says "
                f"{header.actions_are_normalized}: leave it out."
            )


def _check_space(
    path: Path,
    name: str,
    recorded: gymnasium.Space[Any] | None,
    wanted: gymnasium.Space[Any] | None,
    where: object = "the environment or the settings",
) -> None:
    """Check that a file's space is the one that is found elsewhere, where both are known."""
    if recorded is None or wanted is None:
        return
    problem = find_difference(recorded, wanted, name)
    if problem is not None:
        raise DataError(f"{path} has other spaces: {problem} in {where}.")


def _choose_spaces(path: Path, found: Format, given: Spaces) -> dict[str, gymnasium.Space[Any]]:
    """Return the spaces of a file of another library, or else those that were given."""
    recorded = dict(zip(given, found.read_spaces(path), strict=True))
    for name, space in given.items():
        _check_space(path, name, recorded[name], space)
    chosen: dict[str, gymnasium.Space[Any]] = {}
    for name, space in given.items():
        either = space if recorded[name] is None else recorded[name]
        if either is None:
            raise DataError(
                f"{path} does not say its {name}: pass observation_space and action_space, or env."
            )
        chosen[name] = either
    return chosen


def _merge_headers(headers: Sequence[Header]) -> Header:
    """Return the header of files that agree."""
    return dataclasses.replace(
        headers[0],
        has_density=all(header.has_density for header in headers),
        origin=merge_origins([header.origin for header in headers]),
    )


def _make_header(
    files: Sequence[Path], found: Format, settings: ImportSettings, *, are_normalized: bool
) -> Header:
    """Return the header of files of another library, whose columns are those of the first part."""
    first = next((part for _, part in found.read(files, settings)), None)
    if first is None:
        raise DataError(f"{files[0]} has no steps: record some, or give other files.")
    spaces = settings.observation_space, settings.action_space
    return Header(
        observation_space=spaces[0],
        action_space=spaces[1],
        columns=Columns.from_part(first, *spaces, actions_are_normalized=are_normalized),
        has_density="action_logp" in first.extras,
        actions_are_normalized=are_normalized,
        origin=found.read_origin(files[0]),
    )


def _select_listed(
    files: Sequence[Path], manifests: Mapping[Path, FolderManifest]
) -> tuple[list[Path], dict[Path, FileEntry]]:
    """Return the files, without those that their folder's manifest does not list, and their entries.

    A file that is not listed yet is being written.

    Raises:
        DataError: If a listed file is missing from its folder.
    """
    known = {folder: m for folder, m in manifests.items() if isinstance(m, Manifest)}
    for folder, manifest in known.items():
        for name in manifest.files:
            if not (folder / name).is_file():
                raise DataError(f"{folder / name} is missing, and its manifest lists it.")
    found = {path: _get_entry(path, manifests) for path in files}
    listed = [p for p in files if found[p] is not None or p.parent not in known]
    return listed, {path: entry for path, entry in found.items() if entry is not None}


def _make_reader(
    files: Sequence[Path],
    entries: Mapping[Path, FileEntry],
    columns: Columns,
    max_group_bytes: int,
) -> PartReader:
    """Return the reader of files that `EpisodeWriter` wrote."""
    verified: set[Path] = set()

    def read() -> Iterator[tuple[Path, EpisodePart]]:
        for path in files:
            if path in entries and path not in verified:  # before it is parsed
                check_file(path, entries[path])
                verified.add(path)
            iter_parts = iter_parquet if sniff(path) == "parquet" else iter_npz
            for part in iter_parts(path, columns, max_group_bytes):
                yield path, part

    return read
