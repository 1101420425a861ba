"""What `jaxrl train` does with a sweep: all lanes together, and a table of its points."""

import math
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from jaxrl.cli.interrupts import Interrupts
from jaxrl.logging import text
from jaxrl.logging.display import Display
from jaxrl.population import Point, Population


def train_to_the_end(
    sweep: Population, stop: Mapping[str, float], display: Display, interrupts: Interrupts
) -> list[str]:
    """Trains and saves every lane; returns what to print when the display is gone."""
    display.message(f"sweep folder  {sweep.folder.path}, {sweep.num_lanes} lanes")
    sweep.fit(stop, on_iteration=display.iteration, should_stop=lambda: interrupts.requested)
    points = sweep.points()
    lines = [*_table(points)]
    lines += [f"lane {i} was left behind: {why}" for i, why in sweep.diverged.items()]
    best = points[0]
    if not math.isnan(best.score):
        lane = max(best.lanes, key=lambda i: (i in sweep.active, -i))
        lines.append(f"best point        {described(best)}")
        lines.append(f"a lane of it      {sweep.folder.path / sweep.lane_name(lane)}")
    return [*lines, f"sweep folder      {sweep.folder.path}"]


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
