"""The results of algorithms with replay as Markdown tables."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from benchmarks import replay_settings as replay
from benchmarks.limits_report import limits_sections
from benchmarks.report import header, ratio_section, throughput_section
from benchmarks.statistics import Estimate
from benchmarks.tables import table

RATIO_AIMS = {
    ("dqn", replay.SB3): 15.0,
    ("dqn", replay.SB3_THREADS): 15.0,
    ("dqn", replay.SBX): 15.0,
    ("dqn-4", replay.REJAX): 1.2,
    ("sac", replay.SB3): 2.0,
    ("sac", replay.SB3_THREADS): 2.0,
    ("sac", replay.SBX): 1.5,
    ("sac", replay.REJAX): 1.2,
    ("sac", replay.PRODUCTS): 0.5,
}
TEXT = (
    "`dqn`: DQN on CartPole-v1, two layers of 64, batches of 64, an update every four steps of one "
    "environment; `dqn-4`: after one step of each of four environments. `sac`: SAC on Pendulum-v1, "
    "two layers of 256, batches of 256, an update with every step of one environment. Buffers hold "
    "50,000 transitions. Median, 95 % bootstrap interval over the rounds. Compiling is not in it. "
    "The return is of what each has learned in the steps that it made: a sign that it learns, no "
    "comparison, because the faster ones made more."
)


def markdown(results: Mapping[str, Any]) -> str:
    """All tables of one run."""
    sections = [header(results, "Speed with replay")]
    if results["throughput"]:
        sections += [
            throughput_section(results["throughput"], TEXT),
            ratio_section(results["throughput"], replay.OURS, RATIO_AIMS),
            *limits_sections(results["throughput"]),
            _updates(results["throughput"]),
        ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _updates(throughput: Mapping[str, Any]) -> str:
    """What an update takes with the steps that belong to it, and what was learned from."""
    rows = []
    for part, measured in throughput.items():
        for name, peer in measured["peers"].items():
            setting = replay.ReplaySetting.from_dict(measured["settings"][name])
            speed = Estimate(**peer["median"]).median
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
    text = (
        "Milliseconds of one update and the environment steps that belong to it. `products` makes "
        "only the matrix products of SAC's update, so that the ratio above is the share of the "
        "machine's arithmetic that SAC uses, its environment and acting counted as loss."
    )
    names = ("setting", "peer", "ms", "steps of a measurement", "its seconds")
    return f"## Updates\n\n{text}\n\n" + table(names, rows)
