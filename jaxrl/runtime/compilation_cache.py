"""The persistent compilation cache: a private folder of bounded size, unless JAX was told another.

Its entries are machine code that is trusted when loaded, so nobody else may write there. The bound
is also what makes JAX lock the folder: without one, two processes read each other's half-written
entries.
"""

import contextlib
import dataclasses
import os
from pathlib import Path
from typing import Any

import jax

MAX_BYTES = 2 * 1024**3
MIN_COMPILE_SECONDS = 0.1
"""A program that compiles faster is not kept."""

_ENABLED, _FOLDER = "jax_enable_compilation_cache", "jax_compilation_cache_dir"
_SIZE, _SECONDS = "jax_compilation_cache_max_size", "jax_persistent_cache_min_compile_time_secs"
_OPTIONS = (_ENABLED, _FOLDER, _SIZE, _SECONDS)
_JAX_DEFAULTS = {_SIZE: -1, _SECONDS: 1.0}
_ENTRY, _DATE = "-cache", "-atime"
"""How the names of JAX's files end."""
_others: dict[str, Any] = {}
"""What JAX had before an option was set here."""
_ours: dict[str, Any] = {}


def enable_compilation_cache(setting: str | None) -> str:
    """Keep compiled programs between processes, as `debugging(compilation_cache_dir=...)` says.

    Args:
        setting: A folder, "off", or None: JAX's own setting where there is one, else
            `~/.cache/jaxrl/xla`. The next call may say otherwise.

    Returns:
        What came of it, a sentence for `explain()` and the log.
    """
    told = {name: _told_by_others(name) for name in _OPTIONS}
    if setting == "off":
        _set({**told, _ENABLED: False})
        return "Compilation cache: off, as set."
    if setting is None and not told[_ENABLED]:
        _set(told)
        return "Compilation cache: off, as JAX was told."
    if setting is None and told[_FOLDER]:
        _set(told)
        if told[_SIZE] != _JAX_DEFAULTS[_SIZE]:
            _date_entries(Path(told[_FOLDER]))
        return f"Compilation cache: {told[_FOLDER]}, as JAX was told."
    folder = _default_folder() if setting is None else Path(setting).expanduser()
    problem = make_private(folder)
    if problem is not None:
        _set(told)
        return f"Compilation cache: none, because {folder} is not used: {problem}."
    wanted = {
        name: default if told[name] == _JAX_DEFAULTS[name] else told[name]
        for name, default in ((_SIZE, MAX_BYTES), (_SECONDS, MIN_COMPILE_SECONDS))
    }
    _set({**wanted, _ENABLED: True, _FOLDER: str(folder)})
    _date_entries(folder)
    return f"Compilation cache: {folder}, at most {wanted[_SIZE] / 2**30:.3g} GiB."


@dataclasses.dataclass(frozen=True, kw_only=True)
class CacheContents:
    """What the persistent cache in use holds now."""

    folder: str
    entries: int
    bytes: int
    max_bytes: int | None
    """None for any number."""


def cache_contents() -> CacheContents | None:
    """The cache that JAX uses now; None where it keeps none."""
    told = {name: jax.config.values[name] for name in _OPTIONS}
    if not told[_ENABLED] or not told[_FOLDER]:
        return None
    sizes: list[int] = []
    for entry in Path(told[_FOLDER]).glob(f"*{_ENTRY}"):
        with contextlib.suppress(OSError):  # another process has just evicted it
            sizes.append(entry.stat().st_size)
    return CacheContents(
        folder=str(told[_FOLDER]),
        entries=len(sizes),
        bytes=sum(sizes),
        max_bytes=told[_SIZE] if told[_SIZE] >= 0 else None,
    )


def file_beside_programs(setting: str | None, name: str) -> Path | None:
    """Where something else is kept from process to process, under the same setting; None for nowhere.

    Args:
        setting: As `enable_compilation_cache` takes it.
        name: Of the file.
    """
    if setting == "off":
        return None
    if setting is not None:
        return Path(setting).expanduser() / name
    return _default_folder().parent / name


def is_ours(setting: str | None) -> bool:
    """Whether programs are kept in a folder of jaxrl's, rather than in none or where JAX was told.

    Args:
        setting: As `enable_compilation_cache` takes it, which was called before.
    """
    told = _told_by_others(_FOLDER)
    return bool(jax.config.values[_ENABLED]) and (setting is not None or not told)


def _default_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "jaxrl" / "xla"


def make_private(folder: Path) -> str | None:
    """Make the folder if it is missing; None if only this user can write to it, else why not."""
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
    """Give every entry the date of use that JAX keeps beside it in a bounded cache.

    One without, left by a process that was killed or by a cache without a bound, would keep JAX
    from ever writing an entry again.
    """
    for entry in folder.glob(f"*{_ENTRY}"):
        date = entry.with_name(entry.name.removesuffix(_ENTRY) + _DATE)
        with contextlib.suppress(OSError):  # another process evicts it, or nothing can be written
            if not date.exists():
                date.write_bytes(entry.stat().st_mtime_ns.to_bytes(8, "little"))


def _told_by_others(name: str) -> Any:
    """The option's value as the user or the environment set it, whatever was set here since."""
    value = jax.config.values[name]
    return _others[name] if name in _ours and value == _ours[name] else value


def _set(options: dict[str, Any]) -> None:
    changed = False
    for name, value in options.items():
        _others[name], _ours[name] = _told_by_others(name), value
        if jax.config.values[name] != value:
            jax.config.update(name, value)
            changed = True
    if changed:  # JAX looks at the options once, at its first compilation
        from jax.experimental.compilation_cache import compilation_cache

        compilation_cache.reset_cache()
