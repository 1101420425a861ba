"""What `jaxrl train` does with a sweep: all lanes together, and a table of its points."""

import math
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from jaxrl.cli import hints
from jaxrl.cli.command import command
from jaxrl.cli.interrupts import Interrupts
from jaxrl.loggers import text
from jaxrl.loggers.display import Display
from jaxrl.sweeps.base import SweepRuns
from jaxrl.sweeps.pbt import SCHEDULE_FILE
from jaxrl.sweeps.plot import draw_sweep
from jaxrl.sweeps.points import Point
from jaxrl.sweeps.state import is_sweep_folder, read_sweep


def train_to_the_end(
    sweep: Any, stop: Mapping[str, float], display: Display, interrupts: Interrupts
) -> list[str]:
    """Trains and saves every lane; returns what to print when the display is gone."""
    display.message(f"sweep folder  {sweep.folder.path}, {sweep.num_lanes} lanes")
    follow = hints.following(display, sweep.lanes[0].config, sweep.devices, sweep.iteration)
    sweep.fit(stop, on_iteration=follow, should_stop=lambda: interrupts.requested)
    if not _is_saved(sweep):
        sweep.save()
    points = sweep.points()
    lines = [*_table(points)]
    lines += [f"lane {i} was left behind: {why}" for i, why in sweep.diverged.items()]
    best = points[0]
    if not math.isnan(best.score):
        lane = max(best.lanes, key=lambda i: (i in sweep.active, -i))
        lines.append(f"best point        {described(best)}")
        lines.append(f"a lane of it      {sweep.folder.path / sweep.lane_name(lane)}")
    if sweep.schedule:
        lines.append(f"schedule          {sweep.folder.path / SCHEDULE_FILE}")
    picture = draw_sweep(sweep)
    if picture is not None:
        lines.append(f"picture           {picture}")
    lines.append(f"sweep folder      {sweep.folder.path}")
    if interrupts.requested:
        lines.append(f"go on with        {command('resume', sweep.folder.path)}")
    return lines


def _is_saved(sweep: SweepRuns) -> bool:
    folder = sweep.folder.path
    return is_sweep_folder(folder) and read_sweep(folder)["training_iteration"] == sweep.iteration


def described(point: Point) -> str:
    """The values of a point and its score with the interval."""
    values = ", ".join(
        f"{name}={text.number(x) if isinstance(x, float) else x}"
        for name, x in point.values.items()
    )
    low, high = point.interval
    score = f"{text.number(point.score)} [{text.number(low)}, {text.number(high)}]"
    return f"{values or 'the only one'}: {score} over {len(point.scores)} lanes"


def _table(points: list[Point]) -> list[str]:
    """The points, the best first."""
    table = Table("point", *points[0].values, "lanes", "return (IQM)", "95 % interval", box=None)
    for point in points:
        low, high = point.interval
        table.add_row(
            str(point.number),
            *(f"{x:.4g}" if isinstance(x, float) else str(x) for x in point.values.values()),
            str(len(point.lanes)),
            text.number(point.score),
            f"{text.number(low)} - {text.number(high)}",
        )
    console = Console()
    with console.capture() as printed:
        console.print(table)
    return printed.get().splitlines()
