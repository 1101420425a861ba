"""Speed of training several agents: `python -m benchmarks.multi_training`.

Compares independent PPO with shared parameters, VDN and QMIX on SimpleSpread with the computations of
JaxMARL's scripts on its environment (`.peers/jaxmarl`, made on first use); one agent in an environment of
several with an environment of a single agent, and two agents with twice as many environments; leagues with an opponent that
does not change; and the compilation of more and more equal agents. Peers take turns, and compilation is apart.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks import measure
from benchmarks.commands import Benchmark, Options, Results
from benchmarks.settings import (
    ALONE,
    FIXED,
    IPPO,
    JAXMARL_TRAINS,
    LEAGUES,
    LINE,
    LINES,
    PAIR,
    SINGLE,
    TEAMS,
    TWICE,
    TrainSetting,
    make_train_settings,
)
from benchmarks.statistics import estimate_geometric_mean, estimate_median, show
from jaxrl.bench.markdown import Table, format_estimate

PEERS = (TEAMS, JAXMARL_TRAINS)
OWN_PAIRS = ((ALONE, SINGLE), (PAIR, TWICE), *((name, FIXED) for name in LEAGUES))
"""Pairs of settings of jaxrl, of which the first is divided by the second."""


def run(options: Options) -> dict[str, Any]:
    """Measure each setting."""
    settings = make_train_settings(options.steps)
    infos: dict[str, Any] = {}
    own = {name for pair in OWN_PAIRS for name in pair}
    return {
        "peers": infos,
        "env_steps": options.steps,
        "trainings": {
            name: _measure_training(settings[name], options, infos)
            for name in options.settings
            if name not in own
        },
        "own": {
            first: _measure_own(first, second, settings, options)
            for first, second in OWN_PAIRS
            if first in options.settings
        },
        "lines": {str(count): _compile_line(count) for count in (() if options.quick else LINES)},
    }


def _measure_training(
    setting: TrainSetting, options: Options, infos: dict[str, Any]
) -> dict[str, Any]:
    """Measure the peers, in new processes."""
    with contextlib.ExitStack() as stack:
        workers = measure.start_workers(stack, options.peers, infos)
        settings: Any = dict.fromkeys(workers, setting)
        measured = measure.compare_peers(workers, settings, options.pairs, TEAMS)
    return {"setting": setting.to_dict(), **measured}


def _measure_own(
    first: str,
    second: str,
    settings: Mapping[str, TrainSetting],
    options: Options,
) -> dict[str, Any]:
    """Measure two settings of jaxrl against each other."""
    with contextlib.ExitStack() as stack:
        workers = {name: measure.start_worker(stack, TEAMS) for name in (first, second)}
        chosen: Any = {name: settings[name] for name in workers}
        return measure.compare_peers(workers, chosen, options.pairs, first)


def _compile_line(num_agents: int) -> float:
    """Compile the training of equal agents in a new process, and return the seconds."""
    setting = TrainSetting(
        algorithm=LINE, num_envs=4, num_steps=16, num_updates=1, num_agents=num_agents
    )
    with contextlib.ExitStack() as stack:
        worker = measure.start_worker(stack, TEAMS)
        return worker.ask("setup", setting=setting.to_dict())["compile_s"]


def build_tables(results: Results) -> Iterator[Table]:
    """Build the tables of peers, of pairs of settings, and of compilation."""
    if results["trainings"]:
        yield _build_peers(results["trainings"])
    if results["own"]:
        yield _build_own(results["own"])
    if results["lines"]:
        yield Table(
            text="Seconds to compile PPO with one module for a line of equal agents, one time each.",
            header=("agents", "compile, s"),
            rows=[(count, f"{seconds:.1f}") for count, seconds in results["lines"].items()],
        )


def _build_peers(trainings: Mapping[str, Any]) -> Table:
    rows = [
        (
            name,
            peer,
            show(found["median"], ",.0f"),
            show(training["ratios"].get(peer), ".2f"),
            f"{found['compile_s']:.1f}",
        )
        for name, training in trainings.items()
        for peer, found in training["peers"].items()
    ]
    groups = [
        [
            ours / theirs
            for ours, theirs in zip(
                training["peers"][TEAMS]["steps_per_s"],
                training["peers"][JAXMARL_TRAINS]["steps_per_s"],
                strict=True,
            )
        ]
        for training in trainings.values()
        if training["setting"]["algorithm"] == IPPO and JAXMARL_TRAINS in training["ratios"]
    ]
    text = (
        "Environment steps per second on SimpleSpread, three agents of one module, medians over the "
        f"rounds, and ratios of {TEAMS} to the others within a round, with 95 % intervals; "
        "compilation in seconds, apart."
    )
    if groups:
        mean = format_estimate(estimate_geometric_mean(groups), ".2f")
        text += f" Geometric mean of the ratios of IPPO: {mean}."
    header = ("setting", "peer", "steps/s", f"{TEAMS} / peer", "compile, s")
    return Table(text=text, header=header, rows=rows)


def _build_own(own: Mapping[str, Any]) -> Table:
    rows = []
    for first, measured in own.items():
        ((second, ratio),) = measured["ratios"].items()
        peers = measured["peers"]
        rates = [estimate_median(peers[name]["steps_per_s"]) for name in (first, second)]
        shown = (format_estimate(rate, ",.0f") for rate in rates)
        rows.append((f"{first} / {second}", *shown, show(ratio, ".2f")))
    text = (
        "PPO, rows of agents that learn per second. CartPole: one agent in an environment of several and "
        "an environment of a single agent, 16 copies each; two agents in 16 copies of an environment "
        "and a single one in 32. Connect Four, 64 copies: an opponent drawn for every episode from as many "
        "frozen modules as the name says, and one module that does not change."
    )
    return Table(text=text, header=("pair", "first", "second", "ratio"), rows=rows)


BENCHMARK = Benchmark(
    name="multi_training",
    about=__doc__,
    title="Training several agents",
    measure=run,
    build_tables=build_tables,
    names={"settings": tuple(make_train_settings(1)), "peers": PEERS},
    numbers={"steps": (1_048_576, "environment steps of a measurement")},
    quick={"steps": 4096},
)
main = BENCHMARK.main

if __name__ == "__main__":
    sys.exit(main())
