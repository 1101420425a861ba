"""Comparison of a suite's results with earlier ones."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxrl.errors import ConfigError
from jaxrl.sweeps.statistics import Interval

SUMMARY_FILE = "summary.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
    """Difference of a cell between earlier and present results.

    Args:
        name: Name of the cell.
        verdict: "worse", "better" or "no clear difference"; "failed" if it ran before and fails
            now; "new" or "missing" if only one of the two results has it.
        before: Earlier return, with its interval.
        now: Present return, with its interval.
        speed: Ratio of present to earlier steps per second; None if one of them is unknown.
    """

    name: str
    verdict: str
    before: Mapping[str, float] | None
    now: Mapping[str, float] | None
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
    return summary


def compare_summaries(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    """Compare every cell of either summary: better or worse only if intervals do not overlap."""
    old = {cell["name"]: cell for cell in before["cells"]}
    new = {cell["name"]: cell for cell in now["cells"]}
    return [_compare_cell(name, old.get(name), new.get(name)) for name in {**new, **old}]


def _compare_cell(
    name: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None
) -> Change:
    before, now = (old or {}).get("return"), (new or {}).get("return")
    rate_before, rate = ((cell or {}).get("steps_per_second") for cell in (old, new))
    speed = rate / rate_before if rate and rate_before else None
    return Change(name=name, verdict=_decide_verdict(old, new), before=before, now=now, speed=speed)


def _decide_verdict(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> str:
    if new is None:
        return "missing"
    if old is None or "return" not in old:
        return "new"
    if "return" not in new:
        return "failed"
    before, now = Interval(**old["return"]), Interval(**new["return"])
    if before.is_above(now):
        return "worse"
    return "better" if now.is_above(before) else "no clear difference"
