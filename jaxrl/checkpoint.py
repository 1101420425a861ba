"""Checkpoints: the whole TrainState, written by Orbax, atomic and without pickle.

A checkpoint is a folder with `state/` (every leaf under its path, as plain arrays) and `metadata/`
(JSON: config, versions, and of every leaf its shape, dtype and checksum). It is written under a
temporary name and renamed, so a folder called `checkpoint_...` is complete. Nothing is loaded that
does not match leaf by leaf.

A number that is saved again is written beside the old one; while the two change places, the old one
is called `replaced_checkpoint_...` and still counts. So at every moment the newest number is there.
"""

import contextlib
import dataclasses
import json
import logging
import math
import os
import shutil
import zlib
from collections.abc import Container, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import PyTree
from jaxrl.errors import CheckpointError

if TYPE_CHECKING:
    import orbax.checkpoint

logger = logging.getLogger(__name__)

VERSION = 1
PREFIX = "checkpoint"
_REPLACED = "replaced_"
_STAGING = ".replacing"


def named_leaves(tree: PyTree) -> dict[str, Any]:
    """Every leaf under its path, `learner.sgd.params.pi.kernel`; leaves without entries left out.

    Typed keys stand as their words, under `<path>:<implementation>`.
    """
    leaves: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        name = leaf_name(path)
        if _is_key(leaf):
            leaves[f"{name}:{jax.random.key_impl(leaf)}"] = jax.random.key_data(leaf)
        elif np.size(leaf):
            leaves[name] = leaf
    return leaves


