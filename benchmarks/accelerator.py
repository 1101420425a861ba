"""Speed of the compiled program on an accelerator: `python -m benchmarks.accelerator`.

Measures PPO on CartPole with several numbers of environments ("widths"), and at the largest with
each known performance option ("lever") separately. The command stops after `--minutes`, even if
measurements are left, and writes `accelerator.json`, `.md`, and `.png`. It also runs on a CPU, with
the smaller widths.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine, measure
from benchmarks.report import render_header, render_table
from benchmarks.settings import FALLBACK_STEPS, parse_setting
from benchmarks.statistics import Estimate, estimate_median
from benchmarks.worker import Worker, WorkerError

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
    results: dict[str, Any] = {
        "command": shlex.join(["python", "-m", "benchmarks.accelerator", *arguments]),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "quick": options.quick,
        "machine": machine.describe(),
        "load": {"before": machine.get_load_average()},
        "peers": {},
        "rows": [],
    }
    plan = [(width, SHIPPED) for width in options.widths]
    plan += [(options.widths[-1], lever) for lever in options.levers]
    for width, lever in plan:
        left = deadline - time.monotonic()
        if left <= 0:
            results["rows"].append({"width": width, "lever": lever, "failure": "no time was left"})
            continue
        measure.log_progress(f"{width}, {lever}")
        results["rows"].append(_measure_row(results, width, lever, left, options))
    results["load"]["after"] = machine.get_load_average()
    text = render_markdown(results)
    options.out.mkdir(parents=True, exist_ok=True)
    data = json.dumps(results, indent=1) + "\n"
    (options.out / "accelerator.json").write_text(data, encoding="utf-8")
    (options.out / "accelerator.md").write_text(text, encoding="utf-8")
    if any("steps_per_s" in row for row in results["rows"]):
        draw(results, options.out / "accelerator.png")
    print(text)
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
    options.levers = [name for name in options.levers.split(",") if name]
    for name in options.levers:
        if name not in LEVERS:
            parser.error(f"--levers: {name!r} is not one of {', '.join(LEVERS)}")
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
    except WorkerError as error:
        return {**row, "failure": str(error).strip().splitlines()[-1]}
    return {**row, "steps_per_s": [reply["env_steps"] / reply["seconds"] for reply in replies]}


def _start_worker(lever: str, left_s: float) -> Worker:
    command = [sys.executable, "-m", "benchmarks.peers.jaxrl_worker"]
    return Worker(lever, command, env=LEVERS.get(lever), timeout_s=left_s)


def _estimate_rate(row: Mapping[str, Any]) -> Estimate:
    return estimate_median(row["steps_per_s"])


def render_markdown(results: Mapping[str, Any]) -> str:
    """Render the table as Markdown, with each lever's gain over the same width as shipped."""
    shipped = {
        row["width"]: _estimate_rate(row).median
        for row in results["rows"]
        if row["lever"] == SHIPPED and "steps_per_s" in row
    }
    rows = []
    for row in results["rows"]:
        if "failure" in row:
            rows.append((row["width"], row["lever"], "-", "-", "-", row["failure"]))
            continue
        rate, base = _estimate_rate(row), shipped.get(row["width"])
        gain = "-" if base is None else f"{rate.median / base:.2f}"
        mean_return = row["return_mean"]
        rows.append(
            (
                row["width"],
                row["lever"],
                f"{rate.median:,.0f} ({rate.low:,.0f} - {rate.high:,.0f})",
                gain,
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
    return (
        "\n\n".join([render_header(results, "On an accelerator"), text, render_table(names, rows)])
        + "\n"
    )


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Draw the steps per second of each width, and of each lever at the largest width."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    measured = [row for row in results["rows"] if "steps_per_s" in row]
    figure = Figure(figsize=(7.2, 4.2), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.add_subplot()
    names = [f"{row['width']}, {row['lever']}" for row in measured]
    rates = [_estimate_rate(row) for row in measured]
    medians = [rate.median for rate in rates]
    spread = [[r.median - r.low for r in rates], [r.high - r.median for r in rates]]
    axes.barh(names, medians, xerr=spread, color="#0072B2", ecolor="0.4", capsize=3)
    axes.invert_yaxis()
    axes.set(xlabel="environment steps per second", xscale="log")
    axes.grid(alpha=0.25, axis="x")
    figure.savefig(path)


if __name__ == "__main__":
    sys.exit(main())
