"""Speed of training several agents: `python -m benchmarks.multi_training`.

Compares independent PPO with shared parameters, VDN and QMIX on SimpleSpread with the computations of
JaxMARL's scripts on its environment (`.peers/jaxmarl`, made on first use); one agent in an environment of
several with an environment of a single agent, and two agents with twice as many environments; leagues with an opponent that
does not change; and the compilation of more and more equal agents. Peers take turns, and compilation is apart.
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
    ALONE,
    FIXED,
    IPPO,
    JAXMARL_TRAINS,
    LEAGUES,
    LINE,
    LINES,
    OURS_TRAINS,
    PAIR,
    SINGLE,
    TWICE,
    TrainSetting,
    make_train_settings,
)
from benchmarks.report import build_header
from benchmarks.statistics import estimate_geometric_mean, estimate_median, from_dict
from jaxrl.bench.markdown import Cells, Table, format_estimate, render_document

PEERS = (OURS_TRAINS, JAXMARL_TRAINS)
OWN_PAIRS = ((ALONE, SINGLE), (PAIR, TWICE), *((name, FIXED) for name in LEAGUES))
"""Pairs of settings of jaxrl, of which the first is divided by the second."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure each setting, write `multi_training.json` and `.md`, and print the tables.

    Returns:
        Exit code.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    options = _parse(arguments)
    results = start_results("benchmarks.multi_training", arguments, is_quick=options.quick)
    settings = make_train_settings(options.steps)
    infos: dict[str, Any] = {}
    trainings = {
        name: _measure_training(settings[name], options, infos)
        for name in options.settings
        if name not in {name for pair in OWN_PAIRS for name in pair}
    }
    own = {
        first: _measure_own(first, second, settings, options)
        for first, second in OWN_PAIRS
        if first in options.settings
    }
    lines = {str(count): _compile_line(count) for count in (() if options.quick else LINES)}
    results |= {
        "peers": infos,
        "env_steps": options.steps,
        "trainings": trainings,
        "own": own,
        "lines": lines,
    }
    save_results(results, options.out, "multi_training", render_markdown)
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.multi_training", description=__doc__
    )
    names = list(make_train_settings(1))
    parser.add_argument("--peers", default=",".join(PEERS), help="names, separated by commas")
    parser.add_argument(
        "--settings", default=";".join(names), help="names, separated by semicolons"
    )
    add_steps_option(parser, 1_048_576)
    add_round_options(parser)
    options = parser.parse_args(arguments)
    options.peers = parse_names(parser, "--peers", options.peers, PEERS)
    chosen = options.settings.replace(",", "\0").replace(";", ",")
    known = [name.replace(",", "\0") for name in names]
    found = parse_names(parser, "--settings", chosen, known)
    options.settings = [name.replace("\0", ",") for name in found]
    if options.quick:
        options.steps, options.pairs = 4096, 2
    is_complete = not options.quick and len(options.settings) == len(names)
    options.out = options.out or machine.choose_results_folder(is_complete=is_complete)
    return options


def _measure_training(
    setting: TrainSetting, options: argparse.Namespace, infos: dict[str, Any]
) -> dict[str, Any]:
    """Measure the peers, in new processes."""
    with contextlib.ExitStack() as stack:
        workers = measure.start_workers(stack, options.peers, infos)
        settings: Any = dict.fromkeys(workers, setting)
        measured = measure.compare_peers(workers, settings, options.pairs, OURS_TRAINS)
    return {"setting": setting.to_dict(), **measured}


def _measure_own(
    first: str,
    second: str,
    settings: Mapping[str, TrainSetting],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Measure two settings of jaxrl against each other."""
    with contextlib.ExitStack() as stack:
        workers = {name: measure.start_worker(stack, OURS_TRAINS) for name in (first, second)}
        chosen: Any = {name: settings[name] for name in workers}
        return measure.compare_peers(workers, chosen, options.pairs, first)


def _compile_line(num_agents: int) -> float:
    """Compile the training of equal agents in a new process, and return the seconds."""
    setting = TrainSetting(
        algorithm=LINE, num_envs=4, num_steps=16, num_updates=1, num_agents=num_agents
    )
    with contextlib.ExitStack() as stack:
        worker = measure.start_worker(stack, OURS_TRAINS)
        return worker.ask("setup", setting=setting.to_dict())["compile_s"]


def render_markdown(results: Mapping[str, Any]) -> str:
    """Render the tables as Markdown."""
    tables = [_render_peers(results["trainings"])] if results["trainings"] else []
    if results["own"]:
        tables.append(_render_own(results["own"]))
    if results["lines"]:
        rows: list[Cells] = [
            (count, f"{seconds:.1f}") for count, seconds in results["lines"].items()
        ]
        text = "Seconds to compile PPO with one module for a line of equal agents, one time each."
        tables.append(Table(text=text, header=("agents", "compile, s"), rows=rows))
    return render_document(*build_header(results, "Training several agents"), *tables)


def _render_peers(trainings: Mapping[str, Any]) -> Table:
    rows: list[Cells] = []
    for name, training in trainings.items():
        for peer, found in training["peers"].items():
            ratio = training["ratios"].get(peer)
            rows.append(
                (
                    name,
                    peer,
                    format_estimate(from_dict(found["median"]), ",.0f"),
                    format_estimate(from_dict(ratio), ".2f") if ratio else "-",
                    f"{found['compile_s']:.1f}",
                )
            )
    groups = [
        [
            ours / theirs
            for ours, theirs in zip(
                training["peers"][OURS_TRAINS]["steps_per_s"],
                training["peers"][JAXMARL_TRAINS]["steps_per_s"],
                strict=True,
            )
        ]
        for training in trainings.values()
        if training["setting"]["algorithm"] == IPPO and JAXMARL_TRAINS in training["ratios"]
    ]
    text = (
        "Environment steps per second on SimpleSpread, three agents of one module, medians over the "
        f"rounds, and ratios of {OURS_TRAINS} to the others within a round, with 95 % intervals; "
        "compilation in seconds, apart."
    )
    if groups:
        mean = format_estimate(estimate_geometric_mean(groups), ".2f")
        text += f" Geometric mean of the ratios of IPPO: {mean}."
    header = ("setting", "peer", "steps/s", f"{OURS_TRAINS} / peer", "compile, s")
    return Table(text=text, header=header, rows=rows)


def _render_own(own: Mapping[str, Any]) -> Table:
    rows: list[Cells] = []
    for first, measured in own.items():
        ((second, ratio),) = measured["ratios"].items()
        rates = [
            estimate_median(measured["peers"][name]["steps_per_s"]) for name in (first, second)
        ]
        rows.append(
            (
                f"{first} / {second}",
                *(format_estimate(rate, ",.0f") for rate in rates),
                format_estimate(from_dict(ratio), ".2f"),
            )
        )
    text = (
        "PPO, rows of agents that learn per second. CartPole: one agent in an environment of several and "
        "an environment of a single agent, 16 copies each; two agents in 16 copies of an environment "
        "and a single one in 32. Connect Four, 64 copies: an opponent drawn for every episode from as many "
        "frozen modules as the name says, and one module that does not change."
    )
    return Table(text=text, header=("pair", "first", "second", "ratio"), rows=rows)


if __name__ == "__main__":
    sys.exit(main())
