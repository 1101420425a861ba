"""Speed of environments of several agents: `python -m benchmarks.multi`.

Compares jaxrl's particle tasks with JaxMARL's, and Connect Four, its own and pgx's, with pgx, in random play
with auto-reset: many copies in one compiled loop. JaxMARL and pgx have environments of their own
(`.peers`, made on first use). Peers take turns, and compilation is apart. A step is one of a whole environment, with the actions of all its agents.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from benchmarks import measure
from benchmarks.commands import Benchmark, Options, Results
from benchmarks.peers.launch import Worker
from benchmarks.settings import (
    GAME,
    GAME_PEERS,
    JAXMARL,
    MULTI,
    PGX,
    TASKS,
    PlaySetting,
)
from benchmarks.statistics import compare_to, describe_rates, show
from jaxrl.bench.markdown import Table

PARTICLE_PEERS = (MULTI, JAXMARL)


def run(options: Options) -> dict[str, Any]:
    """Measure each task."""
    infos: dict[str, Any] = {}
    tasks: dict[str, Any] = {}
    for names, peers in ((tuple(TASKS), PARTICLE_PEERS), ((GAME,), GAME_PEERS)):
        chosen = [name for name in names if name in options.tasks]
        playing = [peer for peer in peers if peer in options.peers]
        if chosen and playing:
            with contextlib.ExitStack() as stack:
                workers = measure.start_workers(stack, playing, infos)
                tasks |= {name: _measure_task(name, options, workers) for name in chosen}
    sizes = {"num_envs": options.num_envs, "num_steps": options.num_steps}
    return {"peers": infos, **sizes, "tasks": tasks}


def _measure_task(name: str, options: Options, workers: Mapping[str, Worker]) -> dict[str, Any]:
    """Measure the steps per second of every peer in every round."""
    setting = PlaySetting(task=name, num_envs=options.num_envs, num_steps=options.num_steps)
    compiled = {
        peer: worker.ask("setup", setting=setting.to_dict())["compile_s"]
        for peer, worker in workers.items()
    }
    # The same random play earns the same: what is stepped is the same task.
    rewards = {peer: worker.ask("run")["reward_mean"] for peer, worker in workers.items()}
    runs = {peer: partial(_time_run, worker) for peer, worker in workers.items()}
    rates = measure.measure_rates(runs, options.pairs, options.num_envs * options.num_steps)
    return {
        "compile_s": compiled,
        "reward_mean": rewards,
        **describe_rates(rates),
        "ratio": compare_to(rates, PGX if PGX in rates else JAXMARL),
    }


def _time_run(worker: Worker) -> float:
    return worker.ask("run")["seconds"]


def build_tables(results: Results) -> Iterator[Table]:
    """Build the table of the tasks."""
    yield Table(
        text=f"Environment steps per second of {results['num_envs']:,} copies with random actions and "
        f"auto-reset, {results['num_steps']} steps in one compiled loop, medians over the rounds, and "
        "ratios to the package (JaxMARL, pgx) within a round, with 95 % intervals; compilation in "
        "seconds, apart; and the mean of all agents' rewards of a step, added, or the share of steps that "
        "win a game.",
        header=("task", "peer", "steps/s", "/ package", "compile, s", "reward"),
        rows=[
            (
                name,
                peer,
                show(median, ",.0f"),
                show(task["ratio"].get(peer), ".2f"),
                f"{task['compile_s'][peer]:.1f}",
                f"{task['reward_mean'][peer]:.2f}",
            )
            for name, task in results["tasks"].items()
            for peer, median in task["median"].items()
        ],
    )


BENCHMARK = Benchmark(
    name="multi",
    about=__doc__,
    title="Several agents",
    measure=run,
    build_tables=build_tables,
    names={"peers": (*PARTICLE_PEERS, *GAME_PEERS), "tasks": (*TASKS, GAME)},
    numbers={"num-envs": (1024, "copies of a task"), "num-steps": (500, "steps per round")},
    quick={"num_envs": 16, "num_steps": 30},
)
main = BENCHMARK.main

if __name__ == "__main__":
    sys.exit(main())
