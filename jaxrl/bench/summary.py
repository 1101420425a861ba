"""A suite's outcomes as the figures that reports show and comparisons read: plain data."""

import dataclasses
import datetime
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.bench import metrics, scores
from jaxrl.bench.metrics import Outcome
from jaxrl.bench.scores import Interval, Scores
from jaxrl.bench.suite import Cell, Suite
from jaxrl.bench.tables import Table
from jaxrl.runtime.devices import usable_cores
from jaxrl.runtime.measurements import cpu_model

CURVE_POINTS = 200
TAUS = 51


def summary_of(
    suite: Suite, folder: Path, failures: Mapping[str, str], speed: Sequence[Table] = ()
) -> dict[str, Any]:
    """Everything that is told of a suite's runs.

    Args:
        suite: What was run.
        folder: Where its outcomes are.
        failures: Why cells have none, by their names.
        speed: Tables of what was measured of the programs themselves.
    """
    cells, outcomes = [], {}
    for cell in suite.cells:
        job = suite.job(cell, folder)
        found = {seed: job.outcome(seed) for seed in job.seeds}
        told = {seed: outcome for seed, outcome in found.items() if outcome is not None}
        outcomes[cell.name] = told
        cells.append(_row(suite, cell, told, failures.get(cell.name)))
    entrants = _scores(suite, outcomes)
    versions = [o.get("versions", {}) for told in outcomes.values() for o in told.values()]
    return {
        "suite": suite.name,
        "about": suite.about,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": {
            "cpu": cpu_model(),
            "cores": usable_cores(),
            "system": f"{platform.system()} {platform.machine()}",
            "python": platform.python_version(),
            "devices": sorted(
                {d for t in outcomes.values() for o in t.values() for d in _devices(o)}
            ),
            "versions": {name: v for found in versions for name, v in found.items()},
        },
        "seeds": list(suite.seeds),
        "episodes": suite.episodes,
        "metrics": list(suite.metrics),
        "cells": cells,
        "winners": {
            env: _winner([c for c in cells if c["environment"] == env]) for env in suite.tasks
        },
        "aggregates": {name: _aggregates(found) for name, found in entrants.items()},
        "profiles": {name: _profile(found) for name, found in entrants.items()},
        "improvement": _improvement(entrants),
        "speed": [dataclasses.asdict(table) for table in speed],
    }


def _devices(outcome: Outcome) -> list[str]:
    return [str(device) for device in outcome.get("devices", [])]


def _row(
    suite: Suite, cell: Cell, told: Mapping[int, Outcome], failure: str | None
) -> dict[str, Any]:
    good = {seed: outcome for seed, outcome in told.items() if "failure" not in outcome}
    lost = {seed: outcome["failure"] for seed, outcome in told.items() if "failure" in outcome}
    row: dict[str, Any] = {
        "name": cell.name,
        "entrant": cell.entrant,
        "peer": cell.peer,
        "environment": cell.environment,
        "algorithm": cell.algorithm,
        "budget": cell.budget,
        "threshold": cell.threshold,
        "file": cell.file,
        "reference": cell.reference,
        "source": cell.source,
        "failure": failure,
        "lost_seeds": lost,
        "returns": {seed: metrics.final_return(outcome) for seed, outcome in good.items()},
    }
    if not good:
        return row
    outcomes = list(good.values())
    finals = list(row["returns"].values())
    training = [r for r in map(metrics.training_return, outcomes) if r is not None]
    row |= {
        "return": _interval(finals),
        "mean": float(np.mean(finals)),
        "min": min(finals),
        "max": max(finals),
        "training_return": _interval(training) if training else None,
        "curve": _band([outcome["curve"] for outcome in outcomes]),
        "num_lanes": outcomes[0]["num_lanes"],
        **{
            name: float(np.median([of(o) for o in outcomes]))
            for name, of in metrics.FIGURES.items()
        },
    }
    if cell.threshold is not None:
        row |= _of_threshold(cell.threshold, outcomes, row["return"])
    if cell.reference is not None:
        row["against_reference"] = against_reference(cell.reference, row["return"])
    return row


