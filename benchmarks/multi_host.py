"""Speed of several agents in Python environments: `python -m benchmarks.multi_host`.

Compares PPO with RLlib, on gymnasium's CartPole two and eight times over with a policy for each agent, and
with Stable-Baselines3 and SuperSuit, on PettingZoo's simple_spread with one policy, which needs
`jaxrl[pettingzoo]`. Everything is in one process each (`.peers`, made on first use). Peers take turns, and
compilation is apart. A step is one of a whole environment, with the actions of all its agents.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks import measure
from benchmarks.commands import Benchmark, Options, Results
from benchmarks.peers import launch
from benchmarks.settings import (
    AGENTS,
    POLES,
    RLLIB_AGENTS,
    SB3_PETTINGZOO,
    HostSetting,
    make_agents_settings,
)
from benchmarks.statistics import show
from jaxrl.bench.markdown import Table

PEERS = (AGENTS, RLLIB_AGENTS, SB3_PETTINGZOO)


def run(options: Options) -> dict[str, Any]:
    """Measure each setting."""
    infos: dict[str, Any] = {}
    settings = make_agents_settings(options.steps)
    trainings = {name: _measure(name, settings[name], options, infos) for name in options.settings}
    return {"trainings": trainings, "peers": infos}


def _measure(
    name: str, setting: HostSetting, options: Options, infos: dict[str, Any]
) -> dict[str, Any]:
    """Measure the peers of a setting, in new processes."""
    other = RLLIB_AGENTS if setting.task == POLES else SB3_PETTINGZOO
    names = [peer for peer in (AGENTS, other) if peer in options.peers]
    launch.log(f"{name}: {options.pairs} rounds of {', '.join(names)}")
    with contextlib.ExitStack() as stack:
        workers = measure.start_workers(stack, names, infos)
        settings: Any = dict.fromkeys(workers, setting)
        measured = measure.compare_peers(workers, settings, options.pairs, AGENTS)
    return {"setting": setting.to_dict(), **measured}


def build_tables(results: Results) -> Iterator[Table]:
    """Build the table of the settings."""
    yield Table(
        text="Environment steps per second of PPO, 8 copies x 128 steps a train batch, stepped and learned in one "
        f"process, medians over the rounds, and ratios of {AGENTS} to the others within a round, with "
        "95 % intervals. Compilation is apart.",
        header=("setting", "peer", "steps/s", f"{AGENTS} / peer"),
        rows=[
            (
                name,
                peer,
                show(found["median"], ",.0f"),
                show(training["ratios"].get(peer), ".2f"),
            )
            for name, training in results["trainings"].items()
            for peer, found in training["peers"].items()
        ],
    )


BENCHMARK = Benchmark(
    name="multi_host",
    about=__doc__,
    title="Several agents in Python",
    measure=run,
    build_tables=build_tables,
    names={"peers": PEERS, "settings": tuple(make_agents_settings(1))},
    numbers={"steps": (16_384, "environment steps of a measurement")},
    quick={"steps": 1024},
)
main = BENCHMARK.main

if __name__ == "__main__":
    sys.exit(main())
