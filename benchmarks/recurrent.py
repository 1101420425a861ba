"""The suite of recurrent modules: PPO with a memory beside PPO without, and beside RLlib's."""

from __future__ import annotations

import argparse
import contextlib
from typing import Any

from benchmarks import measure, recurrent_settings
from benchmarks.peers import launch

PARTS = tuple(recurrent_settings.PARTS)
PEERS = (*recurrent_settings.IN_GRAPH, *recurrent_settings.HOST, launch.LIMITS)
QUICK_STEPS = 4_096


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the parts and peers that the options name."""
    steps = options.steps or (QUICK_STEPS if options.quick else None)
    results: dict[str, Any] = {"peers": {}, "throughput": {}}
    for part in options.parts:
        settings = recurrent_settings.settings(part, steps=steps)
        names = [name for name in options.peers if name in settings]
        if not names:
            continue
        names += [name for name in options.peers if name == launch.LIMITS]
        measure.say(f"{part}: {options.pairs} rounds of {', '.join(names)}")
        with contextlib.ExitStack() as stack:
            workers = {}
            for name in names:  # one after another: several Rays at once start slowly
                workers[name] = measure.started(stack, name)
                results["peers"][name] = workers[name].ask("info")
            ours = recurrent_settings.PARTS[part]
            measured = measure.compared(workers, settings, options.pairs, ours)
            asked = {name: settings[name].to_dict() for name in measured["peers"]}
            results["throughput"][part] = {"settings": asked, **measured}
    return results
