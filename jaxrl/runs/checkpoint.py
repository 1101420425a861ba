"""Checkpoints of the whole TrainState: atomic, verified by digests, and without pickle.

A checkpoint is a folder with `state/` (the leaves by path, written by Orbax: its
`StandardCheckpointer().restore(folder / "state")` returns them without jaxrl), `metadata/` (JSON
with the config, versions, and the shape, dtype and checksum of every leaf) and `manifest.json` (the
SHA-256 of every file, with a digest of itself and the signature of the user who wrote it). It is
written under a temporary name and then renamed, and renamed before it is removed, so a folder
called `checkpoint_...` is always complete. Leaves are loaded only if all of them match.

If a number is saved again, the new checkpoint is written next to the old one. While they are
swapped, the old one is called `replaced_checkpoint_...` and is still valid, so the newest number is
available at any time.
"""

import contextlib
import functools
import hashlib
import importlib
import json
import logging
import math
import os
import re
import shutil
import stat
import threading
import uuid
import zlib
from collections.abc import Container, Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeGuard, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxrl.config.signature import encode_canonical, has_valid_digest, is_sealed_by_user, seal
from jaxrl.core.types import PyTree
from jaxrl.errors import CheckpointError
from jaxrl.runtime.files import read_bounded, try_lock_folder

logger = logging.getLogger("jaxrl.runs.checkpoint")

VERSION = 3
"""Version of the checkpoint format; no other one is read."""

# --- folders ---

CHECKPOINT_PREFIX = "checkpoint"
REPLACED_PREFIX = "replaced_"
WRITING_PREFIX, REMOVING_PREFIX = ".writing_", ".removing_"
SET_ASIDE_PREFIX = "set_aside_"
OWN_FILES = "own"
"""Folder of a checkpoint with what a subclass of Algorithm saves besides."""
SWEEP_FILE = "sweep.json"
"""File in a sweep's folder that refers to a checkpoint of every lane, by their iteration."""
_UNFINISHED = (REMOVING_PREFIX, ".replacing")
_ORBAX_UNFINISHED = ".orbax-checkpoint-tmp"


def get_checkpoint_path(folder: Path, number: int) -> Path:
    """Return the path of the checkpoint of a number."""
    return folder / f"{CHECKPOINT_PREFIX}_{number:06d}"


def parse_number(name: str) -> int | None:
    """Return the number in the name of a complete checkpoint; None for any other name."""
    prefix, _, number = name.removeprefix(REPLACED_PREFIX).partition("_")
    return (
        int(number)
        if prefix == CHECKPOINT_PREFIX and number.isascii() and number.isdecimal()
        else None
    )


