"""Cost of recording a run: `python -m benchmarks.recording`.

PPO on CartPole trains with and without `output`, with environments in the compiled program and on
the host. They take turns, so that other load on the machine affects all alike. Compilation is
excluded; files are written beside the training, as they fill.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from typing import Any, Literal

from benchmarks import measure
from benchmarks.commands import Benchmark, Options, Results, describe_packages
from benchmarks.statistics import compare_to, describe_rates, show, show_value
from benchmarks.training_step import make_config, open_training
from jaxrl.bench.markdown import Table

PLAIN, RECORDED = KINDS = ("plain", "recorded")
Placement = Literal["in_graph", "host"]
CASES: dict[str, tuple[Placement, str, int, int, int]] = {
    "in-graph 4x128": ("in_graph", "CartPole-v1", 4, 128, 600_000),
    "in-graph 64x32": ("in_graph", "CartPole-v1", 64, 32, 1_200_000),
    "host 8x256": ("host", "gymnasium:CartPole-v1", 8, 256, 61_440),
}
"""Placement, environment, numbers of environments and of steps in a train batch, steps per round."""


def run(options: Options) -> dict[str, Any]:
    """Measure the steps per second of each case with and without an output."""
    return {
        "peers": {"jaxrl": describe_packages("jax", "numpy", "pyarrow")},
        "cases": {name: _measure_case(name, options) for name in CASES},
    }


def _measure_case(name: str, options: Options) -> dict[str, Any]:
    placement, env, num_envs, length, num_steps = CASES[name]
    if options.quick:
        num_steps = 4 * num_envs * length
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="jaxrl-benchmark-"))
        rounds = {}
        for kind in KINDS:
            config = make_config(num_envs, length, num_steps, folder).environment(env)
            config.env_runners(placement=placement)
            if kind == RECORDED:
                config.offline_data(output=f"{folder}/data")
            rounds[kind] = stack.enter_context(open_training(config))
        rates = measure.measure_rates(rounds, options.pairs, num_steps)
    return {**describe_rates(rates), "ratio": compare_to(rates, PLAIN)[RECORDED]}


def build_tables(results: Results) -> Iterator[Table]:
    """Build the table of the cases."""
    yield Table(
        text="PPO on CartPole-v1 (environments x steps per train batch; 4 epochs x 4 minibatches, 64-64 "
        "networks) on one device, with and without `output`. Environment steps per second, medians "
        "over the rounds; ratios within a round with 95 % intervals. A thread writes Parquet files.",
        header=("setting", *KINDS, f"{RECORDED} / {PLAIN}"),
        rows=[
            (
                name,
                *(show_value(case["median"][kind], ",.0f") for kind in KINDS),
                show(case["ratio"], ".3f"),
            )
            for name, case in results["cases"].items()
        ],
    )


BENCHMARK = Benchmark(
    name="recording",
    about=__doc__,
    title="Recording of runs",
    measure=run,
    build_tables=build_tables,
)
main = BENCHMARK.main

if __name__ == "__main__":
    sys.exit(main())
