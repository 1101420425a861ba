"""Figures of a report, as SVG that can be embedded in a page."""

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from jaxrl.loggers.plots import format_steps
from jaxrl.sweeps.statistics import Interval

Row = Mapping[str, Any]

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
"""Palette of Okabe and Ito, which color-blind readers can distinguish."""

WIDTH = 12.0
"""Width in inches of all figures but a single panel: 72 rem, the width of the page."""

STYLES = ("-", "--", "-.", ":")


def assign_styles(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return a color and a line style per name, the same in all figures."""
    number = len(COLORS)
    return {
        name: (COLORS[i % number], STYLES[i // number % len(STYLES)])
        for i, name in enumerate(names)
    }


def plot_learning_curves(summary: Row) -> str:
    """Plot training return against steps: a panel per environment, the interval as a band."""
    envs = [env for env in summary["winners"] if _select_cells(summary, env)]
    if not envs:
        return ""
    style_by_name = assign_styles(list(summary["aggregates"]))
    columns = min(len(envs), 3)
    rows = math.ceil(len(envs) / columns)
    width, height = (WIDTH, 3.0) if columns > 1 else (0.7 * WIDTH, 3.6)
    figure = Figure(figsize=(width, height * rows + 0.5), layout="constrained")
    lines: dict[str, Any] = {}
    for i, env in enumerate(envs):
        axes = figure.add_subplot(rows, columns, i + 1)
        for cell in _select_cells(summary, env):
            color, style = style_by_name[cell["entrant"]]
            lines.setdefault(cell["entrant"], draw_curve(axes, cell, color, style))
        axes.set_title(env)
    figure.legend(
        list(lines.values()), list(lines), loc="outside upper center", ncols=5, frameon=False
    )
    return render_svg(figure)


def draw_curve(
    axes: Axes, cell: Row, color: str = COLORS[0], style: str = "-", *, alpha: float = 0.18
) -> Line2D:
    """Draw the learning curve of a cell with its interval as a band, and the threshold.

    Args:
        axes: Axes to draw on.
        cell: Cell of a summary, with a curve.
        color: Color of the line and the band.
        style: Style of the line.
        alpha: Opacity of the band.
    """
    curve = cell["curve"]
    _draw_band(axes, curve["steps"], curve, color, alpha)
    (line,) = axes.plot(curve["steps"], curve["value"], style, color=color)
    if cell["threshold"] is not None:
        axes.axhline(cell["threshold"], color="0.5", linewidth=0.8, linestyle=(0, (2, 3)))
    axes.set(xlabel="environment steps", ylabel="training return")
    axes.xaxis.set_major_formatter(lambda value, _: format_steps(value))
    axes.grid(alpha=0.25)
    return line


def _draw_band(axes: Axes, x: Sequence[float], data: Row, color: str, alpha: float) -> None:
    """Draw the intervals between `low` and `high`; bounds that are None, of too few runs, have none."""
    low, high = (np.array(data[name], np.float64) for name in ("low", "high"))
    axes.fill_between(x, low, high, color=color, alpha=alpha, linewidth=0)


def _select_cells(summary: Row, env: str) -> list[Row]:
    return [
        cell
        for cell in summary["cells"]
        if cell["environment"] == env and cell.get("curve", {}).get("steps")
    ]


def plot_performance_profiles(summary: Row) -> str:
    """Plot the share of runs above each score."""
    style_by_name = assign_styles(list(summary["aggregates"]))
    height = max(3.6, 0.6 + 0.21 * len(style_by_name))
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.add_subplot()
    for name, profile in summary["profiles"].items():
        color, style = style_by_name[name]
        _draw_band(axes, profile["taus"], profile, color, 0.18)
        axes.plot(profile["taus"], profile["share"], style, color=color, label=name)
    axes.set(xlabel="score", ylabel="share of runs above it", ylim=(-0.02, 1.02))
    axes.grid(alpha=0.25)
    figure.legend(loc="outside right center", frameon=False)
    return render_svg(figure)


def plot_aggregates(summary: Row, names: Sequence[str]) -> str:
    """Plot the intervals of the aggregate metrics, a panel each."""
    entrants = list(summary["aggregates"])
    style_by_name = assign_styles(entrants)
    height = 0.9 + 0.36 * len(entrants)
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    for i, name in enumerate(names):
        axes = figure.add_subplot(1, len(names), i + 1)
        for position, entrant in enumerate(reversed(entrants)):
            found = Interval.from_data(summary["aggregates"][entrant][name])
            color, _ = style_by_name[entrant]
            width = found.high - found.low
            axes.barh(position, width, left=found.low, height=0.6, color=color, alpha=0.5)
            axes.plot(
                [found.value] * 2, [position - 0.3, position + 0.3], color="black", linewidth=1.5
            )
        axes.use_sticky_edges = False  # keeps a margin between bars and frame
        axes.set(title=name, ylim=(-0.6, len(entrants) - 0.4))
        labels = list(reversed(entrants)) if i == 0 else [""] * len(entrants)
        axes.set_yticks(range(len(entrants)), labels)
        axes.grid(alpha=0.25, axis="x")
    return render_svg(figure)


def render_svg(figure: Figure) -> str:
    """Render the SVG element without XML declaration, with text kept as text."""
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "jaxrl"}):
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    document = text.getvalue()
    return document[document.index("<svg") :]
