"""The suite of algorithms that learn from a replay buffer: DQN and SAC beside others."""

from __future__ import annotations

import argparse
import contextlib
from typing import Any

from benchmarks import measure, replay_settings
from benchmarks.peers import launch
from benchmarks.replay_settings import SETTINGS, STEPS

PARTS = SETTINGS
PEERS = (*dict.fromkeys(name for peers in STEPS.values() for name in peers), launch.LIMITS)
QUICK_STEPS = 100


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the settings and peers that the options name."""
    steps = options.steps or (QUICK_STEPS if options.quick else None)
    results: dict[str, Any] = {"peers": {}, "throughput": {}}
    for part in options.parts:
        settings = replay_settings.replay_settings(part, steps=steps)
        names = [name for name in options.peers if name in settings]
        if not names:
            continue
        names += [name for name in options.peers if name == launch.LIMITS]
        measure.say(f"{part}: {options.pairs} rounds of {', '.join(names)}")
        with contextlib.ExitStack() as stack:
            workers = {name: measure.started(stack, name) for name in names}
            for name, worker in workers.items():
                results["peers"][name] = worker.ask("info")
            measured = measure.compared(workers, settings, options.pairs, replay_settings.OURS)
            asked = {name: settings[name].to_dict() for name in measured["peers"]}
            results["throughput"][part] = {"settings": asked, **measured}
    return results
