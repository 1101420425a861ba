"""Report of a suite: its tables, as Markdown and as a self-contained HTML page."""

import html
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxrl.bench import figures
from jaxrl.bench.job import METRICS
from jaxrl.bench.markdown import (
    Table,
    format_interval,
    format_optional,
    format_short,
    render_document,
)
from jaxrl.bench.summary import AGGREGATES, SUMMARY_FILE, Change, find_comparable, judge_best
from jaxrl.runtime import files
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


MARKDOWN_FILE, PAGE_FILE = "report.md", "report.html"


def write_report(
    summary: Mapping[str, Any], folder: Path, changes: Sequence[Change] | None = None
) -> Path:
    """Write `summary.json`, `report.md` and `report.html`, and return the path of the page."""
    tables = build_tables(summary)
    if changes is not None:
        tables = [build_changes_table(changes), *tables]
    texts = {
        SUMMARY_FILE: json.dumps(summary, indent=1) + "\n",
        MARKDOWN_FILE: render_markdown(summary, tables),
        PAGE_FILE: render_page(summary, tables),
    }
    for name, text in texts.items():
        path = folder / name
        with files.translate_os_errors("write", path), files.open_atomic(path) as file:
            file.write(text)
    return folder / PAGE_FILE


def render_markdown(summary: Mapping[str, Any], tables: Sequence[Table]) -> str:
    """Render the report as Markdown."""
    return render_document(f"# {summary['suite']}", *_format_introduction(summary), *tables)


def _format_introduction(summary: Mapping[str, Any]) -> list[str]:
    machine = summary["machine"]
    versions = ", ".join(f"{name} {v}" for name, v in machine["versions"].items())
    devices = ", ".join(machine["devices"]) or "no device"
    setup = (
        f"{machine['cpu']}, {machine['cores']} cores; {devices}, {machine['system']}, "
        f"Python {machine['python']}; {versions}."
    )
    paragraphs = [
        summary["about"],
        _format_unfinished(summary),
        describe_seeds(len(summary["seeds"])),
        f"{summary['date']}; {setup}",
    ]
    return [paragraph for paragraph in paragraphs if paragraph]


def _format_unfinished(summary: Mapping[str, Any]) -> str:
    """Name the cells without an outcome of every seed that have not failed."""
    names = [
        f"{cell['entrant']} on {cell['environment']}"
        for cell in summary["cells"]
        if not cell["failure"]
        and len(cell["returns"]) + len(cell["lost_seeds"]) < len(summary["seeds"])
    ]
    return f"Not finished: {', '.join(names)}." if names else ""


STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff;
       max-width: 72rem; margin: 2rem auto; padding: 0 1.25rem; }
h1 { margin-bottom: .25rem; } h2 { margin-top: 2.5rem; border-bottom: 1px solid #ddd; }
p.where { color: #666; font-size: .87rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem;
        width: 100%; }
th, td { padding: .3rem .8rem .3rem 0; text-align: left; border-bottom: 1px solid #e6e6e6; }
th { vertical-align: bottom; } td { vertical-align: top; } td:first-child { white-space: nowrap; }
tr.strong td { font-weight: 600; background: #f1f7ee; }
svg { display: block; margin: 0 auto; max-width: 100%; height: auto; }
"""


def render_page(summary: Mapping[str, Any], tables: Sequence[Table]) -> str:
    """Render the report as one HTML file with embedded styles and figures."""
    title = html.escape(summary["suite"])
    *about, setup = _format_introduction(summary)
    lead = "".join(f"<p>{_render_inline(paragraph)}</p>" for paragraph in about)
    where = f'<p class="where">{_render_inline(setup)}</p>'
    plots = [("Learning curves", summary["curves"], figures.plot_learning_curves(summary))]
    if has_aggregates(summary):
        plots.append(("Aggregates", "", figures.plot_aggregates(summary, list(AGGREGATES))))
        plots.append(("Performance profiles", "", figures.plot_performance_profiles(summary)))
    parts = [_render_plot(*plot) for plot in plots if plot[2]]
    parts += [_render_html_table(table) for table in tables]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head>\n<body><h1>{title}</h1>{lead}{where}\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _render_plot(title: str, text: str, svg: str) -> str:
    lead = f"<p>{_render_inline(text)}</p>" if text else ""
    return f'<h2>{html.escape(title)}</h2>{lead}<div class="wide">{svg}</div>'


def _render_html_table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in table.header)
    rows = []
    for i, row in enumerate(table.rows):
        cells = "".join(f"<td>{_keep_brackets_together(html.escape(cell))}</td>" for cell in row)
        rows.append(f"<tr{' class=strong' if i in table.strong else ''}>{cells}</tr>")
    return (
        f"<h2>{html.escape(table.title)}</h2><p>{_render_inline(table.text)}</p>"
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _keep_brackets_together(text: str) -> str:
    """Prevent line breaks inside brackets."""
    return re.sub(r"\[[^\]]*\]|\([^)]{,20}\)", lambda match: match[0].replace(" ", "&nbsp;"), text)


def _render_inline(text: str) -> str:
    """Escape text and render `**strong**` and URLs as Markdown does."""
    escaped = html.escape(text, quote=False)
    strong = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", escaped)
    return re.sub(r"(https://[^\s,;)]+[^\s,;).])", r'<a href="\1">\1</a>', strong)
