"""Whether a suite's results are worse than earlier ones."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxrl.bench.scores import Interval
from jaxrl.errors import ConfigError

SUMMARY = "summary.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
    """A cell, before and now.

    Args:
        name: Of the cell.
        verdict: "worse", "better" or "no clear difference"; "failed" if it ran before and does not
            now; "new" and "missing" if only one of the two has it.
        before: Its return.
        now: Its return.
        speed: Steps a second over those before; None if one of them is not known.
    """

    name: str
    verdict: str
    before: Mapping[str, float] | None
    now: Mapping[str, float] | None
    speed: float | None

    @property
    def is_regression(self) -> bool:
        """Whether it is reason to stop."""
        return self.verdict in ("worse", "failed")


def read_summary(given: Path) -> dict[str, Any]:
    """The summary in a folder of results, or the file itself.

    Raises:
        ConfigError: There is none.
    """
    path = given / SUMMARY if given.is_dir() else given
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--compare needs a benchmark's folder or its {SUMMARY}, and {given} is neither: {error}."
        ) from error
    if not isinstance(found, dict) or "cells" not in found:
        raise ConfigError(f"--compare: {path} is no benchmark's {SUMMARY}: it has no cells.")
    return found


def compared(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    """Every cell of either: worse or better only if the intervals do not overlap."""
    old = {cell["name"]: cell for cell in before["cells"]}
    new = {cell["name"]: cell for cell in now["cells"]}
    return [_change(name, old.get(name), new.get(name)) for name in {**new, **old}]


def _change(name: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> Change:
    before, now = (old or {}).get("return"), (new or {}).get("return")
    rate_before, rate = ((cell or {}).get("steps_per_second") for cell in (old, new))
    speed = rate / rate_before if rate and rate_before else None
    return Change(name=name, verdict=_verdict(old, new), before=before, now=now, speed=speed)


def _verdict(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> str:
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
