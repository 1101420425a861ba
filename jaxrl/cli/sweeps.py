"""`jaxrl train` for sweeps: trains all lanes together and prints a table of points."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Column, Table

from jaxrl.cli import hints
from jaxrl.cli.command import format_command
from jaxrl.cli.diff import open_console
from jaxrl.cli.interrupts import Interrupts
from jaxrl.loggers import text
from jaxrl.loggers.display import Display
from jaxrl.runs.exploits import SCHEDULE_FILE
from jaxrl.sweeps.base import SweepRuns
from jaxrl.sweeps.plot import draw_sweep
from jaxrl.sweeps.points import SweepPoint, judge_first
from jaxrl.sweeps.state import is_sweep_folder, read_sweep

if TYPE_CHECKING:
    from jaxrl.sweeps.population import Population
    from jaxrl.sweeps.trials import Trials


def train_sweep(
    sweep: "Population | Trials",
    stop: Mapping[str, float],
    display: Display,
    interrupts: Interrupts,
) -> list[str]:
    """Train and save every lane; return the lines to print once the display is closed."""
    display.print_message(f"sweep folder  {sweep.folder.path}, {sweep.num_lanes} lanes")
    on_iteration = hints.make_iteration_callback(
        display, sweep.lanes[0].config, sweep.devices, sweep.iteration
    )
    sweep.fit(stop, on_iteration=on_iteration, should_stop=lambda: interrupts.requested)
    if not _is_saved(sweep):
        sweep.save()
    points = sweep.points()
    lines = [*_format_table(points)]
    lines += [f"lane {i} was stopped: {why}" for i, why in sweep.diverged.items()]
    best = points[0]
    if not math.isnan(best.score):
        lane = max(best.lanes, key=lambda i: (i in sweep.active_indices, -i))
        lines.append(f"best point        {format_point(best)}")
        if verdict := judge_first(points):
            lines.append(f"                  {verdict}")
        lines.append(f"one of its lanes  {sweep.folder.path / sweep.format_lane_name(lane)}")
    if sweep.schedule:
        lines.append(f"schedule          {sweep.folder.path / SCHEDULE_FILE}")
    picture = draw_sweep(sweep)
    if picture is not None:
        lines.append(f"picture           {picture}")
    lines.append(f"sweep folder      {sweep.folder.path}")
    if interrupts.requested and not sweep.has_reached(stop):
        lines.append(f"resume with       {format_command('resume', sweep.folder.path)}")
    return lines


def _is_saved(sweep: SweepRuns) -> bool:
    folder = sweep.folder.path
    return is_sweep_folder(folder) and read_sweep(folder)["training_iteration"] == sweep.iteration


def format_point(point: SweepPoint) -> str:
    """Format the values of a point and its score with the interval."""
    values = ", ".join(
        f"{name}={text.format_number(x) if isinstance(x, float) else x}"
        for name, x in point.values.items()
    )
    score = text.format_number(point.score)
    if point.estimate.is_bounded:
        score += " [{}, {}]".format(*map(text.format_number, point.interval))
    return f"{values or 'only point'}: {score}, {point.estimate.size}"


def _format_table(points: list[SweepPoint]) -> list[str]:
    """Format the points as a table, best first."""
    names = ("point", *points[0].values, "lanes", "return (IQM)", "95 % interval")
    table = Table(*(Column(escape(name), overflow="fold") for name in names), box=None)
    for point in points:
        low, high = map(text.format_number, point.interval)
        table.add_row(
            str(point.number),
            *(
                f"{x:.4g}" if isinstance(x, float) else escape(str(x))
                for x in point.values.values()
            ),
            str(len(point.lanes)),
            text.format_number(point.score),
            f"{low} - {high}" if point.estimate.is_bounded else "-",
        )
    console = open_console()
    with console.capture() as printed:
        console.print(table)
    return [line.rstrip() for line in printed.get().splitlines()]
