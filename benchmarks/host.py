"""Suite of environments on the host: gymnasium's CartPole, with and without Ray actors."""

from __future__ import annotations

import argparse
import contextlib
from typing import Any

from benchmarks import measure
from benchmarks.peers import launch
from benchmarks.settings import make_host_setting

PARTS = ("throughput", "impala")
PEERS = (*launch.HOST_PEERS, launch.LIMITS)
KNOWN_PEERS = (*PEERS, *launch.OTHER_HOST_PEERS)
QUICK_STEPS = 4_096
FLOW_FACTOR = 4
"""Factor by which an asynchronous run is measured longer, so that its queue does not matter."""


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the parts and peers that the options select."""
    steps = options.steps or (QUICK_STEPS if options.quick else None)
    setting = make_host_setting(steps=steps)
    results: dict[str, Any] = {"peers": {}, "throughput": {}, "impala": {}}
    if "throughput" in options.parts and options.peers:
        launch.log(f"{setting.name}: {options.pairs} rounds of {', '.join(options.peers)}")
        with contextlib.ExitStack() as stack:
            workers = measure.start_workers(stack, options.peers, results["peers"])
            results["throughput"][setting.name] = measure.measure_throughput(
                workers, setting, options.pairs, launch.LOCAL
            )
    if "impala" in options.parts:
        launch.log("IMPALA with two actors")
        setting = make_host_setting(steps=setting.env_steps * FLOW_FACTOR)
        with contextlib.ExitStack() as stack:
            workers = measure.start_workers(stack, [launch.IMPALA], results["peers"])
            worker = workers[launch.IMPALA]
            results["impala"] = measure.measure_flow(worker, setting, options.pairs)
    return results
