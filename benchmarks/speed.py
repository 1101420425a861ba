"""Speed of jaxrl compared with other libraries: `python -m benchmarks.speed`.

`benchmarks/README.md` documents the measurements.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import figure, host, in_graph, machine, recurrent, replay, user
from benchmarks.commands import parse_names, save_results, start_results
from benchmarks.measure import SpeedSuite
from benchmarks.settings import DEFAULT_SETTINGS, parse_setting
from jaxrl.bench.peers import PeerError

QUICK_STEPS = 20_000
SUITES: dict[str, SpeedSuite] = {
    "in_graph": in_graph.SUITE,
    "host": host.SUITE,
    "replay": replay.SUITE,
    "user": user.SUITE,
    "recurrent": recurrent.SUITE,
}


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
        save_results(results, options.out, suite.stem, suite.render)
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
    chosen_suites = [SUITES[name] for name in chosen]
    known_peers = [n for suite in chosen_suites for n in (*suite.peers, *suite.other_peers)]
    known_parts = [name for suite in chosen_suites for name in suite.parts]
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
        "peers": [
            name
            for name in (*suite.peers, *suite.other_peers)
            if name in (suite.peers if peers is None else peers)
        ],
        "parts": [name for name in suite.parts if parts is None or name in parts],
    }
    return argparse.Namespace(**{**vars(options), **selected})


if __name__ == "__main__":
    sys.exit(main())
