"""Compiled programs that are found by what they are made of, without tracing them again.

JAX's persistent cache finds a program by its instructions, so a process has to trace and lower it
first, which takes longer than reading it. Where a program follows from a config and jaxrl's own code
alone, both are known before: what leads to its executable is kept under their digest. That is so in
jaxrl's commands, as long as the config names no class or function of somebody else's. Everywhere
else, and after a change of the code, it is found by its instructions.

Entries are pickles and machine code that are trusted when loaded, as those of JAX's cache are, and
lie beside them in a folder where only this user may write.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import logging
import os
import pickle
import platform
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import jax
import jax.numpy as jnp
from jax.experimental import serialize_executable

from jaxrl.config.serialize import DATACLASS, IMPORT, restorable_dict
from jaxrl.core.types import Device
from jaxrl.envs.registry import imported_by, registered_env
from jaxrl.runtime.commands import is_command
from jaxrl.runtime.compilation_cache import file_beside_programs, is_ours, make_private
from jaxrl.runtime.measurements import machine

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

logger = logging.getLogger(__name__)
ValueT = TypeVar("ValueT")

FOLDER = "programs"
MAX_BYTES = 2**30
"""Of all entries; those that were not used for longest go first."""
NOT_IN_PROGRAMS = (
    *("seed", "log_level", "log_sys_usage", "loggers", "results_dir", "run_name"),
    *("compilation_cache_dir", "max_retraces"),
)
"""Settings that no program depends on: the seed is an argument."""
_CALLED = re.compile(r'custom_call_target="([^"]*)"')
_LAPACK = "lapack_"
"""The only functions outside of a program that one which is kept may call: those of others, such as
callbacks to Python, need not be there in another process."""
_CHECKSUM = 32


class KeptPrograms:
    """The programs and shapes that were kept for one config, on this machine, by this code.

    An executable lies under a digest of its instructions, so that it is found again when the code
    changed and they did not; what leads to it without tracing lies under that of the config.

    Args:
        folder: Of the entries.
        config: A digest of the config and of jaxrl's code; None where code of others may matter.
        machine: A digest of the processor, the packages and their options.
    """

    def __init__(self, folder: Path, *, config: str | None, machine: str) -> None:
        self._folder, self._config, self._machine = folder, config, machine

    def remembered(self, name: str, make: Callable[[], ValueT]) -> ValueT:
        """Return what was kept under a name, else make and keep it."""
        if self._config is None:
            return make()
        entry = self._of_config(name)
        value = self._found(entry)
        if value is None:
            value = make()
            self._keep(entry, value)
        return value

    def executable(
        self, *signature: object
    ) -> tuple[jax.stages.Compiled, Mapping[str, Any]] | None:
        """Return the executable that was kept under a signature, and its figures; None without one."""
        known = None if self._config is None else self._found(self._of_config(*signature))
        if known is None:
            return None
        loaded = self._loaded(self._folder / known["entry"], known["takes"], known["returns"])
        return None if loaded is None else (loaded, known["figures"])

    def entry_of(self, lowered: jax.stages.Lowered, *signature: object) -> Path:
        """Return where an executable of these instructions lies, whoever compiled it."""
        return self._entry("instructions", lowered.as_text(), *signature)

    def compiled_before(
        self, entry: Path, lowered: jax.stages.Lowered
    ) -> jax.stages.Compiled | None:
        """Return the executable of an entry, None without one."""
        return self._loaded(entry, lowered.in_tree, lowered.out_tree)

    def keep(
        self,
        entry: Path,
        lowered: jax.stages.Lowered,
        compiled: jax.stages.Compiled | None,
        figures: Mapping[str, Any],
        *signature: object,
    ) -> None:
        """Keep an executable under its signature; one that cannot be taken along is not.

        Args:
            entry: `entry_of` its instructions.
            lowered: These.
            compiled: Itself if it was just compiled, None if `compiled_before` has it.
            figures: What `executable` returns with it.
            signature: What it is called with, and what else tells it from others of the config.
        """
        is_kept = compiled is None or self._keep_executable(compiled, entry)
        if not is_kept or self._config is None:
            return
        known = {
            "entry": entry.name,
            "takes": lowered.in_tree,
            "returns": lowered.out_tree,
            "figures": dict(figures),
        }
        self._keep(self._of_config(*signature), known)

    def _keep_executable(self, compiled: jax.stages.Compiled, entry: Path) -> bool:
        try:
            called = set(_CALLED.findall(str(compiled.as_text())))
            if not all(name.startswith(_LAPACK) for name in called):
                return False
            executable, _, _ = serialize_executable.serialize(compiled)
            devices = [d.id for d in cast(Any, compiled).runtime_executable().local_devices()]
        except Exception as error:  # noqa: BLE001  (constants, another JAX's interface, ...)
            logger.info("a program is not kept: %s", error)
            return False
        content = {"executable": executable, "devices": devices, "needs_lapack": bool(called)}
        self._keep(entry, content)
        return True

    def _loaded(self, entry: Path, takes: Any, returns: Any) -> jax.stages.Compiled | None:
        kept = self._found(entry)
        if kept is None:
            return None
        if kept["needs_lapack"]:
            _load_lapack()
        devices = [_device(number) for number in kept["devices"]]
        try:
            return serialize_executable.deserialize_and_load(
                kept["executable"], takes, returns, execution_devices=devices
            )
        except Exception as error:  # noqa: BLE001  (whatever XLA says)
            _drop(entry, error)
            return None

    def _found(self, entry: Path) -> Any:
        """Return what an entry holds; None without one, and a damaged one is removed."""
        try:
            content = entry.read_bytes()
        except OSError:
            return None
        try:
            if hashlib.sha256(content[_CHECKSUM:]).digest() != content[:_CHECKSUM]:
                raise ValueError("its digest is wrong")
            value = pickle.loads(content[_CHECKSUM:])
        except Exception as error:  # noqa: BLE001  (whatever a pickle of other code raises)
            _drop(entry, error)
            return None
        with contextlib.suppress(OSError):
            os.utime(entry)
        return value

    def _keep(self, entry: Path, value: Any) -> None:
        """Write an entry; where that is not possible, the next process makes it anew."""
        try:
            content = pickle.dumps(value)
        except Exception as error:  # noqa: BLE001  (a pytree that holds what no pickle does)
            logger.info("a program is not kept: %s", error)
            return
        content = hashlib.sha256(content).digest() + content
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

    def _of_config(self, *what: object) -> Path:
        return self._entry(self._config, *what)

    def _entry(self, *what: object) -> Path:
        name = "\n".join([self._machine, *map(str, what)])
        return self._folder / hashlib.sha256(name.encode()).hexdigest()


def kept_programs(config: "AlgorithmConfig") -> KeptPrograms | None:
    """The programs that were kept for a config; None where none are.

    Only on CPUs: elsewhere what a program calls was not tried.

    Args:
        config: With everything decided that is measured on the machine.
    """
    debugging = config.debugging_settings
    if not debugging.jit or jax.default_backend() != "cpu":
        return None
    told = debugging.compilation_cache_dir
    folder = file_beside_programs(told, FOLDER) if is_ours(told) else None
    if folder is None or make_private(folder) is not None:
        return None
    packages = _packages()
    if packages is None:
        return None
    described = _described(config) if is_command() else None
    return KeptPrograms(
        folder,
        config=None if described is None else _digest({"config": described, "code": _code()}),
        machine=_digest(
            {
                "packages": packages,
                "machine": {**machine(), "flags": _processor_flags()},
                "jax": _jax_options(),
                "xla": os.environ.get("XLA_FLAGS"),
            }
        ),
    )


def _digest(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest()


def _described(config: "AlgorithmConfig") -> Any:
    """The config as data without what no program depends on; None if it names code of others."""
    data, not_saved = restorable_dict(config)
    if not_saved or not type(config).__module__.startswith("jaxrl."):
        return None
    settings = {n: value for n, value in data["settings"].items() if n not in NOT_IN_PROGRAMS}
    described = {"algo": data["algo"], "algo_class": data["algo_class"], "settings": settings}
    overrides = config.evaluation_settings.evaluation_config or {}
    envs = (config.environment_settings.env, overrides.get("env"))
    of_others = [env for env in envs if isinstance(env, str) and not _is_own_env(env)]
    return described if not of_others and _is_own(described) else None


def _is_own_env(name: str) -> bool:
    """Whether a name stands for an environment of jaxrl or gymnax, and for nothing registered."""
    return registered_env(name) is None and imported_by(name) == (None, None)


def _is_own(data: Any) -> bool:
    """Whether data names objects of jaxrl alone."""
    if isinstance(data, Mapping):
        items = cast(Mapping[str, Any], data)
        for name in (IMPORT, DATACLASS):
            if name in items and not str(items[name]).startswith("jaxrl."):
                return False
        return all(_is_own(value) for value in items.values())
    if isinstance(data, list):
        return all(_is_own(value) for value in cast(list[Any], data))
    return True


@functools.cache
def _code() -> str:
    """A digest of the names, sizes and dates of jaxrl's source files."""
    import jaxrl

    root = Path(jaxrl.__file__).parent
    digest = hashlib.sha256()
    for folder, folders, files in os.walk(root, followlinks=True):
        folders.sort()
        for name in sorted(files):
            if name.endswith(".py"):
                found = os.stat(os.path.join(folder, name))
                digest.update(f"{folder}/{name} {found.st_size} {found.st_mtime_ns}\n".encode())
    return digest.hexdigest()


