"""Account of a migrated file: the changes made, and what has to be rewritten by hand."""

import dataclasses
import re
from typing import Literal

Topic = Literal[
    "import",
    "algorithm",
    "setting",
    "method",
    "result key",
    "callback",
    "model",
    "file",
]
"""Parts of a program that are counted separately."""


@dataclasses.dataclass(frozen=True)
class Change:
    """Change of a line.

    Attributes:
        line: Line in the original file.
        kind: Changed part of the program.
        what: Sentence without its final period.
    """

    line: int
    kind: Topic
    what: str


@dataclasses.dataclass(frozen=True)
class ByHand:
    """Line without a counterpart, which was left as it is.

    Attributes:
        line: Line in the original file.
        kind: Part of the program.
        what: Name, as the file writes it.
        advice: Reason, or what to write instead.
    """

    line: int
    kind: Topic
    what: str
    advice: str


_TUNE_IMPORT = re.compile(
    r"^\s*(?:(?:from|import) ray\.(?:air|train|tune)\b|from ray import .*\b(?:air|train|tune)\b)",
    re.MULTILINE,
)


class Ledger:
    """Changes of one file, and lines that remain, each counted once."""

    def __init__(self) -> None:
        self._changes: dict[Change, None] = {}
        self._by_hand: dict[ByHand, None] = {}

    def change(self, line: int, kind: Topic, what: str) -> None:
        """Record a change."""
        self._changes[Change(line, kind, what)] = None

    def by_hand(self, line: int, kind: Topic, what: str, advice: str) -> None:
        """Record a line that has to be rewritten by hand."""
        self._by_hand[ByHand(line, kind, what, advice.rstrip("."))] = None

    @property
    def changes(self) -> list[Change]:
        """Changes in the order of lines."""
        return sorted(self._changes, key=lambda change: change.line)

    @property
    def remaining(self) -> list[ByHand]:
        """Lines to rewrite by hand, in their order."""
        return sorted(self._by_hand, key=lambda item: item.line)


@dataclasses.dataclass(frozen=True)
class Migration:
    """Migrated text of a file, with the account of it.

    Attributes:
        old: Original text.
        new: Migrated text.
        changes: Changes, in the order of lines.
        by_hand: Lines that remain, in their order.
        uses_rllib: Whether the original uses RLlib at all.
    """

    old: str
    new: str
    changes: list[Change]
    by_hand: list[ByHand]
    uses_rllib: bool

    @property
    def needs_tune(self) -> bool:
        """Imports that remain of parts of Ray whose packages Ray alone does not install."""
        return _TUNE_IMPORT.search(self.new) is not None

    @property
    def is_changed(self) -> bool:
        """Difference of the migrated text from the original."""
        return self.new != self.old
