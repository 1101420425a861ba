"""Summary of the outcomes of a suite as plain data, and its comparison with an earlier one.

Aggregates over several tasks and their intervals are those of Agarwal et al. 2021, "Deep reinforcement
learning at the edge of the statistical precipice" (https://arxiv.org/abs/2108.13264), whose sections
are named. Scores are normalized: 0 is the low mark of a task, 1 the high one.
"""

import dataclasses
import datetime
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxrl.bench import machine
from jaxrl.bench.job import (
    PROCESS_METRICS,
    Outcome,
    find_threshold_crossing,
    get_final_return,
    get_training_return,
    thin,
)
from jaxrl.bench.markdown import Table
from jaxrl.bench.suite import (
    Suite,
    SuiteCell,
    check_list,
    check_mapping,
    parse_nonempty_text,
    parse_number,
)
from jaxrl.errors import ConfigError
from jaxrl.sweeps.statistics import (
    MIN_RUNS,
    UNDECIDED,
    Groups,
    Interval,
    Statistic,
    bootstrap,
    bound_interquartile_mean,
    compute_interval,
    compute_quantile,
    estimate_iqm,
    interquartile_mean,
)


def pool(scores: Groups) -> Float[np.ndarray, "... runs"]:
    """Concatenate the runs of all tasks."""
    return np.concatenate(list(scores.values()), axis=-1)


def iqm(scores: Groups) -> Float[np.ndarray, "..."]:
    """Compute the interquartile mean of all runs of all tasks (section 4.3)."""
    return interquartile_mean(pool(scores))


def mean(scores: Groups) -> Float[np.ndarray, "..."]:
    """Compute the mean over tasks of the mean scores."""
    return np.mean([x.mean(axis=-1) for x in scores.values()], axis=0)


def median(scores: Groups) -> Float[np.ndarray, "..."]:
    """Compute the median over tasks of the mean scores."""
    return np.median([x.mean(axis=-1) for x in scores.values()], axis=0)


def optimality_gap(scores: Groups) -> Float[np.ndarray, "..."]:
    """Compute the mean shortfall of runs below a score of 1 (section 4.3); lower is better."""
    return np.maximum(1.0 - pool(scores), 0.0).mean(axis=-1)


AGGREGATES: Mapping[str, Statistic] = {
    "IQM": iqm,
    "median": median,
    "mean": mean,
    "optimality gap": optimality_gap,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Profile:
    """Share of runs whose score is above each of `taus`, with an interval for each (section 4.2)."""

    taus: Float[np.ndarray, " taus"]
    share: Float[np.ndarray, " taus"]
    low: Float[np.ndarray, " taus"]
    high: Float[np.ndarray, " taus"]


def performance_profile(scores: Groups, taus: Float[np.ndarray, " taus"]) -> Profile:
    """Compute the score distribution of all runs: the mean over tasks of the shares."""

    def compute_share(x: Groups) -> Float[np.ndarray, "... taus"]:
        return np.mean([(runs[..., None] > taus).mean(axis=-2) for runs in x.values()], axis=0)

    share, bounds = bootstrap(compute_share, scores)
    low, high = np.clip(bounds, 0.0, 1.0)
    return Profile(taus=taus, share=share, low=low, high=high)


def probability_of_improvement(ours: Groups, theirs: Groups) -> Interval:
    """Estimate the probability that a run of `ours` beats one of `theirs` on a task (section 4.3).

    This is the mean over tasks of the Mann-Whitney statistic; a tie counts half. The interval has all
    probabilities from which the estimate is at most as many standard errors away as Student's
    quantile says (Newcombe 2006, https://doi.org/10.1002/sim.2324, method 5, there for one task and
    with the normal quantile): a resampled standard error is 0 where all runs of the one are better.

    Args:
        ours: Scores of the first algorithm.
        theirs: Scores of the second algorithm on the same tasks.
    """
    differences = [ours[task][:, None] - theirs[task] for task in ours]
    value = float(np.mean([((x > 0) + 0.5 * (x == 0)).mean() for x in differences]))
    count = min(min(x.shape) for x in differences)
    if count < MIN_RUNS:
        return Interval(value=value, low=math.nan, high=math.nan, count=count)
    possible = np.linspace(0.0, 1.0, 10_001)
    spread = (1.0 - possible) / (2.0 - possible) + possible / (1.0 + possible)
    variance = np.zeros_like(
        possible
    )  # of the mean, at most: a task's is concave in its probability
    for x in differences:
        factor = (1.0 + (sum(x.shape) / 2.0 - 1.0) * spread) / x.size
        variance += possible * (1.0 - possible) * factor / len(differences) ** 2
    quantile = compute_quantile(sum(sum(x.shape) - 2 for x in differences))
    inside = possible[np.abs(value - possible) <= quantile * np.sqrt(variance)]
    return Interval(value=value, low=float(inside[0]), high=float(inside[-1]), count=count)


def normalize(values: Sequence[float], low: float, high: float) -> Float[np.ndarray, " runs"]:
    """Normalize returns to scores: 0 at the low mark of a task, 1 at the high one."""
    return (np.asarray(values, np.float64) - low) / (high - low)


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
        "returns": {seed: get_final_return(outcome) for seed, outcome in good.items()},
    }
    if not good:
        return row
    outcomes = list(good.values())
    finals = list(row["returns"].values())
    final = estimate_iqm(finals)
    training = {seed: get_training_return(outcome) for seed, outcome in good.items()}
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
            for name, compute in PROCESS_METRICS.items()
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
        when = [find_threshold_crossing(outcome, threshold, unit) for outcome in outcomes]
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
    steps = [s for s in thin(longest["steps"], MAX_CURVE_POINTS) if first <= s <= last]
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
        finals = [get_final_return(o) for o in outcomes[cell.name].values() if "failure" not in o]
        task = suite.tasks[cell.environment]
        if finals:
            by_task = entrants.setdefault(cell.entrant, {})
            by_task[cell.environment] = normalize(finals, task.low, task.high)
    return entrants


def _compute_aggregates(by_task: Groups) -> dict[str, Any]:
    return {
        "tasks": list(by_task),
        **{
            name: compute_interval(statistic, by_task).to_data()
            for name, statistic in AGGREGATES.items()
        },
    }


def _compute_profile(by_task: Groups) -> dict[str, list[Any]]:
    profile = performance_profile(by_task, np.linspace(0.0, 1.0, NUM_TAUS))
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
            interval = probability_of_improvement(
                {task: entrants[one][task] for task in common},
                {task: entrants[other][task] for task in common},
            )
            probability = interval.to_data()
            rows.append({"better": one, "than": other, "tasks": common, "probability": probability})
    return rows
