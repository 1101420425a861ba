"""Speed of the compiled program on an accelerator: `python -m benchmarks.accelerator`.

Measures PPO on CartPole with several numbers of environments ("widths"), and at the largest with
each known performance option ("lever") separately. The command stops after `--minutes`, even if
measurements are left, and writes `accelerator.json`, `.md`, and `.png`. It also runs on a CPU, with
the smaller widths.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine, measure
from benchmarks.commands import build_header, parse_names, save_results, start_results
from benchmarks.peers import launch
from benchmarks.peers.launch import Worker
from benchmarks.settings import FALLBACK_STEPS, parse_setting
from benchmarks.statistics import estimate_median
from jaxrl.bench.figures import COLORS
from jaxrl.bench.markdown import Table, format_estimate, format_optional, render_document
from jaxrl.bench.peers import PeerError
from jaxrl.loggers.plots import save_figure
from jaxrl.sweeps.statistics import Interval

WIDTHS = ("64x32", "2048x16", "8192x16", "32768x16")
ROUNDS = 5
STEPS_PER_WIDTH = 400
"""Maximum number of train batches per measurement: wide programs process few per second."""
SHIPPED = "as shipped"
LEVERS: dict[str, dict[str, str]] = {
    "rbg keys": {"JAX_DEFAULT_PRNG_IMPL": "rbg"},
    "bfloat16 products": {"JAX_DEFAULT_MATMUL_PRECISION": "bfloat16"},
    "scans unrolled by 4": {"JAXRL_BENCHMARK_UNROLL": "4"},
    "no command buffers": {"XLA_FLAGS": "--xla_gpu_enable_command_buffer="},
    "loops in command buffers": {
        "XLA_FLAGS": "--xla_gpu_enable_command_buffer="
        "+WHILE,+CONDITIONAL,+DYNAMIC_SLICE_FUSION --xla_gpu_graph_min_graph_size=1"
    },
}
"""Environment variables of the training process, by lever. XLA exits if a flag is unknown."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, write the results, and print the table.

    Returns:
        Exit code.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    options = _parse(arguments)
    deadline = time.monotonic() + 60.0 * options.minutes
    results = start_results("benchmarks.accelerator", arguments, is_quick=options.quick)
    results |= {"peers": {}, "rows": []}
    plan = [(width, SHIPPED) for width in options.widths]
    plan += [(options.widths[-1], lever) for lever in options.levers]
    for width, lever in plan:
        left = deadline - time.monotonic()
        if left <= 0:
            results["rows"].append({"width": width, "lever": lever, "failure": "no time was left"})
            continue
        launch.log(f"{width}, {lever}")
        results["rows"].append(_measure_row(results, width, lever, left, options))
    save_results(results, options.out, "accelerator", render_markdown)
    if any("steps_per_s" in row for row in results["rows"]):
        draw(results, options.out / "accelerator.png")
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accelerator", description=__doc__)
    parser.add_argument(
        "--widths",
        default=",".join(WIDTHS),
        help="environments x steps per train batch, separated by commas (default: %(default)s)",
    )
    parser.add_argument(
        "--levers",
        default=",".join(LEVERS),
        help="performance options, separated by commas (default: %(default)s)",
    )
    parser.add_argument(
        "--minutes", type=float, default=9.0, help="total time limit (default: %(default)s)"
    )
    parser.add_argument("--quick", action="store_true", help="one short round of everything")
    parser.add_argument("--out", type=Path, help="folder for the results")
    options = parser.parse_args(arguments)
    options.widths = options.widths.split(",")
    options.levers = parse_names(parser, "--levers", options.levers, tuple(LEVERS))
    for width in options.widths:
        try:
            parse_setting(width)
        except ValueError as error:
            parser.error(f"--widths: {error}")
    options.rounds = 1 if options.quick else ROUNDS
    options.out = options.out or machine.choose_results_folder(is_complete=not options.quick)
    return options


