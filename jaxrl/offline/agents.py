"""Recorded data of several agents: a folder for each module, of which each part is an agent's."""

from pathlib import Path

from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import DataError
from jaxrl.offline.checks import locate
from jaxrl.offline.columns import AGENT_COLUMNS, Columns
from jaxrl.offline.manifest import MANIFEST, Header, read_manifest


def check_module(part: EpisodePart, header: Header) -> None:
    """Check that a part is of the module whose data a folder has.

    Raises:
        DataError: If it is of another one.
    """
    module_id = header.origin.module_id
    if module_id is not None and part.module_id not in (None, module_id):
        raise DataError(
            f"{locate(part, '')}: it is of the module {part.module_id!r}, and the writer of "
            f"module_id={module_id!r}: give each module a folder of its own."
        )


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
    found: dict[str, Path] = {}
    for path in sorted(folder.glob(f"*/{MANIFEST}")):
        manifest = read_manifest(path.parent)
        if manifest is not None and manifest.header.origin.module_id is not None:
            found[manifest.header.origin.module_id] = path.parent
    return found


def check_one_module(folder: Path) -> None:
    """Check that a folder to learn from does not have the data of several modules.

    Raises:
        DataError: If it has.
    """
    found = find_module_folders(folder)
    if len(found) > 1:
        first = next(iter(found.values()))
        raise DataError(
            f"{folder} has recorded data of {len(found)} modules, {', '.join(found)}: give the folder "
            f"of one, such as {str(first)!r}, or a list of those to learn from together."
        )
