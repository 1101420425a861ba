"""Cost of recording a run: `python -m benchmarks.recording`.

PPO on CartPole trains with and without `output`, with environments in the compiled program and on
the host. They take turns, so that other load on the machine affects all alike. Compilation is
excluded; files are written beside the training, as they fill.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from benchmarks import machine, measure
from benchmarks.commands import add_round_options, save_results, start_results
from benchmarks.report import build_header
from benchmarks.statistics import estimate_median, estimate_ratio, from_dict, to_dict
from jaxrl import PPOConfig
from jaxrl.bench.markdown import Cells, Table, format_estimate, render_document

PLAIN, RECORDED = "plain", "recorded"
Placement = Literal["in_graph", "host"]
CASES: dict[str, tuple[Placement, str, int, int, int]] = {
    "in-graph 4x128": ("in_graph", "CartPole-v1", 4, 128, 600_000),
    "in-graph 64x32": ("in_graph", "CartPole-v1", 64, 32, 1_200_000),
    "host 8x256": ("host", "gymnasium:CartPole-v1", 8, 256, 61_440),
}
"""Placement, environment, numbers of environments and of steps in a train batch, steps per round."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure each case, write `recording.json` and `.md`, and print the table.

    Returns:
        Exit code.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    options = _parse(arguments)
    results = start_results("benchmarks.recording", arguments, is_quick=options.quick)
    versions = {name: version(name) for name in ("jax", "numpy", "pyarrow")}
    results |= {
        "peers": {"jaxrl": {"devices": 1, "versions": versions}},
        "cases": {name: _measure_case(name, options) for name in CASES},
    }
    save_results(results, options.out, "recording", render_markdown)
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recording", description=__doc__)
    add_round_options(parser)
    options = parser.parse_args(arguments)
    if options.quick:
        options.pairs = 2
    options.out = options.out or machine.choose_results_folder(is_complete=not options.quick)
    return options


def _measure_case(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure the steps per second of a case with and without an output in every round."""
    placement, env, num_envs, length, num_steps = CASES[name]
    if options.quick:
        num_steps = 4 * num_envs * length
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="jaxrl-benchmark-")))
        rounds = {
            kind: stack.enter_context(
                _open_round(placement, env, num_envs, length, num_steps, folder, kind == RECORDED)
            )
            for kind in (PLAIN, RECORDED)
        }
        seconds = measure.take_turns(rounds, options.pairs)
    rates = {kind: [num_steps / x for x in found] for kind, found in seconds.items()}
    return {
        "rates": rates,
        "median": {kind: to_dict(estimate_median(found)) for kind, found in rates.items()},
        "ratio": to_dict(estimate_ratio(rates[RECORDED], rates[PLAIN])),
    }


@contextlib.contextmanager
def _open_round(
    placement: Placement,
    env: str,
    num_envs: int,
    length: int,
    num_steps: int,
    folder: Path,
    is_recorded: bool,
) -> Generator[Callable[[], float]]:
    """Yield a function that trains for a number of steps and returns the seconds."""
    config = (
        PPOConfig()
        .environment(env)
        .env_runners(
            num_envs_per_env_runner=num_envs,
            rollout_fragment_length=length,
            placement=placement,
        )
        .training(
            train_batch_size=num_envs * length, minibatch_size=num_envs * length // 4, num_epochs=4
        )
        .rl_module(model_config={"fcnet_hiddens": [64, 64]})
        .reporting(min_sample_timesteps_per_iteration=num_steps)
        .learners(num_devices=1)
        .debugging(loggers=[], results_dir=str(folder))
    )
    data = folder / "data"
    if is_recorded:
        config.offline_data(output=str(data))
    algorithm: Any = config.build()

    def run_round() -> float:
        start = time.perf_counter()
        algorithm.train()
        return time.perf_counter() - start

    run_round()  # compiles
    try:
        yield run_round
    finally:
        algorithm.stop()
        shutil.rmtree(data, ignore_errors=True)


def render_markdown(results: Mapping[str, Any]) -> str:
    """Render the table as Markdown."""
    rows: list[Cells] = []
    for name, case in results["cases"].items():
        rates = (f"{from_dict(case['median'][kind]).value:,.0f}" for kind in (PLAIN, RECORDED))
        rows.append((name, *rates, format_estimate(from_dict(case["ratio"]), ".3f")))
    text = (
        "PPO on CartPole-v1 (environments x steps per train batch; 4 epochs x 4 minibatches, 64-64 "
        "networks) on one device, with and without `output`. Environment steps per second, medians "
        "over the rounds; ratios within a round with 95 % intervals. A thread writes Parquet files."
    )
    header = ("setting", PLAIN, RECORDED, f"{RECORDED} / {PLAIN}")
    table = Table(text=text, header=header, rows=rows)
    return render_document(*build_header(results, "Recording of runs"), table)


if __name__ == "__main__":
    sys.exit(main())