def _measure_row(
    results: dict[str, Any], width: str, lever: str, left_s: float, options: argparse.Namespace
) -> dict[str, Any]:
    """Measure the steps per second of a separate process.

    Args:
        results: Results, to which the versions and devices of the process are added.
        width: Environments x steps per train batch.
        lever: Performance option.
        left_s: Seconds until the time limit.
        options: Parsed options.

    Returns:
        Row of the results, with the reason as `failure` if the process failed or took too long.
    """
    row: dict[str, Any] = {"width": width, "lever": lever}
    batch = parse_setting(width).train_batch_size
    steps = batch if options.quick else min(FALLBACK_STEPS * 16, batch * STEPS_PER_WIDTH)
    setting = parse_setting(width, steps=steps)
    try:
        with contextlib.closing(_start_worker(lever, left_s)) as worker:
            results["peers"].setdefault(lever, worker.ask("info"))
            row["compile_s"] = worker.ask("setup", setting=setting.to_dict())["compile_s"]
            worker.ask("run")
            replies = [worker.ask("run") for _ in range(options.rounds)]
            row["return_mean"] = worker.ask("evaluate")["return_mean"]
    except PeerError as error:
        return {**row, "failure": str(error)}
    return {**row, "steps_per_s": [measure.compute_rate(reply) for reply in replies]}


def _start_worker(lever: str, left_s: float) -> Worker:
    command = [sys.executable, "-m", "benchmarks.peers.jaxrl_worker"]
    return Worker(lever, command, env=LEVERS.get(lever), timeout_s=left_s)


def _estimate_rate(row: Mapping[str, Any]) -> Interval:
    return estimate_median(row["steps_per_s"])


def render_markdown(results: Mapping[str, Any]) -> str:
    """Render the table as Markdown, with each lever's gain over the same width as shipped."""
    shipped = {
        row["width"]: _estimate_rate(row).value
        for row in results["rows"]
        if row["lever"] == SHIPPED and "steps_per_s" in row
    }
    rows = []
    for row in results["rows"]:
        if "failure" in row:
            rows.append((row["width"], row["lever"], "-", "-", "-", row["failure"]))
            continue
        rate, base = _estimate_rate(row), shipped.get(row["width"])
        mean_return = row["return_mean"]
        rows.append(
            (
                row["width"],
                row["lever"],
                format_estimate(rate, ",.0f"),
                format_optional(base and rate.value / base, ".2f"),
                f"{row['compile_s']:.1f}",
                "-" if mean_return is None else f"return {mean_return:.0f}",
            )
        )
    text = (
        "PPO on CartPole-v1, environments x steps per train batch, two networks with two layers of "
        "64 units; medians and 95 % intervals. Rows were measured one after another, in separate "
        "processes, so a gain below 1.3 is undecided."
    )
    names = ("width", "lever", "steps/s", "gain over as shipped", "compile s", "")
    return render_document(
        *build_header(results, "On an accelerator"), Table(text=text, header=names, rows=rows)
    )


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Draw the steps per second of each width, and of each lever at the largest width."""
    from matplotlib.figure import Figure

    measured = [row for row in results["rows"] if "steps_per_s" in row]
    figure = Figure(figsize=(7.2, 4.2), dpi=120, layout="constrained")
    axes: Any = figure.add_subplot()
    names = [f"{row['width']}, {row['lever']}" for row in measured]
    rates = [_estimate_rate(row) for row in measured]
    medians = [rate.value for rate in rates]
    spread = [[r.value - r.low for r in rates], [r.high - r.value for r in rates]]
    axes.barh(names, medians, xerr=spread, color=COLORS[0], ecolor="0.4", capsize=3)
    axes.invert_yaxis()
    axes.set(xlabel="environment steps per second", xscale="log")
    axes.grid(alpha=0.25, axis="x")
    save_figure(figure, path)


if __name__ == "__main__":
    sys.exit(main())
