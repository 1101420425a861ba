"""Reader of recorded data: `open_data` finds the format, and checks what it yields."""

import dataclasses
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np

from jaxrl.core.types import PyTree
from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import DataError
from jaxrl.offline import npz, parquet
from jaxrl.offline.agreement import check_normalized, check_same, check_spaces, choose_space
from jaxrl.offline.checks import (
    EpisodeNames,
    OrderChecker,
    PartChecker,
    check_flags,
    check_steps,
    convert_rewards,
    locate,
)
from jaxrl.offline.columns import ACTIONS, OBS, Columns, flatten_paths
from jaxrl.offline.formats.detect import Foreign, find_foreign
from jaxrl.offline.formats.rows import iter_rows
from jaxrl.offline.formats.settings import MAX_GROUP_BYTES, ImportSettings, unknown_versions
from jaxrl.offline.manifest import (
    Counts,
    FileEntry,
    Header,
    Manifest,
    ReferenceReturns,
    check_file,
    hash_file,
    merge_origins,
    read_manifest,
    sum_counts,
)
from jaxrl.offline.masks import MaskChecker
from jaxrl.offline.sources import Source, find_files, sniff
from jaxrl.offline.trial import find_fatal

OWN = "jaxrl"
_MAX_BLOCK, _MAX_BLOCK_BYTES = 1024, 2**24
"""Maximum number of single steps that are checked at once, and of their bytes."""


