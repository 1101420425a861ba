"""Summary of the outcomes of a suite as plain data, for reports and comparisons."""

import dataclasses
import datetime
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxrl.bench import machine, metrics, scores
from jaxrl.bench.markdown import Table
from jaxrl.bench.metrics import Outcome
from jaxrl.bench.suite import Suite, SuiteCell
from jaxrl.sweeps.statistics import (
    Groups,
    Interval,
    bound_interquartile_mean,
    compute_interval,
    estimate_iqm,
    interquartile_mean,
)

MAX_CURVE_POINTS = 200
NUM_TAUS = 51

CURVES_TEXT = (
    "Mean return of recent training episodes: interquartile mean over the seeds, with its 95 % "
    "interval at each step as a band, from three seeds on. A dotted line marks the return that counts as learned."
)
"""Description of the learning curves, kept with them: it stays true of results of another version."""


def summarize(
    suite: Suite, folder: Path, failures: Mapping[str, str], speed: Sequence[Table] = ()
) -> dict[str, Any]:
    """Summarize the runs of a suite.

    Args:
        suite: Suite that was run.
        folder: Folder of the outcomes.
        failures: Reasons of failures by cell name.
        speed: Tables of speed measurements.
    """
    cells, outcomes = [], {}
    for cell in suite.cells:
        job = suite.make_job(cell, folder)
        by_seed = {seed: job.read_outcome(seed) for seed in job.seeds}
        complete = {seed: outcome for seed, outcome in by_seed.items() if outcome is not None}
        outcomes[cell.name] = complete
        cells.append(_summarize_cell(suite, cell, complete, failures.get(cell.name)))
    entrants = _collect_scores(suite, outcomes)
    versions = [o.get("versions", {}) for cell in outcomes.values() for o in cell.values()]
    return {
        "suite": suite.name,
        "about": suite.about,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": {
            **machine.describe(),
            "devices": sorted(
                {d for cell in outcomes.values() for o in cell.values() for d in _list_devices(o)}
            ),
            "versions": {name: v for found in versions for name, v in found.items()},
        },
        "seeds": list(suite.seeds),
        "metrics": list(suite.metrics),
        "cells": cells,
        "curves": CURVES_TEXT,
        "winners": {
            env: find_winner([c for c in cells if c["environment"] == env]) for env in suite.tasks
        },
        "aggregates": {name: _compute_aggregates(by_task) for name, by_task in entrants.items()},
        "profiles": {name: _compute_profile(by_task) for name, by_task in entrants.items()},
        "improvement": _compare_pairs(entrants),
        "speed": [dataclasses.asdict(table) for table in speed],
    }


def _list_devices(outcome: Outcome) -> list[str]:
    return [str(device) for device in outcome.get("devices", [])]


def _summarize_cell(
    suite: Suite, cell: SuiteCell, by_seed: Mapping[int, Outcome], failure: str | None
) -> dict[str, Any]:
    good = {seed: outcome for seed, outcome in by_seed.items() if "failure" not in outcome}
    lost = {seed: outcome["failure"] for seed, outcome in by_seed.items() if "failure" in outcome}
    row: dict[str, Any] = {
        "name": cell.name,
        "entrant": cell.entrant,
        "peer": cell.peer,
        "environment": cell.environment,
        "env_config": _get_env_config(cell),
        "algorithm": cell.algorithm,
        "budget": cell.budget,
        "episodes": cell.episodes,
        "threshold": cell.threshold,
        "ceiling": cell.ceiling,
        "file": cell.file,
        "reference": cell.reference,
        "source": cell.source,
        "module": cell.module,
        "data": list(cell.data),
        "is_offline": cell.is_offline,
        "failure": failure,
        "lost_seeds": lost,
        "returns": {seed: metrics.get_final_return(outcome) for seed, outcome in good.items()},
    }
    if not good:
        return row
    outcomes = list(good.values())
    finals = list(row["returns"].values())
    final = estimate_iqm(finals)
    training = {seed: metrics.get_training_return(outcome) for seed, outcome in good.items()}
    row["training_returns"] = {seed: x for seed, x in training.items() if x is not None}
    row |= {
        "return": final.to_data(),
        "mean": float(np.mean(finals)),
        "min": min(finals),
        "max": max(finals),
        "training_return": estimate_iqm([*row["training_returns"].values()]).to_data()
        if row["training_returns"]
        else None,
        "curve": _aggregate_curves([outcome["curve"] for outcome in outcomes]),
        "num_lanes": outcomes[0]["num_lanes"],
        **{
            name: float(np.median([compute(o) for o in outcomes]))
            for name, compute in metrics.PROCESS_METRICS.items()
        },
    }
    if cell.threshold is not None:
        row |= _summarize_threshold(cell.threshold, outcomes, final)
    if cell.ceiling is not None:
        row["stays_below"] = final.judge_at_most(cell.ceiling)
    if cell.reference is not None:
        row["against_reference"] = final.get_side(cell.reference)
    return row


