"""Caches of compiled programs, in memory and on disk, which are found without tracing them again.

Within a process, builds of equal configs share their executables (`SHARED_PROGRAMS`), as long as
the config names no class or function from other packages, and no function of jaxrl was replaced.

JAX's persistent cache finds a program by its instructions, so a process has to trace and lower it
first, which takes longer than reading it. If a program follows from a config and jaxrl's own code
alone, both are known beforehand, and the executable is cached under their digest. This holds in
jaxrl's commands, as long as the config names no class or function from other packages. Everywhere
else, and after a change of the code, a program is found by its instructions.

Entries are pickles and machine code that are trusted when loaded, like those of JAX's cache, and
are stored next to them in a folder that only this user can write to.
"""

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import logging
import os
import pickle
import platform
import re
import sys
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import gymnasium
import jax
import jax.numpy as jnp
from jax.experimental import serialize_executable

from jaxrl.config.serialize import (
    DATACLASS_KEY,
    IMPORT_KEY,
    RECORDING_SETTINGS,
    serialize_restorable,
)
from jaxrl.config.settings.run import CheckpointingSettings
from jaxrl.core.spaces import get_leaf_spaces
from jaxrl.core.types import Device, PyTree
from jaxrl.envs.adapters.table import ADAPTERS, split_id
from jaxrl.envs.registry import find_imports, get_registered_env
from jaxrl.runtime.commands import is_command
from jaxrl.runtime.compilation_cache import get_cache_file, make_private, uses_own_folder
from jaxrl.runtime.measurements import describe_machine
from jaxrl.runtime.versions import is_editable, read_versions

if TYPE_CHECKING:
    from jaxrl.config.config import Config


_TRACED = re.compile(
    r"jaxrl\.(algorithms|assembly|buffers|config|connectors|core|distributions|envs|learners|modules"
    r"|ops|training)\b"
)
"""Modules that programs are traced from."""


def snapshot_code() -> tuple[object, ...]:
    """Return the functions and constants that programs are traced from, as they are now.

    A script may replace some, e.g. assign another loss to a Learner class; then programs that were
    traced before are not shared. The values themselves are part of the key, as an address may be
    used again.
    """
    # Copies, since another thread may import meanwhile.
    modules = {name: x for name, x in list(sys.modules.items()) if _TRACED.match(name)}
    found: list[object] = []
    for name in sorted(modules):
        found += [x for key, x in list(vars(modules[name]).items()) if key != "__builtins__"]
    # Each class and each table once.
    for own in {id(x): x for x in found if isinstance(x, type)}.values():
        found += vars(own).values() if own.__module__ in modules else ()
    for table in {id(x): x for x in found if isinstance(x, dict)}.values():
        found += cast(dict[object, object], table).values()
    return tuple(value for value in found if isinstance(value, _CODE))


_CODE = (FunctionType, type, staticmethod, classmethod, property, int, float, str)


logger = logging.getLogger(__name__)
ValueT = TypeVar("ValueT")

FOLDER = "programs"
MAX_BYTES = 2**30
"""Total size of all entries; the least recently used are removed first."""
NON_PROGRAM_SETTINGS = (
    *RECORDING_SETTINGS,
    *(field.name for field in dataclasses.fields(CheckpointingSettings)),
    *("always_attach_evaluation_results", "evaluation_interval", "input_", "max_retraces", "seed"),
)
"""Settings whose value no program depends on; seeds, intervals and recorded rows are arguments."""
_CALL_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_LAPACK = "lapack_"
"""Prefix of the external functions that a cached program may call.

Others, such as callbacks to Python, may not exist in another process.
"""
_CHECKSUM_BYTES = 32
MAX_SHARED_PROGRAMS = 8
"""Maximum number of executables that are shared in memory; the least recently used leave first."""

Cached: TypeAlias = tuple[jax.stages.Compiled, Mapping[str, Any]]
"""Executable and the figures of its compilation."""


class SharedPrograms:
    """Executables of this process, by digest of the config and signature."""

    def __init__(self) -> None:
        self._programs: OrderedDict[tuple[object, ...], Cached] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, *key: object) -> Cached | None:
        """Return the executable stored under a key; None if there is none."""
        with self._lock:
            found = self._programs.get(key)
            if found is not None:
                self._programs.move_to_end(key)
            return found

    def put(self, value: Cached, *key: object) -> None:
        """Store an executable, and remove the least recently used ones above the limit."""
        with self._lock:
            self._programs[key] = value
            while len(self._programs) > MAX_SHARED_PROGRAMS:
                self._programs.popitem(last=False)