def against_reference(reference: float, final: Mapping[str, float]) -> str:
    """On which side of a reference the whole interval lies."""
    if final["low"] > reference:
        return "above"
    return "below" if final["high"] < reference else "undecided"


def _interval(values: Sequence[float]) -> dict[str, float]:
    """The interquartile mean with its interval."""
    found = scores.interval_of(scores.iqm, {"": np.asarray(values, np.float64)})
    return {"value": found.value, "low": found.low, "high": found.high}


def _of_threshold(
    threshold: float, outcomes: Sequence[Outcome], final: Mapping[str, float]
) -> dict[str, Any]:
    """Whether it was reached as far as the interval tells, and when: medians of those that did."""
    verdict = "undecided"
    if final["low"] >= threshold:
        verdict = "yes"
    elif final["high"] < threshold:
        verdict = "no"
    found: dict[str, Any] = {"learned": verdict}
    for of in ("steps", "seconds"):
        when = [metrics.at_threshold(outcome, threshold, of) for outcome in outcomes]
        reached = [x for x in when if x is not None]
        found[f"{of}_to_threshold"] = float(np.median(reached)) if reached else None
        found["num_reached"] = len(reached)
    return found


def _band(curves: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """The interquartile mean of the seeds' training returns, with its interval, at common steps."""
    curves = [curve for curve in curves if curve["steps"]]
    if not curves:
        return {"steps": [], "value": [], "low": [], "high": []}
    first = max(curve["steps"][0] for curve in curves)
    last = min(curve["steps"][-1] for curve in curves)
    longest = max(curves, key=lambda curve: len(curve["steps"]))
    steps = [s for s in metrics.thinned(longest["steps"], CURVE_POINTS) if first <= s <= last]
    steps = steps or [last]
    values = np.array([np.interp(steps, c["steps"], c["returns"]) for c in curves])
    found = [_interval(column.tolist()) for column in values.T]
    return {"steps": steps, **{k: [x[k] for x in found] for k in ("value", "low", "high")}}


def _winner(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """The entrant whose return's interval lies above all the others'; None if none does."""
    measured = [row for row in rows if "return" in row]
    if len(measured) < 2:
        return None
    best = max(measured, key=lambda row: row["return"]["value"])
    others = [row for row in measured if row is not best]
    clear = all(Interval(**best["return"]).is_above(Interval(**row["return"])) for row in others)
    return best["entrant"] if clear else None


def _scores(
    suite: Suite, outcomes: Mapping[str, Mapping[int, Outcome]]
) -> dict[str, dict[str, Any]]:
    """Normalised scores by entrant and task, of the cells that have any."""
    found: dict[str, dict[str, Any]] = {}
    for cell in suite.cells:
        finals = [
            metrics.final_return(o) for o in outcomes[cell.name].values() if "failure" not in o
        ]
        task = suite.tasks[cell.environment]
        if finals:
            of_entrant = found.setdefault(cell.entrant, {})
            of_entrant[cell.environment] = scores.normalised(finals, task.low, task.high)
    return found


def _aggregates(found: Scores) -> dict[str, Any]:
    figures = {
        name: scores.interval_of(statistic, found) for name, statistic in scores.AGGREGATES.items()
    }
    return {
        "tasks": list(found),
        **{name: [x.value, x.low, x.high] for name, x in figures.items()},
    }


def _profile(found: Scores) -> dict[str, list[float]]:
    profile = scores.performance_profile(found, np.linspace(0.0, 1.0, TAUS))
    names = ("taus", "share", "low", "high")
    return {name: getattr(profile, name).tolist() for name in names}


def _improvement(entrants: Mapping[str, Scores]) -> list[dict[str, Any]]:
    """For each pair of entrants, over the tasks that both have."""
    found = []
    names = list(entrants)
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            common = [task for task in entrants[one] if task in entrants[other]]
            if not common:
                continue
            interval = scores.probability_of_improvement(
                {task: entrants[one][task] for task in common},
                {task: entrants[other][task] for task in common},
            )
            values = [interval.value, interval.low, interval.high]
            found.append({"better": one, "than": other, "tasks": common, "probability": values})
    return found
