"""Speed of jaxrl compared with other libraries: `python -m benchmarks.speed`.

`benchmarks/README.md` documents the measurements.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
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
    replay,
    user,
    user_report,
)
from benchmarks.commands import parse_names, save_results, start_results
from benchmarks.peers import launch
from benchmarks.recommended import RECOMMENDATIONS
from benchmarks.report import render_markdown
from benchmarks.settings import DEFAULT_SETTINGS, Setting, parse_setting
from jaxrl.bench.peers import PeerError

IN_GRAPH_PARTS = ("throughput", "recommended", "overhead", "imports", "compile")
IN_GRAPH_PEERS = (*launch.PEERS, launch.LIMITS, launch.RLLIB_2X16)
"""Peers of the in-graph suite; the last takes part only with recommended hyperparameters."""
QUICK_STEPS, QUICK_RECOMMENDED_STEPS = 20_000, 2_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpeedSuite:
    """Suite of measurements with a common report.

    Args:
        stem: Stem of the result files.
        peers: Peers that are measured by default.
        known_peers: Peers that can be named.
        parts: Parts, all of which are measured by default.
        run: Function that measures the parts and peers that the options select.
        markdown: Function that renders the report.
    """

    stem: str
    peers: tuple[str, ...]
    known_peers: tuple[str, ...]
    parts: tuple[str, ...]
    run: Callable[[argparse.Namespace], dict[str, Any]]
    markdown: Callable[[Mapping[str, Any]], str]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, write the results of each suite as JSON and Markdown, and print the tables.

    Returns:
        Exit code.
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
        results = start_results("benchmarks.speed", arguments, is_quick=options.quick)
        try:
            results |= suite.run(chosen)
        except RuntimeError as error:
            details = error.output if isinstance(error, PeerError) else ""
            print(f"benchmarks.speed: {error}\n{details}".rstrip(), file=sys.stderr)
            return 1
        save_results(results, options.out, suite.stem, suite.markdown)
    if options.out.resolve().parent == figure.RESULTS:
        return figure.main([])
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = _make_parser()
    options = parser.parse_args(arguments)
    narrowed = options.settings != parser.get_default("settings") or any(
        (options.pairs, options.steps, options.peers, options.parts, options.quick)
    )
    options.out = options.out or machine.choose_results_folder(is_complete=not narrowed)
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
    peers, parts = (
        None if text is None else parse_names(parser, option, text, known)
        for option, text, known in (
            ("--peers", options.peers, known_peers),
            ("--parts", options.parts, known_parts),
        )
    )
    options.suites = {
        name: _select_for_suite(options, SUITES[name], peers, parts) for name in chosen
    }
    return options


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
    parser.add_argument(
        "--suite",
        choices=(*SUITES, "all"),
        default="in_graph",
        help="in_graph: PPO with environments in the compiled program; host: PPO with environments "
        "on the host; replay: DQN and SAC in the compiled program; user: whole commands as a user "
        "runs them; recurrent: PPO with recurrent modules (default: %(default)s)",
    )
    parser.add_argument(
        "--settings",
        default=",".join(DEFAULT_SETTINGS),
        help="environments x steps per train batch of the in_graph suite, separated by commas "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--pairs", type=int, help="rounds per setting (default: 7; 3 for whole commands)"
    )
    parser.add_argument("--steps", type=int, help="environment steps per measurement")
    parser.add_argument(
        "--peers", help=f"peers, separated by commas (default: {_format_defaults('peers')})"
    )
    parser.add_argument(
        "--parts", help=f"parts, separated by commas (default: {_format_defaults('parts')})"
    )
    parser.add_argument(
        "--quick", action="store_true", help="one short round of everything, as a test"
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="folder for the results (default: that of this machine in benchmarks/results for a "
        "whole suite, otherwise .benchmarks)",
    )
    return parser


def _format_defaults(field: str) -> str:
    return "; ".join(f"{name}: {','.join(vars(suite)[field])}" for name, suite in SUITES.items())


def _select_for_suite(
    options: argparse.Namespace, suite: SpeedSuite, peers: list[str] | None, parts: list[str] | None
) -> argparse.Namespace:
    """Return the options with the selected peers and parts of the suite, in the suite's order."""
    selected = {
        "peers": [n for n in suite.known_peers if n in (suite.peers if peers is None else peers)],
        "parts": [name for name in suite.parts if parts is None or name in parts],
    }
    return argparse.Namespace(**{**vars(options), **selected})