SHARED_PROGRAMS = SharedPrograms()


class ProgramCache:
    """Cache of the programs and shapes of one config, for this machine and this code.

    An executable is stored under a digest of its instructions, so that it is found again if the
    code changed without changing them; the entry that leads to it without tracing is stored under
    the digest of the config.

    Args:
        folder: Folder of the entries; None to share executables in memory only.
        config: Digest of the config and of jaxrl's code; None if code of other packages may matter.
        machine: Digest of the processor, the packages and their options.
        shared: Key of the config, the code in memory and JAX's options, under which executables
            are shared in memory; None if they are not.
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        config: str | None,
        machine: str,
        shared: tuple[object, ...] | None = None,
    ) -> None:
        self._folder, self._config, self._machine = folder, config, machine
        self._shared = shared

    def get_or_make(self, name: str, make: Callable[[], ValueT]) -> ValueT:
        """Return the value stored under a name, or make and store it."""
        if self._config is None:
            return make()
        entry = self._config_entry(name)
        value = self._read_entry(entry)
        if value is None:
            value = make()
            self._write_entry(entry, value)
        return value

    def load_executable(self, *signature: object) -> Cached | None:
        """Return the executable and figures stored under a signature; None if there are none."""
        shared = None if self._shared is None else SHARED_PROGRAMS.get(self._shared, *signature)
        return shared or self._load_stored(*signature)

    def share(
        self, compiled: jax.stages.Compiled, figures: Mapping[str, Any], *signature: object
    ) -> None:
        """Share an executable with equal configs in this process."""
        if self._shared is not None:
            SHARED_PROGRAMS.put((compiled, figures), self._shared, *signature)

    def _load_stored(self, *signature: object) -> Cached | None:
        if self._folder is None:
            return None
        known = None if self._config is None else self._read_entry(self._config_entry(*signature))
        if known is None:
            return None
        loaded = self._load(self._folder / known["entry"], known["takes"], known["returns"])
        return None if loaded is None else (loaded, known["figures"])

    def get_entry(self, lowered: jax.stages.Lowered, *signature: object) -> Path | None:
        """Return the path of an executable with these instructions, whatever config compiled it.

        None without a folder.
        """
        if self._folder is None:
            return None
        return self._entry_path("instructions", lowered.as_text(), *signature)

    def load_compiled(self, entry: Path, lowered: jax.stages.Lowered) -> jax.stages.Compiled | None:
        """Load the executable of an entry; None if there is none."""
        return self._load(entry, lowered.in_tree, lowered.out_tree)

    def store(
        self,
        entry: Path,
        lowered: jax.stages.Lowered,
        compiled: jax.stages.Compiled | None,
        figures: Mapping[str, Any],
        *signature: object,
    ) -> None:
        """Store an executable under its signature, unless it cannot be serialized.

        Args:
            entry: Path from `get_entry`.
            lowered: Lowered program.
            compiled: Executable if it was just compiled; None if it was loaded, from here or from
                JAX's cache.
            figures: Figures that `load_executable` returns with it.
            signature: Signature of the call, with whatever else distinguishes the program from
                others of the config.
        """
        is_kept = entry.exists() if compiled is None else self._write_executable(compiled, entry)
        if not is_kept or self._config is None:
            return
        known = {
            "entry": entry.name,
            "takes": lowered.in_tree,
            "returns": lowered.out_tree,
            "figures": dict(figures),
        }
        self._write_entry(self._config_entry(*signature), known)

    def _write_executable(self, compiled: jax.stages.Compiled, entry: Path) -> bool:
        try:
            called = set(_CALL_TARGET.findall(str(compiled.as_text())))
            if not all(name.startswith(_LAPACK) for name in called):
                return False
            executable, _, _ = serialize_executable.serialize(compiled)
            devices = [d.id for d in cast(Any, compiled).runtime_executable().local_devices()]
        except Exception as error:  # noqa: BLE001  (constants, another JAX's interface, ...)
            logger.info("program not cached: %s", error)
            return False
        content = {"executable": executable, "devices": devices, "needs_lapack": bool(called)}
        self._write_entry(entry, content)
        return True

    def _load(self, entry: Path, takes: object, returns: object) -> jax.stages.Compiled | None:
        kept = self._read_entry(entry)
        if kept is None:
            return None
        if kept["needs_lapack"]:
            _load_lapack()
        devices = [_find_device(number) for number in kept["devices"]]
        try:
            return serialize_executable.deserialize_and_load(
                kept["executable"], takes, returns, execution_devices=devices
            )
        except Exception as error:  # noqa: BLE001  (whatever XLA raises)
            _remove_unusable(entry, error)
            return None

    def _read_entry(self, entry: Path) -> Any:
        """Read an entry; None if there is none. A damaged one is removed."""
        try:
            content = entry.read_bytes()
        except OSError:
            return None
        try:
            if hashlib.sha256(content[_CHECKSUM_BYTES:]).digest() != content[:_CHECKSUM_BYTES]:
                raise ValueError("digest mismatch")
            value = pickle.loads(content[_CHECKSUM_BYTES:])
        except Exception as error:  # noqa: BLE001  (whatever a pickle of other code raises)
            _remove_unusable(entry, error)
            return None
        with contextlib.suppress(OSError):
            os.utime(entry)
        return value

    def _write_entry(self, entry: Path, value: object) -> None:
        """Write an entry; on failure, the next process recreates it."""
        try:
            content = pickle.dumps(value)
        except Exception as error:  # noqa: BLE001  (a pytree that cannot be pickled)
            logger.info("program not cached: %s", error)
            return
        content = hashlib.sha256(content).digest() + content
        assert self._folder is not None
        with contextlib.suppress(OSError):
            _make_room(self._folder, len(content))
            handle, written = tempfile.mkstemp(dir=self._folder, prefix=".")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(content)
                os.replace(written, entry)
            except BaseException:
                Path(written).unlink(missing_ok=True)
                raise

    def _config_entry(self, *what: object) -> Path:
        return self._entry_path(self._config, *what)

    def _entry_path(self, *what: object) -> Path:
        name = "\n".join([self._machine, *map(str, what)])
        assert self._folder is not None
        return self._folder / hashlib.sha256(name.encode()).hexdigest()


def open_program_cache(
    config: "Config",
    *,
    is_in_graph: bool = True,
    spaces: Iterable[gymnasium.Space[Any]] = (),
) -> ProgramCache | None:
    """Open the cache of a config's programs; None if there is none.

    The folder is used on CPUs only, since the calls of stored programs on other backends have not
    been tested.

    Args:
        config: Config with all values resolved that are measured on the machine.
        is_in_graph: Whether the environments are part of the programs; otherwise they are shared
            in memory only.
        spaces: Spaces of an environment outside of jaxrl, whose id may be registered again with
            others, which change the module.
    """
    if not config.debugging_settings.compiles:
        return None
    description = _describe_config(config)
    shared = None
    if description is not None:
        built = _digest({"config": description, "jax": _jax_options()})
        shared = (built, _digest_spaces(spaces), snapshot_code())
    folder = _get_folder(config.debugging_settings.compilation_cache_dir) if is_in_graph else None
    settings, overrides = config.environment_settings, config.evaluation_settings.evaluation_config
    suites = _find_suites((settings.env, settings.env_config, overrides))
    packages = None if folder is None else _get_package_versions(frozenset(suites))
    if packages is None:
        return (
            None if shared is None else ProgramCache(None, config=None, machine="", shared=shared)
        )
    return ProgramCache(
        folder,
        shared=shared,
        config=None
        if description is None or not is_command()
        else _digest({"config": description, "code": _digest_source()}),
        machine=_digest(
            {
                "packages": packages,
                "machine": {**describe_machine(), "flags": _processor_flags()},
                "jax": _jax_options(),
                "xla": os.environ.get("XLA_FLAGS"),
            }
        ),
    )


def _get_folder(setting: str | None) -> Path | None:
    if jax.default_backend() != "cpu" or not uses_own_folder(setting):
        return None
    folder = get_cache_file(setting, FOLDER)
    return None if folder is None or make_private(folder) is not None else folder


def _digest(data: object) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest()


def _describe_config(config: "Config") -> dict[str, Any] | None:
    """Return the config as data, without settings that no program depends on.

    None if it names code of other packages.
    """
    overrides = config.evaluation_settings.evaluation_config or {}
    envs = (config.environment_settings.env, overrides.get("env"))
    own_envs = (env is None or (isinstance(env, str) and _is_own_env(env)) for env in envs)
    if not all(own_envs) or not type(config).__module__.startswith("jaxrl."):
        return None
    data, not_saved = serialize_restorable(config)
    if not_saved:
        return None
    settings = {n: value for n, value in data["settings"].items() if n not in NON_PROGRAM_SETTINGS}
    data_settings = config.offline_data_settings
    description = {
        **{name: data[name] for name in ("algo", "algo_class")},
        "settings": settings,
        # The sizes of batches that are not given follow from those that are.
        "explicit": [n for n in data["explicit_settings"] if n not in NON_PROGRAM_SETTINGS],
        "shares": [data_settings.sampler_share, *data_settings.sources.values()],
        "records": data_settings.output is not None,  # returns rollouts as well
    }
    return description if _is_own(description) else None


def _digest_spaces(spaces: Iterable[gymnasium.Space[Any]]) -> str:
    """Return a digest of spaces with all bounds, which their text abbreviates."""
    digest = hashlib.sha256()
    for space in spaces:
        digest.update(repr(space).encode())
        for _, leaf in get_leaf_spaces(space):
            if isinstance(leaf, gymnasium.spaces.Box):
                digest.update(leaf.low.tobytes() + leaf.high.tobytes())
    return digest.hexdigest()


def _is_own_env(name: str) -> bool:
    """Return whether a name is an environment of jaxrl or gymnax that no registration overrides."""
    return get_registered_env(name) is None and find_imports(name) == (None, None)


def _find_suites(named: PyTree) -> set[str]:
    """Find the prefixes of the packages whose environments are named, at any depth."""
    strings = (leaf for leaf in jax.tree.leaves(named) if isinstance(leaf, str))
    return {found[0] for text in strings if (found := split_id(text)) is not None}


def _is_own(data: object) -> bool:
    """Return whether data names objects of jaxrl alone."""
    if isinstance(data, Mapping):
        items = cast(Mapping[str, Any], data)
        for name in (IMPORT_KEY, DATACLASS_KEY):
            if name in items and not str(items[name]).startswith("jaxrl."):
                return False
        return all(_is_own(value) for value in items.values())
    if isinstance(data, list):
        return all(_is_own(value) for value in cast(list[Any], data))
    return True


@functools.cache
def _digest_source() -> str:
    """Return a digest of the names, sizes and modification times of jaxrl's source files."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for folder, folders, files in os.walk(root, followlinks=True):
        folders.sort()
        for name in sorted(files):
            if name.endswith(".py"):
                found = os.stat(os.path.join(folder, name))
                digest.update(f"{folder}/{name} {found.st_size} {found.st_mtime_ns}\n".encode())
    return digest.hexdigest()


