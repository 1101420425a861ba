"""The interface between the server and a policy, and exported policies, which run with NumPy alone."""

import abc
import dataclasses
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np

from jaxrl.errors import ExportError, JaxrlError
from jaxrl.export.numpy_program import (
    MANIFEST,
    Leaf,
    NumpyPolicy,
    PolicyFileError,
    PolicyInputError,
    hash_file,
    join_value,
    split_value,
    walk_space,
)

Json: TypeAlias = bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None
Structure: TypeAlias = Mapping[str, "Structure"] | tuple["Structure", ...] | None
"""Shape of a nested value: None for an array, else its parts by name or position."""
Value: TypeAlias = object
"""Observation or action: an array, or arrays in dicts and tuples as the space has them."""
State: TypeAlias = list[np.ndarray]
"""Leaves of a policy's state."""


class RequestError(JaxrlError, ValueError):
    """A request that cannot be answered.

    Args:
        message: One sentence that says why.
        status: Status of the response.
        retry_after_s: Seconds after which the request may succeed; None if it will not.
    """

    def __init__(self, message: str, status: int = 400, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batch:
    """Rows to compute actions for.

    Args:
        observations: Observations that `Backend.conform` returned.
        state: Leaves of the states before them, `[n, ...]`; those of first rows are not read.
        is_first: Whether each row starts an episode, `[n]`.
        explore: Whether to sample actions.
        prev_reward: Rewards of the previous steps, `[n]`; None unless the policy reads them.
        prev_action: Environment actions that were executed, if they are not the computed ones.
    """

    observations: Sequence[Value]
    state: State
    is_first: np.ndarray
    explore: bool
    prev_reward: np.ndarray | None = None
    prev_action: Sequence[Value] | None = None


class Backend(abc.ABC):
    """A policy that computes actions of batches.

    Methods are called from one thread at a time, but for those that validate, which are called from
    another.

    Args:
        version: Name of the weights, such as that of the checkpoint.
        spaces: Observation and action space as plain data.
        reads: Names of the inputs among "prev_action" and "prev_reward" that the policy reads.
        initial_state: State at the start of an episode, without a batch axis.
    """

    def __init__(
        self,
        version: str,
        spaces: tuple[Mapping[str, Any], Mapping[str, Any]],
        reads: Collection[str],
        initial_state: State,
    ) -> None:
        self.version, self.reads, self._initial = version, frozenset(reads), initial_state
        self.spaces: dict[str, Json] = dict(
            zip(("observation_space", "action_space"), spaces, strict=True)
        )
        self.observation_structure, self.action_structure = map(get_structure, spaces)

    def initial_state(self) -> State:
        """Return the state at the start of an episode, without a batch axis."""
        return list(self._initial)

    @abc.abstractmethod
    def conform(self, observation: Value) -> Value:
        """Validate an observation and convert it to arrays.

        Raises:
            JaxrlError: If it is not in the observation space.
        """

    @abc.abstractmethod
    def conform_action(self, action: Value) -> Value:
        """Validate a previous action and convert it to arrays.

        Raises:
            JaxrlError: If it does not fit the action space.
        """

    @abc.abstractmethod
    def act(self, batch: Batch) -> tuple[Value, State]:
        """Compute environment actions and the states after them, all `[n, ...]`."""


Load: TypeAlias = Callable[["Backend | None"], "Backend"]
"""Function that loads the newest weights; it is given what they replace."""


def get_structure(space: Mapping[str, Any]) -> Structure:
    """Return the structure of the values of a space, given as plain data."""
    match space["kind"]:
        case "Dict":
            return {name: get_structure(part) for name, part in space["spaces"]}
        case "Tuple":
            return tuple(get_structure(part) for part in space["spaces"])
        case _:
            return None


def get_ignored(space: Json) -> Sequence[str]:
    """Return the names of parts that values of a space, given as plain data, may have in vain."""
    names = space.get("ignored", ()) if isinstance(space, Mapping) else ()
    return cast("Sequence[str]", names)


def map_structure(structure: Structure, function: Callable[..., object], *values: Value) -> Value:
    """Apply a function to the arrays of values with a structure."""
    if structure is None:
        return function(*values)
    if isinstance(structure, tuple):
        return tuple(
            map_structure(part, function, *(value[i] for value in values))  # pyright: ignore[reportIndexIssue]
            for i, part in enumerate(structure)
        )
    return {
        name: map_structure(part, function, *(value[name] for value in values))  # pyright: ignore[reportIndexIssue]
        for name, part in structure.items()
    }


def list_names(structure: Structure, root: str) -> list[str]:
    """Return the names of a value's arrays: `root`, or `root.part` for parts of it."""
    if structure is None:
        return [root]
    parts = enumerate(structure) if isinstance(structure, tuple) else structure.items()
    return [name for key, part in parts for name in list_names(part, f"{root}.{key}")]


def join_arrays(structure: Structure, root: str, arrays: Mapping[str, np.ndarray]) -> Value:
    """Return the value with these arrays, by the names of `list_names`."""
    if structure is None:
        return arrays[root]
    if isinstance(structure, tuple):
        return tuple(join_arrays(part, f"{root}.{i}", arrays) for i, part in enumerate(structure))
    return {name: join_arrays(part, f"{root}.{name}", arrays) for name, part in structure.items()}


def split_arrays(structure: Structure, root: str, value: Value) -> dict[str, np.ndarray]:
    """Return the arrays of a value by name; the inverse of `join_arrays`."""
    arrays: list[np.ndarray] = []
    map_structure(structure, lambda leaf: arrays.append(np.asarray(leaf)), value)
    return dict(zip(list_names(structure, root), arrays, strict=True))


class NumpyBackend(Backend):
    """Exported policy.

    Args:
        policy: Policy that was loaded.
        version: Name of the weights.
    """

    def __init__(self, policy: NumpyPolicy, version: str) -> None:
        self._policy, manifest = policy, policy.manifest
        self._space, self._actions = manifest["observation_space"], manifest["action_space"]
        signature = manifest["signature"]
        self._leaves = _make_leaves(self._space, "obs", signature["obs"])
        self._past = _make_leaves(self._actions, "prev_action", signature["prev_action"])
        initial = [leaf[0] for leaf in policy.initial_state()]
        super().__init__(version, (self._space, self._actions), manifest["reads"], initial)

    def conform(self, observation: Value) -> Value:
        return _conform(self._space, self._leaves, observation, "obs")

    def conform_action(self, action: Value) -> Value:
        return _conform(self._actions, self._past, action, "prev_action")

    def act(self, batch: Batch) -> tuple[Value, State]:
        actions = batch.prev_action
        try:
            result = self._policy.step(
                _concatenate(self._space, batch.observations, "obs"),
                batch.state or None,
                is_first=batch.is_first if batch.state else None,
                prev_reward=batch.prev_reward if "prev_reward" in self.reads else None,
                prev_action=None
                if actions is None
                else _concatenate(self._actions, actions, "action"),
                explore=batch.explore,
            )
        except (PolicyInputError, PolicyFileError) as error:
            raise RequestError(str(error)) from error
        return result.actions, result.state


def load_export(folder: str | os.PathLike[str], replaced: Backend | None = None) -> NumpyBackend:
    """Load an exported policy.

    Args:
        folder: Folder of the export.
        replaced: Backend that the policy replaces, with which it must have the spaces in common.

    Raises:
        ExportError: If the export is damaged, or has other spaces.
    """
    version = get_version(folder)
    try:
        backend = NumpyBackend(NumpyPolicy(folder), version)
    except PolicyFileError as error:
        raise ExportError(str(error)) from error
    if replaced is not None and backend.spaces != replaced.spaces:
        raise ExportError(f"{folder} has other spaces than the policy that is served.")
    return backend


def is_export(folder: str | os.PathLike[str]) -> bool:
    """Return whether a folder is an exported policy."""
    return (Path(folder) / MANIFEST).is_file()


def get_version(folder: str | os.PathLike[str]) -> str:
    """Return the name of an export with the beginning of its manifest's hash.

    Raises:
        ExportError: If it cannot be read.
    """
    path = Path(folder) / MANIFEST
    try:
        digest = hash_file(str(path))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ExportError(f"{path} cannot be read: {reason}.") from error
    return f"{Path(folder).resolve().name}@{digest[:12]}"


def _make_leaves(
    space: Mapping[str, Any], root: str, entries: list[Mapping[str, Any]]
) -> list[Leaf]:
    return [
        Leaf(leaf, path, entry["dtype"], entry["shape"])
        for (path, leaf), entry in zip(walk_space(space, root), entries, strict=True)
    ]


def _conform(space: Mapping[str, Any], leaves: list[Leaf], value: Value, root: str) -> Value:
    try:
        parts = zip(leaves, split_value(space, value, root), strict=True)
        return join_value(
            space, iter([leaf.conform(np.asarray(part)[None], 1) for leaf, part in parts])
        )
    except PolicyInputError as error:
        raise RequestError(str(error)) from error


def _concatenate(space: Mapping[str, Any], rows: Collection[Value], root: str) -> Value:
    """Return the batch of values that `_conform` returned, each with an axis of size 1."""
    columns = zip(*(split_value(space, row, root) for row in rows), strict=True)
    return join_value(space, iter([np.concatenate(column) for column in columns]))
