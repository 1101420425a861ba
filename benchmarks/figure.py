"""Figure and tables of speed, from `benchmarks/results`: `python -m benchmarks.figure`.

Draws every peer of every setting to `docs/images/speed.png`, and writes tables between two markers: of one machine
in README, of all in `docs/performance.md`. `python -m benchmarks.speed` also does so after it has written results to
`benchmarks/results`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import recurrent, user
from benchmarks.limits import compute_shares, format_share
from benchmarks.machine import RESULTS, ROOT
from benchmarks.settings import HOST_LSTM, LOCAL, LSTM, OURS, REPLAY
from benchmarks.statistics import estimate_ratio, from_dict
from jaxrl.bench.figures import COLORS
from jaxrl.bench.markdown import Cells, Table, render_document
from jaxrl.loggers.plots import format_steps, save_figure
from jaxrl.sweeps.statistics import Interval

PICTURE = ROOT / "docs" / "images" / "speed.png"
README = ROOT / "README.md"
PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- speed: python -m benchmarks.figure -->", "<!-- /speed -->"
STEMS = ("speed", "host", "replay", "recurrent", "user")

TITLES = {
    ("host", "8x256"): "PPO, gymnasium's CartPole, 8 envs x 256 steps",
    ("replay", "dqn"): "DQN, CartPole, 1 env, an update every 4 steps",
    ("replay", "dqn-4"): "DQN, CartPole, 4 envs, an update per vector step",
    ("replay", "sac"): "SAC, Pendulum, an update every step",
    ("recurrent", "in_graph"): "Recurrent PPO, CartPole, 64 envs x 32 steps",
    ("recurrent", "images"): "PPO with a convolution and an LSTM, Breakout-MinAtar",
    ("recurrent", "host"): "PPO with an LSTM, gymnasium's CartPole",
}
OUR_PEERS = (OURS, LOCAL, REPLAY, HOST_LSTM, LSTM)
"""Peers whose rates are divided by the others'."""

