"""Speed as README shows it, out of `benchmarks/results`: `python -m benchmarks.figure`.

Draws every peer of every setting into `docs/images/speed.png`, and writes README's table between its
two markers. `python -m benchmarks.speed` does the same when it has written its results there.
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

from benchmarks import recurrent_settings as recurrent
from benchmarks import replay_settings as replay
from benchmarks import user_report
from benchmarks.limits import share_in_words, shares
from benchmarks.machine import RESULTS
from benchmarks.peers import launch
from benchmarks.statistics import Estimate, paired_ratio
from benchmarks.tables import table
from benchmarks.worker import ROOT

PICTURE = ROOT / "docs" / "images" / "speed.png"
README = ROOT / "README.md"
BEGIN, END = "<!-- speed: python -m benchmarks.figure -->", "<!-- /speed -->"
STEMS = ("speed", "host", "replay", "recurrent", "user")

TITLES = {
    ("host", "8x256"): "PPO, gymnasium's CartPole, 8 envs x 256 steps",
    ("replay", "dqn"): "DQN, CartPole, 1 env, an update every 4 steps",
    ("replay", "dqn-4"): "DQN, CartPole, 4 envs, an update each step of all",
    ("replay", "sac"): "SAC, Pendulum, an update each step",
    ("recurrent", "in_graph"): "PPO with a memory, CartPole, 64 envs x 32 steps",
    ("recurrent", "images"): "PPO with an LSTM, Breakout-MinAtar, a convolution before it",
    ("recurrent", "host"): "PPO with an LSTM, gymnasium's CartPole",
}
OURS = (launch.OURS, launch.LOCAL, replay.OURS, recurrent.HOST_LSTM, recurrent.LSTM)
"""What is divided by the others, where it takes part."""

FAMILIES = {
    "jaxrl": ("#0072B2", "o"),
    "Rejax": ("#E69F00", "s"),
    "SB3": ("#009E73", "^"),
    "RLlib": ("#D55E00", "D"),
    "other": ("#666666", "X"),
}
"""Colours that the colour-blind tell apart (Okabe and Ito), and a shape for each."""
LIBRARIES = {
    "rejax": "Rejax",
    "sb3": "SB3",
    "sbx": "SB3",
    "rllib": "RLlib",
    "jaxrl": "jaxrl",
    **dict.fromkeys(recurrent.IN_GRAPH, "jaxrl"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Panel:
    """What was measured at one setting."""

    title: str
    measured: Mapping[str, Any]

    @property
    def speeds(self) -> dict[str, Estimate]:
        return {name: Estimate(**p["median"]) for name, p in self.measured["peers"].items()}

    @property
    def ours(self) -> str | None:
        return next((name for name in OURS if name in self.measured["peers"]), None)


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the picture and write the table; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.figure", description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON files")
    parser.add_argument("--picture", type=Path, default=PICTURE, help="default: %(default)s")
    parser.add_argument("--readme", type=Path, default=README, help="default: %(default)s")
    options = parser.parse_args(argv)
    machines = load(options.results)
    if not machines:
        print(f"benchmarks.figure: no results in {options.results}", file=sys.stderr)
        return 1
    draw(panels(machines[0]), options.picture)
    text = options.readme.read_text(encoding="utf-8")
    options.readme.write_text(with_table(text, readme_tables(machines)), encoding="utf-8")
    return 0


def load(folder: Path) -> list[dict[str, Any]]:
    """The suites' results of every kind of machine; the one with most of them comes first."""
    machines = [load_machine(path) for path in sorted(folder.iterdir()) if path.is_dir()]
    return sorted((found for found in machines if found), key=len, reverse=True)


def load_machine(folder: Path) -> dict[str, Any]:
    """What is there of the suites' results, by the stem of their files."""
    paths = {stem: folder / f"{stem}.json" for stem in STEMS}
    found = {stem: path for stem, path in paths.items() if path.exists()}
    return {stem: json.loads(path.read_text(encoding="utf-8")) for stem, path in found.items()}


def readme_tables(machines: Sequence[Mapping[str, Any]]) -> str:
    """The tables of every kind of machine, one below the other."""
    return "\n\n".join(readme_table(results) for results in machines)


