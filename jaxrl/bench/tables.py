"""Tables of a report as headings and rows of text, shared by Markdown and HTML."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxrl.bench.compare import Change
from jaxrl.bench.markdown import Table, format_interval, format_optional, format_short
from jaxrl.bench.metrics import METRICS
from jaxrl.bench.scores import AGGREGATES
from jaxrl.bench.summary import find_comparable, judge_best
from jaxrl.sweeps.statistics import MIN_RUNS, UNDECIDED, Interval

Row = Mapping[str, Any]


def build_tables(summary: Row) -> list[Table]:
    """Build all tables of a suite's summary."""
    measured = {cell["environment"] for cell in summary["cells"] if "return" in cell}
    tables = [
        _build_environment_table(summary, env) for env in summary["winners"] if env in measured
    ]
    if has_aggregates(summary):
        tables.append(_build_aggregates_table(summary))
    if summary["improvement"]:
        tables.append(_build_improvement_table(summary))
    failed = [cell for cell in summary["cells"] if cell["failure"] or cell["lost_seeds"]]
    if failed:
        tables.append(_build_failures_table(failed))
    tables += [Table(**table) for table in summary["speed"]]
    return tables


def has_aggregates(summary: Row) -> bool:
    """Return whether there are several entrants, or one on several environments."""
    return len(summary["aggregates"]) > 1 or bool(
        summary["aggregates"] and len(summary["winners"]) > 1
    )


def _build_environment_table(summary: Row, env: str) -> Table:
    cells = [cell for cell in summary["cells"] if cell["environment"] == env]
    measured = [cell for cell in cells if "return" in cell]
    measured.sort(key=lambda cell: -cell["return"]["value"])
    winner = summary["winners"][env]
    columns: dict[str, Callable[[Row], str]] = {
        METRICS[name]: format_cell
        for name, format_cell in COLUMNS.items()
        if name in summary["metrics"]
        and (name != "reference" or any(cell["reference"] is not None for cell in cells))
    }
    budgets = " and ".join(f"{b:,}" for b in sorted({cell["budget"] for cell in cells}))
    episodes = " and ".join(f"{n:,}" for n in sorted({cell["episodes"] for cell in cells}))
    unit = "recorded rows" if any(cell.get("is_offline") for cell in cells) else "environment steps"
    text = (
        f"Greedy evaluation of {episodes} episodes after {budgets} {unit}; "
        f"interquartile mean over {len(summary['seeds'])} seeds"
        f"{' with its 95 % interval' if len(summary['seeds']) >= MIN_RUNS else ''}. "
    )
    modules = sorted({cell["module"] for cell in measured if cell.get("module")})
    if modules:
        text += f"Returns are those of {' and '.join(modules)}. "
    text += _describe_winner(cells)
    has_ceiling = any(cell.get("ceiling") is not None for cell in measured)
    if has_ceiling or any(cell["threshold"] is not None for cell in measured):
        text += " " + _describe_threshold(summary["metrics"], has_ceiling=has_ceiling)
    if METRICS["reference"] in columns:
        text += " " + _describe_references(measured)
    return Table(
        title=env,
        text=" ".join(text.split()),
        header=("algorithm", "seeds", *columns),
        rows=[
            (
                cell["entrant"],
                str(len(cell["returns"])),
                *(format_cell(cell) for format_cell in columns.values()),
            )
            for cell in measured
        ],
        strong=tuple(i for i, cell in enumerate(measured) if cell["entrant"] == winner),
    )


def describe_seeds(number: int) -> str:
    """Say that a number of seeds has no verdicts; "" if it has."""
    if number >= MIN_RUNS:
        return ""
    seeds = "one seed" if number == 1 else f"{number} seeds"
    return f"No verdict is possible with {seeds}: intervals need at least {MIN_RUNS}."


def format_best(entrant: str, verdict: str) -> str:
    """Name an entrant if it is above all others, or say why there is no winner."""
    if verdict == "above":
        return entrant
    return f"no winner, {'the intervals overlap' if verdict == UNDECIDED else verdict}"


def _describe_winner(cells: Sequence[Row]) -> str:
    """Name the best entrant, and the entrants that are not compared; "" if nothing is."""
    found = judge_best(cells)
    if found is None:
        return ""
    text = (
        f"**{found[0]}** is best: its interval lies above all others."
        if found[1] == "above"
        else f"{format_best(*found).capitalize()}."
    )
    comparable = find_comparable(cells)
    others = [cell for cell in cells if cell not in comparable]
    missing = [cell["entrant"] for cell in others if "return" not in cell]
    if missing:
        text += f" Not compared, as they have no return: {', '.join(missing)}."
    different = [cell["entrant"] for cell in others if "return" in cell]
    if different:
        text += f" Not compared, as their env_config differs: {', '.join(different)}."
    return text


def _format_learned(cell: Row) -> str:
    found = []
    if cell["threshold"] is not None:
        found.append(f"{cell['learned']} ({format_short(cell['threshold'])})")
    if cell.get("ceiling") is not None:
        found.append(f"below: {cell['stays_below']} ({format_short(cell['ceiling'])})")
    return ", ".join(found) or "-"


