"""Writer of recorded data: users' own logs, and parts of episodes from runners."""

import contextlib
import os
import tempfile
import uuid
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import gymnasium
import jax
import numpy as np

from jaxrl.core.spaces import is_nested
from jaxrl.core.types import PyTree
from jaxrl.episodes.lookback import LookbackBuffer, stack_items
from jaxrl.episodes.packing import EpisodePart
from jaxrl.episodes.single_agent import SingleAgentEpisode
from jaxrl.errors import DataError
from jaxrl.offline.checks import OrderChecker, PartChecker, convert_rewards, locate
from jaxrl.offline.columns import Columns, find_column_difference
from jaxrl.offline.manifest import (
    MANIFEST,
    Counts,
    EpisodeCounter,
    FileEntry,
    FolderLock,
    Header,
    Manifest,
    Origin,
    ReferenceReturns,
    check_agent_columns,
    check_same_module,
    encode_space,
    find_difference,
    find_next_number,
    read_manifest,
    set_module,
)
from jaxrl.offline.part_files import Arrays, PartFile, choose_format, count_group_steps

MAX_FILE_BYTES = 64 * 2**20


class EpisodeWriter:
    """Writer of a folder of recorded data, to learn from offline.

    ```python
    with EpisodeWriter("data", env.observation_space, env.action_space) as writer:
        writer.write(episode)  # a SingleAgentEpisode
    ```

    The folder has files of parts of episodes, of at most `max_file_bytes` each, and a
    `manifest.json` with the spaces, counts and digests. A file appears when it is complete, and the
    manifest after it: what was written before an interruption remains readable. Without pyarrow
    (extra `offline`) the files are `.npz` instead of Parquet. A folder has one writer at a time.

    Args:
        path: Folder, which is created. One that has recorded data of the same spaces is appended to.
        observation_space: Space of the observations.
        action_space: Space of the environment's actions.
        env: Id of the environment, to record.
        env_params: Parameters of the environment, to record; numbers, texts, lists and dicts.
        algorithm: Name of the algorithm, to record.
        seed: Seed of the run, to record.
        checkpoint_sha256: Digest of the checkpoint that the policy came from, to record.
        module_id: Module whose steps these are, of a run of several agents; parts then have their
            agents recorded.
        has_density: Whether the extra `action_logp` is the log-density of the actions, which
            importance sampling needs; None for whether there is such an extra.
        actions_are_normalized: Whether actions are those of a module, before the action connectors
            (`normalize_actions` maps [-1, 1] to the bounds), or else the environment's own.
        state_like: Tree of arrays `[N, ...]` like the state of a policy with memory, if parts have one.
        file_format: "parquet", "npz", or "auto" for Parquet if pyarrow is installed.
        max_file_bytes: Size at which a file is complete.
        max_rows_per_file: Maximum number of rows of a file, each a part of an episode; None for any.

    Raises:
        DataError: If the folder has other data or another writer, or cannot be written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        env: str | None = None,
        env_params: Mapping[str, Any] | None = None,
        algorithm: str | None = None,
        seed: int | None = None,
        checkpoint_sha256: str | None = None,
        module_id: str | None = None,
        has_density: bool | None = None,
        actions_are_normalized: bool = False,
        state_like: PyTree = None,
        file_format: str = "auto",
        max_file_bytes: int = MAX_FILE_BYTES,
        max_rows_per_file: int | None = None,
    ) -> None:
        self.path = Path(path).expanduser().absolute()
        self._spaces = observation_space, action_space
        for space, name in zip(self._spaces, ("observation_space", "action_space"), strict=True):
            encode_space(space, name)
        self._origin = Origin(
            env=env,
            env_params=env_params,
            algorithm=algorithm,
            seed=seed,
            checkpoint_sha256=checkpoint_sha256,
            module_id=module_id,
        )
        self._has_density = has_density
        self._is_normalized = actions_are_normalized
        self._state_like = state_like
        self._reference: ReferenceReturns | None = None
        self._format = choose_format(file_format)
        self._max_bytes = _check_positive("max_file_bytes", max_file_bytes)
        self._max_rows = max_rows_per_file
        if max_rows_per_file is not None:
            _check_positive("max_rows_per_file", max_rows_per_file)
        self._header: Header | None = None
        self._checker: PartChecker | None = None
        self._order = OrderChecker()
        self._counter = EpisodeCounter()
        self._files: dict[str, FileEntry] = {}
        self._file: PartFile | None = None
        self._group: list[tuple[EpisodePart, Arrays]] = []
        self._group_steps = 0
        self._run = uuid.uuid4().hex
        self._is_closed = False
        self._is_after_others = False
        self._lock: FolderLock | None = None
        try:
            self._open_folder()
        except BaseException:
            self._unlock()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def counts(self) -> Counts:
        """Return the counts of the folder, of all that was added."""
        return self._counter.total

    def write(self, episode: SingleAgentEpisode) -> None:
        """Add an episode or a chunk of one; infos are not recorded.

        A chunk that is not done may be followed by the next one, with the same id. A chunk without
        steps adds nothing.

        Raises:
            DataError: If it is none, a value is not in its space, or the folder cannot be written.
        """
        if not hasattr(episode, "extra_model_outputs"):  # RLlib's episodes have them, too
            raise DataError(
                f"write() takes a SingleAgentEpisode of jaxrl.episodes, got a {type(episode).__name__}; "
                "those of several agents have a folder for each module."
            )
        if not len(episode):
            return
        where = f"Episode {episode.id_!r}"
        extras = {
            name: _stack(buffer, f"{where}: {name}", is_array=True)
            for name, buffer in episode.extra_model_outputs.items()
        }
        is_simple, is_simple_action = (not is_nested(space) for space in self._spaces)
        rewards = _stack(episode.rewards, f"{where}: rewards", is_array=True)
        part = EpisodePart(
            episode_id=str(episode.id_),
            t_started=episode.t_started,
            obs=_stack(episode.observations, f"{where}: obs", is_array=is_simple),
            action=_stack(episode.actions, f"{where}: actions", is_array=is_simple_action),
            reward=convert_rewards(np.asarray(rewards)),
            extras=extras,
            version=np.full(len(episode), -1, np.int64),
            terminated=episode.is_terminated,
            truncated=episode.is_truncated,
            agent_id=None if episode.agent_id is None else str(episode.agent_id),
            module_id=episode.module_id,
            multi_agent_episode_id=episode.multi_agent_episode_id,
        )
        self.add_parts([part])

    def add_parts(self, parts: Sequence[EpisodePart]) -> None:
        """Add parts of episodes; those of one episode are in order of time.

        All parts have the same extras. The first row of `carry` is recorded.

        Raises:
            DataError: If a value is not in its space, a part does not follow the one before, or the
                folder cannot be written.
        """
        if self._is_closed:
            raise DataError(f"The writer of {self.path} is closed: open a new one to append.")
        for given in parts:
            if not len(given):
                continue
            header = self._header or self._start(given)
            part = set_module(given, header)
            assert self._checker is not None
            if self._is_after_others:
                self.check_columns(part)
                self._is_after_others = False
            try:
                arrays = header.columns.flatten(part)
            except DataError as error:
                raise DataError(f"{locate(part, '')}: {error}") from error
            self._checker.check(part, arrays, "")
            self._order.check(part, "")
            self._add(part, header.columns)

    def check_columns(self, part: EpisodePart) -> None:
        """Check that the folder has no data yet, or data with the columns of a part.

        Raises:
            DataError: If it has other data.
        """
        if self._header is None:
            return
        columns = Columns.from_part(part, *self._spaces, actions_are_normalized=self._is_normalized)
        problem = find_column_difference(self._header.columns, columns)
        if problem is not None:
            raise DataError(f"{self.path} has other data: {problem}; record into another folder.")

    def flush(self) -> None:
        """Complete the current file, so that everything added can be read.

        Raises:
            DataError: If the folder cannot be written.
        """
        self._write_group()
        self._finish_file()

    def close(self) -> None:
        """Complete the current file; nothing can be added afterwards.

        Raises:
            DataError: If the folder cannot be written.
        """
        if not self._is_closed:
            self._is_closed = True
            try:
                self.flush()
            finally:
                self._unlock()

    def get_state(self) -> dict[str, Any]:
        """Complete the current file, and return what `set_state` needs, as plain data.

        Raises:
            DataError: If the folder cannot be written.
        """
        self.flush()
        own = {name: entry for name, entry in self._files.items() if entry.run == self._run}
        files = {name: entry.sha256 for name, entry in own.items()}
        unfinished = {name: list(state) for name, state in self._counter.unfinished.items()}
        return {"run": self._run, "files": files, "unfinished": unfinished}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go back to the time of `get_state`: files that its run completed since are removed.

        A run that is restored to a checkpoint records these steps again. Files of other runs stay.

        Raises:
            DataError: If a file of that time is missing or another one, or the folder cannot be
                written.
        """
        self.check_state(state)
        self._discard()
        run, kept = state.get("run"), cast("Mapping[str, str]", state["files"])
        removed = [
            name for name, entry in self._files.items() if name not in kept and entry.run == run
        ]
        unfinished = {name: tuple(values) for name, values in state["unfinished"].items()}
        self._run = self._run if run is None else str(run)
        self._files = {name: entry for name, entry in self._files.items() if name not in removed}
        self._counter = EpisodeCounter(
            self._files.values(), {**self._counter.unfinished, **unfinished}
        )
        self._order = OrderChecker()
        with self._translating_errors():
            if removed:
                self._write_manifest()
            for name in removed:
                (self.path / name).unlink(missing_ok=True)

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Check that the folder has the files of the time of `get_state`.

        Raises:
            DataError: If one is missing or another one.
        """
        for name, digest in cast("Mapping[str, str]", state["files"]).items():
            entry, is_there = self._files.get(name), (self.path / name).is_file()
            if entry is None or entry.sha256 != digest or not is_there:
                raise DataError(
                    f"{self.path / name} is not the file that the run had recorded: choose a new "
                    "folder."
                )

    def _open_folder(self) -> None:
        with self._translating_errors():
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = FolderLock(self.path)
            manifest = read_manifest(self.path)
            if manifest is None:
                others = [entry for entry in self.path.iterdir() if not entry.name.startswith(".")]
                if others:
                    raise DataError(
                        f"{self.path} has files and no {MANIFEST}, {others[0].name!r} among them: "
                        "record into an empty or a new folder."
                    )
            with tempfile.TemporaryFile(dir=self.path):
                pass
        if manifest is not None:
            self._continue(manifest)
            self._is_after_others = True

    def _continue(self, manifest: Manifest) -> None:
        """Append to the data of a manifest."""
        header = manifest.header
        recorded = header.observation_space, header.action_space
        for mine, other, name in zip(
            recorded, self._spaces, ("observation_space", "action_space"), strict=True
        ):
            problem = find_difference(mine, other, name)
            if problem is not None:
                raise DataError(
                    f"{self.path} has other data: {problem} here; record into another folder."
                )
        if header.actions_are_normalized != self._is_normalized:
            raise DataError(
                f"{self.path} has actions_are_normalized={header.actions_are_normalized}, and here it "
                f"is {self._is_normalized}: record into another folder."
            )
        check_same_module(self.path, header.origin.module_id, self._origin.module_id)
        self._origin = header.origin
        self._reference = manifest.reference
        self._files = dict(manifest.files)
        self._counter = EpisodeCounter(self._files.values(), manifest.unfinished)
        if self._has_density is None:
            self._has_density = header.has_density
        elif self._has_density != header.has_density:
            raise DataError(
                f"{self.path} has has_density={header.has_density}, and here it is "
                f"{self._has_density}: record into another folder."
            )
        self._set_header(header)

    def _start(self, part: EpisodePart) -> Header:
        """Choose the columns by the first part."""
        observation_space, action_space = self._spaces
        columns = Columns.from_part(
            part,
            observation_space,
            action_space,
            actions_are_normalized=self._is_normalized,
            state_like=self._state_like,
        )
        check_agent_columns(columns, self._origin.module_id)
        has_logp = "action_logp" in part.extras
        if self._has_density and not has_logp:
            raise DataError(
                "has_density=True needs the extra 'action_logp', which parts do not have."
            )
        header = Header(
            observation_space=observation_space,
            action_space=action_space,
            columns=columns,
            has_density=has_logp if self._has_density is None else self._has_density,
            actions_are_normalized=self._is_normalized,
            origin=self._origin,
        )
        self._set_header(header)
        return header

    def _set_header(self, header: Header) -> None:
        self._header = header
        self._checker = PartChecker(
            header.columns,
            header.observation_space,
            header.action_space,
            actions_are_normalized=header.actions_are_normalized,
        )

    def _add(self, part: EpisodePart, columns: Columns) -> None:
        """Add a checked part to the current row group, split where the group is full."""
        limit = count_group_steps(columns.step_bytes)
        rest: EpisodePart | None = part
        while rest is not None:
            room = limit - self._group_steps
            head, rest = rest.split(room) if len(rest) > room else (rest, None)
            self._group.append((head, columns.flatten(head)))
            self._group_steps += len(head)
            self._counter.add(head)
            num_rows = len(self._group) + (self._file.num_rows if self._file else 0)
            is_full = self._max_rows is not None and num_rows >= self._max_rows
            if self._group_steps >= limit or is_full:
                self._write_group()
            if is_full or (self._file is not None and self._file.num_bytes >= self._max_bytes):
                self._finish_file()

    def _write_group(self) -> None:
        if not self._group:
            return
        assert self._header is not None
        with self._translating_errors():
            if self._file is None:
                self._file = PartFile(self.path, self._format, self._header)
            self._file.add(self._group)
        self._group, self._group_steps = [], 0

    def _finish_file(self) -> None:
        if self._file is None:
            return
        with self._translating_errors():
            number = find_next_number([*self._files, *os.listdir(self.path)])
            name = f"part-{number:05d}.{self._format}"
            digest, size = self._file.finish(self.path / name)
            self._file = None
            self._files[name] = FileEntry(
                sha256=digest, bytes=size, counts=self._counter.take(), run=self._run
            )
            self._write_manifest()

    def _write_manifest(self) -> None:
        assert self._header is not None
        Manifest(
            header=self._header,
            files=self._files,
            unfinished=self._counter.unfinished,
            reference=self._reference,
        ).write(self.path)

    def _discard(self) -> None:
        """Forget what is not in a complete file."""
        if self._file is not None:
            self._file.remove()
        self._file, self._group, self._group_steps = None, [], 0

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()

    @contextlib.contextmanager
    def _translating_errors(self) -> Generator[None]:
        """Translate an OSError to one sentence, and close the writer."""
        try:
            yield
        except OSError as error:
            self._is_closed = True
            self._discard()
            self._unlock()
            kept = sum(entry.counts.num_steps for entry in self._files.values())
            raise DataError(
                f"{self.path} cannot be written: {error.strerror or error}; {kept} steps are complete "
                "there, and another folder may be chosen for more."
            ) from error


def _stack(buffer: LookbackBuffer, name: str, *, is_array: bool) -> PyTree:
    """Return the items of an episode's own steps as arrays.

    Args:
        buffer: Items of the episode.
        name: Name of the items, for the error message.
        is_array: Whether an item is one array, which may be given as a list.
    """
    items: PyTree = buffer.get()
    try:
        if isinstance(items, list):
            is_plain = is_array and not any(isinstance(item, Mapping) for item in items)
            items = stack_items([np.asarray(item) for item in items] if is_plain else items)
        return jax.tree.map(np.asarray, items)
    except (ValueError, TypeError) as error:
        raise DataError(f"{name} differs in structure or shape from step to step.") from error


def _check_positive(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise DataError(f"{name} must be a whole number of at least 1, got {value!r}.")
    return value
