"""Recorded data of several agents: a folder for each module, of which each part is an agent's."""

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import cast

from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import DataError
from jaxrl.offline.checks import locate
from jaxrl.offline.columns import AGENT_COLUMNS, Columns
from jaxrl.offline.manifest import FORMAT, MANIFEST, MAX_BYTES, Header
from jaxrl.runtime.files import read_bounded


def set_module(part: EpisodePart, header: Header) -> EpisodePart:
    """Return a part as one of the module whose data a folder has.

    Raises:
        DataError: If it is of another one.
    """
    module_id = header.origin.module_id
    if module_id is None or part.module_id == module_id:
        return part
    if part.module_id is not None:
        raise DataError(
            f"{locate(part, '')}: it is of the module {part.module_id!r}, and the writer of "
            f"module_id={module_id!r}: give each module a folder of its own."
        )
    return dataclasses.replace(part, module_id=module_id)


def check_same_module(folder: Path, recorded: str | None, wanted: str | None) -> None:
    """Check that what is recorded next is of the module whose data a folder has.

    Raises:
        DataError: If it is of another one, or one of both is of a single agent.
    """
    if recorded != wanted:
        found, here = (
            "a single agent" if name is None else f"the module {name!r}"
            for name in (recorded, wanted)
        )
        raise DataError(f"{folder} has data of {found}, not of {here}: record into another folder.")


def check_agent_columns(columns: Columns, module_id: str | None) -> None:
    """Check that no extra has the name of a column that says whose a part is.

    Raises:
        DataError: If one has.
    """
    names = {column.name for column in columns.leaves}
    taken = next((name for name in AGENT_COLUMNS if name in names), None)
    if module_id is not None and taken is not None:
        raise DataError(
            f"Two columns would have the name {taken!r}, which says whose a part is: rename the extra."
        )


def find_module_folders(folder: Path) -> dict[str, Path]:
    """Return the folders in a folder that have the data of a module, by its id."""
    if (folder / MANIFEST).exists():
        return {}
    return _find_modules(path.parent for path in sorted(folder.glob(f"*/{MANIFEST}")))


def check_one_module(source: str, files: Iterable[Path]) -> None:
    """Check that one source to learn from does not have the data of several modules.

    Args:
        source: Source as it was given.
        files: Its files.

    Raises:
        DataError: If it has.
    """
    found = _find_modules(sorted({path.parent for path in files}))
    if len(found) > 1:
        folders = [str(path) for path in found.values()]
        raise DataError(
            f"{source} has recorded data of {len(found)} modules, {', '.join(found)}: give the folder "
            f"of one, such as {folders[0]!r}, or a list of those to learn from together, "
            f"input_={folders}."
        )


def _find_modules(folders: Iterable[Path]) -> dict[str, Path]:
    """Return those of the folders that have the data of a module, by its id."""
    modules = {path: _read_module(path) for path in folders}
    return {module: path for path, module in modules.items() if module is not None}


def _read_module(folder: Path) -> str | None:
    """Return the module whose data a folder has; None without one, or without recorded data."""
    try:
        data: object = json.loads(read_bounded(folder / MANIFEST, MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return None  # it is no manifest, or reading the data says what is wrong with it
    if not isinstance(data, dict):
        return None
    facts = cast("dict[str, object]", data)
    module_id = facts.get("module_id")
    return module_id if facts.get("format") == FORMAT and isinstance(module_id, str) else None
