"""How fast jaxrl is, beside others, in one run: `python -m benchmarks.speed`.

See `benchmarks/README.md` for what is measured and how.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import (
    figure,
    host,
    host_report,
    machine,
    measure,
    recurrent,
    recurrent_report,
    replay,
    replay_report,
    user,
    user_report,
)
from benchmarks.peers import launch
from benchmarks.recommended import RECOMMENDED
from benchmarks.report import markdown
from benchmarks.settings import DEFAULT_SETTINGS, Setting, parse_setting
from benchmarks.worker import PeerError, Worker

IN_GRAPH_PARTS = ("throughput", "recommended", "overhead", "imports", "compile")
IN_GRAPH_PEERS = (*launch.PEERS, launch.LIMITS, launch.RLLIB_2X16)
"""The last takes part where each has its own hyperparameters, and nowhere else."""
QUICK_STEPS, QUICK_RECOMMENDED_STEPS = 20_000, 2_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Suite:
    """What is measured and reported together.

    Args:
        stem: Of the files with its results.
        peers: Measured unless others are named.
        known_peers: May be named.
        parts: Measured unless some are named.
        run: Measures what the options say.
        markdown: Makes the tables.
    """

    stem: str
    peers: tuple[str, ...]
    known_peers: tuple[str, ...]
    parts: tuple[str, ...]
    run: Callable[[argparse.Namespace], dict[str, Any]]
    markdown: Callable[[Mapping[str, Any]], str]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, write the results of each suite as JSON and Markdown, print the tables.

    Returns:
        The exit code.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    options = _parse(arguments)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        print(f"benchmarks.speed: --out {options.out}: {error.strerror}.", file=sys.stderr)
        return 2
    for name, chosen in options.suites.items():
        suite = SUITES[name]
        results: dict[str, Any] = {
            "command": shlex.join(["python", "-m", "benchmarks.speed", *arguments]),
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "quick": options.quick,
            "machine": machine.describe(),
            "load": {"before": machine.load_average()},
        }
        try:
            results |= suite.run(chosen)
        except (PeerError, RuntimeError) as error:
            print(f"benchmarks.speed: {error}", file=sys.stderr)
            return 1
        results["load"]["after"] = machine.load_average()
        text = suite.markdown(results)
        _write(options.out, suite.stem, results, text)
        print(text)
    if options.out.resolve().parent == figure.RESULTS:
        return figure.main([])
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
    parser.add_argument(
        "--suite",
        choices=(*SUITES, "all"),
        default="in_graph",
        help="PPO with environments in the compiled program, PPO on the host, DQN and SAC with "
        "replay in the compiled program, PPO with a memory, or whole commands as a user runs them "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--settings",
        default=",".join(DEFAULT_SETTINGS),
        help="environments x steps per train batch in the compiled program, with commas "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--pairs", type=int, help="rounds per setting (default: 7; of whole commands 3)"
    )
    parser.add_argument("--steps", type=int, help="environment steps of one measurement")
    parser.add_argument("--peers", help=f"with commas (default: {_defaults('peers')})")
    parser.add_argument("--parts", help=f"with commas (default: {_defaults('parts')})")
    parser.add_argument(
        "--quick", action="store_true", help="one short round of everything, to see that it works"
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="folder of the results (default: this machine's in benchmarks/results for the whole of a "
        "suite, else .benchmarks)",
    )
    options = parser.parse_args(arguments)
    narrowed = options.settings != parser.get_default("settings") or any(
        (options.pairs, options.steps, options.peers, options.parts, options.quick)
    )
    options.out = options.out or machine.results_folder(whole=not narrowed)
    options.is_default_pairs = options.pairs is None
    options.pairs = options.pairs or (1 if options.quick else 7)
    steps = options.steps or (QUICK_STEPS if options.quick else None)
    try:
        options.settings = [
            parse_setting(text, steps=steps) for text in options.settings.split(",")
        ]
    except ValueError as error:
        parser.error(str(error))
    chosen = list(SUITES) if options.suite == "all" else [options.suite]
    known_peers = [name for suite in chosen for name in SUITES[suite].known_peers]
    known_parts = [name for suite in chosen for name in SUITES[suite].parts]
    peers = _names(parser, "--peers", options.peers, known_peers)
    parts = _names(parser, "--parts", options.parts, known_parts)
    options.suites = {name: _of_suite(options, SUITES[name], peers, parts) for name in chosen}
    return options


def _defaults(what: str) -> str:
    return "; ".join(f"{name}: {','.join(vars(suite)[what])}" for name, suite in SUITES.items())


def _names(
    parser: argparse.ArgumentParser, option: str, text: str | None, known: Sequence[str]
) -> list[str] | None:
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            parser.error(f"{option}: {name!r} is none of {', '.join(known)}")
    return names


def _of_suite(
    options: argparse.Namespace, suite: Suite, peers: list[str] | None, parts: list[str] | None
) -> argparse.Namespace:
    """The options with the peers and parts that the suite has, in its order."""
    own = {
        "peers": [n for n in suite.known_peers if n in (suite.peers if peers is None else peers)],
        "parts": [name for name in suite.parts if parts is None or name in parts],
    }
    return argparse.Namespace(**{**vars(options), **own})


def _measure_in_graph(options: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {"peers": {}, "throughput": {}, "overhead": {}, "recommended": {}}
    with contextlib.ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for name in options.peers:
            if name == launch.RLLIB_2X16:
                continue
            workers[name] = measure.started(stack, name)
            results["peers"][name] = workers[name].ask("info")
        if "throughput" in options.parts and workers:
            for setting in options.settings:
                measure.say(f"{setting.name}: {options.pairs} rounds of {', '.join(workers)}")
                measured = measure.throughput(workers, setting, options.pairs)
                results["throughput"][setting.name] = measured
        if "overhead" in options.parts and launch.OURS in workers:
            for setting in options.settings:
                measure.say(f"{setting.name}: train() against the bare loop")
                results["overhead"][setting.name] = measure.train_overhead(
                    workers[launch.OURS], setting, options.pairs, _our_speed(results, setting)
                )
    if "recommended" in options.parts:
        results["recommended"] = _recommended(options, results["peers"])
    rounds = 1 if options.quick else 5
    if "imports" in options.parts:
        measure.say("imports")
    results["imports"] = measure.import_times(rounds) if "imports" in options.parts else {}
    if "compile" in options.parts and launch.OURS in options.peers:
        measure.say("compile times")
        results["compile"] = measure.compile_times(_middle(options.settings), min(rounds, 3))
    else:
        results["compile"] = {}
    return results


def _recommended(options: argparse.Namespace, infos: dict[str, Any]) -> dict[str, Any]:
    """Every peer with its own hyperparameters, in processes of their own."""
    peers = [name for name in RECOMMENDED if name in options.peers]
    if not peers:
        return {}
    measure.say(f"recommended: {options.pairs} rounds of {', '.join(peers)}")
    steps = options.steps or (QUICK_RECOMMENDED_STEPS if options.quick else None)
    with contextlib.ExitStack() as stack:
        workers = {name: measure.started(stack, name) for name in peers}
        for name, worker in workers.items():
            infos[name] = worker.ask("info")
        return measure.own_settings(workers, steps, options.pairs)


def _our_speed(results: dict[str, Any], setting: Setting) -> float:
    """Steps per second as just measured; without a measurement, what one run has at the least."""
    measured = results["throughput"].get(setting.name)
    if measured is None:
        return setting.env_steps / measure.OVERHEAD_ITERATION_S
    return measured["peers"][launch.OURS]["median"]["median"]


def _middle(settings: Sequence[Setting]) -> Setting:
    return settings[len(settings) // 2]


def _write(folder: Path, stem: str, results: dict[str, Any], text: str) -> None:
    (folder / f"{stem}.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (folder / f"{stem}.md").write_text(text, encoding="utf-8")


SUITES = {
    "in_graph": Suite(
        stem="speed",
        peers=IN_GRAPH_PEERS,
        known_peers=IN_GRAPH_PEERS,
        parts=IN_GRAPH_PARTS,
        run=_measure_in_graph,
        markdown=markdown,
    ),
    "host": Suite(
        stem="host",
        peers=host.PEERS,
        known_peers=host.KNOWN_PEERS,
        parts=host.PARTS,
        run=host.run,
        markdown=host_report.markdown,
    ),
    "replay": Suite(
        stem="replay",
        peers=replay.PEERS,
        known_peers=replay.PEERS,
        parts=replay.PARTS,
        run=replay.run,
        markdown=replay_report.markdown,
    ),
    "user": Suite(
        stem="user",
        peers=user.PEERS,
        known_peers=user.PEERS,
        parts=user.PARTS,
        run=user.run,
        markdown=user_report.markdown,
    ),
    "recurrent": Suite(
        stem="recurrent",
        peers=recurrent.PEERS,
        known_peers=recurrent.PEERS,
        parts=recurrent.PARTS,
        run=recurrent.run,
        markdown=recurrent_report.markdown,
    ),
}


if __name__ == "__main__":
    sys.exit(main())
