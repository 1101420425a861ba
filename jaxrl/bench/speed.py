"""The speed part of a suite: a checkout's `python -m benchmarks.speed`, whose tables a report takes over."""

import dataclasses
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from jaxrl.bench.peers import PeerError
from jaxrl.bench.tables import Table
from jaxrl.runs import files

STEMS = {"in_graph": "speed", "host": "host", "replay": "replay", "recurrent": "recurrent"}
"""The suites of `benchmarks.speed`, and the names of the files that they write."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Speed:
    """What is measured.

    Args:
        suites: Of `benchmarks.speed`.
        pairs: Rounds of each setting, in which all peers take their turn.
        quick: One short round, to see that everything works.
    """

    suites: tuple[str, ...]
    pairs: int
    quick: bool

    def arguments(self, suite: str) -> list[str]:
        """Of the command that measures one suite."""
        quick = ["--quick"] if self.quick else []
        return ["--suite", suite, "--pairs", str(self.pairs), *quick]


def run_speed(
    speed: Speed, root: Path, folder: Path, tell: Callable[[str, str], None]
) -> dict[str, str]:
    """Measure every suite that has not been measured with these arguments.

    Args:
        speed: What to measure.
        root: The checkout.
        folder: Where results go.
        tell: Called with a suite and what happens to it.

    Returns:
        Why suites have no results, by their names.
    """
    failures: dict[str, str] = {}
    for suite in speed.suites:
        if _done(speed, suite, folder):
            tell(suite, "done before")
            continue
        tell(suite, "measuring, which takes some minutes; let the machine alone")
        try:
            _measure(speed, suite, root, folder)
        except PeerError as error:
            failures[suite] = str(error)
            tell(suite, f"failed: {error}")
    return failures


def _done(speed: Speed, suite: str, folder: Path) -> bool:
    asked = folder / f"{STEMS[suite]}.arguments"
    return asked.is_file() and asked.read_text("utf-8") == " ".join(speed.arguments(suite))


def _measure(speed: Speed, suite: str, root: Path, folder: Path) -> None:
    with files.one_sentence("make the folder", folder):
        folder.mkdir(parents=True, exist_ok=True)
    arguments = speed.arguments(suite)
    command = [sys.executable, "-m", "benchmarks.speed", *arguments, "--out", str(folder)]
    done = subprocess.run(
        command,
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        last = done.stdout.strip().splitlines()[-1:] or ["it said nothing"]
        raise PeerError(f"exit code {done.returncode}: {last[0]}")
    (folder / f"{STEMS[suite]}.arguments").write_text(" ".join(arguments), "utf-8")


def speed_tables(speed: Speed, folder: Path, failures: Mapping[str, str]) -> list[Table]:
    """The tables of the suites, as their Markdown has them, and why suites are missing."""
    tables: list[Table] = []
    for suite in speed.suites:
        if suite in failures:
            row = (suite, failures[suite])
            tables.append(
                Table(title=f"Speed: {suite}", text="", header=("suite", "failed"), rows=[row])
            )
            continue
        text = (folder / f"{STEMS[suite]}.md").read_text("utf-8")
        tables += _tables_of(text, f"Speed, {suite}")
    return tables


def _tables_of(text: str, prefix: str) -> list[Table]:
    """Each table of a page with the words above it."""
    tables: list[Table] = []
    title, words = prefix, list[str]()
    for block in re.split(r"\n{2,}", text.strip()):
        if block.startswith("#"):
            title, words = f"{prefix}: {block.lstrip('# ')}", []
        elif block.startswith("|"):
            header, _, *rows = (_cells(line) for line in block.splitlines())
            table = Table(title=title, text=" ".join(words), header=header, rows=list(rows))
            tables.append(table)
            words = []
        else:
            words.append(block.replace("\n", " "))
    return tables


def _cells(line: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in line.strip().strip("|").split("|"))
