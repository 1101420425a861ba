"""Speed of environments of several agents: `python -m benchmarks.multi`.

Compares jaxrl's particle tasks with JaxMARL's, and Connect Four, its own and pgx's, with pgx, in random play
with auto-reset: many copies in one compiled loop. JaxMARL and pgx have environments of their own
(`.peers`, made on first use). Peers take turns, and compilation is apart. A step is one of a whole environment, with the actions of all its agents.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import machine, measure
from benchmarks.commands import add_round_options, parse_names, save_results, start_results
from benchmarks.multi_settings import (
    GAME,
    JAXMARL,
    OURS,
    OURS_GAME,
    PGX,
    PGX_ADAPTER,
    TASKS,
    PlaySetting,
)
from benchmarks.report import build_header
from benchmarks.statistics import estimate_median, estimate_ratio, from_dict, to_dict
from benchmarks.worker import Worker
from jaxrl.bench.markdown import Cells, Table, format_estimate, render_document

PEERS = (OURS, JAXMARL, OURS_GAME, PGX_ADAPTER, PGX)
GAME_PEERS = (OURS_GAME, PGX_ADAPTER, PGX)
PARTICLES = tuple(TASKS)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure each task, write `multi.json` and `multi.md`, and print the table.

    Returns:
        Exit code.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    options = _parse(arguments)
    results = start_results("benchmarks.multi", arguments, is_quick=options.quick)
    infos: dict[str, Any] = {}
    tasks: dict[str, Any] = {}
    for names, peers in ((PARTICLES, (OURS, JAXMARL)), ((GAME,), GAME_PEERS)):
        chosen = [name for name in names if name in options.tasks]
        playing = [peer for peer in peers if peer in options.peers]
        if chosen and playing:
            with contextlib.ExitStack() as stack:
                workers = measure.start_workers(stack, playing, infos)
                tasks |= {name: _measure_task(name, options, workers) for name in chosen}
    results |= {
        "peers": infos,
        "num_envs": options.num_envs,
        "num_steps": options.num_steps,
        "tasks": tasks,
    }
    save_results(results, options.out, "multi", render_markdown)
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.multi", description=__doc__)
    parser.add_argument("--peers", default=",".join(PEERS), help="names, separated by commas")
    parser.add_argument(
        "--tasks", default=",".join((*TASKS, GAME)), help="tasks, separated by commas"
    )
    parser.add_argument(
        "--num-envs", type=int, default=1024, help="copies of a task (default: %(default)s)"
    )
    parser.add_argument(
        "--num-steps", type=int, default=500, help="steps per round (default: %(default)s)"
    )
    add_round_options(parser)
    options = parser.parse_args(arguments)
    options.peers = parse_names(parser, "--peers", options.peers, PEERS)
    options.tasks = parse_names(parser, "--tasks", options.tasks, [*TASKS, GAME])
    if options.quick:
        options.num_envs, options.num_steps, options.pairs = 16, 30, 2
    options.out = options.out or machine.choose_results_folder(is_complete=not options.quick)
    return options


def _measure_task(
    name: str, options: argparse.Namespace, workers: Mapping[str, Worker]
) -> dict[str, Any]:
    """Measure the steps per second of every peer in every round."""
    setting = PlaySetting(task=name, num_envs=options.num_envs, num_steps=options.num_steps)
    compiled = {
        peer: worker.ask("setup", setting=setting.to_dict())["compile_s"]
        for peer, worker in workers.items()
    }
    # The same random play earns the same: what is stepped is the same task.
    rewards = {peer: worker.ask("run")["reward_mean"] for peer, worker in workers.items()}
    seconds = measure.take_turns(
        {
            peer: lambda worker=worker: worker.ask("run")["seconds"]
            for peer, worker in workers.items()
        },
        options.pairs,
    )
    steps = options.num_envs * options.num_steps
    rates = {peer: [steps / elapsed for elapsed in found] for peer, found in seconds.items()}
    package = PGX if PGX in rates else JAXMARL
    others = [peer for peer in rates if peer != package and package in rates]
    return {
        "compile_s": compiled,
        "reward_mean": rewards,
        "rates": rates,
        "median": {peer: to_dict(estimate_median(found)) for peer, found in rates.items()},
        "ratio": {peer: to_dict(estimate_ratio(rates[peer], rates[package])) for peer in others},
    }


def render_markdown(results: Mapping[str, Any]) -> str:
    """Render the table as Markdown."""
    rows: list[Cells] = []
    for name, task in results["tasks"].items():
        for peer, median in task["median"].items():
            ratio = task["ratio"].get(peer)
            rows.append(
                (
                    name,
                    peer,
                    format_estimate(from_dict(median), ",.0f"),
                    format_estimate(from_dict(ratio), ".2f") if ratio else "-",
                    f"{task['compile_s'][peer]:.1f}",
                    f"{task['reward_mean'][peer]:.2f}",
                )
            )
    text = (
        f"Environment steps per second of {results['num_envs']:,} copies with random actions and "
        f"auto-reset, {results['num_steps']} steps in one compiled loop, medians over the rounds, and "
        "ratios to the package (JaxMARL, pgx) within a round, with 95 % intervals; compilation in "
        "seconds, apart; and the mean of all agents' rewards of a step, added, or the share of steps that "
        "win a game."
    )
    header = ("task", "peer", "steps/s", "/ package", "compile, s", "reward")
    table = Table(text=text, header=header, rows=rows)
    return render_document(*build_header(results, "Several agents"), table)


if __name__ == "__main__":
    sys.exit(main())
