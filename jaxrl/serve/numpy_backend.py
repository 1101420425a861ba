"""Exported policies as backends, which run with NumPy alone."""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from jaxrl.errors import ExportError
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
from jaxrl.serve.backend import (
    Backend,
    Batch,
    Json,
    RequestError,
    State,
    Structure,
    Value,
    get_structure,
)


class NumpyBackend:
    """Exported policy.

    Args:
        policy: Policy that was loaded.
        version: Name of the weights.
    """

    def __init__(self, policy: NumpyPolicy, version: str) -> None:
        self._policy, self._version = policy, version
        manifest = policy.manifest
        self._space, self._actions = manifest["observation_space"], manifest["action_space"]
        signature = manifest["signature"]
        self._leaves = _make_leaves(self._space, "obs", signature["obs"])
        self._past = _make_leaves(self._actions, "prev_action", signature["prev_action"])
        self._reads = frozenset(cast("list[str]", manifest["reads"]))
        self._initial = [leaf[0] for leaf in policy.initial_state()]

    @property
    def version(self) -> str:
        return self._version

    @property
    def spaces(self) -> Mapping[str, Json]:
        return {"observation_space": self._space, "action_space": self._actions}

    @property
    def observation_structure(self) -> Structure:
        return get_structure(self._space)

    @property
    def action_structure(self) -> Structure:
        return get_structure(self._actions)

    @property
    def reads(self) -> Collection[str]:
        return self._reads

    def initial_state(self) -> State:
        return list(self._initial)

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
                prev_reward=batch.prev_reward if "prev_reward" in self._reads else None,
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
