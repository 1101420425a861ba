"""How fast jaxrl's PPO is, beside others, in one run: `python -m benchmarks.speed`.

See `benchmarks/README.md` for what is measured and how.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine, measure
from benchmarks.peers import launch
from benchmarks.report import markdown
from benchmarks.settings import DEFAULT_SETTINGS, Setting, parse_setting
from benchmarks.worker import ROOT, PeerError, Worker

PARTS = ("throughput", "overhead", "imports", "compile")
QUICK_STEPS = 20_000


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, write `speed.json` and `speed.md`, print the tables; the exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    options = _parse(arguments)
    results: dict[str, Any] = {
        "command": shlex.join(["python", "-m", "benchmarks.speed", *arguments]),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "quick": options.quick,
        "machine": machine.describe(),
        "load": {"before": machine.load_average()},
    }
    try:
        results |= _measure(options)
    except (PeerError, RuntimeError) as error:
        print(f"benchmarks.speed: {error}", file=sys.stderr)
        return 1
    results["load"]["after"] = machine.load_average()
    text = markdown(results)
    _write(options.out, results, text)
    print(text)
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
    parser.add_argument(
        "--settings",
        default=",".join(DEFAULT_SETTINGS),
        help="environments x steps per train batch, with commas (default: %(default)s)",
    )
    parser.add_argument("--pairs", type=int, help="rounds per setting (default: 7)")
    parser.add_argument("--steps", type=int, help="environment steps of one measurement")
    parser.add_argument(
        "--peers", default=",".join(launch.PEERS), help="with commas (default: %(default)s)"
    )
    parser.add_argument(
        "--parts", default=",".join(PARTS), help="with commas (default: %(default)s)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="one short round of everything, to see that it works"
    )
    parser.add_argument("--out", type=Path, help="folder of the results")
    options = parser.parse_args(arguments)
    options.peers = _names(parser, "--peers", options.peers, launch.PEERS)
    options.parts = _names(parser, "--parts", options.parts, PARTS)
    default_out = ROOT / (".benchmarks" if options.quick else "benchmarks/results")
    options.out = options.out or default_out
    options.pairs = options.pairs or (1 if options.quick else 7)
    options.steps = options.steps or (QUICK_STEPS if options.quick else None)
    try:
        options.settings = [
            parse_setting(text, steps=options.steps) for text in options.settings.split(",")
        ]
    except ValueError as error:
        parser.error(str(error))
    return options


def _names(
    parser: argparse.ArgumentParser, option: str, text: str, known: Sequence[str]
) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            parser.error(f"{option}: {name!r} is none of {', '.join(known)}")
    return [name for name in known if name in names]


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {"peers": {}, "throughput": {}, "overhead": {}}
    with contextlib.ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for name in options.peers:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="jaxrl-benchmark-"))
            worker = launch.start(name, env=measure.cache_variables(folder))
            workers[name] = stack.enter_context(worker)
            results["peers"][name] = worker.ask("info")
        if "throughput" in options.parts:
            for setting in options.settings:
                _say(f"{setting.name}: {options.pairs} rounds of {', '.join(workers)}")
                measured = measure.throughput(workers, setting, options.pairs)
                results["throughput"][setting.name] = measured
        if "overhead" in options.parts and launch.OURS in workers:
            for setting in options.settings:
                _say(f"{setting.name}: train() against the bare loop")
                results["overhead"][setting.name] = measure.train_overhead(
                    workers[launch.OURS], setting, options.pairs, _our_speed(results, setting)
                )
    rounds = 1 if options.quick else 5
    if "imports" in options.parts:
        _say("imports")
    results["imports"] = measure.import_times(rounds) if "imports" in options.parts else {}
    if "compile" in options.parts and launch.OURS in options.peers:
        _say("compile times")
        results["compile"] = measure.compile_times(_middle(options.settings), min(rounds, 3))
    else:
        results["compile"] = {}
    return results


def _our_speed(results: dict[str, Any], setting: Setting) -> float:
    """Steps per second as just measured; without a measurement, what one run has at the least."""
    measured = results["throughput"].get(setting.name)
    if measured is None:
        return setting.env_steps / measure.OVERHEAD_ITERATION_S
    return measured["peers"][launch.OURS]["median"]["median"]


def _middle(settings: Sequence[Setting]) -> Setting:
    return settings[len(settings) // 2]


def _write(folder: Path, results: dict[str, Any], text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "speed.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (folder / "speed.md").write_text(text, encoding="utf-8")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
