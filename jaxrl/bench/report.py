"""Report of a suite, as Markdown and as a self-contained HTML page."""

import html
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxrl.bench import figures
from jaxrl.bench.compare import SUMMARY_FILE, Change
from jaxrl.bench.markdown import Table, render_document
from jaxrl.bench.scores import AGGREGATES
from jaxrl.bench.tables import (
    build_changes_table,
    build_tables,
    describe_seeds,
    has_aggregates,
)
from jaxrl.runtime import files

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
