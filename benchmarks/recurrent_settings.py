"""What every peer of the suite of recurrent modules is asked to train.

Standard library only, because peers with an environment of their own import it too.
"""

from __future__ import annotations

import dataclasses

from benchmarks.settings import Setting, host_setting, parse_setting

FEEDFORWARD, WIDE, LSTM, GRU, LRU = "feedforward", "feedforward-512", "lstm", "gru", "lru"
IN_GRAPH = {FEEDFORWARD: None, WIDE: None, LSTM: "lstm", GRU: "gru", LRU: "lru"}
"""Peers in the compiled program, and the second layer of their networks.

`WIDE` has a dense one with as many multiplications as the LSTM: of 512 units, for four gates with two
products of 64 x 64 each.
"""
HOST_LSTM, RLLIB_LSTM = "jaxrl-local-lstm", "rllib-local-lstm"
HOST = {HOST_LSTM: "lstm", RLLIB_LSTM: "lstm"}
PARTS = {"in_graph": LSTM, "images": LSTM, "host": HOST_LSTM}
"""What is measured, and who is compared with the others."""
IN_GRAPH_SETTING, IN_GRAPH_STEPS = "64x32", 204_800
IMAGES = {FEEDFORWARD: None, LSTM: "lstm"}
IMAGES_ENV, IMAGES_FILTERS, IMAGES_STEPS = "Breakout-MinAtar", ((16, 3, 1),), 40_960
"""One convolution before the dense layers, as for MinAtar in its paper (Young and Tian 2019)."""


def settings(part: str, *, steps: int | None = None) -> dict[str, Setting]:
    """What each peer of a part is asked for: they differ in their networks."""
    if part == "in_graph":
        base, memories = parse_setting(IN_GRAPH_SETTING, steps=steps or IN_GRAPH_STEPS), IN_GRAPH
    elif part == "images":
        plain = parse_setting(IN_GRAPH_SETTING, steps=steps or IMAGES_STEPS)
        base = dataclasses.replace(plain, env=IMAGES_ENV, conv_filters=IMAGES_FILTERS)
        memories = IMAGES
    else:
        base, memories = host_setting(steps=steps), HOST
    return {
        name: dataclasses.replace(
            base, memory=memory, second_size=8 * base.hidden_size if name == WIDE else None
        )
        for name, memory in memories.items()
    }