FAMILY_STYLES = {
    "jaxrl": (COLORS[0], "o"),
    "Rejax": (COLORS[4], "s"),
    "SB3": (COLORS[2], "^"),
    "RLlib": (COLORS[1], "D"),
    "other": ("#666666", "X"),
}
"""Color and marker of each library."""
FAMILY_BY_PREFIX = {
    "rejax": "Rejax",
    "sb3": "SB3",
    "sbx": "SB3",
    "rllib": "RLlib",
    "jaxrl": "jaxrl",
    **dict.fromkeys(recurrent.IN_GRAPH, "jaxrl"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Panel:
    """Measurements at one setting, with their title."""

    title: str
    measured: Mapping[str, Any]

    @property
    def speeds(self) -> dict[str, Interval]:
        return {name: from_dict(p["median"]) for name, p in self.measured["peers"].items()}

    @property
    def ours(self) -> str | None:
        return next((name for name in OUR_PEERS if name in self.measured["peers"]), None)


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the figure and write the table.

    Returns:
        Exit code.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.figure", description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON files")
    parser.add_argument("--picture", type=Path, default=PICTURE, help="default: %(default)s")
    parser.add_argument("--readme", type=Path, default=README, help="default: %(default)s")
    parser.add_argument("--page", type=Path, default=PAGE, help="default: %(default)s")
    options = parser.parse_args(argv)
    machines = load_results(options.results)
    if not machines:
        print(f"benchmarks.figure: no results in {options.results}", file=sys.stderr)
        return 1
    draw(make_panels(machines[0]), options.picture)
    for path, table in (
        (options.readme, render_speed_table(machines[0])),
        (options.page, render_tables(machines)),
    ):
        text = path.read_text(encoding="utf-8")
        path.write_text(insert_table(text, table), encoding="utf-8")
    return 0


def load_results(folder: Path) -> list[dict[str, Any]]:
    """Load the results of every kind of machine; the one with the most suites comes first."""
    machines = [load_machine_results(path) for path in sorted(folder.iterdir()) if path.is_dir()]
    return sorted((found for found in machines if found), key=len, reverse=True)


def load_machine_results(folder: Path) -> dict[str, Any]:
    """Load the existing results of one kind of machine, by the stem of their files."""
    paths = {stem: folder / f"{stem}.json" for stem in STEMS}
    found = {stem: path for stem, path in paths.items() if path.exists()}
    return {stem: json.loads(path.read_text(encoding="utf-8")) for stem, path in found.items()}


def render_tables(machines: Sequence[Mapping[str, Any]]) -> str:
    """Render the tables of every kind of machine, one below the other: speeds, then whole commands."""
    tables: list[str] = []
    for results in machines:
        tables.append(render_speed_table(results))
        if "user" in results:
            tables.append(render_document(user.build_readme_table(results["user"])).rstrip("\n"))
    return "\n\n".join(tables)


def make_panels(results: Mapping[str, Any]) -> list[Panel]:
    """Return a panel for each setting."""
    return [
        Panel(title=_make_title(stem, setting), measured=measured)
        for stem, result in results.items()
        for setting, measured in result.get("throughput", {}).items()
    ]


def _make_title(stem: str, setting: str) -> str:
    known = TITLES.get((stem, setting))
    return known or "PPO, CartPole, {} envs x {} steps".format(*setting.split("x"))


def get_family(peer: str) -> str:
    """Return the library of a peer."""
    return FAMILY_BY_PREFIX.get(peer.split("-")[0], "other")


def draw(panels: Sequence[Panel], path: Path) -> None:
    """Draw rates with their intervals on logarithmic axes, in one panel per setting."""
    from matplotlib.figure import Figure

    columns = 3 if len(panels) > 2 else len(panels)
    rows = -(-len(panels) // columns)
    most = max(len(panel.speeds) for panel in panels)
    size = (5.2 * columns, (0.9 + 0.3 * most) * rows)
    figure = Figure(figsize=size, dpi=110, layout="constrained")
    grid: Any = figure.subplots(rows, columns, squeeze=False)
    for axes, panel in zip(grid.flat, panels, strict=False):
        _draw_panel(axes, panel)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    figure.supxlabel("environment steps per second, median and 95 % interval", fontsize=11)
    save_figure(figure, path)


def _draw_panel(axes: Any, panel: Panel) -> None:
    ordered = sorted(panel.speeds.items(), key=lambda item: item[1].value)
    for place, (name, speed) in enumerate(ordered):
        color, marker = FAMILY_STYLES[get_family(name)]
        error = [[speed.value - speed.low], [speed.high - speed.value]]
        axes.errorbar(
            speed.value, place, xerr=error, fmt=marker, color=color, capsize=3, markersize=7
        )
        axes.annotate(
            f"{speed.value:,.0f}",
            (speed.high, place),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            color="#333333",
        )
    axes.set_xscale("log")
    low = min(speed.low for _, speed in ordered)
    high = max(speed.high for _, speed in ordered)
    axes.set_xlim(10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(3 * high)))
    axes.xaxis.set_major_formatter(lambda value, _: format_steps(value))
    axes.xaxis.set_minor_formatter("")
    axes.set_ylim(-0.7, len(ordered) - 0.3)
    axes.set_yticks(range(len(ordered)), [name for name, _ in ordered])
    axes.set_title(textwrap.fill(panel.title, 36), fontsize=11)
    axes.grid(axis="x", which="major", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def render_speed_table(results: Mapping[str, Any]) -> str:
    """Render jaxrl's rate at every setting, its ratios to other libraries, and the machine."""
    rows = [row for panel in make_panels(results) if (row := _make_row(panel)) is not None]
    machine = next(iter(results.values()))["machine"]
    dates = sorted({result["date"] for result in results.values()})
    note = (
        f"{machine['cpu']}, {machine['cores']} cores; {', '.join(dates)}; medians and 95 % "
        "intervals of the ratios within a round, with equal hyperparameters."
    )
    if any(result["load"]["before"] > 0.5 for result in results.values()):
        note += " The machine was busy: only the ratios are meaningful."
    names = ("setting", "jaxrl, steps/s", "ratio to", "of its limit")
    return render_document(
        Table(header=names, rows=rows) if rows else None,
        note,
    ).rstrip("\n")


def _make_row(panel: Panel) -> Cells | None:
    ours = panel.ours
    if ours is None:
        return None
    peers = panel.measured["peers"]
    others = {
        name: estimate_ratio(peers[ours]["steps_per_s"], peer["steps_per_s"])
        for name, peer in peers.items()
        if get_family(name) not in ("jaxrl", "other")
    }
    if not others:
        return None
    ratios = ", ".join(
        f"{name} {_format_ratio(ratio.value)} "
        f"({_format_ratio(ratio.low)} - {_format_ratio(ratio.high)})"
        for name, ratio in others.items()
    )
    share = format_share(compute_shares(panel.measured).get(ours))
    return panel.title, f"{panel.speeds[ours].value:,.0f}", ratios, share


def _format_ratio(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"


def insert_table(text: str, new_table: str) -> str:
    """Return a document with the table between its markers.

    Raises:
        ValueError: If the document does not contain both markers, once each, in order.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in after:
        raise ValueError(f"the document must contain the lines {BEGIN} and {END}, once each")
    return f"{before}{BEGIN}\n{new_table}\n{END}{after}"


if __name__ == "__main__":
    sys.exit(main())
