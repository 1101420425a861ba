"""The manifest of a checkpoint: every file with its size and SHA-256, itself under a digest."""

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from jaxrl.config import signature
from jaxrl.runs.checkpoint.folders import flush

MANIFEST = "manifest.json"
VERSION = 2
"""Of the format. Version 1 had no manifest."""
_MAX_BYTES = 64 * 2**20


def write_manifest(folder: Path, score: float | None) -> None:
    """Describe all files of a folder, which are on the disk when this returns.

    Args:
        folder: A checkpoint that is complete but for this file.
        score: The metric's value, by which the best checkpoints are kept.
    """
    files: dict[str, Any] = {}
    for name in sorted(_names(folder)):
        flush(folder / name)
        files[name] = {"bytes": (folder / name).stat().st_size, "sha256": _digest(folder / name)}
    said = {"checkpoint_version": VERSION, "files": files, "score": score}
    content = signature.sealed(said)
    with (folder / MANIFEST).open("xb") as file:
        file.write(signature.canonical(content))
        file.flush()
        os.fsync(file.fileno())


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """What `write_manifest` wrote; None for a checkpoint of version 1, which has none.

    Raises:
        ValueError: It was changed, or is of a later version.
    """
    if not (folder / MANIFEST).exists():
        return None
    text = read_bounded(folder / MANIFEST, _MAX_BYTES)
    content = parsed(text, MANIFEST)
    version = content.get("checkpoint_version")
    if isinstance(version, int) and version > VERSION:
        raise ValueError(
            f"its format is version {version}, this jaxrl reads versions up to {VERSION}"
        )
    files = content.get("files")
    as_written = signature.is_whole(content) and signature.canonical(content) == text
    if not as_written or version != VERSION:
        raise ValueError(f"its file {MANIFEST} was changed: its digest does not match")
    if not isinstance(files, dict) or not all(map(_is_entry, cast(dict[str, Any], files).values())):
        raise ValueError(f"its file {MANIFEST} is not jaxrl's")
    return content


def is_own(manifest: Mapping[str, Any] | None) -> bool:
    """Whether this user wrote the checkpoint on this machine."""
    return manifest is not None and signature.is_own_seal(manifest)


def check_names(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Refuse a checkpoint with other files, or files of another size; reads none of them.

    Raises:
        ValueError: Names the first that is missing, that does not belong there, or that differs.
    """
    described: dict[str, Any] = manifest["files"]
    found = set(_names(folder)) - {MANIFEST}
    for name in sorted(described.keys() - found):
        raise ValueError(f"its file {name} is missing")
    for name in sorted(found - described.keys()):
        raise ValueError(f"its file {name} does not belong to it")
    for name in sorted(found):
        size = (folder / name).stat().st_size
        if size != described[name]["bytes"]:
            expected = described[name]["bytes"]
            raise ValueError(f"its file {name} has {size} bytes and was written with {expected}")


def check_content(folder: Path, manifest: Mapping[str, Any], name: str | None = None) -> None:
    """Refuse a checkpoint of which a file was changed.

    Args:
        folder: The checkpoint.
        manifest: Its manifest.
        name: The one file to read; None for all.

    Raises:
        ValueError: Names the first that differs.
    """
    described: dict[str, Any] = manifest["files"]
    for each in sorted(described) if name is None else [name]:
        if each not in described or _digest(folder / each) != described[each]["sha256"]:
            raise ValueError(f"its file {each} was changed: its digest does not match")


def read_bounded(path: Path, most: int) -> bytes:
    """The content of an ordinary file.

    Raises:
        ValueError: It is no file, or larger than any such file of a checkpoint.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode) or found.st_size > most:
        raise ValueError(f"its file {path.name} is no file of at most {most} bytes")
    return path.read_bytes()


def parsed(text: bytes, name: str) -> dict[str, Any]:
    """The JSON object that a file of a checkpoint holds.

    Raises:
        ValueError: It holds none; names the file.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its file {name} was changed: it is no JSON") from error
    if not isinstance(content, dict):
        raise ValueError(f"its file {name} is not jaxrl's")
    return cast(dict[str, Any], content)


def _names(folder: Path) -> Iterator[str]:
    """Every file below a folder, by its path in it.

    Raises:
        ValueError: Something is neither a file nor a folder.
    """
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(root) / name
            within = path.relative_to(folder).as_posix()
            mode = path.lstat().st_mode
            if stat.S_ISREG(mode):
                yield within
            elif not stat.S_ISDIR(mode):
                raise ValueError(f"its file {within} is no ordinary file")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_entry(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and entry.keys() == {"bytes", "sha256"}
        and type(entry["bytes"]) is int
        and isinstance(entry["sha256"], str)
    )
