"""Checks that files of recorded data have the same spaces and columns, and those that were given."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium

from jaxrl.errors import DataError
from jaxrl.offline.manifest import Header
from jaxrl.offline.space_json import find_difference


def check_spaces(
    path: Path,
    recorded: Mapping[str, gymnasium.Space[Any] | None],
    given: Mapping[str, gymnasium.Space[Any] | None],
) -> None:
    """Check that a file's spaces are those that were given, where both are known."""
    for name, space in given.items():
        mine = recorded[name]
        if space is None or mine is None:
            continue
        problem = find_difference(mine, space, name)
        if problem is not None:
            raise DataError(
                f"{path} has other spaces: {problem} in the environment or the settings."
            )


def check_same(path: Path, header: Header, first_path: Path, first: Header) -> None:
    """Check that two files can be read as one set of data."""
    for name in ("observation_space", "action_space"):
        problem = find_difference(getattr(header, name), getattr(first, name), name)
        if problem is not None:
            raise DataError(f"{path} has other spaces: {problem} in {first_path}.")
    if header.actions_are_normalized != first.actions_are_normalized:
        raise DataError(
            f"{path} has actions_are_normalized={header.actions_are_normalized}, and {first_path} has "
            f"{first.actions_are_normalized}: open them one after the other."
        )
    if set(header.columns.leaves) != set(first.columns.leaves):
        names = {c.name for c in set(header.columns.leaves) ^ set(first.columns.leaves)}
        raise DataError(
            f"{path} and {first_path} differ in the column {min(names)!r}: open them one after the "
            "other."
        )


def check_normalized(path: Path, header: Header, wanted: bool | None) -> None:
    """Check that actions are of the kind that was asked for, if one was."""
    if wanted is not None and wanted != header.actions_are_normalized:
        raise DataError(
            f"actions_are_normalized={wanted} contradicts {path}, which says "
            f"{header.actions_are_normalized}: leave it out."
        )


def choose_space(
    name: str,
    recorded: gymnasium.Space[Any] | None,
    given: gymnasium.Space[Any] | None,
    path: Path,
) -> gymnasium.Space[Any]:
    """Return the space of a file, or else the one that was given.

    Raises:
        DataError: If there is neither.
    """
    space = given if recorded is None else recorded
    if space is None:
        raise DataError(
            f"{path} does not say its {name}: pass observation_space and action_space, or env."
        )
    return space