def _format_reference(cell: Row) -> str:
    if cell["reference"] is None:
        return "-"
    return f"{format_short(cell['reference'])}: {cell['against_reference']}"


def _make_threshold_formatter(unit: str) -> Callable[[Row], str]:
    def format_cell(cell: Row) -> str:
        value = cell.get(f"{unit}_to_threshold")
        reached = cell.get("num_reached")
        return (
            "-" if value is None else f"{format_short(value)} ({reached} of {len(cell['returns'])})"
        )

    return format_cell


def _format_return(cell: Row) -> str:
    return f"{format_interval(cell['return'])}, min {format_short(cell['min'])}"


def _format_rate(cell: Row) -> str:
    lanes = cell["num_lanes"]
    return format_short(cell["steps_per_second"]) + (f" ({lanes} lanes)" if lanes > 1 else "")


COLUMNS: Mapping[str, Callable[[Row], str]] = {
    "return": _format_return,
    "training_return": lambda cell: format_interval(cell["training_return"]),
    "threshold": _format_learned,
    "reference": _format_reference,
    "steps_to_threshold": _make_threshold_formatter("steps"),
    "seconds_to_threshold": _make_threshold_formatter("seconds"),
    "seconds": lambda cell: format_short(cell["seconds"]),
    "steps_per_second": _format_rate,
    "compile_s": lambda cell: format_short(cell["compile_s"]),
    "memory_gib": lambda cell: format_short(cell["memory_gib"]),
}


def _describe_threshold(metrics: Sequence[str], *, has_ceiling: bool) -> str:
    """Explain the columns on thresholds."""
    units = " and ".join(u for u in ("steps", "seconds") if f"{u}_to_threshold" in metrics)
    sentences = ["Learned: the return's interval lies at or above the threshold."] * (
        "threshold" in metrics
    )
    if has_ceiling and "threshold" in metrics:
        sentences.append("Below: the return's interval lies at or below a limit, as it must.")
    if units:
        sentences.append(
            f"{units.capitalize()} to threshold: the median over the seeds whose training return "
            "reached it, and their number."
        )
    return " ".join(sentences)


def _describe_references(cells: Sequence[Row]) -> str:
    """Explain the column of references and list their sources."""
    entrants: dict[tuple[float, str], list[str]] = {}
    for cell in cells:
        if cell["reference"] is not None:
            entrants.setdefault((cell["reference"], cell["source"]), []).append(cell["entrant"])
    references = [
        f"{format_short(value)} ({', '.join(names)}): {source}"
        for (value, source), names in entrants.items()
    ]
    return (
        "Above or below: the whole interval lies above or below the reference. "
        f"References: {'; '.join(references)}."
    )


def _build_aggregates_table(summary: Row) -> Table:
    rows = [
        (
            name,
            str(len(values["tasks"])),
            *(format_interval(values[metric]) for metric in AGGREGATES),
        )
        for name, values in summary["aggregates"].items()
    ]
    return Table(
        title="Over all environments",
        text="Returns as scores, 0 at an environment's low mark and 1 at its high one; 95 % "
        "intervals by Student's quantile and the stratified bootstrap (Agarwal et al. 2021, "
        "https://arxiv.org/abs/2108.13264). A lower optimality gap is better. Aggregates over "
        "different sets of environments are not comparable.",
        header=("algorithm", "environments", *AGGREGATES),
        rows=rows,
    )


def _build_improvement_table(summary: Row) -> Table:
    rows = []
    for pair in summary["improvement"]:
        side = Interval.from_data(pair["probability"]).get_side(0.5)
        verdict = {"above": "yes", "below": "no"}.get(side, side)
        probability = format_interval(pair["probability"])
        num_tasks = str(len(pair["tasks"]))
        rows.append((pair["better"], pair["than"], num_tasks, probability, verdict))
    return Table(
        title="Probability of improvement",
        text="Probability that a run of the first algorithm is better than one of the second on "
        "the same environment, averaged over their common environments.",
        header=("is", "better than", "environments", "probability", "verdict"),
        rows=rows,
    )


def _build_failures_table(cells: Sequence[Row]) -> Table:
    rows = []
    for cell in cells:
        if cell["failure"]:
            rows.append((cell["entrant"], cell["environment"], "all", cell["failure"]))
        for seed, why in cell["lost_seeds"].items():
            rows.append((cell["entrant"], cell["environment"], str(seed), why))
    return Table(
        title="Failures",
        text="These runs are excluded from the results above.",
        header=("algorithm", "environment", "seeds", "reason"),
        rows=rows,
    )


def build_changes_table(changes: Sequence[Change]) -> Table:
    """Build the table of the comparison with earlier results."""
    rows = [
        (
            change.name,
            format_interval(change.before),
            format_interval(change.now),
            change.verdict,
            format_optional(change.speed, ".2f"),
        )
        for change in changes
    ]
    return Table(
        title="Comparison with earlier results",
        text="Better or worse only if the intervals do not overlap, which both results have from "
        "their returns. The speed is the ratio of "
        "steps per second of runs at different times and does not affect the verdict.",
        header=("run", "return before", "return now", "verdict", "speed"),
        rows=rows,
        strong=tuple(i for i, change in enumerate(changes) if change.is_regression),
    )