def leaf_name(path: Any) -> str:
    """A path of JAX's tree functions in words."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def host_leaves(tree: PyTree) -> dict[str, np.ndarray]:
    """The named leaves as NumPy copies."""
    return {name: np.array(leaf) for name, leaf in jax.device_get(named_leaves(tree)).items()}


def describe(leaves: Mapping[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """Shape, dtype and checksum of every leaf."""
    return {
        name: {
            "shape": list(leaf.shape),
            "dtype": str(leaf.dtype),
            "crc32": zlib.crc32(np.ascontiguousarray(leaf).tobytes()),
        }
        for name, leaf in leaves.items()
    }


class CheckpointWriter:
    """Saves numbered checkpoints into one folder and keeps some of them.

    Args:
        folder: Made if missing.
        max_to_keep: None for all. The newest are kept or, if they are scored, the best, and the
            newest beside them.
        scored: Whether `save` is given scores.
        score_order: "max" or "min".
        kept: Numbers that stay, whatever else; may change.
        asynchronous: Write in the background; `wait` or the next save waits for the previous one.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        max_to_keep: int | None = None,
        scored: bool = False,
        score_order: str = "max",
        kept: Container[int] = (),
        asynchronous: bool = False,
    ) -> None:
        self.folder = Path(folder).expanduser().resolve()
        sign = 1.0 if score_order == "max" else -1.0
        policy = _BestAndNewest(number=max_to_keep, sign=sign, kept=kept)
        keep = {"preservation_policy": policy, **({"best_fn": _score} if scored else {})}
        self._scored = scored
        with _in_one_sentence(self.folder, "written"):
            _finish_replacing(self.folder)
            self._manager = _manager(self.folder, asynchronous=asynchronous, **keep)

    def save(
        self, number: int, state: PyTree, metadata: Mapping[str, Any], score: float | None = None
    ) -> Path:
        """Begin to save; the state may be donated as soon as this returns.

        Args:
            number: The checkpoint's number, ascending within the folder. If it is there, it stays
                as it is or, if it holds anything else, until the new one is complete.
            state: Any pytree.
            metadata: JSON; the description of the leaves is added.
            score: The metric's value now, for keeping the best; None if there is none yet.
        """
        leaves = host_leaves(state)
        document = {**metadata, "checkpoint_version": VERSION, "leaves": describe(leaves)}
        metrics = None if score is None or not math.isfinite(score) else {"score": float(score)}
        path = self.folder / f"{PREFIX}_{number:06d}"
        with _in_one_sentence(self.folder, "written"):
            if number not in self._manager.all_steps():
                _write(self._manager, number, leaves, document, metrics)
                logger.info("checkpoint %s of %d arrays", path, len(leaves))
                return path
            self._manager.wait_until_finished()  # it may be the one that is being written
            if not _holds(path, document):
                self._replace(path, number, leaves, document, metrics)
        return path

    def _replace(self, path: Path, number: int, *content: Any) -> None:
        """Write beside the old checkpoint, and let the two change places when it is complete."""
        logger.info("checkpoint %s is replaced", path)
        staging = self.folder / _STAGING
        scored = {"best_fn": _score} if self._scored else {}
        with contextlib.closing(_manager(staging, asynchronous=False, **scored)) as manager:
            _write(manager, number, *content)
        if path.exists():  # nobody removed it meanwhile
            path.rename(path.with_name(_REPLACED + path.name))
        (staging / path.name).rename(path)
        _finish_replacing(self.folder)
        self._manager.reload()

    def wait(self) -> None:
        """Until everything is on disk under its final name."""
        with _in_one_sentence(self.folder, "written"):
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Wait and give the background threads back."""
        self.wait()
        self._manager.close()


def _score(metrics: Mapping[str, float]) -> float:
    return metrics["score"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _BestAndNewest:
    """Orbax's question which checkpoints to keep: the best `number`, the newest, and `kept`.

    One without a score is worse than any with; of two equals the newer is better.
    """

    number: int | None
    sign: float
    kept: Container[int]

    def should_preserve(self, checkpoints: Sequence[Any], *, context: object) -> list[bool]:
        """For each checkpoint, oldest first."""
        del context
        places = range(len(checkpoints))

        def rank(place: int) -> tuple[float, int]:
            metrics = checkpoints[place].metrics
            return (-math.inf if metrics is None else self.sign * _score(metrics)), place

        best = {*sorted(places, key=rank)[-(self.number or len(places)) :], *places[-1:]}
        return [place in best or checkpoints[place].step in self.kept for place in places]


def _manager(
    folder: Path, *, asynchronous: bool, **options: Any
) -> "orbax.checkpoint.CheckpointManager":
    import orbax.checkpoint as ocp  # a second to import, so only when something is saved

    return ocp.CheckpointManager(
        folder,
        item_names=("state", "metadata"),
        options=ocp.CheckpointManagerOptions(
            step_prefix=PREFIX,
            step_format_fixed_length=6,
            enable_async_checkpointing=asynchronous,
            cleanup_tmp_directories=True,
            **options,
        ),
    )


def _write(
    manager: "orbax.checkpoint.CheckpointManager",
    number: int,
    leaves: Mapping[str, np.ndarray],
    document: Mapping[str, Any],
    metrics: Mapping[str, float] | None,
) -> None:
    import orbax.checkpoint as ocp

    manager.save(
        number,
        args=ocp.args.Composite(
            state=ocp.args.StandardSave(leaves),  # pyright: ignore[reportCallIssue]
            metadata=ocp.args.JsonSave(document),  # pyright: ignore[reportCallIssue]
        ),
        metrics=metrics,
        force=True,
    )


def _holds(checkpoint: Path, document: Mapping[str, Any]) -> bool:
    """Whether a checkpoint has this metadata, which has the checksum of every leaf."""
    try:
        return read_metadata(checkpoint) == json.loads(json.dumps(document))
    except CheckpointError:
        return False


def _finish_replacing(folder: Path) -> None:
    """Remove what a replacement leaves behind; one that was cut short is undone."""
    for aside in folder.glob(f"{_REPLACED}{PREFIX}_*"):
        own = aside.with_name(aside.name.removeprefix(_REPLACED))
        if own.exists():
            shutil.rmtree(aside)
        else:
            aside.rename(own)
    if (folder / _STAGING).exists():
        shutil.rmtree(folder / _STAGING)


def complete_checkpoints(folder: str | os.PathLike[str]) -> list[Path]:
    """The complete checkpoints in a folder, oldest first."""
    root = Path(folder).expanduser()
    if not root.is_dir():
        return []
    numbered: dict[str, dict[int, Path]] = {_REPLACED: {}, "": {}}
    for path in root.iterdir():
        state = _REPLACED if path.name.startswith(_REPLACED) else ""
        prefix, _, number = path.name.removeprefix(state).partition("_")
        if prefix == PREFIX and number.isdigit():
            numbered[state][int(number)] = path
    found = {**numbered[_REPLACED], **numbered[""]}
    return [found[number] for number in sorted(found)]


def find_checkpoint(path: str | os.PathLike[str]) -> Path:
    """The checkpoint that a path means: itself, or the newest of a folder or of a run.

    Raises:
        CheckpointError: If there is none.
    """
    given = Path(path).expanduser()
    if (given / "metadata").is_dir() and (given / "state").is_dir():
        return given.resolve()
    if not given.exists():
        raise CheckpointError(f"There is no checkpoint {given}: no such file or folder.")
    found = complete_checkpoints(given) or complete_checkpoints(given / "checkpoints")
    if not found:
        raise CheckpointError(
            f"{given} is no jaxrl checkpoint (it has no metadata/ and state/) and holds none."
        )
    return found[-1].resolve()


def read_metadata(checkpoint: Path) -> dict[str, Any]:
    """The checkpoint's JSON.

    Raises:
        CheckpointError: If it is damaged, not jaxrl's, or of a later version.
    """
    with _refusing(checkpoint):
        text = (checkpoint / "metadata" / "metadata").read_text(encoding="utf-8")
        document = json.loads(text)
        if not isinstance(document, dict) or "leaves" not in document:
            raise ValueError("its metadata is not jaxrl's")
        version = document.get("checkpoint_version")
        if version != VERSION:
            raise ValueError(f"its format is version {version}, this jaxrl reads version {VERSION}")
    return document


def read_leaves(checkpoint: Path, metadata: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """All leaves, each compared with its checksum.

    Raises:
        CheckpointError: If anything is missing or damaged.
    """
    import orbax.checkpoint as ocp

    described: dict[str, dict[str, Any]] = metadata["leaves"]
    target = {
        name: np.zeros(tuple(entry["shape"]), entry["dtype"]) for name, entry in described.items()
    }
    with _refusing(checkpoint):
        reader = ocp.Checkpointer(ocp.StandardCheckpointHandler())
        restored: dict[str, Any] = reader.restore(
            checkpoint / "state",
            args=ocp.args.StandardRestore(target),  # pyright: ignore[reportCallIssue]
        )
        leaves = {name: np.asarray(leaf) for name, leaf in restored.items()}
        for name, entry in describe(leaves).items():
            if entry["crc32"] != described[name]["crc32"]:
                raise ValueError(f"the checksum of {name} does not match")
    return leaves


def first_difference(
    template: PyTree, leaves: Mapping[str, np.ndarray], prefixes: tuple[str, ...] = ("",)
) -> str | None:
    """What does not fit, in words that name the first differing leaf; None if all fits."""
    wanted = named_leaves(template)
    for name, leaf in wanted.items():
        if not _selected(name, prefixes):
            continue
        if name not in leaves:
            return f"{name} is missing"
        got, want = leaves[name], leaf
        if tuple(got.shape) != tuple(want.shape) or str(got.dtype) != str(want.dtype):
            return (
                f"{name} is {got.dtype}{list(got.shape)} there and "
                f"{want.dtype}{list(want.shape)} here"
            )
    for name in leaves:
        if _selected(name, prefixes) and name not in wanted:
            return f"{name} has no place here"
    return None


def _selected(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == p or not p or name.startswith(f"{p}.") for p in prefixes)


def fill(
    template: PyTree, leaves: Mapping[str, np.ndarray], prefixes: tuple[str, ...] = ("",)
) -> PyTree:
    """The template with the selected leaves replaced, each put where the template's leaf lies."""

    def place(path: Any, old: Any) -> Any:
        name = leaf_name(path)
        if not _selected(name, prefixes):
            return old
        if _is_key(old):
            impl = str(jax.random.key_impl(old))
            new = jax.random.wrap_key_data(jnp.asarray(leaves[f"{name}:{impl}"]), impl=impl)
        elif not np.size(old):
            return old
        else:
            new = leaves[name]
        return jax.device_put(new, old.sharding) if isinstance(old, jax.Array) else new

    return jax.tree_util.tree_map_with_path(place, template)


@contextlib.contextmanager
def _refusing(checkpoint: Path) -> Generator[None]:
    """Turns whatever reading raises into one sentence that also names the previous checkpoint."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise CheckpointError(
            f"{checkpoint} cannot be loaded: {reason[:300]}.{previous_hint(checkpoint)}"
        ) from error


def previous_hint(checkpoint: Path) -> str:
    """A sentence that names the checkpoint before this one, if there is any."""
    older = [p for p in complete_checkpoints(checkpoint.parent) if p.name < checkpoint.name]
    return f" The previous one is {older[-1]}." if older else ""


@contextlib.contextmanager
def _in_one_sentence(folder: Path, what: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"Checkpoints cannot be {what} in {folder}: {error}.") from error
