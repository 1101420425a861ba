"""The tables of a report, as headings and rows of text; Markdown and HTML write the same ones."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxrl.bench.compare import Change
from jaxrl.bench.metrics import METRICS
from jaxrl.bench.scores import AGGREGATES

Row = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """One table.

    Args:
        title: Above it.
        text: What it says, and how it was made.
        header: Of its columns.
        rows: Of cells.
        strong: The rows to stand out, by number.
    """

    title: str
    text: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    strong: tuple[int, ...] = ()


def tables_of(summary: Row) -> list[Table]:
    """All tables of a suite's summary."""
    found = [_environment(summary, env) for env in summary["winners"]]
    if has_aggregates(summary):
        found.append(_aggregates(summary))
    if summary["improvement"]:
        found.append(_improvement(summary))
    failed = [cell for cell in summary["cells"] if cell["failure"] or cell["lost_seeds"]]
    if failed:
        found.append(_failures(failed))
    found += [_again(table) for table in summary["speed"]]
    return found


def has_aggregates(summary: Row) -> bool:
    """Whether there is anything to put together: several entrants, or one on several environments."""
    return len(summary["aggregates"]) > 1 or bool(
        summary["aggregates"] and len(summary["winners"]) > 1
    )


def _again(data: Row) -> Table:
    """A table that was kept as plain data."""
    return Table(
        title=data["title"],
        text=data["text"],
        header=tuple(data["header"]),
        rows=[tuple(row) for row in data["rows"]],
    )


def number(value: float | None) -> str:
    """A figure with about three significant digits; a dash for none."""
    if value is None or math.isnan(value):
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def interval(found: Row | Sequence[float] | None) -> str:
    """`value [low, high]`."""
    if found is None:
        return "-"
    values = found.values() if isinstance(found, Mapping) else found
    value, low, high = values
    return f"{number(value)} [{number(low)}, {number(high)}]"


def _environment(summary: Row, env: str) -> Table:
    cells = [cell for cell in summary["cells"] if cell["environment"] == env]
    measured = [cell for cell in cells if "return" in cell]
    measured.sort(key=lambda cell: -cell["return"]["value"])
    winner = summary["winners"][env]
    columns: dict[str, Callable[[Row], str]] = {
        METRICS[name]: of
        for name, of in COLUMNS.items()
        if name in summary["metrics"]
        and (name != "reference" or any(cell["reference"] is not None for cell in cells))
    }
    budgets = " and ".join(f"{b:,}" for b in sorted({cell["budget"] for cell in cells}))
    text = (
        f"Greedy evaluation of {summary['episodes']} episodes after {budgets} environment steps; "
        f"interquartile mean over {len(summary['seeds'])} seeds with its 95 % bootstrap interval. "
    )
    if len(measured) > 1:
        text += (
            f"**{winner}** is best: its interval lies above all others."
            if winner
            else "No winner: the intervals of the best overlap."
        )
    if any(cell["threshold"] is not None for cell in measured):
        text += " " + _of_threshold(summary["metrics"])
    if METRICS["reference"] in columns:
        text += " " + _of_references(measured)
    return Table(
        title=env,
        text=" ".join(text.split()),
        header=("algorithm", "seeds", *columns),
        rows=[
            (cell["entrant"], str(len(cell["returns"])), *(of(cell) for of in columns.values()))
            for cell in measured
        ],
        strong=tuple(i for i, cell in enumerate(measured) if cell["entrant"] == winner),
    )


def _learned(cell: Row) -> str:
    if cell["threshold"] is None:
        return "-"
    return f"{cell['learned']} ({number(cell['threshold'])})"


def _reference(cell: Row) -> str:
    if cell["reference"] is None:
        return "-"
    return f"{number(cell['reference'])}: {cell['against_reference']}"


def _until(of: str) -> Callable[[Row], str]:
    def told(cell: Row) -> str:
        value = cell.get(f"{of}_to_threshold")
        reached = cell.get("num_reached")
        return "-" if value is None else f"{number(value)} ({reached} of {len(cell['returns'])})"

    return told


def _return(cell: Row) -> str:
    return f"{interval(cell['return'])}, least {number(cell['min'])}"


