"""Suite of algorithms with a replay buffer: DQN and SAC, compared with other libraries."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from statistics import median
from typing import Any

from benchmarks import measure, replay_settings
from benchmarks.peers import launch
from benchmarks.replay_settings import MEASUREMENT_STEPS, SETTING_NAMES, ReplaySetting
from benchmarks.report import build_header, build_throughput_tables
from benchmarks.statistics import from_dict
from jaxrl.bench.markdown import Cells, Table, render_document

PARTS = SETTING_NAMES
PEERS = (
    *dict.fromkeys(name for peers in MEASUREMENT_STEPS.values() for name in peers),
    launch.LIMITS,
)
QUICK_STEPS = 100

RATIO_AIMS = {
    ("dqn", replay_settings.SB3): 15.0,
    ("dqn", replay_settings.SB3_THREADS): 15.0,
    ("dqn", replay_settings.SBX): 15.0,
    ("dqn-4", replay_settings.REJAX): 1.2,
    ("sac", replay_settings.SB3): 2.0,
    ("sac", replay_settings.SB3_THREADS): 2.0,
    ("sac", replay_settings.SBX): 1.5,
    ("sac", replay_settings.REJAX): 1.2,
    ("sac", replay_settings.PRODUCTS): 0.5,
}
TEXT = (
    "`dqn`: DQN on CartPole-v1, two layers of 64 units, batches of 64, an update every four steps "
    "of one environment; `dqn-4`: an update after one step of each of four environments. `sac`: "
    "SAC on Pendulum-v1, two layers of 256 units, batches of 256, an update after every step of "
    "one environment. Buffers hold 50,000 transitions. Medians over the rounds with 95 % bootstrap "
    "intervals, without compilation. The return only shows that the peer learns; it is not a "
    "comparison, because faster peers have made more steps."
)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the settings and peers that the options select."""
    make, ours = replay_settings.make_replay_settings, dict.fromkeys(PARTS, replay_settings.OURS)
    return measure.measure_parts(options, make, ours, QUICK_STEPS)


def render_markdown(results: Mapping[str, Any]) -> str:
    """Render all tables of a run as Markdown."""
    throughput = results["throughput"]
    return render_document(
        *build_header(results, "Speed with replay"),
        *build_throughput_tables(throughput, TEXT, replay_settings.OURS, RATIO_AIMS),
        _build_updates(throughput) if throughput else None,
    )


def _build_updates(throughput: Mapping[str, Any]) -> Table:
    """Build the time of an update with its environment steps, and the length of measurements."""
    rows: list[Cells] = []
    for part, measured in throughput.items():
        for name, peer in measured["peers"].items():
            setting = ReplaySetting.from_dict(measured["settings"][name])
            speed = from_dict(peer["median"]).value
            seconds = [setting.env_steps / value for value in peer["steps_per_s"]]
            rows.append(
                (
                    part,
                    name,
                    f"{1e3 * setting.steps_per_update / speed:,.3f}",
                    f"{setting.env_steps:,}",
                    f"{median(seconds):.2f}",
                )
            )
    return Table(
        title="Updates",
        text="Milliseconds of one update and its environment steps. `products` computes only the "
        "matrix products of SAC's update, so the ratio above is the share of the machine's "
        "arithmetic that SAC uses, with the environment and acting counted as loss.",
        header=("setting", "peer", "ms", "steps per measurement", "seconds per measurement"),
        rows=rows,
    )