@functools.cache
def _get_package_versions(suites: frozenset[str]) -> dict[str, str] | None:
    """Return versions of Python, of jaxrl's requirements and of packages of environments.

    None if one is unknown, because jaxrl is not installed or a package is edited in place.
    """
    try:
        requirements = importlib.metadata.requires("jaxrl") or []
    except importlib.metadata.PackageNotFoundError:  # a checkout on the path
        return None
    names = {re.split(r"[^\w.-]", required)[0] for required in requirements if ";" not in required}
    packages = {name for suite in suites for name in ADAPTERS[suite].distributions}
    if any(is_editable(name) for name in packages):
        return None
    versions = read_versions(sorted({"jaxlib", *names, *packages}))
    return {"python": platform.python_version(), **versions}


def _processor_flags() -> str:
    """Return the processor's features, which machine code is compiled for."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("flags", "Features")):
                return line
    return ""


def _jax_options() -> dict[str, str]:
    """Return JAX's options, leaving out cache and log options."""
    return {
        name: str(value)
        for name, value in sorted(jax.config.values.items())
        if not any(word in name for word in ("cache", "log", "dump"))
    }


@functools.cache
def _load_lapack() -> None:
    """Make JAX load LAPACK's functions, which happens when a program that calls them is lowered."""
    jax.jit(jnp.linalg.qr).lower(jax.ShapeDtypeStruct((2, 2), jnp.float32))


def _find_device(number: int) -> Device:
    return next(device for device in jax.local_devices() if device.id == number)


def _remove_unusable(entry: Path, error: Exception) -> None:
    logger.info("removing unusable cache entry %s: %s", entry, error)
    entry.unlink(missing_ok=True)


def _make_room(folder: Path, needed: int) -> None:
    """Remove the least recently used entries, so that a new one fits."""
    found: list[tuple[float, int, Path]] = []
    for entry in folder.iterdir():
        with contextlib.suppress(OSError):  # another process removed it
            status = entry.stat()
            found.append((status.st_mtime, status.st_size, entry))
    total = needed + sum(size for _, size, _ in found)
    for _, size, entry in sorted(found):
        if total <= MAX_BYTES:
            return
        with contextlib.suppress(OSError):
            entry.unlink()
            total -= size