def _rate(cell: Row) -> str:
    lanes = cell["num_lanes"]
    return number(cell["steps_per_second"]) + (f" ({lanes} lanes)" if lanes > 1 else "")


COLUMNS: Mapping[str, Callable[[Row], str]] = {
    "return": _return,
    "training_return": lambda cell: interval(cell["training_return"]),
    "threshold": _learned,
    "reference": _reference,
    "steps_to_threshold": _until("steps"),
    "seconds_to_threshold": _until("seconds"),
    "seconds": lambda cell: number(cell["seconds"]),
    "steps_per_second": _rate,
    "compile_s": lambda cell: number(cell["compile_s"]),
    "memory_gib": lambda cell: number(cell["memory_gib"]),
}


def _of_threshold(metrics: Sequence[str]) -> str:
    """What the columns mean whose headings do not say it all."""
    until = " and ".join(of for of in ("steps", "seconds") if f"{of}_to_threshold" in metrics)
    words = ["Learned: the return's interval lies at or above the threshold."] * (
        "threshold" in metrics
    )
    if until:
        words.append(
            f"{until.capitalize()} to threshold: the median over the seeds whose training return reached "
            "it, and how many did."
        )
    return " ".join(words)


def _of_references(cells: Sequence[Row]) -> str:
    """Who had the returns that these are compared with."""
    found: dict[tuple[float, str], list[str]] = {}
    for cell in cells:
        if cell["reference"] is not None:
            found.setdefault((cell["reference"], cell["source"]), []).append(cell["entrant"])
    told = [f"{number(value)} ({', '.join(of)}): {source}" for (value, source), of in found.items()]
    return f"Above or below a reference lies the whole interval. References: {'; '.join(told)}."


def _aggregates(summary: Row) -> Table:
    rows = [
        (name, str(len(found["tasks"])), *(interval(found[figure]) for figure in AGGREGATES))
        for name, found in summary["aggregates"].items()
    ]
    return Table(
        title="Over all environments",
        text="Returns as scores, 0 at an environment's low mark and 1 at its high one; 95 % "
        "intervals by the stratified bootstrap (Agarwal et al. 2021, "
        "https://arxiv.org/abs/2108.13264). Of the optimality gap, less is better. Figures over "
        "different environments cannot be compared.",
        header=("algorithm", "environments", *AGGREGATES),
        rows=rows,
    )


def _improvement(summary: Row) -> Table:
    rows = []
    for pair in summary["improvement"]:
        value, low, high = pair["probability"]
        verdict = "undecided"
        if low > 0.5:
            verdict = "yes"
        elif high < 0.5:
            verdict = "no"
        told = f"{value:.2f} [{low:.2f}, {high:.2f}]"
        rows.append((pair["better"], pair["than"], str(len(pair["tasks"])), told, verdict))
    return Table(
        title="Probability of improvement",
        text="How likely a run of the first is better than one of the second on the same "
        "environment, over those that both have.",
        header=("is", "better than", "environments", "probability", "verdict"),
        rows=rows,
    )


def _failures(cells: Sequence[Row]) -> Table:
    rows = []
    for cell in cells:
        if cell["failure"]:
            rows.append((cell["entrant"], cell["environment"], "all", cell["failure"]))
        for seed, why in cell["lost_seeds"].items():
            rows.append((cell["entrant"], cell["environment"], str(seed), why))
    return Table(
        title="What failed",
        text="These count for nothing above.",
        header=("algorithm", "environment", "seeds", "why"),
        rows=rows,
    )


def changes_table(changes: Sequence[Change]) -> Table:
    """What `--compare` found."""
    rows = [
        (
            change.name,
            interval(change.before),
            interval(change.now),
            change.verdict,
            "-" if change.speed is None else f"{change.speed:.2f}",
        )
        for change in changes
    ]
    return Table(
        title="Against earlier results",
        text="Better or worse only where the intervals do not overlap. Steps a second over those "
        "before are of two runs at different times, so they decide nothing.",
        header=("run", "return before", "return now", "verdict", "speed"),
        rows=rows,
        strong=tuple(i for i, change in enumerate(changes) if change.is_regression),
    )
