"""Manifest of a run: all that its results depend on beside the code of jaxrl and the seed.

`manifest.json` in the run folder has an entry for each session, which is a process that trained the
run: one for a new run, and one more for each time it was resumed. Checkpoints hold the entry of the
session that wrote them. Environment variables are not recorded, except for `XLA_FLAGS`.
"""

import dataclasses
import hashlib
import json
import logging
import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import jax

from jaxrl.config.coerce import MismatchError, coerce, describe_type
from jaxrl.config.serialize import hash_config, serialize_for_display, serialize_restorable
from jaxrl.core.types import Device
from jaxrl.errors import CheckpointError, RunFolderError
from jaxrl.runs import results
from jaxrl.runtime import files
from jaxrl.runtime.devices import count_usable_cores
from jaxrl.runtime.measurements import get_cpu_model
from jaxrl.runtime.program import get_compile_options
from jaxrl.runtime.versions import get_versions

if TYPE_CHECKING:
    from jaxrl.config.config import Config

logger = logging.getLogger("jaxrl")

MANIFEST_FILE = "manifest.json"
VERSION = 1
"""Version of the file format."""
JAX_OPTIONS = (
    *("jax_default_matmul_precision", "jax_default_prng_impl", "jax_disable_jit"),
    *("jax_enable_x64", "jax_numpy_dtype_promotion", "jax_threefry_partitionable"),
)
"""JAX's options that change what is computed."""
ITERATION = "iteration"
SESSION_TYPES: Mapping[str, Any] = {
    "config_sha256": str,
    "not_saved": list[str],
    "devices": dict[str, int | str],
    "versions": dict[str, str],
    "xla_flags": str,
    "jax_options": dict[str, str],
    "compile_options": dict[str, str | int | float | bool],
    "git": dict[str, str | bool | None] | None,
}
"""Entries of a session and their types."""
MAX_BYTES = 16 * 2**20
"""Maximum size of the file, which has a few thousand bytes per session."""
MAX_ITERATION = 2**53
MAX_DEVICES = 1024
"""Maximum number of devices of a session; a replay makes the CPU as many."""


class Session:
    """Facts about this process that a run depends on; git is asked in the background.

    Args:
        config: Config of the run.
        devices: Devices of the run.
    """

    def __init__(self, config: "Config", devices: Sequence[Device]) -> None:
        self._git = start_reading(Path.cwd())
        self._facts = {
            "config_sha256": hash_config(results.to_json(serialize_for_display(config))),
            "not_saved": serialize_restorable(config)[1],
            "devices": describe_devices(devices),
            "versions": get_versions(),
            "xla_flags": os.environ.get("XLA_FLAGS", "").strip(),
            "jax_options": {name: get_jax_option(name) for name in JAX_OPTIONS},
            "compile_options": get_compile_options(),
        }

    @property
    def is_complete(self) -> bool:
        """Return whether `describe` returns at once."""
        return self._git.is_done

    def describe(self) -> dict[str, Any]:
        """Return the facts as JSON, once git has answered."""
        state = self._git.get()
        return {**self._facts, "git": None if state is None else dataclasses.asdict(state)}


def get_jax_option(name: str) -> str:
    """Return the value of one of `JAX_OPTIONS` in this process."""
    return str(jax.config.values[name])


def describe_devices(devices: Sequence[Device]) -> dict[str, Any]:
    """Describe the devices of a run, how many others JAX has, and the processor.

    Args:
        devices: Devices of the run.
    """
    return {
        "platform": devices[0].platform,
        "kind": devices[0].device_kind,
        "count": len(devices),
        "available": jax.local_device_count(),
        "processor": get_cpu_model(),
        "cores": count_usable_cores(),
    }