def _get_env_config(cell: SuiteCell) -> dict[str, Any]:
    """Return the `env_config` of a cell; that of a peer's own settings is empty."""
    return {} if cell.settings is None else dict(cell.settings["settings"]["env_config"])


def _summarize_threshold(
    threshold: float, outcomes: Sequence[Outcome], final: Interval
) -> dict[str, Any]:
    """Summarize whether a threshold was reached, and the medians of when, over runs that did."""
    row: dict[str, Any] = {"learned": final.judge_at_least(threshold)}
    for unit in ("steps", "seconds"):
        when = [metrics.find_threshold_crossing(outcome, threshold, unit) for outcome in outcomes]
        reached = [x for x in when if x is not None]
        row[f"{unit}_to_threshold"] = float(np.median(reached)) if reached else None
        row["num_reached"] = len(reached)
    return row


def _aggregate_curves(curves: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Compute the interquartile mean of the seeds' curves, with its interval, at common steps."""
    curves = [curve for curve in curves if curve["steps"]]
    if not curves:
        return {"steps": [], "value": [], "low": [], "high": []}
    first = max(curve["steps"][0] for curve in curves)
    last = min(curve["steps"][-1] for curve in curves)
    longest = max(curves, key=lambda curve: len(curve["steps"]))
    steps = [s for s in metrics.thin(longest["steps"], MAX_CURVE_POINTS) if first <= s <= last]
    steps = steps or [last]
    values = np.array([np.interp(steps, c["steps"], c["returns"]) for c in curves]).T
    low, high = map(_list_known, bound_interquartile_mean(values))
    return {"steps": steps, "value": interquartile_mean(values).tolist(), "low": low, "high": high}


def _list_known(values: Float[np.ndarray, " values"]) -> list[float | None]:
    """Return values as plain data, with None for NaN."""
    return [None if math.isnan(x) else x for x in values.tolist()]


def find_comparable(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows of an environment that have a return and the `env_config` of the first."""
    measured = [row for row in rows if "return" in row]
    return [row for row in measured if row.get("env_config") == measured[0].get("env_config")]


def judge_best(rows: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
    """Return the entrant with the highest return, and whether its interval is above all others.

    Args:
        rows: Cells of an environment, of which the comparable ones are compared.

    Returns:
        The entrant, and "above" or "undecided" as `Interval.compare` says; None if there are fewer
        than two comparable rows.
    """
    comparable = find_comparable(rows)
    if len(comparable) < 2:
        return None
    best, *others = sorted(comparable, key=lambda row: -row["return"]["value"])
    intervals = [Interval.from_data(row["return"]) for row in others]
    return best["entrant"], Interval.from_data(best["return"]).compare_to_all(intervals)


def find_winner(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the entrant whose interval lies above all comparable ones; None if there is none."""
    found = judge_best(rows)
    return found[0] if found is not None and found[1] == "above" else None


def _collect_scores(
    suite: Suite, outcomes: Mapping[str, Mapping[int, Outcome]]
) -> dict[str, dict[str, Any]]:
    """Return normalized scores by entrant and task, for the cells that have any."""
    entrants: dict[str, dict[str, Any]] = {}
    for cell in suite.cells:
        finals = [
            metrics.get_final_return(o) for o in outcomes[cell.name].values() if "failure" not in o
        ]
        task = suite.tasks[cell.environment]
        if finals:
            by_task = entrants.setdefault(cell.entrant, {})
            by_task[cell.environment] = scores.normalize(finals, task.low, task.high)
    return entrants


def _compute_aggregates(by_task: Groups) -> dict[str, Any]:
    return {
        "tasks": list(by_task),
        **{
            name: compute_interval(statistic, by_task).to_data()
            for name, statistic in scores.AGGREGATES.items()
        },
    }


def _compute_profile(by_task: Groups) -> dict[str, list[Any]]:
    profile = scores.performance_profile(by_task, np.linspace(0.0, 1.0, NUM_TAUS))
    names = ("taus", "share", "low", "high")
    return {name: _list_known(getattr(profile, name)) for name in names}


def _compare_pairs(entrants: Mapping[str, Groups]) -> list[dict[str, Any]]:
    """Compute the probability of improvement of each pair of entrants over their common tasks."""
    rows = []
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
            probability = interval.to_data()
            rows.append({"better": one, "than": other, "tasks": common, "probability": probability})
    return rows
