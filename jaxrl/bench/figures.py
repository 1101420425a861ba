"""The pictures of a report, as SVG that stands in a page by itself."""

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from jaxrl.loggers.plots import engineering

Row = Mapping[str, Any]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
"""Okabe and Ito's, which are told apart by the colour-blind too."""

WIDTH = 12.0
"""Of all pictures but a panel that stands alone; 72 rem, as wide as the page."""

STYLES = ("-", "--", "-.", ":")


def styles(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """A colour and a line style for each name, the same in all pictures."""
    number = len(COLOURS)
    return {
        name: (COLOURS[i % number], STYLES[i // number % len(STYLES)])
        for i, name in enumerate(names)
    }


def learning_curves(summary: Row) -> str:
    """Training return against steps: a panel for each environment, interval as a band."""
    shown = [env for env in summary["winners"] if _curves(summary, env)]
    if not shown:
        return ""
    look = styles(list(summary["aggregates"]))
    columns = min(len(shown), 3)
    rows = math.ceil(len(shown) / columns)
    width, height = (WIDTH, 3.0) if columns > 1 else (0.7 * WIDTH, 3.6)
    figure = Figure(figsize=(width, height * rows + 0.5), layout="constrained")
    lines: dict[str, Any] = {}
    for i, env in enumerate(shown):
        axes = figure.add_subplot(rows, columns, i + 1)
        for cell in _curves(summary, env):
            colour, style = look[cell["entrant"]]
            curve = cell["curve"]
            axes.fill_between(
                curve["steps"], curve["low"], curve["high"], color=colour, alpha=0.18, linewidth=0
            )
            (line,) = axes.plot(curve["steps"], curve["value"], style, color=colour)
            lines.setdefault(cell["entrant"], line)
            if cell["threshold"] is not None:
                axes.axhline(cell["threshold"], color="0.5", linewidth=0.8, linestyle=(0, (2, 3)))
        axes.set(title=env, xlabel="environment steps", ylabel="training return")
        axes.xaxis.set_major_formatter(lambda value, _: engineering(value))
        axes.grid(alpha=0.25)
    figure.legend(
        list(lines.values()), list(lines), loc="outside upper center", ncols=5, frameon=False
    )
    return svg(figure)


def _curves(summary: Row, env: str) -> list[Row]:
    return [
        cell
        for cell in summary["cells"]
        if cell["environment"] == env and cell.get("curve", {}).get("steps")
    ]


def performance_profiles(summary: Row) -> str:
    """The share of runs above each score."""
    look = styles(list(summary["aggregates"]))
    height = max(3.6, 0.6 + 0.21 * len(look))
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.add_subplot()
    for name, profile in summary["profiles"].items():
        colour, style = look[name]
        axes.fill_between(
            profile["taus"], profile["low"], profile["high"], color=colour, alpha=0.18, linewidth=0
        )
        axes.plot(profile["taus"], profile["share"], style, color=colour, label=name)
    axes.set(xlabel="score", ylabel="share of runs above it", ylim=(-0.02, 1.02))
    axes.grid(alpha=0.25)
    figure.legend(loc="outside right center", frameon=False)
    return svg(figure)


def aggregates(summary: Row, names: Sequence[str]) -> str:
    """Intervals of the aggregate figures, a panel each."""
    entrants = list(summary["aggregates"])
    look = styles(entrants)
    height = 0.9 + 0.36 * len(entrants)
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    for i, name in enumerate(names):
        axes = figure.add_subplot(1, len(names), i + 1)
        for place, entrant in enumerate(reversed(entrants)):
            value, low, high = summary["aggregates"][entrant][name]
            colour, _ = look[entrant]
            axes.barh(place, high - low, left=low, height=0.6, color=colour, alpha=0.5)
            axes.plot([value, value], [place - 0.3, place + 0.3], color="black", linewidth=1.5)
        axes.use_sticky_edges = False  # bars do not end at the frame
        axes.set(title=name, ylim=(-0.6, len(entrants) - 0.4))
        labels = list(reversed(entrants)) if i == 0 else [""] * len(entrants)
        axes.set_yticks(range(len(entrants)), labels)
        axes.grid(alpha=0.25, axis="x")
    return svg(figure)


def svg(figure: Figure) -> str:
    """The element alone, without the XML declaration; its text stays text."""
    import matplotlib

    FigureCanvasSVG(figure)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "jaxrl"}):
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    whole = text.getvalue()
    return whole[whole.index("<svg") :]
