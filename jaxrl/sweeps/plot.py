"""Figure of a sweep: learning curves of its points, and scores against the swept settings."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl.loggers import text
from jaxrl.loggers.plots import (
    LearningCurve,
    Points,
    escape,
    format_steps,
    read_learning_curve,
    save_figure,
)
from jaxrl.sweeps.base import SweepRuns
from jaxrl.sweeps.points import SweepPoint, judge_first
from jaxrl.sweeps.statistics import bound_interquartile_mean, interquartile_mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PLOT_FILE = "plots/sweep.png"
MAX_CURVES = 8
"""Number of points, the best ones, whose curves are drawn; more are not distinguishable."""
CURVE_POINTS = 200
"""Number of environment steps at which a curve is evaluated."""


def draw_sweep(sweep: SweepRuns) -> Path | None:
    """Draw `plots/sweep.png` in a sweep's folder.

    Curves are interquartile means of the lanes' training returns with their 95 % intervals, from
    three lanes on, colored by rank. For each swept number, a panel shows the points' scores against it.
    Runs on recorded data have no training returns: curves are of the returns in evaluations or,
    without them, of the losses, which are no scores.

    Args:
        sweep: Trained sweep with logged results.

    Returns:
        The path of the figure; None if no lane has a curve.

    Raises:
        RunFolderError: If the figure cannot be written.
    """
    points = sweep.points()
    curves = {
        point.number: [
            read_learning_curve(sweep.folder.path / sweep.format_lane_name(i))
            for i in point.lanes
            if i in sweep.active_indices
        ]
        for point in points
    }
    label, lines = _choose_lines(curves)
    shown = [point for point in points if lines[point.number]]
    if not shown:
        return None
    from matplotlib.figure import Figure  # slow to import

    has_scores = not math.isnan(points[0].score)
    swept = [name for name in points[0].values if has_scores and _is_swept(points, name)]
    figure = Figure(figsize=(6.4 + 3.6 * len(swept), 4.4), dpi=120, layout="constrained")
    ratios = [1.6, *[1.0] * len(swept)]
    axes = figure.subplots(1, 1 + len(swept), squeeze=False, width_ratios=ratios)[0]
    _draw_curves(axes[0], shown[:MAX_CURVES], lines)
    step_label = next(curve.step_label for own in curves.values() for curve in own)
    axes[0].set(xlabel=step_label, ylabel=f"{label} (IQM)")
    title = escape(f"{sweep.config.algo_name} on {sweep.config.environment_settings.env}")
    num_hidden = len(points) - len(shown[:MAX_CURVES])
    axes[0].set_title(f"{title}: the best {MAX_CURVES} of {len(points)}" if num_hidden else title)
    for panel, name in zip(axes[1:], swept, strict=True):
        _draw_scores(panel, points, name)
    return save_figure(figure, sweep.folder.path / PLOT_FILE)


def _choose_lines(
    curves: Mapping[int, Sequence[LearningCurve]],
) -> tuple[str, dict[int, list[Points]]]:
    """Return what is drawn, the first that any lane has, and the lanes' points of it by sweep point."""
    kinds = {
        "training return": lambda curve: curve.returns,
        "evaluation return": lambda curve: curve.evaluations,
        "total loss": lambda curve: curve.losses,
    }
    for label, get_points in kinds.items():
        lines = {
            number: [points for points in map(get_points, own) if points]
            for number, own in curves.items()
        }
        if any(lines.values()):
            return label, lines
    return "", {number: [] for number in curves}


def _is_swept(points: Sequence[SweepPoint], name: str) -> bool:
    """Return whether the values of a setting are numbers that differ between points."""
    values = [point.values[name] for point in points]
    are_numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in values)
    return are_numbers and len(set(values)) > 1


def _draw_curves(
    axes: "Axes", points: Sequence[SweepPoint], lines: Mapping[int, Sequence[Points]]
) -> None:
    import matplotlib

    colors = matplotlib.colormaps["viridis"](np.linspace(0.0, 0.92, len(points)))
    for rank, (point, color) in enumerate(zip(points, colors, strict=True)):
        steps, middle, low, high = _compute_band(lines[point.number])
        zorder = len(points) - rank
        axes.fill_between(steps, low, high, color=color, alpha=0.15, linewidth=0, zorder=zorder)
        marker, label = "o" if len(steps) == 1 else "", _format_label(point)
        axes.plot(steps, middle, color=color, marker=marker, label=label, zorder=zorder + 0.5)
    axes.grid(alpha=0.25)
    axes.xaxis.set_major_formatter(lambda value, _: format_steps(value))
    axes.legend(loc="best", frameon=False, fontsize="small")


def _format_label(point: SweepPoint) -> str:
    values = ", ".join(
        f"{name}={x:.3g}" if isinstance(x, float) else f"{name}={x}"
        for name, x in point.values.items()
    )
    name = escape(values) or "all lanes"
    return name if math.isnan(point.score) else f"{name}: {text.format_number(point.score)}"


def _compute_band(lines: Sequence[Points]) -> tuple[Any, Any, Any, Any]:
    """Return the steps common to all curves, the interquartile mean and its lower and upper bounds."""
    columns = [np.array(points, np.float64).T for points in lines]
    first, last = max(x[0] for x, _ in columns), min(x[-1] for x, _ in columns)
    steps = np.unique(np.linspace(first, last, CURVE_POINTS).astype(np.int64))
    values = np.array([np.interp(steps, x, y) for x, y in columns]).T
    return steps, interquartile_mean(values), *bound_interquartile_mean(values)


def _draw_scores(axes: "Axes", points: Sequence[SweepPoint], name: str) -> None:
    scored = sorted(
        (point for point in points if not math.isnan(point.score)),
        key=lambda point: point.values[name],
    )
    x = np.array([point.values[name] for point in scored], np.float64)
    y = np.array([point.score for point in scored])
    bounds = np.array([point.interval for point in scored]).T
    axes.errorbar(
        x, y, yerr=np.abs(bounds - y), fmt="o", color="C0", ecolor="0.6", capsize=2, markersize=4
    )
    best, verdict = points[0], judge_first(points)
    label = f"best point, {verdict}" if verdict else "best point"
    axes.plot([best.values[name]], [best.score], "D", color="C3", label=label)
    if x.min() > 0 and x.max() / x.min() >= 10:
        axes.set_xscale("log")
    axes.set(xlabel=name, ylabel="return (IQM, 95 % interval)")
    axes.grid(alpha=0.25)
    axes.legend(loc="best", frameon=False, fontsize="small")
