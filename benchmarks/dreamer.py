"""Updates per second of DreamerV3: `python -m benchmarks.dreamer`.

The shipped config of CartPole is compared with a script that computes the same with jax, flax and optax
in one file. Both take one step of eight environments, then some updates, and so on; they have a process
each and take turns. Compilation is excluded.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks import measure
from benchmarks.commands import Benchmark, Options, Results
from benchmarks.peers.handwritten_dreamer.dreamer import NUM_ENVS
from benchmarks.peers.launch import Worker
from benchmarks.settings import DREAMER, HANDWRITTEN_DREAMER
from benchmarks.statistics import compare_to, describe_rates, show
from jaxrl.bench.markdown import Table, format_optional

PEERS = (DREAMER, HANDWRITTEN_DREAMER)


def run(options: Options) -> dict[str, Any]:
    """Measure the updates per second of both."""
    infos: dict[str, Any] = {}
    num_iterations = max(1, options.num_steps // NUM_ENVS)
    setting = {"env_steps": num_iterations * NUM_ENVS, "updates_per_step": options.updates}
    with contextlib.ExitStack() as stack:
        workers = measure.start_workers(stack, options.peers, infos)
        compiled = {name: w.ask("setup", **setting)["compile_s"] for name, w in workers.items()}
        runs = {name: partial(_time_run, worker) for name, worker in workers.items()}
        rates = measure.measure_rates(runs, options.pairs, num_iterations * options.updates)
        returns = {name: w.ask("evaluate")["return_mean"] for name, w in workers.items()}
    return {
        "peers": infos,
        **setting,
        "compile_s": compiled,
        "return_mean": returns,
        **describe_rates(rates),
        "ratio": compare_to(rates, DREAMER, is_inverse=True),
    }


def _time_run(worker: Worker) -> float:
    return worker.ask("run")["seconds"]


def build_tables(results: Results) -> Iterator[Table]:
    """Build the table of both peers."""
    yield Table(
        text=f"DreamerV3 on CartPole-v1, model size micro, {results['updates_per_step']} updates of 16 "
        f"sequences x 32 rows after a step of each of {NUM_ENVS} environments. Updates per second, medians "
        f"over the rounds of {results['env_steps']:,} steps, and ratios of {DREAMER} to the other within a "
        "round, with 95 % intervals. The return only shows that the peer learns.",
        header=("peer", "updates/s", f"{DREAMER} / peer", "compile, s", "return"),
        rows=[
            (
                peer,
                show(median, ",.1f"),
                show(results["ratio"].get(peer), ".2f"),
                format_optional(results["compile_s"][peer], ".1f"),
                format_optional(results["return_mean"][peer], ".0f"),
            )
            for peer, median in results["median"].items()
        ],
    )


BENCHMARK = Benchmark(
    name="dreamer",
    about=__doc__,
    title="Updates of a world model",
    measure=run,
    build_tables=build_tables,
    names={"peers": PEERS},
    numbers={
        "num-steps": (800, "environment steps per round"),
        "updates": (4, "updates after a step of all environments"),
    },
    quick={"num_steps": 80},
)
main = BENCHMARK.main

if __name__ == "__main__":
    sys.exit(main())