def _take_every_second(obs: PyTree, first: int) -> PyTree:
    """Return every second row, and the last one once more."""
    return jax.tree.map(lambda x: np.concatenate([x[first::2], x[-1:]]), obs)


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
        *,
        counts: Counts | None,
        entries: Mapping[Path, FileEntry],
        foreign: Foreign | None,
        settings: ImportSettings,
        reference: ReferenceReturns | None = None,
        action_mask_key: str | None = None,
        is_transformed: bool = False,
    ) -> None:
        self.kind = kind
        self.files = tuple(files)
        self.observation_space = header.observation_space
        self.action_space = header.action_space
        self.actions_are_normalized = header.actions_are_normalized
        self.has_density = header.has_density
        self.has_past = foreign is None or foreign.has_past
        self.columns = header.columns
        self.counts = counts
        self.origin = header.origin
        self.reference = reference
        self._entries = entries
        self._foreign = foreign
        self._settings = settings
        self._verified: set[Path] = set()
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
    def has_schema(self) -> bool:
        """Return whether the columns of files may have other names, which a schema gives."""
        return self._foreign is not None and self._foreign.has_schema

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

    def _read(self) -> Iterator[tuple[Path, EpisodePart]]:
        """Yield the parts as the files have them, each with its file."""
        if self._foreign is not None:
            yield from self._foreign.read(self.files, self._settings)
            return
        for path in self.files:
            entry = self._entries.get(path)
            if entry is not None and path not in self._verified:  # before it is parsed
                check_file(path, entry)
                self._verified.add(path)
            for part in _iter_own(path, self.columns, self._settings.max_group_bytes):
                yield path, part


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
    own = _find_own(files, manifests, max_group_bytes)
    foreign = None if own else find_foreign(files, schema or {}, max_group_bytes)
    if schema and not ignore_unused_schema and not (foreign and foreign.has_schema):
        raise DataError(
            f"schema={schema!r} has no effect on {files[0]}, a file of the format "
            f"{foreign.kind if foreign else OWN}, in which columns have fixed names: leave it out."
        )
    if own is not None:
        return _open_own(
            files,
            own,
            manifests,
            given,
            actions_are_normalized,
            max_group_bytes,
            action_mask_key,
            is_transformed=is_transformed,
        )
    assert foreign is not None
    spaces = foreign.read_spaces(files[0])
    check_spaces(files[0], dict(zip(given, spaces, strict=True)), given)
    settings = ImportSettings(
        observation_space=choose_space("observation_space", spaces[0], observation_space, files[0]),
        action_space=choose_space("action_space", spaces[1], action_space, files[0]),
        schema=schema or {},
        ignore_final_observation=ignore_final_observation,
        max_group_bytes=max_group_bytes,
    )
    first = next((part for _, part in foreign.read(files, settings)), None)
    if first is None:
        raise DataError(f"{files[0]} has no steps: record some, or give other files.")
    columns = Columns.from_part(
        first,
        settings.observation_space,
        settings.action_space,
        actions_are_normalized=bool(actions_are_normalized),
    )
    header = Header(
        observation_space=settings.observation_space,
        action_space=settings.action_space,
        columns=columns,
        has_density="action_logp" in first.extras,
        actions_are_normalized=bool(actions_are_normalized),
        origin=foreign.read_origin(files[0]),
    )
    return RecordedData(
        foreign.kind,
        files,
        header,
        counts=None,
        entries={},
        foreign=foreign,
        settings=settings,
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


def _merge_references(manifests: Iterable[Manifest | None]) -> ReferenceReturns | None:
    """Return the returns that all manifests have; None if they differ."""
    references = {manifest.reference if manifest else None for manifest in manifests}
    return references.pop() if len(references) == 1 else None


def _read_manifests(files: Sequence[Path]) -> dict[Path, Manifest | DataError | None]:
    """Return the manifest of each folder; None without one, or the reason why it cannot be read."""
    found: dict[Path, Manifest | DataError | None] = {}
    for folder in {path.parent: None for path in files}:
        try:
            found[folder] = read_manifest(folder)
        except DataError as error:  # of no matter where the files are of another format
            found[folder] = error
    return found


def _get_entry(
    path: Path, manifests: Mapping[Path, Manifest | DataError | None]
) -> FileEntry | None:
    """Return the entry of a file in its folder's manifest, if there is one."""
    manifest = manifests[path.parent]
    return manifest.files.get(path.name) if isinstance(manifest, Manifest) else None


def _try_unlisted(
    files: Sequence[Path], manifests: Mapping[Path, Manifest | DataError | None]
) -> None:
    """Try the Parquet files of which no digest says that they are as they were written.

    Raises:
        DataError: If one would end this process.
    """
    unlisted = [path for path in files if _get_entry(path, manifests) is None]
    tried = [path for path in unlisted if sniff(path) == "parquet"]
    if not tried:
        return
    parquet.import_pyarrow()
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


def _find_own(
    files: Sequence[Path],
    manifests: Mapping[Path, Manifest | DataError | None],
    max_group_bytes: int,
) -> dict[Path, Header] | None:
    """Return the headers of files of the own format; None if they have another one.

    A file that a manifest lists is not opened before its digest was compared: its header is the
    manifest's.
    """
    headers: dict[Path, Header] = {}
    for path in files:
        manifest = manifests[path.parent]
        if isinstance(manifest, Manifest) and path.name in manifest.files:
            headers[path] = manifest.header
            continue
        kind = sniff(path)
        read = {"parquet": parquet.read_parquet_header, "zip": npz.read_npz_header}.get(kind)
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
    return headers or None


def _open_own(
    files: Sequence[Path],
    headers: Mapping[Path, Header],
    manifests: Mapping[Path, Manifest | DataError | None],
    given: Mapping[str, gymnasium.Space[Any] | None],
    actions_are_normalized: bool | None,
    max_group_bytes: int,
    action_mask_key: str | None,
    *,
    is_transformed: bool,
) -> RecordedData:
    first = headers[files[0]]
    for path, header in headers.items():
        spaces = {
            "observation_space": header.observation_space,
            "action_space": header.action_space,
        }
        check_spaces(path, spaces, given)
        check_same(path, header, files[0], first)
        check_normalized(path, header, actions_are_normalized)
    known = {folder: m if isinstance(m, Manifest) else None for folder, m in manifests.items()}
    listed, entries = _select_listed(files, known)
    counts = None
    if len(entries) == len(listed):
        counts = sum_counts(entry.counts for entry in entries.values())
    if not listed or (counts is not None and not counts.num_steps):
        raise DataError(f"{files[0].parent} has no steps: record some, or give another folder.")
    merged = dataclasses.replace(
        first,
        has_density=all(header.has_density for header in headers.values()),
        origin=merge_origins([header.origin for header in headers.values()]),
    )
    settings = ImportSettings(
        observation_space=first.observation_space,
        action_space=first.action_space,
        max_group_bytes=max_group_bytes,
    )
    return RecordedData(
        OWN,
        listed,
        merged,
        counts=counts,
        entries=entries,
        foreign=None,
        settings=settings,
        reference=_merge_references(known.values()),
        action_mask_key=action_mask_key,
        is_transformed=is_transformed,
    )


def _select_listed(
    files: Sequence[Path], manifests: Mapping[Path, Manifest | None]
) -> tuple[list[Path], dict[Path, FileEntry]]:
    """Return the files, without those that their folder's manifest does not list, and their entries.

    A file that is not listed yet is being written.

    Raises:
        DataError: If a listed file is missing from its folder.
    """
    listed: list[Path] = []
    entries: dict[Path, FileEntry] = {}
    for path in files:
        manifest = manifests[path.parent]
        if manifest is None:
            listed.append(path)
        elif path.name in manifest.files:
            listed.append(path)
            entries[path] = manifest.files[path.name]
    for folder, manifest in manifests.items():
        missing = [
            name for name in (manifest.files if manifest else ()) if not (folder / name).is_file()
        ]
        if missing:
            raise DataError(f"{folder / missing[0]} is missing, and its manifest lists it.")
    return listed, entries


def _iter_own(path: Path, columns: Columns, max_group_bytes: int) -> Iterator[EpisodePart]:
    read = parquet.iter_parquet if sniff(path) == "parquet" else npz.iter_npz
    return read(path, columns, max_group_bytes)
