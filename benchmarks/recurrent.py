"""Suite of recurrent modules: PPO with an LSTM, a GRU, or an LRU, without any, and RLlib's LSTM."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from benchmarks import measure
from benchmarks.commands import Results
from benchmarks.report import build_throughput_tables
from benchmarks.settings import (
    FEEDFORWARD,
    GRU,
    HOST_LSTM,
    LIMITS,
    LRU,
    LSTM,
    RLLIB_LSTM,
    WIDE,
    Setting,
    make_host_setting,
    parse_setting,
)
from jaxrl.bench.markdown import Table

IN_GRAPH = {FEEDFORWARD: None, WIDE: None, LSTM: "lstm", GRU: "gru", LRU: "lru"}
"""Peers in the compiled program, with the second layer of their networks.

The second layer of `WIDE` is dense, with as many multiplications as the LSTM: 512 units, for four
gates with two products of 64 x 64 each.
"""
IN_GRAPH_SETTING, IN_GRAPH_STEPS = "64x32", 204_800

IMAGES = {FEEDFORWARD: None, LSTM: "lstm"}
IMAGES_ENV, IMAGES_FILTERS, IMAGES_STEPS = "Breakout-MinAtar", ((16, 3, 1),), 40_960
"""One convolution before the dense layers, as in MinAtar's paper (Young and Tian 2019)."""

HOST = {HOST_LSTM: "lstm", RLLIB_LSTM: "lstm"}

OURS = {"in_graph": LSTM, "images": LSTM, "host": HOST_LSTM}
"""Peer whose rate is divided by the others', by part."""

QUICK_STEPS = 4_096

RATIO_AIMS = {
    ("in_graph", FEEDFORWARD): 0.5,
    ("in_graph", WIDE): 0.5,
    ("images", FEEDFORWARD): 0.5,
    ("host", RLLIB_LSTM): 5.0,
}
TEXT = (
    "PPO on CartPole-v1 with separate policy and value networks of two layers of 64 units. In "
    "recurrent variants the second layer is a recurrent one, trained on sequences of 16 rows; in "
    "`feedforward-512` it is a dense one with as many multiplications as the LSTM. `in_graph`: "
    "64 environments x 32 steps; `images`: the same on Breakout-MinAtar, with a convolution of 16 "
    "channels before both layers; `host`: gymnasium's environment, 8 environments x 256 steps. "
    "Medians over the rounds with 95 % bootstrap intervals, without compilation. The return only "
    "shows that the peer learns; it is not a comparison."
)


def make_settings(part: str, *, steps: int | None = None) -> dict[str, Setting]:
    """Return the setting of each peer of a part; they differ only in their networks."""
    if part == "in_graph":
        base, layers = parse_setting(IN_GRAPH_SETTING, steps=steps or IN_GRAPH_STEPS), IN_GRAPH
    elif part == "images":
        plain = parse_setting(IN_GRAPH_SETTING, steps=steps or IMAGES_STEPS)
        base = dataclasses.replace(plain, env=IMAGES_ENV, conv_filters=IMAGES_FILTERS)
        layers = IMAGES
    else:
        base, layers = make_host_setting(steps=steps), HOST
    return {
        name: dataclasses.replace(
            base, memory=layer, second_size=8 * base.hidden_size if name == WIDE else None
        )
        for name, layer in layers.items()
    }


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the parts and peers that the options select."""
    return measure.measure_parts(options, make_settings, OURS, QUICK_STEPS)


def build_tables(results: Results) -> list[Table]:
    """Build all tables."""
    return build_throughput_tables(results["throughput"], TEXT, OURS, RATIO_AIMS)


SUITE = measure.SpeedSuite(
    stem="recurrent",
    title="Speed of recurrent modules",
    peers=(*IN_GRAPH, *HOST, LIMITS),
    parts=tuple(OURS),
    run=run,
    build_tables=build_tables,
)
