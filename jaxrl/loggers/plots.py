"""Plots of learning curves and leagues."""

import csv
import dataclasses
import importlib
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl.loggers.sinks import parse_line
from jaxrl.metrics import DEFAULT_MODULE, nest
from jaxrl.runs import results
from jaxrl.runs.run_folder import PROGRESS_FILE, RESULT_FILE, RunFolder
from jaxrl.runtime import files

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from jaxrl.runs.league_table import GameTable

LOSS = f"learners/{DEFAULT_MODULE}/total_loss"
_MAX_POINTS = 5_000

CELL_INCHES = 0.6
"""Size of a cell of a league's matrix."""
MARGIN_INCHES = 2.2

Points = list[tuple[int, float]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearningCurve:
    """Episode returns against environment steps; `evaluations` is empty without evaluations.

    A run on recorded data has no episodes in training: `is_offline`, its steps are rows trained on, and
    it has `losses`.
    """

    steps: list[int]
    mean: list[float]
    low: list[float]
    high: list[float]
    evaluations: Points
    losses: Points = dataclasses.field(default_factory=list)
    is_offline: bool = False

    @property
    def returns(self) -> Points:
        """Mean training returns."""
        return list(zip(self.steps, self.mean, strict=True))

    @property
    def step_label(self) -> str:
        """Label of an axis with `steps`."""
        return "rows trained on" if self.is_offline else "environment steps"


def read_learning_curve(folder: Path) -> LearningCurve:
    """Read the curve from a folder's `result.json`, or from `progress.csv` if there is none."""
    steps: list[int] = []
    band: list[tuple[float, float, float]] = []
    evaluated: Points = []
    losses: Points = []
    is_offline = False
    for row in _read_rows(folder):
        step = results.get_steps(row)
        mean = results.get_number(row, results.RETURN_MEAN)
        if mean is not None:
            low, high = (
                results.get_number(row, results.RETURN_MIN),
                results.get_number(row, results.RETURN_MAX),
            )
            steps.append(step)
            band.append((mean, mean if low is None else low, mean if high is None else high))
        score = results.get_number(results.get_new_evaluation(row), "episode_return_mean")
        if score is not None:
            evaluated.append((step, score))
        is_offline = results.is_offline(row)
        loss = results.get_number(row, LOSS) if is_offline else None
        if loss is not None:
            losses.append((step, loss))
    mean, low, high = (list(column) for column in zip(*band, strict=True)) if band else ([], [], [])
    return LearningCurve(
        steps=steps,
        mean=mean,
        low=low,
        high=high,
        evaluations=evaluated,
        losses=losses,
        is_offline=is_offline,
    )


def preload_matplotlib() -> None:
    """Start importing matplotlib in a thread; it takes a second, and programs keep running."""
    threading.Thread(
        target=lambda: importlib.import_module("matplotlib.figure"), name="jaxrl-import"
    ).start()


def draw_learning_curve(folder: RunFolder, *, title: str | None = None) -> Path | None:
    """Draw `plots/learning_curve.png`: mean return with its range, and evaluations as markers.

    Of a run on recorded data, evaluations alone are drawn or, without them, the loss.

    Args:
        folder: Run folder whose `result.json` or `progress.csv` is read.
        title: Title of the plot; the run's name by default.

    Returns:
        Path of the image, or None if no episode has ended yet or nothing was logged.

    Raises:
        RunFolderError: If the image cannot be written.
    """
    curve = read_learning_curve(folder.path)
    if not (curve.steps or curve.evaluations or curve.losses):
        return None
    from matplotlib.figure import Figure  # slow to import

    figure = Figure(figsize=(7.0, 4.2), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    label = "episode return"
    if curve.steps:
        _draw_returns(axes, curve)
    if curve.evaluations:
        steps, scores = zip(*curve.evaluations, strict=True)
        line = "-" if curve.is_offline else ""
        axes.plot(steps, scores, f"D{line}", color="C3", markersize=5, label="evaluation, mean")
    elif not curve.steps:
        steps, losses = zip(*curve.losses, strict=True)
        marker, label = "o" if len(steps) == 1 else "", "total loss"
        axes.plot(steps, losses, color="C0", marker=marker, label="training, mean")
    axes.set(xlabel=curve.step_label, ylabel=label, title=escape(title or folder.name))
    axes.grid(alpha=0.25)
    axes.xaxis.set_major_formatter(lambda value, _: format_steps(value))
    axes.legend(loc="best", frameon=False)
    return save_figure(figure, folder.learning_curve)


def _draw_returns(axes: "Axes", curve: LearningCurve) -> None:
    marker = "o" if len(curve.steps) == 1 else ""
    axes.fill_between(
        curve.steps, curve.low, curve.high, color="C0", alpha=0.15, linewidth=0, label="min to max"
    )
    axes.plot(curve.steps, curve.mean, color="C0", marker=marker, label="training, mean")


def draw_league(table: "GameTable", path: Path) -> None:
    """Draw the matrix of shares with the Elo of each player to an image file.

    Args:
        table: Games of the league.
        path: Image file, PNG, SVG or PDF by its suffix.
    """
    from matplotlib.figure import Figure

    players, opponents = table.players, table.opponents
    size = (
        MARGIN_INCHES + CELL_INCHES * len(opponents),
        MARGIN_INCHES + CELL_INCHES * len(players),
    )
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    shares, elo = table.compute_shares(), table.compute_elo()
    image = axes.imshow(np.ma.masked_invalid(shares), cmap="RdYlGn", vmin=0.0, vmax=1.0)
    for i, j in np.argwhere(~np.isnan(shares)):
        axes.text(j, i, f"{shares[i, j]:.2f}", ha="center", va="center", fontsize=8)
    axes.set_xticks(range(len(opponents)), opponents, rotation=90)
    axes.set_yticks(range(len(players)), [f"{name} ({elo[name]:.0f})" for name in players])
    axes.set_xlabel("opponent")
    axes.set_ylabel("player (Elo)")
    figure.colorbar(image, ax=axes, shrink=0.7, label="share of games won")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def save_figure(figure: "Figure", path: Path) -> Path:
    """Write a matplotlib figure as a PNG atomically, creating its folder if missing.

    Raises:
        RunFolderError: If the image cannot be written.
    """
    with files.translate_os_errors("write", path), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph ", category=UserWarning)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        figure.savefig(part, format="png", metadata={"Software": None})
        part.replace(path)
    return path


def escape(words: str) -> str:
    """Return a text of the user's as it is drawn: between two dollars, it would be a formula."""
    return words.replace("$", r"\$")


def format_steps(value: float) -> str:
    """Format a number of steps for an axis: `300k`, `2M`."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:g}{unit}"
    return f"{value:g}"


def _read_rows(folder: Path) -> Iterator[Mapping[str, Any]]:
    if (folder / RESULT_FILE).is_file():
        yield from _read_thinned(folder / RESULT_FILE)
    elif (folder / PROGRESS_FILE).is_file():
        with (folder / PROGRESS_FILE).open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                yield nest({name: _parse_cell(value) for name, value in row.items() if value})


def _read_thinned(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield all results of a short run; of a long one, some thousands and all evaluations."""
    with path.open("rb") as file:
        stride = 1 + sum(1 for _ in file) // _MAX_POINTS
    with path.open(encoding="utf-8", errors="replace") as file:
        for i, line in enumerate(file):
            row = parse_line(line) if i % stride == 0 or '"evaluation_s"' in line else None
            if row is not None:
                yield row


def _parse_cell(value: str) -> float | str:
    try:
        return float(value)
    except ValueError:
        return value
