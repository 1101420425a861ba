"""Persistent compilation cache: a private folder of bounded size, unless JAX has another one set.

Its entries are machine code that is trusted when loaded, so no other user may write there. The
bound also makes JAX lock the folder: without one, two processes read each other's half-written
entries.
"""

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import jax

MAX_BYTES = 2 * 1024**3
MIN_COMPILE_SECONDS = 0.1
"""Minimum compile time in seconds of a cached program."""

_ENABLED, _FOLDER = "jax_enable_compilation_cache", "jax_compilation_cache_dir"
_SIZE, _SECONDS = "jax_compilation_cache_max_size", "jax_persistent_cache_min_compile_time_secs"
_OPTIONS = (_ENABLED, _FOLDER, _SIZE, _SECONDS)
_JAX_DEFAULTS = {_SIZE: -1, _SECONDS: 1.0}
_ENTRY, _DATE = "-cache", "-atime"
"""Suffixes of JAX's file names."""
_others: dict[str, Any] = {}
"""Values of JAX's options before they were set here."""
_ours: dict[str, Any] = {}


def enable_compilation_cache(setting: str | None) -> str:
    """Cache compiled programs between processes, as set by `debugging(compilation_cache_dir=...)`.

    Args:
        setting: A folder, "off", or None for JAX's own setting if there is one, else
            `~/.cache/jaxrl/xla`. Later calls may change it.

    Returns:
        A sentence about the cache in use, for `explain()` and the log.
    """
    options = {name: _get_user_option(name) for name in _OPTIONS}
    if setting == "off":
        _set({**options, _ENABLED: False})
        return "Compilation cache: off, as set."
    if setting is None and not options[_ENABLED]:
        _set(options)
        return "Compilation cache: off, as set in JAX."
    if setting is None and options[_FOLDER]:
        _set(options)
        if options[_SIZE] != _JAX_DEFAULTS[_SIZE]:
            _date_entries(Path(options[_FOLDER]))
        return f"Compilation cache: {options[_FOLDER]}, as set in JAX."
    folder = _default_folder() if setting is None else Path(setting).expanduser()
    problem = make_private(folder)
    if problem is not None:
        _set(options)
        return f"Compilation cache: none, because {folder} cannot be used: {problem}."
    wanted = {
        name: default if options[name] == _JAX_DEFAULTS[name] else options[name]
        for name, default in ((_SIZE, MAX_BYTES), (_SECONDS, MIN_COMPILE_SECONDS))
    }
    _set({**wanted, _ENABLED: True, _FOLDER: str(folder)})
    _date_entries(folder)
    return f"Compilation cache: {folder}, at most {wanted[_SIZE] / 2**30:.3g} GiB."


@dataclasses.dataclass(frozen=True, kw_only=True)
class CacheContents:
    """Contents of the persistent cache in use."""

    folder: str
    entries: int
    bytes: int
    max_bytes: int | None
    """Maximum size in bytes; None if unbounded."""


def get_cache_contents() -> CacheContents | None:
    """Return the contents of the cache that JAX uses; None if it uses none."""
    options = {name: jax.config.values[name] for name in _OPTIONS}
    if not options[_ENABLED] or not options[_FOLDER]:
        return None
    sizes: list[int] = []
    for entry in Path(options[_FOLDER]).glob(f"*{_ENTRY}"):
        with contextlib.suppress(OSError):  # another process has just evicted it
            sizes.append(entry.stat().st_size)
    return CacheContents(
        folder=str(options[_FOLDER]),
        entries=len(sizes),
        bytes=sum(sizes),
        max_bytes=options[_SIZE] if options[_SIZE] >= 0 else None,
    )


@contextlib.contextmanager
def use_temporary_cache() -> Generator[None]:
    """Cache every program in a folder that is removed at the end of the block."""
    before = {name: jax.config.values[name] for name in _OPTIONS}
    with tempfile.TemporaryDirectory(prefix="jaxrl-cache-") as folder:
        try:
            _update({_ENABLED: True, _FOLDER: folder, _SIZE: -1, _SECONDS: 0.0})
            yield
        finally:
            _update(before)


def get_cache_file(setting: str | None, name: str) -> Path | None:
    """Return the path of a file that is stored next to the cached programs; None if none is.

    Args:
        setting: Setting, as in `enable_compilation_cache`.
        name: Name of the file.
    """
    if setting == "off":
        return None
    if setting is not None:
        return Path(setting).expanduser() / name
    return _default_folder().parent / name


def uses_own_folder(setting: str | None) -> bool:
    """Return whether programs are cached in jaxrl's folder, rather than nowhere or in JAX's own.

    Args:
        setting: Setting, as passed to `enable_compilation_cache` before.
    """
    options = _get_user_option(_FOLDER)
    return bool(jax.config.values[_ENABLED]) and (setting is not None or not options)


def _default_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "jaxrl" / "xla"


def make_private(folder: Path) -> str | None:
    """Create the folder if it is missing, and restrict writing to this user.

    Returns:
        None on success, else the reason of the failure.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = folder.stat()
        if found.st_uid != os.getuid():
            return "it belongs to another user"
        if found.st_mode & 0o022:
            folder.chmod(0o700)
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return None if os.access(folder, os.W_OK | os.X_OK) else "it cannot be written"


def _date_entries(folder: Path) -> None:
    """Create the file with the date of use that JAX expects for every entry of a bounded cache.

    An entry without one, left by a killed process or by an unbounded cache, would keep JAX from
    ever writing an entry again.
    """
    for entry in folder.glob(f"*{_ENTRY}"):
        date = entry.with_name(entry.name.removesuffix(_ENTRY) + _DATE)
        with contextlib.suppress(OSError):  # evicted by another process, or not writable
            if not date.exists():
                date.write_bytes(entry.stat().st_mtime_ns.to_bytes(8, "little"))


def _get_user_option(name: str) -> Any:
    """Return the option as set by the user or the environment, ignoring values set here."""
    value = jax.config.values[name]
    return _others[name] if name in _ours and value == _ours[name] else value


def _set(options: dict[str, Any]) -> None:
    for name, value in options.items():
        _others[name], _ours[name] = _get_user_option(name), value
    _update(options)


def _update(options: Mapping[str, Any]) -> None:
    changed = False
    for name, value in options.items():
        if jax.config.values[name] != value:
            jax.config.update(name, value)
            changed = True
    if changed:  # JAX reads the options once, at its first compilation
        from jax.experimental.compilation_cache import compilation_cache

        compilation_cache.reset_cache()
