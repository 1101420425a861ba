"""Comparison of a suite's results with earlier ones."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxrl.bench.values import check_list, check_mapping, parse_nonempty_text, parse_number
from jaxrl.errors import ConfigError
from jaxrl.sweeps.statistics import UNDECIDED, Interval, estimate_iqm

SUMMARY_FILE = "summary.json"
VERDICTS = {"above": "better", "below": "worse", UNDECIDED: "no clear difference"}
"""Verdicts by how the present interval compares to the earlier one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
    """Difference of a cell between earlier and present results.

    Args:
        name: Name of the cell.
        verdict: "worse", "better", "no clear difference" or, with too few runs, "undecided";
            "failed" if it ran before and fails now; "new" or "missing" if only one of the two
            results has it.
        before: Earlier return, with its interval; None if there is none.
        now: Present return, with its interval; None if there is none.
        speed: Ratio of present to earlier steps per second; None if one of them is unknown.
    """

    name: str
    verdict: str
    before: Mapping[str, Any] | None
    now: Mapping[str, Any] | None
    speed: float | None

    @property
    def is_regression(self) -> bool:
        """Return whether the cell got worse or fails now."""
        return self.verdict in ("worse", "failed")


def read_summary(given: Path) -> dict[str, Any]:
    """Read a summary, given its file or a folder of results.

    Raises:
        ConfigError: If there is no valid summary.
    """
    path = given / SUMMARY_FILE if given.is_dir() else given
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--compare needs a benchmark's folder or its {SUMMARY_FILE}, and {given} is neither: "
            f"{error}."
        ) from error
    if not isinstance(summary, dict) or "cells" not in summary:
        raise ConfigError(
            f"--compare: {path} is not a benchmark's {SUMMARY_FILE}: it has no cells."
        )
    for cell in check_list(summary["cells"], f"--compare: {path}: cells"):
        _check_cell(cell, f"--compare: {path}")
    return summary


def _check_cell(cell: object, where: str) -> None:
    """Raise if what is compared of a cell is missing or of the wrong kind."""
    given = check_mapping(cell, f"{where}: a cell")
    name, returns = given.get("name"), given.get("returns", {})
    try:
        parse_nonempty_text(name)
        for value in check_mapping(returns, f"{where}: returns of {name}").values():
            parse_number(value)
        if given.get("steps_per_second") is not None:
            parse_number(given["steps_per_second"])
    except TypeError:
        raise ConfigError(
            f"{where}: a cell needs a name, returns by seed and steps_per_second that are numbers, "
            f"got name={name!r}, returns={returns!r}, "
            f"steps_per_second={given.get('steps_per_second')!r}."
        ) from None


def compare_summaries(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    """Compare every cell of either summary: better or worse only if intervals do not overlap.

    Both intervals are computed from the returns, as an earlier version of jaxrl may have written
    others.
    """
    old = {cell["name"]: cell for cell in before["cells"]}
    new = {cell["name"]: cell for cell in now["cells"]}
    return [_compare_cell(name, old.get(name), new.get(name)) for name in {**new, **old}]


def _compare_cell(
    name: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None
) -> Change:
    before, now = (_estimate_return(cell or {}) for cell in (old, new))
    rate_before, rate = ((cell or {}).get("steps_per_second") for cell in (old, new))
    speed = rate / rate_before if rate and rate_before else None
    if new is None:
        verdict = "missing"
    elif before is None:
        verdict = "new"
    elif now is None:
        verdict = "failed"
    else:
        verdict = now.compare(before)
        verdict = VERDICTS.get(verdict, verdict)
    return Change(
        name=name,
        verdict=verdict,
        before=before and before.to_data(),
        now=now and now.to_data(),
        speed=speed,
    )


def _estimate_return(cell: Mapping[str, Any]) -> Interval | None:
    """Return the interval of a cell's return; None if no seed has one."""
    values = list(cell.get("returns", {}).values())
    return estimate_iqm(values) if values else None