def add_session(folder: Path, session: Mapping[str, Any], iteration: int) -> None:
    """Add a session to a run's manifest; those whose results it replaces are removed.

    Args:
        folder: Run folder.
        session: Output of `Session.describe`.
        iteration: Iteration that the session starts from, 0 for a new run.

    Raises:
        RunFolderError: If the manifest cannot be written.
    """
    try:
        earlier = [s for s in read_sessions(folder) if s[ITERATION] < iteration]
    except RunFolderError as error:
        logger.warning("%s Its earlier sessions are lost.", error)
        earlier = []
    path = folder / MANIFEST_FILE
    sessions = [*earlier, {ITERATION: iteration, **session}]
    with files.translate_os_errors("write", path), files.open_atomic(path) as file:
        json.dump({"manifest_version": VERSION, "sessions": sessions}, file, indent=2)
        file.write("\n")


def read_sessions(folder: Path) -> list[dict[str, Any]]:
    """Return the sessions of a run, oldest first; none for a run from before manifests.

    Raises:
        RunFolderError: If the manifest cannot be read, is damaged or has a later version.
    """
    path = folder / MANIFEST_FILE
    if not path.exists():
        return []
    try:
        document = json.loads(files.read_bounded(path, MAX_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise RunFolderError(f"Cannot read {path}: {_summarize(error)}.") from error
    version = document.get("manifest_version") if isinstance(document, dict) else None
    if type(version) is int and version > VERSION:
        raise RunFolderError(
            f"{path} has version {_shorten(version)}, but this jaxrl reads versions up to {VERSION}."
        )
    sessions = document.get("sessions") if version == VERSION else None
    if not isinstance(sessions, list):
        raise RunFolderError(f"{path} is damaged: it must have manifest_version and sessions.")
    return [check_session(session, path) for session in cast(list[Any], sessions)]


def check_session(
    session: object, source: object, names: Sequence[str] = (ITERATION, *SESSION_TYPES)
) -> dict[str, Any]:
    """Return the entries of a session that are known, each of its type and of a possible size.

    Args:
        session: Session as it was read.
        source: File that it was read from, for the error message.
        names: Entries that it must have.

    Raises:
        RunFolderError: If an entry is missing or impossible.
    """
    if not isinstance(session, dict):
        raise RunFolderError(f"{source} is damaged: a session is {_shorten(session)!r}.")
    given = cast(dict[str, Any], session)
    found = {name: _read_entry(given, name, source) for name in names}
    if not 0 <= found[ITERATION] <= MAX_ITERATION:
        _refuse(source, ITERATION, f"from 0 to {MAX_ITERATION}", found[ITERATION])
    if "devices" in found:
        _check_devices(found["devices"], source)
    return found


def check_saved_session(metadata: Mapping[str, Any], source: object) -> None:
    """Check what a checkpoint says of the session that wrote it; earlier ones say less.

    Raises:
        CheckpointError: If an entry is impossible.
    """
    given = [name for name in SESSION_TYPES if name in metadata]
    try:
        check_session({ITERATION: 0, **metadata}, source, (ITERATION, *given))
    except RunFolderError as error:
        raise CheckpointError(str(error)) from error


def _read_entry(session: Mapping[str, Any], name: str, source: object) -> Any:
    kind = {ITERATION: int, **SESSION_TYPES}[name]
    try:
        if name not in session:
            raise MismatchError
        value = coerce(session[name], kind)
    except (MismatchError, OverflowError, RecursionError):
        _refuse(source, name, describe_type(kind), session.get(name, "nothing"))
    if name != "xla_flags" and not _is_printable(value):  # flags may be on several lines
        _refuse(source, name, "printable text", value)
    return value


def _check_devices(devices: Mapping[str, int | str], source: object) -> None:
    """Check the devices of a session; one from before manifests may have none."""
    if devices and not isinstance(devices.get("platform"), str):
        _refuse(source, "devices: platform", "a string", devices.get("platform", "nothing"))
    for name in ("count", "available"):
        number = devices.get(name, 1 if not devices or name == "available" else "nothing")
        if not isinstance(number, int) or not 1 <= number <= MAX_DEVICES:
            wanted = f"a whole number from 1 to {MAX_DEVICES}"
            _refuse(source, f"devices: {name}", wanted, number)


def _is_printable(value: object) -> bool:
    """Return whether all strings in a value can be printed; others could command a terminal."""
    if isinstance(value, dict):
        entries = cast(dict[str, Any], value)
        return all(key.isprintable() and _is_printable(x) for key, x in entries.items())
    if isinstance(value, list):
        return all(map(_is_printable, cast(list[Any], value)))
    return not isinstance(value, str) or value.isprintable()


def _refuse(source: object, name: str, wanted: str, got: object) -> NoReturn:
    raise RunFolderError(
        f"{source} is damaged: {name} must be {wanted}, got {_shorten(got)!r}."
    ) from None


def _shorten(value: object) -> str:
    """Return the beginning of a value as text."""
    try:
        return str(value)[:80]
    except (RecursionError, ValueError):  # deeply nested, or of thousands of digits
        return type(value).__name__


def _summarize(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def get_session(metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the session that wrote a checkpoint; None for one from before manifests.

    Args:
        metadata: Metadata of the checkpoint.
    """
    if not SESSION_TYPES.keys() <= metadata.keys():
        return None
    return {name: metadata[name] for name in SESSION_TYPES}


# --- state of the git repository that a run is started in, read in the background ---

TIMEOUT_S = 5.0
"""Time limit of each git command in seconds; what a slower one would say is not recorded."""
REUSE_S = 5.0
"""Seconds for which a reading is reused, since the lanes of a sweep start together."""

_READ_ONLY = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false")
_DIFF = (
    *("diff", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "--full-index"),
    *("--unified=3", "--diff-algorithm=myers", "--src-prefix=a/", "--dst-prefix=b/", "HEAD"),
)
"""Command of a diff that the user's configuration of git does not change."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GitState:
    """Commit of a working directory and its changes since.

    Args:
        commit: Hash of the commit that is checked out.
        dirty: Whether tracked files differ from it; None if git took too long.
        diff_sha256: SHA-256 of `git diff HEAD`; None without differences.
    """

    commit: str
    dirty: bool | None
    diff_sha256: str | None


def read_git_state(folder: Path) -> GitState | None:
    """Return the state of the repository around a folder; None without git, or without a commit."""
    commit = _run_git(folder, "rev-parse", "--verify", "HEAD")
    if commit is None:
        return None
    diff = _run_git(folder, *_DIFF)
    return GitState(
        commit=commit.decode().strip(),
        dirty=None if diff is None else bool(diff),
        diff_sha256=hashlib.sha256(diff).hexdigest() if diff else None,
    )


def _run_git(folder: Path, *arguments: str) -> bytes | None:
    """Return the output of a git command; None if it fails, for whatever reason."""
    try:
        done = subprocess.run(
            [*_READ_ONLY, *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


class GitReading:
    """Reading of a repository's state in a thread of its own.

    Args:
        folder: Folder in the repository.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.started_at = folder, time.monotonic()
        self._state: GitState | None = None
        self._thread = threading.Thread(target=self._read, name="jaxrl-git", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        self._state = read_git_state(self.folder)

    @property
    def is_done(self) -> bool:
        """Return whether `get` returns at once."""
        return not self._thread.is_alive()

    def get(self) -> GitState | None:
        """Wait for the state, for at most twice `TIMEOUT_S`, and return it."""
        self._thread.join()
        return self._state


_latest: GitReading | None = None
_lock = threading.Lock()


def start_reading(folder: Path) -> GitReading:
    """Start to read a repository's state, or return a reading that has just been started."""
    global _latest
    with _lock:
        latest = _latest
        if (
            latest is None
            or latest.folder != folder
            or time.monotonic() - latest.started_at > REUSE_S
        ):
            latest = _latest = GitReading(folder)
        return latest