def panels(results: Mapping[str, Any]) -> list[Panel]:
    """One for each setting."""
    return [
        Panel(title=_title(stem, setting), measured=measured)
        for stem, result in results.items()
        for setting, measured in result.get("throughput", {}).items()
    ]


def _title(stem: str, setting: str) -> str:
    known = TITLES.get((stem, setting))
    return known or "PPO, CartPole, {} envs x {} steps".format(*setting.split("x"))


def family(peer: str) -> str:
    """Whose library a peer is."""
    return LIBRARIES.get(peer.split("-")[0], "other")


def draw(drawn: Sequence[Panel], path: Path) -> None:
    """Rates with their intervals, a panel for each setting, on logarithmic axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = 3 if len(drawn) > 2 else len(drawn)
    rows = -(-len(drawn) // columns)
    most = max(len(panel.speeds) for panel in drawn)
    figure = Figure(figsize=(5.2 * columns, (0.9 + 0.3 * most) * rows), layout="constrained")
    FigureCanvasAgg(figure)
    grid: Any = figure.subplots(rows, columns, squeeze=False)
    for axes, panel in zip(grid.flat, drawn, strict=False):
        _draw_panel(axes, panel)
    for axes in list(grid.flat)[len(drawn) :]:
        axes.set_visible(False)
    figure.supxlabel("environment steps per second, median and 95 % interval", fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def _draw_panel(axes: Any, panel: Panel) -> None:
    ordered = sorted(panel.speeds.items(), key=lambda item: item[1].median)
    for place, (name, speed) in enumerate(ordered):
        colour, marker = FAMILIES[family(name)]
        error = [[speed.median - speed.low], [speed.high - speed.median]]
        axes.errorbar(
            speed.median, place, xerr=error, fmt=marker, color=colour, capsize=3, markersize=7
        )
        axes.annotate(
            f"{speed.median:,.0f}",
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
    axes.xaxis.set_major_formatter(lambda value, _: _in_thousands(value))
    axes.xaxis.set_minor_formatter("")
    axes.set_ylim(-0.7, len(ordered) - 0.3)
    axes.set_yticks(range(len(ordered)), [name for name, _ in ordered])
    axes.set_title(textwrap.fill(panel.title, 36), fontsize=11)
    axes.grid(axis="x", which="major", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _in_thousands(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if value >= 1e3 else f"{value:g}"


def readme_table(results: Mapping[str, Any]) -> str:
    """Ours at every setting, over the libraries that others use, and where it was measured."""
    rows = [row for panel in panels(results) if (row := _row(panel)) is not None]
    machine = next(iter(results.values()))["machine"]
    dates = sorted({result["date"] for result in results.values()})
    where = (
        f"{machine['cpu']}, {machine['cores']} cores; {', '.join(dates)}; medians and 95 % intervals "
        "of ratios within a round, at equal hyperparameters."
    )
    if any(result["load"]["before"] > 0.5 for result in results.values()):
        where += " The machine was busy: only the ratios are of use."
    names = ("setting", "jaxrl, steps/s", "jaxrl over", "of its limit")
    found = [table(names, rows)] if rows else []
    if "user" in results:
        found.append(user_report.readme_table(results["user"]))
    return "\n\n".join([*found, where])


def _row(panel: Panel) -> tuple[str, ...] | None:
    ours = panel.ours
    if ours is None:
        return None
    peers = panel.measured["peers"]
    others = {
        name: paired_ratio(peers[ours]["steps_per_s"], peer["steps_per_s"])
        for name, peer in peers.items()
        if family(name) not in ("jaxrl", "other")
    }
    if not others:
        return None
    over = ", ".join(
        f"{name} {_short(ratio.median)} ({_short(ratio.low)} - {_short(ratio.high)})"
        for name, ratio in others.items()
    )
    share = share_in_words(shares(panel.measured).get(ours))
    return panel.title, f"{panel.speeds[ours].median:,.0f}", over, share


def _short(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"


def with_table(text: str, written: str) -> str:
    """A document with the table between its markers.

    Raises:
        ValueError: It has not got both markers, once each, in order.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in after:
        raise ValueError(f"the document needs the lines {BEGIN} and {END}, once each")
    return f"{before}{BEGIN}\n{written}\n{END}{after}"


if __name__ == "__main__":
    sys.exit(main())
