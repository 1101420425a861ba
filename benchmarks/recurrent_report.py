"""The results of recurrent modules as Markdown tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks import recurrent_settings as recurrent
from benchmarks.limits_report import limits_sections
from benchmarks.report import header, ratio_section, throughput_section

RATIO_AIMS = {
    ("in_graph", recurrent.FEEDFORWARD): 0.5,
    ("in_graph", recurrent.WIDE): 0.5,
    ("images", recurrent.FEEDFORWARD): 0.5,
    ("host", recurrent.RLLIB_LSTM): 5.0,
}
TEXT = (
    "PPO on CartPole-v1, a policy and a value network of 64-64; with a memory the second layer is a "
    "recurrent one of 64, learned in sequences of 16 rows; `feedforward-512` has a dense second layer with as "
    "many multiplications as the LSTM. `in_graph`: 64 environments x 32 steps; `images`: the same on "
    "Breakout-MinAtar, a convolution of 16 channels before both layers; "
    "`host`: gymnasium's, 8 environments x 256 steps. Median, 95 % bootstrap interval over the "
    "rounds. Compiling is not in it. The return is a sign that it learns, no comparison."
)


def markdown(results: Mapping[str, Any]) -> str:
    """All tables of one run."""
    sections = [header(results, "Speed with a memory")]
    if results["throughput"]:
        sections += [
            throughput_section(results["throughput"], TEXT),
            ratio_section(results["throughput"], recurrent.PARTS, RATIO_AIMS),
            *limits_sections(results["throughput"]),
        ]
    return "\n\n".join(section for section in sections if section) + "\n"
