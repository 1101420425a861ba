"""Manifest of a checkpoint: size and SHA-256 of every file, with a digest of the manifest."""

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from jaxrl.config import signature
from jaxrl.runs.checkpoint.folders import flush
from jaxrl.runtime.files import read_bounded

MANIFEST = "manifest.json"
VERSION = 2
"""Version of the checkpoint format. Version 1 had no manifest."""
_MAX_BYTES = 64 * 2**20


def write_manifest(folder: Path, score: float | None) -> None:
    """Write the manifest of a folder and flush all its files to disk.

    Args:
        folder: Checkpoint that is complete except for the manifest.
        score: Value of the metric by which the best checkpoints are kept.
    """
    files: dict[str, Any] = {}
    for name in sorted(_list_files(folder)):
        path = folder / name
        flush(path)
        files[name] = {"bytes": path.stat().st_size, "sha256": _compute_digest(path)}
    document = {"checkpoint_version": VERSION, "files": files, "score": score}
    content = signature.seal(document)
    with (folder / MANIFEST).open("xb") as file:
        file.write(signature.encode_canonical(content))
        file.flush()
        os.fsync(file.fileno())


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Read the manifest; None for a checkpoint of version 1, which has none.

    Raises:
        ValueError: If the manifest was changed, or has a later version.
    """
    if not (folder / MANIFEST).exists():
        return None
    text = read_bounded(folder / MANIFEST, _MAX_BYTES)
    content = parse_json_object(text, MANIFEST)
    version = content.get("checkpoint_version")
    if isinstance(version, int) and version > VERSION:
        raise ValueError(
            f"its format is version {version}, but this jaxrl reads versions up to {VERSION}"
        )
    files = content.get("files")
    is_intact = signature.has_valid_digest(content) and signature.encode_canonical(content) == text
    if not is_intact or version != VERSION:
        raise ValueError(f"its file {MANIFEST} was changed: its digest does not match")
    if not isinstance(files, dict) or not all(map(_is_entry, cast(dict[str, Any], files).values())):
        raise ValueError(f"its file {MANIFEST} is not jaxrl's")
    return content


def is_own(manifest: Mapping[str, Any] | None) -> bool:
    """Return whether the current user wrote the checkpoint on this machine."""
    return manifest is not None and signature.is_sealed_by_user(manifest)


def check_names(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Check the names and sizes of a checkpoint's files without reading them.

    Args:
        folder: Path of the checkpoint.
        manifest: Manifest of the checkpoint.

    Raises:
        ValueError: If a file is missing, unexpected or of another size; names the first.
    """
    described: dict[str, Any] = manifest["files"]
    names = set(_list_files(folder)) - {MANIFEST}
    for name in sorted(described.keys() - names):
        raise ValueError(f"its file {name} is missing")
    for name in sorted(names - described.keys()):
        raise ValueError(f"its file {name} does not belong to it")
    for name in sorted(names):
        size = (folder / name).stat().st_size
        if size != described[name]["bytes"]:
            expected = described[name]["bytes"]
            raise ValueError(f"its file {name} has {size} bytes, but was written with {expected}")


def check_content(folder: Path, manifest: Mapping[str, Any], name: str | None = None) -> None:
    """Check the digests of a checkpoint's files.

    Args:
        folder: Path of the checkpoint.
        manifest: Manifest of the checkpoint.
        name: Name of the only file to check; None for all.

    Raises:
        ValueError: If a file was changed; names the first.
    """
    described: dict[str, Any] = manifest["files"]
    for each in sorted(described) if name is None else [name]:
        if each not in described or _compute_digest(folder / each) != described[each]["sha256"]:
            raise ValueError(f"its file {each} was changed: its digest does not match")


def parse_json_object(text: bytes, name: str) -> dict[str, Any]:
    """Parse the JSON object in a file of a checkpoint.

    Args:
        text: Content of the file.
        name: Name of the file, for error messages.

    Raises:
        ValueError: If the content is not a JSON object.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its file {name} was changed: it is not valid JSON") from error
    if not isinstance(content, dict):
        raise ValueError(f"its file {name} is not jaxrl's")
    return cast(dict[str, Any], content)


def _list_files(folder: Path) -> Iterator[str]:
    """Yield the relative paths of all files below a folder.

    Raises:
        ValueError: If an entry is neither a regular file nor a folder.
    """
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(root) / name
            relative = path.relative_to(folder).as_posix()
            mode = path.lstat().st_mode
            if stat.S_ISREG(mode):
                yield relative
            elif not stat.S_ISDIR(mode):
                raise ValueError(f"its file {relative} is not a regular file")


def _compute_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_entry(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and entry.keys() == {"bytes", "sha256"}
        and type(entry["bytes"]) is int
        and isinstance(entry["sha256"], str)
    )
