"""Kind of foreign files by their content."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import gymnasium

from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import DataError
from jaxrl.offline.formats.settings import ImportSettings
from jaxrl.offline.manifest import Origin
from jaxrl.offline.sources import sniff

Spaces = tuple[gymnasium.Space[Any] | None, gymnasium.Space[Any] | None]
"""Observation space and action space, each None where a file does not say it."""


class Importer(Protocol):
    """Reader of files of one format."""

    def __call__(
        self, files: Sequence[Path], settings: ImportSettings
    ) -> Iterator[tuple[Path, EpisodePart]]:
        """Yield the parts of episodes with their files, those of one episode in order of time."""
        ...


def _no_spaces(path: Path) -> Spaces:
    del path
    return None, None


def _no_origin(path: Path) -> Origin:
    del path
    return Origin()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Foreign:
    """Format of another library.

    Attributes:
        kind: Name of the format.
        read: Reader of its files.
        has_past: Whether the files say which steps follow one another.
        read_spaces: Reader of the spaces that a file says.
        read_origin: Reader of what a file says about its origin.
    """

    kind: str
    read: Importer
    has_past: bool = True
    read_spaces: Callable[[Path], Spaces] = _no_spaces
    read_origin: Callable[[Path], Origin] = _no_origin


def find_foreign(files: Sequence[Path], schema: Mapping[str, str], max_group_bytes: int) -> Foreign:
    """Return the format of files of another library.

    Raises:
        DataError: If it is unknown, or they differ in it.
    """
    found = [_find_one(path, schema, max_group_bytes) for path in files]
    for path, other in zip(files, found, strict=True):
        if (other.kind, other.has_past) != (found[0].kind, found[0].has_past):
            raise DataError(
                f"{path} has another format than {files[0]}, {other.kind} and not {found[0].kind}: "
                "open them one after the other."
            )
    return found[0]


def _find_one(path: Path, schema: Mapping[str, str], max_group_bytes: int) -> Foreign:
    raise DataError(f"{path} has an unknown format ({sniff(path)}).")
