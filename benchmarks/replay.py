"""Suite of algorithms with a replay buffer: DQN and SAC, compared with other libraries."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from benchmarks import measure
from benchmarks.commands import Results
from benchmarks.report import build_throughput_tables
from benchmarks.settings import (
    LIMITS,
    PRODUCTS,
    REJAX_REPLAY,
    REPLAY,
    REPLAY_STEPS,
    SB3_REPLAY,
    SB3_REPLAY_THREADS,
    SBX,
    ReplaySetting,
    make_replay_settings,
)
from benchmarks.statistics import from_dict
from jaxrl.bench.markdown import Cells, Table

QUICK_STEPS = 100

RATIO_AIMS = {
    ("dqn", SB3_REPLAY): 15.0,
    ("dqn", SB3_REPLAY_THREADS): 15.0,
    ("dqn", SBX): 15.0,
    ("dqn-4", REJAX_REPLAY): 1.2,
    ("sac", SB3_REPLAY): 2.0,
    ("sac", SB3_REPLAY_THREADS): 2.0,
    ("sac", SBX): 1.5,
    ("sac", REJAX_REPLAY): 1.2,
    ("sac", PRODUCTS): 0.5,
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
    ours = dict.fromkeys(REPLAY_STEPS, REPLAY)
    return measure.measure_parts(options, make_replay_settings, ours, QUICK_STEPS)


def build_tables(results: Results) -> Iterator[Table]:
    """Build all tables."""
    throughput = results["throughput"]
    yield from build_throughput_tables(throughput, TEXT, REPLAY, RATIO_AIMS)
    if throughput:
        yield _build_updates(throughput)


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


SUITE = measure.SpeedSuite(
    stem="replay",
    title="Speed with replay",
    peers=(*dict.fromkeys(name for peers in REPLAY_STEPS.values() for name in peers), LIMITS),
    parts=tuple(REPLAY_STEPS),
    run=run,
    build_tables=build_tables,
)