def list_checkpoints(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the paths of the complete checkpoints in a folder, oldest first."""
    root = Path(folder).expanduser()
    if not root.is_dir():
        return []
    replaced: dict[int, Path] = {}
    current: dict[int, Path] = {}
    for path in root.iterdir():
        number = parse_number(path.name)
        if number is not None and path.is_dir():
            (replaced if path.name.startswith(REPLACED_PREFIX) else current)[number] = path
    checkpoints = {**replaced, **current}
    return [checkpoints[number] for number in sorted(checkpoints)]


def is_checkpoint(path: Path) -> bool:
    """Return whether a folder has a checkpoint's subfolders, without checking their content."""
    return (path / "metadata").is_dir() and (path / "state").is_dir()


def get_path(given: object) -> Path:
    """Return the path of a checkpoint, which may be an object of Ray Tune's, as of a Result.

    Raises:
        CheckpointError: If it has none, or cannot be copied from where Tune stored it.
    """
    path = given if isinstance(given, str) else getattr(given, "path", None)
    if path is None and isinstance(given, os.PathLike):
        path = os.fspath(given)
    if not isinstance(path, str):
        raise CheckpointError(
            f"A checkpoint must be given as a path, or as a Checkpoint of Ray Tune, got {given!r}."
        )
    copy = None if isinstance(given, str) else getattr(given, "to_directory", None)
    if copy is not None and not Path(path).exists():  # in a storage of Tune's
        try:
            path = str(copy())
        except Exception as error:
            raise CheckpointError(
                f"{given!r} cannot be copied to this machine: {error}."
            ) from error
    return Path(path).expanduser()


def find_checkpoint(path: str | os.PathLike[str]) -> Path:
    """Find the checkpoint at a path: the path itself, or the newest one of a folder or run.

    Raises:
        CheckpointError: If there is none.
    """
    root = get_path(path)
    try:
        if is_checkpoint(root):
            return root.resolve()
        exists = root.exists()
        checkpoints = list_checkpoints(root) or list_checkpoints(root / "checkpoints")
    except (OSError, ValueError) as error:  # not readable, or not a valid path
        raise CheckpointError(f"There is no checkpoint {str(path)!r}: {error}.") from error
    if not exists:
        set_aside = root.with_name(SET_ASIDE_PREFIX + root.name)
        other = (
            f" It was renamed to {set_aside} when its run went back." if set_aside.exists() else ""
        )
        raise CheckpointError(
            f"There is no checkpoint {root}: no such file or folder."
            f"{other or describe_previous(root)}"
        )
    if (root / SWEEP_FILE).is_file():
        raise CheckpointError(_describe_sweep(root))
    if not checkpoints:
        raise CheckpointError(
            f"{root} is not a jaxrl checkpoint (it has no metadata/ and state/) and contains none."
        )
    return checkpoints[-1].resolve()


def remove_old_set_aside(folder: Path, max_to_keep: int) -> None:
    """Remove all but the newest of the checkpoints that were set aside."""
    found = [path for path in folder.glob(f"{SET_ASIDE_PREFIX}*") if path.is_dir()]
    found.sort(key=lambda path: (path.stat().st_mtime_ns, path.name))
    for path in found[: max(0, len(found) - max_to_keep)]:
        remove_checkpoint(path)


def _describe_sweep(folder: Path) -> str:
    if _read_sweep(folder).get("trials"):
        return (
            f"{folder} is a sweep of several runs, in Tune's trials: 'jaxrl resume' continues it."
        )
    return (
        f"{folder} is a sweep of several runs: Population.from_checkpoint and 'jaxrl resume' "
        f"continue it; one of its runs is {folder / 'lane_000'}."
    )


def describe_previous(checkpoint: Path) -> str:
    """Return a sentence that names the previous checkpoint; empty if there is none."""
    number = parse_number(checkpoint.name)
    others = [] if number is None else list_checkpoints(checkpoint.parent)
    older = [path for path in others if (parse_number(path.name) or 0) < (number or 0)]
    if not older:
        return ""
    return (
        f" The previous one is {older[-1]}, which can be passed to 'jaxrl resume', "
        "'jaxrl evaluate' and from_checkpoint."
    )


def remove_checkpoint(path: Path) -> None:
    """Remove a checkpoint, renaming it first so that no partial one has a checkpoint's name."""
    renamed = path.with_name(REMOVING_PREFIX + path.name)
    shutil.rmtree(renamed, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):  # another process removed it
        path.rename(renamed)
    shutil.rmtree(renamed, ignore_errors=True)


def set_aside_later_checkpoints(folder: Path, number: int) -> list[Path]:
    """Rename the checkpoints after a number, because the run continues differently from there.

    Returns:
        The new paths, oldest first, which are no longer read.
    """
    renamed: list[Path] = []
    for path in list_checkpoints(folder):
        if (parse_number(path.name) or 0) > number:
            target, copies = path.with_name(SET_ASIDE_PREFIX + path.name), 1
            while target.exists():
                copies += 1
                target = path.with_name(f"{SET_ASIDE_PREFIX}{path.name}_{copies}")
            renamed.append(path.rename(target))
    return renamed


def find_swept_iteration(run: Path) -> int | None:
    """Return the iteration at which a lane's sweep resumes; None without a sweep, or for a trial."""
    saved = _read_sweep(run.parent)
    iteration = saved.get("training_iteration")
    return iteration if type(iteration) is int and not saved.get("trials") else None


def _read_sweep(folder: Path) -> dict[str, Any]:
    """Return the content of a sweep's file; empty if there is none, or it is damaged."""
    try:
        saved = json.loads((folder / SWEEP_FILE).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return saved if isinstance(saved, dict) else {}


@contextlib.contextmanager
def stage(path: Path) -> Generator[Path]:
    """Make a folder to write a checkpoint in, which is removed at the end if it is not published.

    It is locked, so that `_clean_up` of another writer leaves it alone.
    """
    staging, handle = path, None
    while handle is None:
        staging = path.with_name(f"{WRITING_PREFIX}{uuid.uuid4().hex[:12]}_{path.name}")
        staging.mkdir(parents=True)
        handle = try_lock_folder(staging)
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        os.close(handle)


def _clean_up(folder: Path) -> None:
    """Remove leftovers of a killed process and undo incomplete replacements.

    What a living process writes is left to it.
    """
    in_use: list[str] = []
    for path in list(folder.iterdir()):
        if path.name.startswith(WRITING_PREFIX):
            try:
                handle = try_lock_folder(path)
            except OSError:  # of another user
                handle = None
            if handle is None:
                in_use.append(path.name)
                continue
            shutil.rmtree(path, ignore_errors=True)
            os.close(handle)
        elif path.name.startswith(_UNFINISHED) or _ORBAX_UNFINISHED in path.name:
            shutil.rmtree(path, ignore_errors=True)
    for replaced in folder.glob(f"{REPLACED_PREFIX}{CHECKPOINT_PREFIX}_*"):
        current = replaced.with_name(replaced.name.removeprefix(REPLACED_PREFIX))
        if current.exists():
            remove_checkpoint(replaced)
        elif not any(name.endswith(current.name) for name in in_use):
            replaced.rename(current)


def _publish(staging: Path, path: Path) -> None:
    """Rename a completely written checkpoint to its final name, replacing one of that name."""
    replaced = path.with_name(REPLACED_PREFIX + path.name)
    if path.exists():
        if replaced.exists():
            remove_checkpoint(replaced)
        path.rename(replaced)
    staging.rename(path)
    _flush(path.parent)
    if replaced.exists():
        remove_checkpoint(replaced)


def _flush(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class SavedPath(str):
    """Path of a saved checkpoint, which RLlib's code reads as `save().checkpoint.path`.

    It is written to YAML as the string that it is.
    """

    def __new__(cls, path: object = "") -> "SavedPath":
        _register_with_yaml()
        return super().__new__(cls, path)

    @property
    def checkpoint(self) -> "SavedPath":
        """The checkpoint itself."""
        return self

    @property
    def path(self) -> str:
        """The path as a plain string."""
        return str(self)

    def to_directory(self) -> str:
        """Return the path; nothing is copied."""
        return str(self)


@functools.cache
def _register_with_yaml() -> None:
    """Let PyYAML write paths as strings; its safe dumpers refuse subclasses that they do not know.

    It is imported with the first path, since most programs that read checkpoints write no YAML.
    """
    import yaml

    def represent(dumper: yaml.representer.SafeRepresenter, path: SavedPath) -> yaml.Node:
        return dumper.represent_str(str(path))

    for name in ("SafeDumper", "Dumper", "CSafeDumper", "CDumper"):
        if hasattr(yaml, name):  # those in C are not part of every build
            yaml.add_representer(SavedPath, represent, Dumper=getattr(yaml, name))


# --- leaves ---


def get_named_leaves(tree: PyTree) -> dict[str, Any]:
    """Return the leaves of a tree by path, such as `learner.sgd.params.pi.kernel`.

    Leaves without entries are omitted. Typed keys are converted to their key data, named
    `<path>:<implementation>`.
    """
    leaves: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        name = format_leaf_name(path)
        if _is_key(leaf):
            leaves[f"{name}:{jax.random.key_impl(leaf)}"] = jax.random.key_data(leaf)
        elif np.size(leaf):
            leaves[name] = leaf
    return leaves


def format_leaf_name(path: jax.tree_util.KeyPath[Any]) -> str:
    """Return the name of a leaf from its JAX key path."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _is_key(leaf: object) -> TypeGuard[jax.Array]:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def is_key_name(name: str) -> bool:
    """Return whether a name is that of random keys, and not one with a colon of its own."""
    return name.rpartition(":")[2] == str(jax.random.key_impl(jax.random.key(0)))


def fetch_leaves(tree: PyTree) -> dict[str, np.ndarray]:
    """Return the named leaves as NumPy copies."""
    return {name: np.array(leaf) for name, leaf in jax.device_get(get_named_leaves(tree)).items()}


def describe_leaves(leaves: Mapping[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """Return the shape, dtype and checksum of every leaf."""
    return {
        name: {
            "shape": list(leaf.shape),
            "dtype": str(leaf.dtype),
            "crc32": zlib.crc32(np.ascontiguousarray(leaf).tobytes()),
        }
        for name, leaf in leaves.items()
    }


def find_first_difference(
    template: PyTree, leaves: Mapping[str, np.ndarray], prefixes: tuple[str, ...] = ("",)
) -> str | None:
    """Describe the first leaf that does not match a template.

    Args:
        template: Tree with the expected leaves.
        leaves: Leaves by name.
        prefixes: Prefixes of the names to compare; others are ignored.

    Returns:
        A phrase that names the leaf; None if all match.
    """
    expected = get_named_leaves(template)
    for name, leaf in expected.items():
        if not _is_selected(name, prefixes):
            continue
        if name not in leaves:
            return _describe_other_keys(name, leaves) or f"{name} is missing"
        got, want = leaves[name], leaf
        if tuple(got.shape) != tuple(want.shape) or str(got.dtype) != str(want.dtype):
            return (
                f"{name} is {got.dtype}{list(got.shape)}, expected {want.dtype}{list(want.shape)}"
            )
    for name in leaves:
        if _is_selected(name, prefixes) and name not in expected:
            return f"{name} is unexpected"
    return None


def _describe_other_keys(name: str, leaves: Mapping[str, np.ndarray]) -> str | None:
    """Describe random keys that a state has in another implementation; None if it has none."""
    path, _, impl = name.rpartition(":")
    found = [n for n in leaves if n.rpartition(":")[0] == path] if is_key_name(name) else []
    if not found:
        return None
    other = found[0].rpartition(":")[2]
    return (
        f"{path} has keys of {other}, expected {impl}; set JAX_DEFAULT_PRNG_IMPL={other} in the "
        "environment of this process, or restore the weights alone"
    )


def _is_selected(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == p or not p or name.startswith(f"{p}.") for p in prefixes)


def fill(
    template: PyTree, leaves: Mapping[str, np.ndarray], prefixes: tuple[str, ...] = ("",)
) -> PyTree:
    """Replace the selected leaves of a template, keeping the sharding of its leaves.

    Args:
        template: Tree with leaves to replace.
        leaves: New leaves by name.
        prefixes: Prefixes of the names to replace; other leaves of the template are kept.
    """

    def replace_leaf(path: jax.tree_util.KeyPath[Any], old: ArrayLike) -> ArrayLike:
        name = format_leaf_name(path)
        if not _is_selected(name, prefixes):
            return old
        if _is_key(old):
            impl = str(jax.random.key_impl(old))
            new = jax.random.wrap_key_data(jnp.asarray(leaves[f"{name}:{impl}"]), impl=impl)
        elif not np.size(old):
            return old
        else:
            new = leaves[name]
        return jax.device_put(new, old.sharding) if isinstance(old, jax.Array) else new

    return jax.tree_util.tree_map_with_path(replace_leaf, template)


# --- files of a checkpoint ---

METADATA, MANIFEST, _ARRAYS = "metadata/metadata", "manifest.json", "state"
_MAX_METADATA_BYTES, _MAX_MANIFEST_BYTES = 256 * 2**20, 64 * 2**20
_MAX_RATIO = 2**16
"""Maximum number of a leaf's entries per byte on disk: above the compression ratio of zeros."""


def write_manifest(folder: Path, score: float | None) -> None:
    """Write the manifest of a folder and flush all its files to disk.

    Args:
        folder: Checkpoint that is complete except for the manifest.
        score: Value of the metric by which the best checkpoints are kept.
    """
    files: dict[str, Any] = {}
    for name in sorted(_list_files(folder)):
        path = folder / name
        _flush(path)
        files[name] = {"bytes": path.stat().st_size, "sha256": _compute_digest(path)}
    document = {"checkpoint_version": VERSION, "files": files, "score": score}
    with (folder / MANIFEST).open("xb") as file:
        file.write(encode_canonical(seal(document)))
        file.flush()
        os.fsync(file.fileno())


def _read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest; raises ValueError if it was changed, or is of another version."""
    if not (folder / MANIFEST).exists():
        raise ValueError(f"its file {MANIFEST} is missing")
    text = read_bounded(folder / MANIFEST, _MAX_MANIFEST_BYTES)
    content = _parse_json_object(text, MANIFEST)
    version = content.get("checkpoint_version")
    if type(version) is int and version != VERSION:
        raise ValueError(f"its format is version {version}, but this jaxrl reads version {VERSION}")
    files = content.get("files")
    is_intact = has_valid_digest(content) and encode_canonical(content) == text
    if not is_intact or version != VERSION:
        raise ValueError(f"its file {MANIFEST} was changed: its digest does not match")
    if not isinstance(files, dict) or not all(map(_is_entry, cast(dict[str, Any], files).values())):
        raise ValueError(f"its file {MANIFEST} is not jaxrl's")
    return content


def _is_entry(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and entry.keys() == {"bytes", "sha256"}
        and type(entry["bytes"]) is int
        and isinstance(entry["sha256"], str)
    )


def _check_names(folder: Path, described: Mapping[str, Any]) -> None:
    """Check the names and sizes of a checkpoint's files without reading them."""
    names = set(_list_files(folder)) - {MANIFEST}
    for name in sorted(described.keys() - names):
        raise ValueError(f"its file {name} is missing")
    for name in sorted(names - described.keys()):
        raise ValueError(f"its file {name} does not belong to it")
    for name in sorted(names):
        size, expected = (folder / name).stat().st_size, described[name]["bytes"]
        if size != expected:
            raise ValueError(f"its file {name} has {size} bytes, but was written with {expected}")


def _check_digests(folder: Path, described: Mapping[str, Any], names: Iterable[str]) -> None:
    for name in names:
        if name not in described or _compute_digest(folder / name) != described[name]["sha256"]:
            raise ValueError(f"its file {name} was changed: its digest does not match")


def _parse_json_object(text: bytes, name: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its file {name} was changed: it is not valid JSON") from error
    if not isinstance(content, dict):
        raise ValueError(f"its file {name} is not jaxrl's")
    return cast(dict[str, Any], content)


def _list_files(folder: Path) -> Iterator[str]:
    """Yield the relative paths of all files below a folder, which may have no links."""
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


# --- reading: content is verified before it is used and before memory is allocated ---


def read_metadata(checkpoint: Path) -> dict[str, Any]:
    """Return the checkpoint's metadata.

    Raises:
        CheckpointError: If it is damaged, not jaxrl's, or of another version.
    """
    with _translate_errors(checkpoint):
        described = _read_manifest(checkpoint)["files"]
        _check_names(checkpoint, described)
        _check_digests(checkpoint, described, [METADATA])
        text = read_bounded(checkpoint / METADATA, _MAX_METADATA_BYTES)
        document = _parse_json_object(text, METADATA)
        if "leaves" not in document:
            raise ValueError("its metadata is not jaxrl's")
        _check_descriptions(document["leaves"], checkpoint)
    return document


def is_own(checkpoint: Path) -> bool:
    """Return whether the current user wrote the checkpoint on this machine.

    Raises:
        CheckpointError: If its manifest is damaged.
    """
    with _translate_errors(checkpoint):
        return is_sealed_by_user(_read_manifest(checkpoint))


def read_score(checkpoint: Path) -> float | None:
    """Return the score that a checkpoint was saved with; None without one, or if it is damaged."""
    try:
        score = _read_manifest(checkpoint).get("score")
    except (OSError, ValueError, RecursionError):
        return None
    return float(score) if isinstance(score, int | float) and math.isfinite(score) else None


def read_leaves(checkpoint: Path, metadata: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Read all leaves and verify their checksums.

    Args:
        checkpoint: Path of the checkpoint.
        metadata: Metadata returned by `read_metadata`.

    Raises:
        CheckpointError: If anything is missing or damaged.
    """
    described: dict[str, dict[str, Any]] = metadata["leaves"]
    with _translate_errors(checkpoint):
        files = _read_manifest(checkpoint)["files"]
        _check_names(checkpoint, files)
        _check_digests(checkpoint, files, sorted(files))
        leaves = _read_arrays(checkpoint / _ARRAYS, described)
        for name, entry in describe_leaves(leaves).items():
            if entry["crc32"] != described[name]["crc32"]:
                raise ValueError(f"the checksum of {name} does not match")
    return leaves


def _import_orbax() -> Any:
    """Import Orbax, which is slow, without its log: it raises the errors that it logs."""
    ocp = importlib.import_module("orbax.checkpoint")
    logging.getLogger("absl").addFilter(_is_not_from_orbax)
    return ocp


def _is_not_from_orbax(record: logging.LogRecord) -> bool:
    return "orbax" not in Path(record.pathname).parts


def _read_arrays(folder: Path, described: Mapping[str, Mapping[str, Any]]) -> dict[str, np.ndarray]:
    ocp = _import_orbax()
    handler = ocp.PyTreeCheckpointHandler()
    stored = handler.metadata(folder).tree
    if stored.keys() != described.keys():
        raise ValueError("its leaves differ from those of its metadata")
    for name, entry in described.items():
        if [*stored[name].shape] != entry["shape"] or str(stored[name].dtype) != entry["dtype"]:
            raise ValueError(f"its leaf {name} differs in shape or dtype from its metadata")
    as_numpy = dict.fromkeys(described, ocp.RestoreArgs(restore_type=np.ndarray))
    return handler.restore(folder, args=ocp.args.PyTreeRestore(restore_args=as_numpy))


def _check_descriptions(leaves: object, checkpoint: Path) -> None:
    """Raise ValueError for invalid leaf descriptions, or ones too large for the files' sizes."""
    if not isinstance(leaves, dict):
        raise ValueError("its leaves are not a mapping")
    described = cast(dict[str, Any], leaves)
    total = sum(_count_entries(name, entry) for name, entry in described.items())
    files = (checkpoint / _ARRAYS).rglob("*")
    size = sum(path.stat().st_size for path in files if path.is_file())
    if total > size * _MAX_RATIO:
        raise ValueError(f"its leaves claim to have {total} entries in files of {size} bytes")


def _count_entries(name: str, entry: object) -> int:
    """Return the number of entries of a leaf, given its description by `describe_leaves`."""
    if not isinstance(entry, dict) or entry.keys() != {"shape", "dtype", "crc32"}:
        raise ValueError(f"its leaf {name} is not described by shape, dtype and crc32")
    shape, dtype, checksum = entry["shape"], entry["dtype"], entry["crc32"]
    is_shape = isinstance(shape, list) and len(shape) <= 32
    if not is_shape or any(type(axis) is not int or not 0 <= axis < 2**48 for axis in shape):
        raise ValueError(f"its leaf {name} has shape {shape!r}"[:200])
    if not _is_dtype(dtype) or type(checksum) is not int:
        raise ValueError(f"its leaf {name} has dtype {dtype!r} and checksum {checksum!r}"[:200])
    return math.prod(shape)


def _is_dtype(name: object) -> bool:
    """Return whether this is the name of a numeric or boolean dtype."""
    return isinstance(name, str) and name.isidentifier() and _is_numeric(name)


@functools.lru_cache(maxsize=64)
def _is_numeric(name: str) -> bool:
    try:
        dtype = np.dtype(name)
    except TypeError:
        return False
    return str(dtype) == name and bool(jnp.issubdtype(dtype, jnp.number) or dtype == np.bool_)


@contextlib.contextmanager
def _translate_errors(checkpoint: Path) -> Generator[None]:
    """Translate any error of reading to a CheckpointError that names the previous checkpoint."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        reason, hint = _summarize_error(error), describe_previous(checkpoint)
        raise CheckpointError(f"{checkpoint} cannot be loaded: {reason}.{hint}") from error


def _summarize_error(error: Exception) -> str:
    """Return the first line of an error, or the operating system's message that it wraps."""
    if isinstance(error, RecursionError | MemoryError):
        return f"it is nested too deeply or too large ({type(error).__name__})"
    code = re.search(r"os_error_code='(\d+)'", str(error))
    if code is not None:
        return os.strerror(int(code[1]))
    if isinstance(error, OSError) and error.strerror:
        return error.strerror + (f" ({error.filename})" if error.filename else "")
    lines = str(error).strip().splitlines()
    return (lines[0].rstrip(".") if lines else repr(error))[:300]


# --- writing ---


def _write_arrays(folder: Path, arrays: Mapping[str, np.ndarray]) -> None:
    ocp = _import_orbax()
    handler = ocp.PyTreeCheckpointHandler()  # not a Checkpointer, which renames a folder of its own
    folder.mkdir()
    handler.save(folder, args=ocp.args.PyTreeSave(dict(arrays)))
    handler.finalize(folder)


class CheckpointWriter:
    """Writer of numbered checkpoints in one folder that removes old ones.

    Args:
        folder: Folder of the checkpoints, created if missing.
        max_to_keep: Maximum number of checkpoints; None keeps all. The newest ones are kept or,
            with scores, the best ones and the newest.
        scored: Whether scores are passed to `save`.
        score_order: Order of scores: "max" if higher is better, else "min".
        repeats_scores: Whether a score may be that of an earlier checkpoint, as results repeat the
            latest evaluation; among equal ones, the oldest is then kept.
        protected: Numbers of checkpoints that are never removed; may be mutated by the caller.
        asynchronous: Whether to write in the background; `wait` and the next `save` wait for the
            previous write.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        max_to_keep: int | None = None,
        scored: bool = False,
        score_order: str = "max",
        repeats_scores: bool = False,
        protected: Container[int] = (),
        asynchronous: bool = False,
    ) -> None:
        self.folder = Path(folder).expanduser().resolve()
        self._max_to_keep, self._protected = max_to_keep, protected
        self._sign = (1.0 if score_order == "max" else -1.0) if scored else 0.0
        self._repeats_scores = repeats_scores
        self._scores: dict[int, float | None] = {}
        self._asynchronous = asynchronous
        self._write_thread: threading.Thread | None = None
        self._failure: Exception | None = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            _clean_up(self.folder)
        except OSError as error:
            raise self._make_error(error) from error

    def save(
        self,
        number: int,
        state: PyTree,
        metadata: Mapping[str, Any],
        score: float | None = None,
        files: Path | None = None,
    ) -> Path:
        """Start saving; the state may be donated as soon as this returns.

        If the previous background write failed, its error is logged and this save is synchronous,
        so that it raises if it fails, too. A save that replaces a checkpoint is also synchronous.

        Args:
            number: Number of the checkpoint, ascending within the folder. If it exists with the
                same content, nothing is written; else it is kept until the new one is complete.
            state: Any pytree.
            metadata: JSON-serializable metadata, to which the leaves' descriptions are added.
            score: Current value of the metric by which the best checkpoints are kept; None if there
                is none yet.
            files: Folder of more files, which are moved into the checkpoint; see `OWN_FILES`.

        Returns:
            The path of the checkpoint.

        Raises:
            CheckpointError: If writing failed; earlier checkpoints are intact.
        """
        _warn_of_missing(tuple(metadata.get("not_saved", ())))
        leaves = fetch_leaves(state)
        document = {**metadata, "checkpoint_version": VERSION, "leaves": describe_leaves(leaves)}
        text = json.dumps(document)
        score = None if score is None or not math.isfinite(score) else float(score)
        path = get_checkpoint_path(self.folder, number)
        failure = self._join_write()
        if failure is not None:
            logger.error("%s", self._make_error(failure))
        if files is None and _has_metadata(path, text):
            return path
        content = (path, leaves, text, score, files)
        if self._asynchronous and failure is None and not path.exists():
            self._write_thread = threading.Thread(target=self._try_write, args=content)
            self._write_thread.start()
        else:
            self._try_write(*content)
            self.wait()
        return path

    def set_aside_later(self, number: int) -> list[Path]:
        """Rename the checkpoints after a number; see `set_aside_later_checkpoints`."""
        failure = self._join_write()
        if failure is not None:
            logger.error("%s", self._make_error(failure))
        renamed = set_aside_later_checkpoints(self.folder, number)
        self._scores = {saved: score for saved, score in self._scores.items() if saved <= number}
        return renamed

    def wait(self) -> None:
        """Wait until the latest checkpoint is on disk under its final name.

        Raises:
            CheckpointError: If writing failed; raised once per failure.
        """
        failure = self._join_write()
        if failure is not None:
            raise self._make_error(failure) from failure

    def close(self) -> None:
        """Wait for pending writes; see `wait`."""
        self.wait()

    def _join_write(self) -> Exception | None:
        """Wait for the latest write and return its error, unless returned before."""
        thread, self._write_thread = self._write_thread, None
        if thread is not None:
            thread.join()
        failure, self._failure = self._failure, None
        return failure

    def _try_write(
        self,
        path: Path,
        leaves: Mapping[str, np.ndarray],
        text: str,
        score: float | None,
        files: Path | None,
    ) -> None:
        try:
            self._write(path, leaves, text, score, files)
        except Exception as error:  # noqa: BLE001  (raised in the caller's thread)
            self._failure = error
        finally:
            if files is not None:
                shutil.rmtree(files, ignore_errors=True)

    def _write(
        self,
        path: Path,
        leaves: Mapping[str, np.ndarray],
        text: str,
        score: float | None,
        files: Path | None,
    ) -> None:
        with stage(path) as staging:
            (staging / METADATA).parent.mkdir(parents=True)
            (staging / METADATA).write_text(text, encoding="utf-8")
            _write_arrays(staging / _ARRAYS, leaves)
            if files is not None:
                shutil.move(files, staging / OWN_FILES)
            write_manifest(staging, score)
            _publish(staging, path)
        logger.info("checkpoint %s of %d arrays", path, len(leaves))
        number = parse_number(path.name) or 0
        self._scores[number] = score
        self._remove_old(number)

    def _remove_old(self, latest: int) -> None:
        """Remove all checkpoints but the best, the newest, the latest saved and protected ones."""
        saved = {parse_number(path.name) or 0: path for path in list_checkpoints(self.folder)}
        if self._max_to_keep is None:
            return
        best = sorted(saved, key=self._get_rank)[-self._max_to_keep :]
        retained = {*best, max(saved, default=latest), latest}
        for number, path in saved.items():
            if number not in retained and number not in self._protected:
                remove_checkpoint(path)

    def _get_rank(self, number: int) -> tuple[float, int]:
        """Return the sort key of a checkpoint: no score is worst.

        Newer is better among equals, unless results repeat the score of an earlier one.
        """
        if not self._sign:
            return 0.0, number
        if number not in self._scores:
            self._scores[number] = read_score(get_checkpoint_path(self.folder, number))
        score = self._scores[number]
        if score is None:
            return -math.inf, number
        return self._sign * score, -number if self._repeats_scores else number

    def _make_error(self, error: Exception) -> CheckpointError:
        return CheckpointError(
            f"Checkpoints cannot be written in {self.folder}: {_summarize_error(error)}; existing "
            "checkpoints are intact."
        )


@functools.cache
def _warn_of_missing(names: tuple[str, ...]) -> None:
    """Warn, once per process, of settings that checkpoints lack."""
    if names:
        logger.warning(
            "Checkpoints of this run do not contain %s, which has no import path: supply it again, "
            "from_checkpoint(path, %s).",
            " and ".join(names),
            ", ".join(f"{name}=..." for name in names),
        )


def _has_metadata(checkpoint: Path, text: str) -> bool:
    """Return whether a checkpoint has this metadata, which has the checksum of every leaf."""
    if not checkpoint.exists():
        return False
    try:
        return read_metadata(checkpoint) == json.loads(text)
    except CheckpointError:
        return False
