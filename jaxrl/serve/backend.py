"""The interface between the server and a policy."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, cast

import numpy as np

from jaxrl.errors import JaxrlError

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


class Backend(Protocol):
    """A policy that computes actions of batches.

    Methods are called from one thread at a time, but for those that validate, which are called from
    another.
    """

    @property
    def version(self) -> str:
        """Name of the weights, such as that of the checkpoint."""
        ...

    @property
    def spaces(self) -> Mapping[str, Json]:
        """Observation and action space as plain data, "observation_space" and "action_space"."""
        ...

    @property
    def observation_structure(self) -> Structure:
        """Structure of the observations."""
        ...

    @property
    def action_structure(self) -> Structure:
        """Structure of the actions."""
        ...

    @property
    def reads(self) -> Collection[str]:
        """Names of the inputs among "prev_action" and "prev_reward" that the policy reads."""
        ...

    def initial_state(self) -> State:
        """Return the state at the start of an episode, without a batch axis."""
        ...

    def conform(self, observation: Value) -> Value:
        """Validate an observation and convert it to arrays.

        Raises:
            JaxrlError: If it is not in the observation space.
        """
        ...

    def conform_action(self, action: Value) -> Value:
        """Validate a previous action and convert it to arrays.

        Raises:
            JaxrlError: If it does not fit the action space.
        """
        ...

    def act(self, batch: Batch) -> tuple[Value, State]:
        """Compute environment actions and the states after them, all `[n, ...]`."""
        ...


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
