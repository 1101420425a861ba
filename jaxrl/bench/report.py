"""A suite's report: Markdown, and a page that needs no other file."""

import html
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxrl.bench import figures
from jaxrl.bench.compare import SUMMARY, Change
from jaxrl.bench.scores import AGGREGATES
from jaxrl.bench.tables import Table, changes_table, has_aggregates, tables_of
from jaxrl.runs import files

MARKDOWN, PAGE = "report.md", "report.html"


def write_report(
    summary: Mapping[str, Any], folder: Path, changes: Sequence[Change] | None = None
) -> Path:
    """Write `summary.json`, `report.md` and `report.html`; the page's path."""
    tables = tables_of(summary)
    if changes is not None:
        tables = [changes_table(changes), *tables]
    texts = {
        SUMMARY: json.dumps(summary, indent=1) + "\n",
        MARKDOWN: markdown(summary, tables),
        PAGE: page(summary, tables),
    }
    for name, text in texts.items():
        path = folder / name
        with files.one_sentence("write", path), files.replacing(path) as file:
            file.write(text)
    return folder / PAGE


def markdown(summary: Mapping[str, Any], tables: Sequence[Table]) -> str:
    """The report as Markdown."""
    sections = [f"# {summary['suite']}", *_introduction(summary)]
    sections += [_markdown_table(table) for table in tables]
    return "\n\n".join(sections) + "\n"


def _introduction(summary: Mapping[str, Any]) -> list[str]:
    machine = summary["machine"]
    versions = ", ".join(f"{name} {v}" for name, v in machine["versions"].items())
    devices = ", ".join(machine["devices"]) or "no device"
    where = (
        f"{machine['cpu']}, {machine['cores']} cores; {devices}, {machine['system']}, "
        f"Python {machine['python']}; {versions}."
    )
    return [*filter(None, [summary["about"]]), f"{summary['date']}; {where}"]


def _markdown_table(table: Table) -> str:
    lines = [table.header, ("---",) * len(table.header)]
    for i, row in enumerate(table.rows):
        cells = tuple(cell.replace("|", "\\|").replace("\n", " ") for cell in row)
        lines.append(tuple(f"**{cell}**" for cell in cells) if i in table.strong else cells)
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"## {table.title}\n\n{table.text}\n\n{body}"


STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff;
       max-width: 72rem; margin: 2rem auto; padding: 0 1.25rem; }
h1 { margin-bottom: .25rem; } h2 { margin-top: 2.5rem; border-bottom: 1px solid #ddd; }
p.where { color: #666; font-size: .87rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; width: 100%; }
th, td { padding: .3rem .8rem .3rem 0; text-align: left; border-bottom: 1px solid #e6e6e6; }
th { vertical-align: bottom; } td { vertical-align: top; } td:first-child { white-space: nowrap; }
tr.strong td { font-weight: 600; background: #f1f7ee; }
svg { display: block; margin: 0 auto; max-width: 100%; height: auto; }
"""


def page(summary: Mapping[str, Any], tables: Sequence[Table]) -> str:
    """The report as one HTML file: styles and pictures are in it, and it asks for nothing."""
    title = html.escape(summary["suite"])
    about, *rest = [*_introduction(summary)]
    lead = f"<p>{_inline(about)}</p>" if rest else ""
    where = f'<p class="where">{_inline((rest or [about])[-1])}</p>'
    pictures = [("Learning curves", CURVES_TEXT, figures.learning_curves(summary))]
    if has_aggregates(summary):
        pictures.append(("Aggregates", "", figures.aggregates(summary, list(AGGREGATES))))
        pictures.append(("Performance profiles", "", figures.performance_profiles(summary)))
    parts = [_picture(*picture) for picture in pictures if picture[2]]
    parts += [_html_table(table) for table in tables]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head>\n<body><h1>{title}</h1>{lead}{where}\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


CURVES_TEXT = (
    "The mean return of recent training episodes: interquartile mean over the seeds, and its 95 % "
    "bootstrap interval as a band. A dotted line is the return that counts as learned."
)


def _picture(title: str, text: str, svg: str) -> str:
    told = f"<p>{_inline(text)}</p>" if text else ""
    return f'<h2>{html.escape(title)}</h2>{told}<div class="wide">{svg}</div>'


def _html_table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in table.header)
    rows = []
    for i, row in enumerate(table.rows):
        cells = "".join(f"<td>{_unbroken(html.escape(cell))}</td>" for cell in row)
        rows.append(f"<tr{' class=strong' if i in table.strong else ''}>{cells}</tr>")
    return (
        f"<h2>{html.escape(table.title)}</h2><p>{_inline(table.text)}</p>"
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _unbroken(text: str) -> str:
    """Lines end beside what is in brackets, and not within it."""
    return re.sub(r"\[[^\]]*\]|\([^)]{,20}\)", lambda found: found[0].replace(" ", "&nbsp;"), text)


def _inline(text: str) -> str:
    """Escaped, with `**strong**` and addresses as Markdown has them."""
    escaped = html.escape(text, quote=False)
    strong = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", escaped)
    return re.sub(r"(https://[^\s,;)]+[^\s,;).])", r'<a href="\1">\1</a>', strong)
