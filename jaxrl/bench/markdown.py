"""Tables and numbers as text, and reports in Markdown, shared by all benchmarks."""

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxrl.sweeps.statistics import Interval

Cells = tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """Table of a report.

    Args:
        title: Title above the table; "" for none.
        text: Description of the contents; "" for none.
        header: Column headings.
        rows: Rows of cells.
        strong: Indices of highlighted rows.
    """

    title: str = ""
    text: str = ""
    header: Cells
    rows: Sequence[Cells]
    strong: tuple[int, ...] = ()


def render_document(*parts: str | Table | None) -> str:
    """Render paragraphs and tables as Markdown, without those that are missing or empty."""
    texts = [render_table(part) if isinstance(part, Table) else part for part in parts]
    return "\n\n".join(text for text in texts if text) + "\n"


def render_table(table: Table) -> str:
    """Render a table as Markdown, with its title and its text."""
    lines = [render_row(table.header), render_row(("---",) * len(table.header))]
    for i, row in enumerate(table.rows):
        lines.append(render_row(f"**{x}**" if i in table.strong else x for x in row))
    title = f"## {table.title}" if table.title else ""
    return "\n\n".join(filter(None, (title, table.text, "\n".join(lines))))


def render_row(cells: Iterable[str]) -> str:
    """Render a row of a Markdown table."""
    escaped = (cell.replace("|", "\\|").replace("\n", " ") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def parse_tables(text: str, prefix: str) -> list[Table]:
    """Parse the tables of a Markdown document, each with the paragraphs above it.

    Args:
        text: Document.
        prefix: Start of the titles.
    """
    tables: list[Table] = []
    title, paragraphs = prefix, list[str]()
    for block in re.split(r"\n{2,}", text.strip()):
        if block.startswith("#"):
            title, paragraphs = f"{prefix}: {block.lstrip('# ')}", []
        elif block.startswith("|"):
            header, _, *rows = (_parse_row(line) for line in block.splitlines())
            tables.append(Table(title=title, text=" ".join(paragraphs), header=header, rows=rows))
            paragraphs = []
        else:
            paragraphs.append(block.replace("\n", " "))
    return tables


def _parse_row(line: str) -> Cells:
    cells = re.split(r"(?<!\\)\|", line.strip()[1:-1])
    return tuple(cell.strip().replace("\\|", "|") for cell in cells)


def format_short(value: float | None) -> str:
    """Format a number with about three significant digits; None or NaN is a dash."""
    if value is None or math.isnan(value):
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def format_interval(data: Mapping[str, Any] | None) -> str:
    """Format plain data of an interval as `value [low, high]`, or `value (1 run)`; None is a dash."""
    if data is None:
        return "-"
    interval = Interval.from_data(data)
    value, low, high = map(format_short, (interval.value, interval.low, interval.high))
    return f"{value} [{low}, {high}]" if interval.is_bounded else f"{value} ({interval.size})"


def format_optional(value: float | str | None, spec: str) -> str:
    """Format a value by a format specification; None is a dash."""
    return "-" if value is None else format(value, spec)


def format_range(interval: Interval, spec: str) -> str:
    """Format the bounds of an interval as `low - high`, or the number of runs without bounds."""
    if not interval.is_bounded:
        return interval.size
    return f"{interval.low:{spec}} - {interval.high:{spec}}"


def format_estimate(interval: Interval, spec: str) -> str:
    """Format an interval as `value (low - high)`."""
    return f"{interval.value:{spec}} ({format_range(interval, spec)})"
