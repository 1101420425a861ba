"""Memory growth of sampling on the host: `python -m benchmarks.soak`.

PPO trains on gymnasium's CartPole, first in one process and then with two actors, for two minutes
of warm-up and ten more. The resident memory of the driver and of the actors is read every few
seconds; the result is its slope over the ten minutes, in MB per minute.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine, measure
from benchmarks.commands import Results, build_header, parse_names, save_results, start_results
from benchmarks.peers import launch
from benchmarks.peers.launch import Worker
from benchmarks.settings import LOCAL, REMOTE, make_host_setting
from benchmarks.statistics import MIN_POINTS, estimate_slope, from_dict, to_dict
from jaxrl.bench.markdown import Table, format_range, render_document
from jaxrl.bench.peers import PeerError

RUNS = (LOCAL, REMOTE)
MAX_MB_PER_MINUTE = 1.0
ROLES_WITHOUT_AIM = ("Ray's own processes",)
MemoryUsage = dict[str, tuple[float, float]]
"""Resident and private memory in MB, by role of the process."""


def main(argv: Sequence[str] | None = None) -> int:
    """Watch each run, write `soak.json` and `soak.md`, and print the table.

    Returns:
        Exit code.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    options = _parse(arguments)
    results = start_results("benchmarks.soak", arguments, is_quick=options.minutes < 10)
    results |= {
        "minutes": options.minutes,
        "warmup_minutes": options.warmup,
        "peers": {},
        "runs": {},
    }
    try:
        for name in options.runs:
            launch.log(f"{name}: {options.warmup:g} + {options.minutes:g} minutes")
            results["peers"][name], results["runs"][name] = _run(name, options)
    except (PeerError, ProcessLookupError) as error:
        print(f"benchmarks.soak: {error}", file=sys.stderr)
        return 1
    save_results(results, options.out, "soak", render_markdown)
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="measured minutes (default: %(default)s)"
    )
    parser.add_argument(
        "--warmup", type=float, default=2.0, help="minutes of warm-up (default: %(default)s)"
    )
    parser.add_argument(
        "--interval",
        type=float,
        default=5.0,
        help="seconds between readings of memory (default: %(default)s)",
    )
    parser.add_argument(
        "--runs", default=",".join(RUNS), help="runs, separated by commas (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, help="folder for the results")
    options = parser.parse_args(arguments)
    options.runs = parse_names(parser, "--runs", options.runs, RUNS)
    if (
        options.interval <= 0
        or options.minutes * 60 < MIN_POINTS * options.interval
        or options.warmup < 0
    ):
        parser.error(
            f"--minutes {options.minutes:g}, --interval {options.interval:g}, --warmup "
            f"{options.warmup:g}: a slope needs at least {MIN_POINTS} readings, and no time may be "
            "negative"
        )
    if not (machine.PROC / "self" / "status").exists():
        parser.error("memory is read from /proc, which this system does not have")
    is_short = options.minutes < 10
    options.out = options.out or machine.choose_results_folder(is_complete=not is_short)
    return options


def _run(name: str, options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the versions and devices of a run, and the summary of its memory."""
    with (
        tempfile.TemporaryDirectory(prefix="jaxrl-benchmark-") as folder,
        launch.start(name, env=measure.make_cache_variables(folder)) as worker,
    ):
        info = worker.ask("info")
        worker.ask("setup", setting=make_host_setting(steps=1).to_dict())
        trace = watch(
            worker,
            warmup_s=60 * options.warmup,
            length_s=60 * options.minutes,
            interval_s=options.interval,
        )
    return info, summarize(trace, 60 * options.warmup)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trace:
    """Memory at times `seconds` since the start of training, as a list for each role."""

    seconds: list[float]
    resident: dict[str, list[float]]
    private: dict[str, list[float]]
    env_steps: int


def read_usage(reply: Mapping[str, Any]) -> MemoryUsage:
    """Read the memory of the driver, of each actor, of both together, and of Ray's processes."""
    driver, runners = reply["driver"], reply["runners"]
    actors = [pid for pid in runners if pid != driver]
    result = {"driver": machine.read_memory_mb(driver)}
    for number, pid in enumerate(actors, start=1):
        result[f"actor {number}"] = machine.read_memory_mb(pid)
    if actors:
        resident, private = zip(*result.values(), strict=True)
        result["driver and actors"] = (sum(resident), sum(private))
        others = set(machine.list_descendants(driver)) - set(actors)
        result["Ray's own processes"] = machine.sum_memory_mb(others)
    return result


def watch(
    worker: Worker,
    *,
    warmup_s: float,
    length_s: float,
    interval_s: float,
    read: Callable[[Mapping[str, Any]], MemoryUsage] = read_usage,
    clock: Callable[[], float] = time.monotonic,
) -> Trace:
    """Train with the worker and read its memory after every interval.

    Intervals end with an iteration. If this makes them so long that too few readings for a slope
    follow the warm-up, training continues until there are enough.

    Args:
        worker: Worker that trains.
        warmup_s: Seconds of warm-up.
        length_s: Seconds after the warm-up.
        interval_s: Minimum seconds between readings.
        read: Function that reads memory, given the reply of the worker.
        clock: Monotonic clock in seconds.
    """
    trace = Trace(seconds=[], resident={}, private={}, env_steps=0)
    steps, start = 0, clock()
    while (
        clock() - start < warmup_s + length_s
        or sum(seconds >= warmup_s for seconds in trace.seconds) < MIN_POINTS
    ):
        reply = worker.ask("train_for", seconds=interval_s)
        steps += reply["env_steps"]
        trace.seconds.append(clock() - start)
        for role, (resident, private) in read(reply).items():
            trace.resident.setdefault(role, []).append(resident)
            trace.private.setdefault(role, []).append(private)
    return dataclasses.replace(trace, env_steps=steps)


def summarize(trace: Trace, warmup_s: float) -> dict[str, Any]:
    """Return the readings, and the slopes in MB per minute of the readings after the warm-up."""
    first = sum(seconds < warmup_s for seconds in trace.seconds)
    minutes = [seconds / 60 for seconds in trace.seconds[first:]]
    slopes = {
        kind: {
            role: to_dict(estimate_slope(minutes, values[first:]), "slope")
            for role, values in series.items()
        }
        for kind, series in (("resident", trace.resident), ("private", trace.private))
    }
    return {**dataclasses.asdict(trace), "first": first, "slopes": slopes}


def render_markdown(results: Results) -> str:
    """Render the growth of each run's memory."""
    rows = []
    for name, run in results["runs"].items():
        for role, slope in run["slopes"]["resident"].items():
            resident = from_dict(slope, "slope")
            private = from_dict(run["slopes"]["private"][role], "slope")
            aim = f"under {MAX_MB_PER_MINUTE:g}: {resident.judge_at_most(MAX_MB_PER_MINUTE)}"
            values = run["resident"][role]
            rows.append(
                (
                    name,
                    role,
                    f"{values[run['first']]:,.1f}",
                    f"{values[-1]:,.1f}",
                    f"{resident.value:+.3f}",
                    format_range(resident, "+.3f"),
                    f"{private.value:+.3f}",
                    "-" if role in ROLES_WITHOUT_AIM else aim,
                )
            )
    steps = ", ".join(f"{name} {run['env_steps']:,}" for name, run in results["runs"].items())
    text = (
        "PPO on gymnasium's CartPole-v1, eight environments. Resident memory in MB (10^6 bytes) "
        f"over {results['minutes']:g} minutes, after {results['warmup_minutes']:g} of warm-up. The "
        "slope is a least-squares fit to the means of ten groups, with its 95 % interval. Private "
        f"memory is neither shared nor backed by files. Total environment steps: {steps}."
    )
    names = ("run", "process", "first MB", "last MB", "MB/minute", "interval", "private", "aim")
    return render_document(
        *build_header(results, "Memory", is_timed=False),
        Table(text=text, header=names, rows=rows),
    )


if __name__ == "__main__":
    sys.exit(main())