def _measure_in_graph(options: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {"peers": {}, "throughput": {}, "overhead": {}, "recommended": {}}
    with contextlib.ExitStack() as stack:
        names = [name for name in options.peers if name != launch.RLLIB_2X16]
        workers = measure.start_workers(stack, names, results["peers"])
        if "throughput" in options.parts and workers:
            for setting in options.settings:
                launch.log(f"{setting.name}: {options.pairs} rounds of {', '.join(workers)}")
                measured = measure.measure_throughput(workers, setting, options.pairs)
                results["throughput"][setting.name] = measured
        if "overhead" in options.parts and launch.OURS in workers:
            for setting in options.settings:
                launch.log(f"{setting.name}: train() compared with the bare loop")
                results["overhead"][setting.name] = measure.measure_train_overhead(
                    workers[launch.OURS], setting, options.pairs, _get_our_speed(results, setting)
                )
    if "recommended" in options.parts:
        results["recommended"] = _measure_recommended(options, results["peers"])
    rounds = 1 if options.quick else 5
    if "imports" in options.parts:
        launch.log("imports")
    results["imports"] = measure.measure_import_times(rounds) if "imports" in options.parts else {}
    if "compile" in options.parts and launch.OURS in options.peers:
        launch.log("compile times")
        results["compile"] = measure.measure_compile_times(
            _get_middle(options.settings), min(rounds, 3)
        )
    else:
        results["compile"] = {}
    return results


def _measure_recommended(options: argparse.Namespace, infos: dict[str, Any]) -> dict[str, Any]:
    """Measure every peer with its recommended hyperparameters, in new processes.

    Args:
        options: Parsed options.
        infos: Versions and devices of the peers, which are added here.
    """
    peers = [name for name in RECOMMENDATIONS if name in options.peers]
    if not peers:
        return {}
    launch.log(f"recommended: {options.pairs} rounds of {', '.join(peers)}")
    steps = options.steps or (QUICK_RECOMMENDED_STEPS if options.quick else None)
    with contextlib.ExitStack() as stack:
        workers = measure.start_workers(stack, peers, infos)
        return measure.measure_recommended(workers, steps, options.pairs)


def _get_our_speed(results: dict[str, Any], setting: Setting) -> float:
    """Return jaxrl's measured steps per second, or a lower bound without a measurement."""
    measured = results["throughput"].get(setting.name)
    if measured is None:
        return setting.env_steps / measure.OVERHEAD_ITERATION_S
    return measured["peers"][launch.OURS]["median"]["median"]


def _get_middle(settings: Sequence[Setting]) -> Setting:
    return settings[len(settings) // 2]


SUITES = {
    "in_graph": SpeedSuite(
        stem="speed",
        peers=IN_GRAPH_PEERS,
        known_peers=IN_GRAPH_PEERS,
        parts=IN_GRAPH_PARTS,
        run=_measure_in_graph,
        markdown=render_markdown,
    ),
    "host": SpeedSuite(
        stem="host",
        peers=host.PEERS,
        known_peers=host.KNOWN_PEERS,
        parts=host.PARTS,
        run=host.run,
        markdown=host_report.render_markdown,
    ),
    "replay": SpeedSuite(
        stem="replay",
        peers=replay.PEERS,
        known_peers=replay.PEERS,
        parts=replay.PARTS,
        run=replay.run,
        markdown=replay.render_markdown,
    ),
    "user": SpeedSuite(
        stem="user",
        peers=user.PEERS,
        known_peers=user.PEERS,
        parts=user.PARTS,
        run=user.run,
        markdown=user_report.render_markdown,
    ),
    "recurrent": SpeedSuite(
        stem="recurrent",
        peers=recurrent.PEERS,
        known_peers=recurrent.PEERS,
        parts=recurrent.PARTS,
        run=recurrent.run,
        markdown=recurrent.render_markdown,
    ),
}


if __name__ == "__main__":
    sys.exit(main())
