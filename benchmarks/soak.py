"""Whether sampling on the host keeps its memory: `python -m benchmarks.soak`.

PPO trains on gymnasium's CartPole in this process and with two actors, for two minutes to warm up
and ten more. Every few seconds the resident memory of the driver and of the actors is read; the
slope over the ten minutes says what a minute adds.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine, measure, memory
from benchmarks.host_report import soak_markdown
from benchmarks.peers import launch
from benchmarks.settings import host_setting
from benchmarks.statistics import MIN_POINTS, slope_interval
from benchmarks.worker import PeerError, Worker

RUNS = (launch.LOCAL, launch.REMOTE)
Usage = dict[str, tuple[float, float]]
"""Resident and private memory in MB, by the role of a process."""


def main(argv: Sequence[str] | None = None) -> int:
    """Watch each run, write `soak.json` and `soak.md`, print the table; the exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    options = _parse(arguments)
    results: dict[str, Any] = {
        "command": shlex.join(["python", "-m", "benchmarks.soak", *arguments]),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "quick": options.minutes < 10,
        "machine": machine.describe(),
        "load": {"before": machine.load_average()},
        "minutes": options.minutes,
        "warmup_minutes": options.warmup,
        "peers": {},
        "runs": {},
    }
    try:
        for name in options.runs:
            measure.say(f"{name}: {options.warmup:g} + {options.minutes:g} minutes")
            results["peers"][name], results["runs"][name] = _run(name, options)
    except (PeerError, ProcessLookupError) as error:
        print(f"benchmarks.soak: {error}", file=sys.stderr)
        return 1
    results["load"]["after"] = machine.load_average()
    text = soak_markdown(results)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "soak.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (options.out / "soak.md").write_text(text, encoding="utf-8")
    print(text)
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="default: %(default)s")
    parser.add_argument("--warmup", type=float, default=2.0, help="minutes (default: %(default)s)")
    parser.add_argument(
        "--interval",
        type=float,
        default=5.0,
        help="seconds from one reading of memory to the next (default: %(default)s)",
    )
    parser.add_argument("--runs", default=",".join(RUNS), help="default: %(default)s")
    parser.add_argument("--out", type=Path, help="folder of the results")
    options = parser.parse_args(arguments)
    options.runs = options.runs.split(",")
    for name in options.runs:
        if name not in RUNS:
            parser.error(f"--runs: {name!r} is none of {', '.join(RUNS)}")
    if (
        options.interval <= 0
        or options.minutes * 60 < MIN_POINTS * options.interval
        or options.warmup < 0
    ):
        parser.error(
            f"--minutes {options.minutes:g} and --interval {options.interval:g}: a slope needs at "
            f"least {MIN_POINTS} readings"
        )
    if not (memory.PROC / "self" / "status").exists():
        parser.error("memory is read from /proc, which this system does not have")
    short = options.minutes < 10
    options.out = options.out or machine.results_folder(whole=not short)
    return options


def _run(name: str, options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the run is, and what was read of it."""
    with (
        tempfile.TemporaryDirectory(prefix="jaxrl-benchmark-") as folder,
        launch.start(name, env=measure.cache_variables(folder)) as worker,
    ):
        info = worker.ask("info")
        worker.ask("setup", setting=host_setting(steps=1).to_dict())
        trace = watch(
            worker,
            warmup_s=60 * options.warmup,
            length_s=60 * options.minutes,
            interval_s=options.interval,
        )
    return info, summary(trace, 60 * options.warmup)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trace:
    """Memory over the time since the start of training, `seconds`; a list of each role."""

    seconds: list[float]
    resident: dict[str, list[float]]
    private: dict[str, list[float]]
    env_steps: int


def usage(reply: Mapping[str, Any]) -> Usage:
    """What the driver, each actor and Ray's own processes hold, and driver and actors together."""
    driver, runners = reply["driver"], reply["runners"]
    actors = [pid for pid in runners if pid != driver]
    result = {"driver": memory.resident_mb(driver)}
    for number, pid in enumerate(actors, start=1):
        result[f"actor {number}"] = memory.resident_mb(pid)
    if actors:
        resident, private = zip(*result.values(), strict=True)
        result["driver and actors"] = (sum(resident), sum(private))
        others = set(memory.descendants(driver)) - set(actors)
        result["Ray's own processes"] = memory.total_mb(others)
    return result


def watch(
    worker: Worker,
    *,
    warmup_s: float,
    length_s: float,
    interval_s: float,
    read: Callable[[Mapping[str, Any]], Usage] = usage,
    clock: Callable[[], float] = time.monotonic,
) -> Trace:
    """Let the worker train, and read its memory after every interval.

    An interval ends with an iteration. Where that made them so long that too few readings for a
    slope follow the warm-up, it goes on until there are enough.
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


def summary(trace: Trace, warmup_s: float) -> dict[str, Any]:
    """The readings, and the slopes in MB a minute of those after the warm-up."""
    first = sum(seconds < warmup_s for seconds in trace.seconds)
    minutes = [seconds / 60 for seconds in trace.seconds[first:]]
    slopes = {
        kind: {
            role: dataclasses.asdict(slope_interval(minutes, values[first:]))
            for role, values in series.items()
        }
        for kind, series in (("resident", trace.resident), ("private", trace.private))
    }
    return {**dataclasses.asdict(trace), "first": first, "slopes": slopes}


if __name__ == "__main__":
    sys.exit(main())
