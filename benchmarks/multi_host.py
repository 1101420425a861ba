"""Speed of several agents in Python environments: `python -m benchmarks.multi_host`.

Compares PPO with RLlib, on gymnasium's CartPole two and eight times over with a policy for each agent, and
with Stable-Baselines3 and SuperSuit, on PettingZoo's simple_spread with one policy, which needs
`jaxrl[pettingzoo]`. Everything is in one process each (`.peers`, made on first use). Peers take turns, and
compilation is apart. A step is one of a whole environment, with the actions of all its agents.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import machine, measure
from benchmarks.commands import (
    add_round_options,
    add_steps_option,
    parse_names,
    save_results,
    start_results,
)
from benchmarks.multi_settings import (
    OURS_HOST,
    POLES,
    RLLIB_HOST,
    SB3_HOST,
    HostSetting,
    make_host_settings,
)
from benchmarks.peers import launch
from benchmarks.report import build_header
from benchmarks.statistics import from_dict
from jaxrl.bench.markdown import Cells, Table, format_estimate, render_document

PEERS = (OURS_HOST, RLLIB_HOST, SB3_HOST)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure each setting, write `multi_host.json` and `.md`, and print the table.

    Returns:
        Exit code.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    options = _parse(arguments)
    results = start_results("benchmarks.multi_host", arguments, is_quick=options.quick)
    infos: dict[str, Any] = {}
    settings = make_host_settings(options.steps)
    results["trainings"] = {
        name: _measure(name, settings[name], options, infos) for name in options.settings
    }
    results["peers"] = infos
    save_results(results, options.out, "multi_host", render_markdown)
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.multi_host", description=__doc__)
    names = list(make_host_settings(1))
    parser.add_argument("--peers", default=",".join(PEERS), help="names, separated by commas")
    parser.add_argument("--settings", default=",".join(names), help="names, separated by commas")
    add_steps_option(parser, 16_384)
    add_round_options(parser)
    options = parser.parse_args(arguments)
    options.peers = parse_names(parser, "--peers", options.peers, PEERS)
    options.settings = parse_names(parser, "--settings", options.settings, names)
    if options.quick:
        options.steps, options.pairs = 1024, 2
    is_complete = not options.quick and len(options.settings) == len(names)
    options.out = options.out or machine.choose_results_folder(is_complete=is_complete)
    return options


def _measure(
    name: str, setting: HostSetting, options: argparse.Namespace, infos: dict[str, Any]
) -> dict[str, Any]:
    """Measure the peers of a setting, in new processes."""
    other = RLLIB_HOST if setting.task == POLES else SB3_HOST
    names = [peer for peer in (OURS_HOST, other) if peer in options.peers]
    launch.log(f"{name}: {options.pairs} rounds of {', '.join(names)}")
    with contextlib.ExitStack() as stack:
        workers = measure.start_workers(stack, names, infos)
        settings: Any = dict.fromkeys(workers, setting)
        measured = measure.compare_peers(workers, settings, options.pairs, OURS_HOST)
    return {"setting": setting.to_dict(), **measured}


def render_markdown(results: Mapping[str, Any]) -> str:
    """Render the table as Markdown."""
    rows: list[Cells] = []
    for name, training in results["trainings"].items():
        for peer, found in training["peers"].items():
            ratio = training["ratios"].get(peer)
            rows.append(
                (
                    name,
                    peer,
                    format_estimate(from_dict(found["median"]), ",.0f"),
                    format_estimate(from_dict(ratio), ".2f") if ratio else "-",
                )
            )
    text = (
        "Environment steps per second of PPO, 8 copies x 128 steps a train batch, stepped and learned in one "
        f"process, medians over the rounds, and ratios of {OURS_HOST} to the others within a round, with "
        "95 % intervals. Compilation is apart."
    )
    table = Table(
        text=text, header=("setting", "peer", "steps/s", f"{OURS_HOST} / peer"), rows=rows
    )
    return render_document(*build_header(results, "Several agents in Python"), table)


if __name__ == "__main__":
    sys.exit(main())
