"""The documentation's page of returns: `python -m benchmarks.scores`.

It is made from the summaries that `jaxrl benchmark SUITE --out FOLDER` left in
`benchmarks/results/<machine>/scores/<suite>`, which are committed with their reports.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import RESULTS
from benchmarks.worker import ROOT
from jaxrl.bench.tables import interval, number
from jaxrl.config.registry import shipped_configs

PAGE = ROOT / "docs" / "scores.md"
NOTES = ROOT / "benchmarks" / "scores_notes.md"
"""What is said of rows by hand: why one stays under its reference."""

INTRODUCTION = """# Returns of the shipped files

What each shipped file learns with five seeds: greedy evaluation of 100 episodes after so many environment
steps, interquartile mean over the seeds with its 95 % bootstrap interval, and the least of them. A reference
is a return of somebody else's; a row is above or below it only with its whole interval. Seconds are of five seeds
together, without compiling, on the machine that is named, which did other work meanwhile: for speed see
[Performance](performance.md).

`jaxrl train file NAME` trains a row's file with one seed; `jaxrl benchmark SUITE` runs a table again, and goes on
where it was interrupted. This page is made by `python -m benchmarks.scores` from the results beside the
reports in `benchmarks/results`.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page; the exit code."""
    del argv
    PAGE.write_text(page(summaries(RESULTS), NOTES.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


def summaries(folder: Path) -> list[dict[str, Any]]:
    """The newest summary of each suite, in the suites' order of names."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*/scores/*/summary.json")):
        summary = json.loads(path.read_text(encoding="utf-8"))
        summary["report"] = path.parent.relative_to(ROOT).as_posix() + "/report.md"
        before = found.get(summary["suite"])
        if before is None or before["date"] <= summary["date"]:
            found[summary["suite"]] = summary
    return [found[name] for name in sorted(found)]


def page(found: Sequence[Mapping[str, Any]], notes: str) -> str:
    """The page as Markdown: a table for each suite, notes, and what has not been run."""
    parts = [INTRODUCTION, *map(_section, found), notes.strip() + "\n", _not_run(found)]
    return "\n".join(part for part in parts if part)


def _section(summary: Mapping[str, Any]) -> str:
    machine = summary["machine"]
    rows = [_row(cell) for cell in summary["cells"] if "return" in cell]
    failed = [cell["name"] for cell in summary["cells"] if cell["failure"] or cell["lost_seeds"]]
    about = (
        f"{summary['about']} `jaxrl benchmark {summary['suite']}`, {summary['date']}; "
        f"{machine['cpu']}, {machine['cores']} cores; learning curves and more are in "
        f"`{summary['report'].replace('report.md', 'report.html')}`."
    )
    lines = [
        f"## {summary['suite']}",
        "",
        about,
        "",
        "| file | environment | steps | return | least | seconds | reference | |",
        "| --- | --- | ---: | --- | ---: | ---: | ---: | --- |",
        *rows,
        "",
        *_sources(summary["cells"]),
        *([f"Failed: {', '.join(failed)}.", ""] if failed else []),
    ]
    return "\n".join(lines)


def _row(cell: Mapping[str, Any]) -> str:
    name = f"`{cell['file']}`" if cell["file"] else cell["entrant"]
    reference = "" if cell["reference"] is None else number(cell["reference"])
    cells = (
        name,
        cell["environment"],
        f"{cell['budget']:,}",
        interval(cell["return"]),
        number(cell["min"]),
        number(cell["seconds"]),
        reference,
        cell.get("against_reference", ""),
    )
    return f"| {' | '.join(cells)} |"


def _sources(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """Who had the references, each once."""
    found: dict[str, list[str]] = {}
    for cell in cells:
        if cell["reference"] is not None:
            source = re.sub(r"https://[^\s,)]+", r"<\g<0>>", cell["source"])
            found.setdefault(source, []).append(number(cell["reference"]))
    lines = [f"- {', '.join(dict.fromkeys(values))}: {source}" for source, values in found.items()]
    return [*lines, ""] if lines else []


def _not_run(found: Sequence[Mapping[str, Any]]) -> str:
    """The shipped files of which no suite has five seeds."""
    run = {cell["file"] for summary in found for cell in summary["cells"] if "return" in cell}
    missing = sorted(set(shipped_configs()) - run)
    if not missing:
        return ""
    names = ", ".join(f"`{name}`" for name in missing)
    return f"## Not run with five seeds\n\n{names}.\n"


if __name__ == "__main__":
    sys.exit(main())
