"""Manifest of a run: all that its results depend on beside the code of jaxrl and the seed.

`manifest.json` in the run folder has an entry for each session, which is a process that trained the
run: one for a new run, and one more for each time it was resumed. Checkpoints hold the entry of the
session that wrote them. Environment variables are not recorded, except for `XLA_FLAGS`.
"""

import dataclasses
import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import jax

from jaxrl.config.coerce import MismatchError, coerce, describe_type
from jaxrl.config.serialize import hash_config, serialize_for_display, serialize_restorable
from jaxrl.core.types import Device
from jaxrl.errors import RunFolderError
from jaxrl.runs import files, results
from jaxrl.runs.git import start_reading
from jaxrl.runtime.devices import count_usable_cores
from jaxrl.runtime.measurements import get_cpu_model
from jaxrl.runtime.program import get_compile_options
from jaxrl.runtime.versions import get_versions

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

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


class Session:
    """Facts about this process that a run depends on; git is asked in the background.

    Args:
        config: Config of the run.
        devices: Devices of the run.
    """

    def __init__(self, config: "AlgorithmConfig", devices: Sequence[Device]) -> None:
        self._git = start_reading(Path.cwd())
        self._facts = {
            "config_sha256": hash_config(results.to_json(serialize_for_display(config))),
            "not_saved": serialize_restorable(config)[1],
            "devices": describe_devices(devices),
            "versions": get_versions(),
            "xla_flags": os.environ.get("XLA_FLAGS", "").strip(),
            "jax_options": {name: str(jax.config.values[name]) for name in JAX_OPTIONS},
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
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunFolderError(f"Cannot read {path}: {error}.") from error
    version = document.get("manifest_version") if isinstance(document, dict) else None
    if type(version) is int and version > VERSION:
        raise RunFolderError(
            f"{path} has version {version}, but this jaxrl reads versions up to {VERSION}."
        )
    sessions = document.get("sessions") if version == VERSION else None
    if not isinstance(sessions, list):
        raise RunFolderError(f"{path} is damaged: it must have manifest_version and sessions.")
    for session in cast(list[Any], sessions):
        _check_session(session, path)
    return cast(list[dict[str, Any]], sessions)


def _check_session(session: object, path: Path) -> None:
    if not isinstance(session, dict):
        raise RunFolderError(f"{path} is damaged: a session is {session!r}.")
    for name, kind in {ITERATION: int, **SESSION_TYPES}.items():
        try:
            if name not in session:
                raise MismatchError
            coerce(session[name], kind)
        except (MismatchError, OverflowError, RecursionError):
            got = str(cast(dict[str, Any], session).get(name, "nothing"))[:80]
            raise RunFolderError(
                f"{path} is damaged: {name} must be {describe_type(kind)}, got {got!r}."
            ) from None


def get_session(metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the session that wrote a checkpoint; None for one from before manifests.

    Args:
        metadata: Metadata of the checkpoint.
    """
    if not SESSION_TYPES.keys() <= metadata.keys():
        return None
    return {name: metadata[name] for name in SESSION_TYPES}