@functools.cache
def _packages() -> dict[str, str] | None:
    """Versions of Python and of all that jaxrl requires; None where jaxrl is not installed."""
    try:
        requirements = importlib.metadata.requires("jaxrl") or []
    except importlib.metadata.PackageNotFoundError:  # a checkout on the path: nobody knows
        return None
    names = {re.split(r"[^\w.-]", required)[0] for required in requirements if ";" not in required}
    versions: dict[str, str] = {"python": platform.python_version()}
    for name in sorted({"jaxlib", *names}):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def _processor_flags() -> str:
    """What the processor can do, for which machine code is made."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("flags", "Features")):
                return line
    return ""


def _jax_options() -> dict[str, str]:
    """JAX's options but for those of its cache and its logs."""
    return {
        name: str(value)
        for name, value in sorted(jax.config.values.items())
        if not any(word in name for word in ("cache", "log", "dump"))
    }


@functools.cache
def _load_lapack() -> None:
    """Have JAX load LAPACK's functions, which it does when something that needs them is lowered."""
    jax.jit(jnp.linalg.qr).lower(jax.ShapeDtypeStruct((2, 2), jnp.float32))


def _device(number: int) -> Device:
    return next(device for device in jax.local_devices() if device.id == number)


def _drop(entry: Path, error: Exception) -> None:
    logger.info("%s cannot be used and is made anew: %s", entry, error)
    entry.unlink(missing_ok=True)


def _make_room(folder: Path, needed: int) -> None:
    """Remove the entries that were not used for longest, so that a new one fits."""
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
