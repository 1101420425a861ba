"""Suite of environments on the host: gymnasium's CartPole, with and without Ray actors."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from statistics import median
from typing import Any

from benchmarks import measure
from benchmarks.commands import Results
from benchmarks.machine import get_load_average
from benchmarks.peers import launch
from benchmarks.peers.launch import Worker
from benchmarks.report import build_throughput_tables
from benchmarks.settings import (
    GYMNASIUM,
    HOST_PEERS,
    IMPALA,
    LIMITS,
    LOCAL,
    OTHER_HOST_PEERS,
    RLLIB_2X4,
    RLLIB_2X8,
    RLLIB_LOCAL,
    SB3,
    SB3_THREADS,
    Setting,
    make_host_setting,
)
from benchmarks.statistics import estimate_median, show, to_dict
from jaxrl.bench.markdown import Table

QUICK_STEPS = 4_096
FLOW_FACTOR = 4
"""Factor by which an asynchronous run is measured longer, so that its queue does not matter."""
SETTING = "8x256"
RATIO_AIMS = {
    (SETTING, GYMNASIUM): 0.4,
    (SETTING, SB3): 3.0,
    (SETTING, SB3_THREADS): 3.0,
    (SETTING, RLLIB_LOCAL): 5.0,
    (SETTING, RLLIB_2X4): 5.0,
    (SETTING, RLLIB_2X8): 5.0,
}
TEXT = (
    "PPO on gymnasium's CartPole-v1, train batches of 2,048 steps; medians over the rounds with "
    "95 % bootstrap intervals, without compilation. `gymnasium` steps eight environments and does "
    "not learn. In a name such as 2x4, two runners in separate processes have four environments "
    "each. The return is that of the sampling policy after all rounds; it only shows that the peer "
    "learns and is not a comparison."
)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the parts and peers that the options select."""
    steps = options.steps or (QUICK_STEPS if options.quick else None)
    setting = make_host_setting(steps=steps)
    results: dict[str, Any] = {"peers": {}, "throughput": {}, "impala": {}}
    if "throughput" in options.parts and options.peers:
        launch.log(f"{setting.name}: {options.pairs} rounds of {', '.join(options.peers)}")
        with contextlib.ExitStack() as stack:
            workers = measure.start_workers(stack, options.peers, results["peers"])
            settings = dict.fromkeys(workers, setting)
            measured = measure.compare_peers(workers, settings, options.pairs, LOCAL)
        described = {"setting": setting.to_dict(), "env_steps": setting.env_steps}
        results["throughput"][setting.name] = {**described, **measured}
    if "impala" in options.parts:
        launch.log("IMPALA with two actors")
        setting = make_host_setting(steps=setting.env_steps * FLOW_FACTOR)
        with contextlib.ExitStack() as stack:
            worker = measure.start_workers(stack, [IMPALA], results["peers"])[IMPALA]
            results["impala"] = measure_flow(worker, setting, options.pairs)
    return results


def measure_flow(worker: Worker, setting: Setting, rounds: int) -> dict[str, Any]:
    """Measure the rate and the waiting times of an asynchronous run, alone on the machine.

    The first measurement is discarded, because its queue is still empty.
    """
    before = get_load_average()
    worker.ask("setup", setting=setting.to_dict())
    replies = measure.take_turns({"flow": partial(worker.ask, "flow")}, rounds)["flow"]
    return {
        "env_steps": setting.env_steps,
        "replies": replies,
        "steps_per_s": to_dict(estimate_median([measure.compute_rate(reply) for reply in replies])),
        "load": [before, get_load_average()],
    }


def build_tables(results: Results) -> Iterator[Table]:
    """Build all tables."""
    yield from build_throughput_tables(results["throughput"], TEXT, LOCAL, RATIO_AIMS)
    if results["impala"]:
        yield _build_impala(results["impala"])


def _build_impala(measured: Mapping[str, Any]) -> Table:
    replies = measured["replies"]

    def format_median(name: str) -> str:
        return f"{median(reply[name] for reply in replies):.2f}"

    return Table(
        title="IMPALA with two actors",
        text="Five environments per actor, train batches of 500 steps, alone on the machine; "
        f"medians of {len(replies)} measurements of {measured['env_steps']:,} steps. Staleness is "
        "the number of train batches between the weights that sampled a fragment and those that "
        "are trained on it.",
        header=("", "jaxrl"),
        rows=[
            ("environment steps/s", show(measured["steps_per_s"], ",.0f")),
            ("fraction of time the learner waits", format_median("learner_wait_fraction")),
            ("fraction of time the actors wait", format_median("env_runners_wait_fraction")),
            ("mean staleness in train batches", format_median("staleness_mean")),
            ("maximum staleness", str(max(reply["staleness_max"] for reply in replies))),
            ("steps discarded", str(replies[-1]["num_env_steps_discarded"])),
            ("load", " / ".join(str(value) for value in measured["load"])),
        ],
    )


SUITE = measure.SpeedSuite(
    stem="host",
    title="Speed on the host",
    peers=(*HOST_PEERS, LIMITS),
    other_peers=OTHER_HOST_PEERS,
    parts=("throughput", "impala"),
    run=run,
    build_tables=build_tables,
)
