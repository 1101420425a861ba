"""Speed measurements of a suite by a checkout's `python -m benchmarks.speed`."""

import dataclasses
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from jaxrl.bench.markdown import Table, parse_tables
from jaxrl.bench.peers import PeerError, run_process
from jaxrl.runtime import files

FILE_STEMS = {"in_graph": "speed", "host": "host", "replay": "replay", "recurrent": "recurrent"}
"""Stems of the files written by each suite of `benchmarks.speed`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpeedSpec:
    """Speed measurements of a suite.

    Args:
        suites: Suites of `benchmarks.speed`.
        pairs: Rounds per setting, in each of which every peer is measured once.
        quick: Whether to run a single short round, as a test.
    """

    suites: tuple[str, ...]
    pairs: int
    quick: bool

    def to_arguments(self, suite: str) -> list[str]:
        """Return the command-line arguments that measure one suite."""
        quick = ["--quick"] if self.quick else []
        return ["--suite", suite, "--pairs", str(self.pairs), *quick]


def measure_speed(
    speed: SpeedSpec, root: Path, folder: Path, on_message: Callable[[str, str], None]
) -> dict[str, str]:
    """Measure every suite that was not measured with these arguments yet.

    Args:
        speed: Measurements to make.
        root: Checkout of jaxrl.
        folder: Folder for results.
        on_message: Callback for the name of a suite and a message.

    Returns:
        Reasons why suites have no results, by name.
    """
    failures: dict[str, str] = {}
    for suite in speed.suites:
        if _is_done(speed, suite, folder):
            on_message(suite, "already done")
            continue
        on_message(suite, "measuring for some minutes; keep the machine idle")
        try:
            _measure(speed, suite, root, folder)
        except PeerError as error:
            failures[suite] = str(error)
            on_message(suite, f"failed: {error}")
    return failures


def _is_done(speed: SpeedSpec, suite: str, folder: Path) -> bool:
    path = folder / f"{FILE_STEMS[suite]}.arguments"
    return path.is_file() and path.read_text("utf-8") == " ".join(speed.to_arguments(suite))


def _measure(speed: SpeedSpec, suite: str, root: Path, folder: Path) -> None:
    with files.translate_os_errors("make the folder", folder):
        folder.mkdir(parents=True, exist_ok=True)
    arguments = speed.to_arguments(suite)
    command = [sys.executable, "-m", "benchmarks.speed", *arguments, "--out", str(folder)]
    run_process(command, root)
    (folder / f"{FILE_STEMS[suite]}.arguments").write_text(" ".join(arguments), "utf-8")


def read_speed_tables(speed: SpeedSpec, folder: Path, failures: Mapping[str, str]) -> list[Table]:
    """Read the tables of the suites from their Markdown, and add one per failed suite."""
    tables: list[Table] = []
    for suite in speed.suites:
        if suite in failures:
            row = (suite, failures[suite])
            tables.append(Table(title=f"Speed: {suite}", header=("suite", "failed"), rows=[row]))
            continue
        text = (folder / f"{FILE_STEMS[suite]}.md").read_text("utf-8")
        tables += parse_tables(text, f"Speed, {suite}")
    return tables
