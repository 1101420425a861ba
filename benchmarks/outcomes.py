"""Scores of the shipped configs that a return does not judge: `python -m benchmarks.outcomes`.

Self-play has a mean return of 0, a curriculum has the return of its latest task, and a sweep has
lanes of its own. Each of these configs is trained to its end with five seeds (the sweep with its
eight) and judged by what its agent is for. Results are written after every run, and runs that are in
the file are not repeated.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import machine
from benchmarks.commands import parse_names, write_json
from jaxrl import Algorithm, AlgorithmConfig
from jaxrl.config.load import Experiment, load_experiment
from jaxrl.metrics import DEFAULT_MODULE
from jaxrl.sweeps.population import Population
from jaxrl.sweeps.statistics import estimate_iqm, interquartile_mean

SEEDS = tuple(range(5))
NUM_EPISODES = 1000
FILE = "summary.json"
SUITE = "outcomes"
ABOUT = (
    "Shipped configs that a return does not judge: a curriculum on its last task (1,000 episodes), "
    "self-play against others (1,000 games in each seat with each; a draw counts as half a game, and "
    "who begins is drawn), a sweep at its best value (100 greedy episodes of each seed)."
)
BUDGET = "num_env_steps_sampled_lifetime"

Judge = Callable[[Algorithm], float]
Change = Callable[[AlgorithmConfig], AlgorithmConfig]


class Case(NamedTuple):
    """Config with what it is judged by.

    Attributes:
        file: Id of the shipped config.
        label: Name among the cases of the same file.
        measured: What is measured.
        judge: Function from the trained run to a score, higher is better; None for a sweep.
        change: Function that changes the config before the training.
    """

    file: str
    label: str
    measured: str
    judge: Judge | None
    change: Change


def compute_return(algorithm: Algorithm) -> float:
    """Return the mean return of the episodes of `evaluation_config`."""
    played = algorithm.evaluate(num_episodes=NUM_EPISODES)["env_runners"]
    return float(played["episode_return_mean"])


def compute_share_against_random(algorithm: Algorithm) -> float:
    """Return the share of games against random moves."""
    return _compute_lowest_share(algorithm, "main", ["random"])


def compute_share_of_self_play(algorithm: Algorithm) -> float:
    """Return the share against random moves of a run that has no module of these.

    Another run has one, and gets the weights.
    """
    config = algorithm.config.copy(copy_frozen=False)
    seats = ("player_0", "player_1")
    own = dict.fromkeys(seats, DEFAULT_MODULE)
    config.multi_agent(
        policies={DEFAULT_MODULE: None, "random": "jaxrl:RandomRLModule"},
        policies_to_train=[DEFAULT_MODULE],
        mapping=[{**own, seat: "random"} for seat in seats],
    )
    with config.build() as other:
        other.set_weights(algorithm.get_weights())
        return _compute_lowest_share(other, DEFAULT_MODULE, ["random"])


def compute_share_against_versions(algorithm: Algorithm) -> float:
    """Return the lowest share of the newest version's games against the others and random moves."""
    numbers = sorted(int(name.rpartition("_v")[2]) for name in algorithm.opponents if "_v" in name)
    newest, *others = (f"main_v{number}" for number in reversed(numbers))
    algorithm.set_weights({"main": algorithm.get_weights([newest])[newest]})
    return _compute_lowest_share(algorithm, "main", [*others, "random"])


def _compute_lowest_share(algorithm: Algorithm, module: str, opponents: Sequence[str]) -> float:
    table = algorithm.evaluate(opponents=opponents, module_id=module, num_episodes=NUM_EPISODES)[
        "opponents"
    ]
    return min(_compute_share(seats.values()) for seats in table.values())


def _compute_share(seats: Collection[Mapping[str, int]]) -> float:
    points = sum(seat["wins"] + seat["draws"] / 2 for seat in seats)
    return points / sum(seat["num_episodes"] for seat in seats)


def _keep(config: AlgorithmConfig) -> AlgorithmConfig:
    return config


def _skip_curriculum(config: AlgorithmConfig) -> AlgorithmConfig:
    """Train on the task of the evaluation from the start."""
    changed = config.evaluation_settings.evaluation_config or {}
    return config.environment(env_config=changed["env_config"], curriculum=None)


def _choose_likely(config: AlgorithmConfig) -> AlgorithmConfig:
    return config.evaluation(evaluation_config={"explore": False})


RANDOM = "greedy share against random moves"
LAKE = "return on the largest lake"
CASES: dict[str, Case] = {
    "curriculum": Case("curriculum/frozenlake-ppo", "curriculum", LAKE, compute_return, _keep),
    "no-curriculum": Case(
        "curriculum/frozenlake-ppo",
        "the largest lake alone",
        LAKE,
        compute_return,
        _skip_curriculum,
    ),
    "tictactoe": Case(
        "multi_agent/tictactoe-ppo", "self-play", RANDOM, compute_share_of_self_play, _choose_likely
    ),
    "tictactoe-alphazero": Case(
        "multi_agent/tictactoe-alphazero",
        "self-play with search",
        RANDOM,
        compute_share_of_self_play,
        _choose_likely,
    ),
    "connectfour-alphazero": Case(
        "multi_agent/connectfour-alphazero",
        "self-play with search",
        RANDOM,
        compute_share_of_self_play,
        _choose_likely,
    ),
    "league": Case(
        "multi_agent/tictactoe-league-ppo",
        "main agent",
        RANDOM,
        compute_share_against_random,
        _choose_likely,
    ),
    "connectfour": Case(
        "multi_agent/connectfour-ppo",
        "newest version",
        "lowest share against 7 earlier versions and random moves",
        compute_share_against_versions,
        _keep,
    ),
    "sweep": Case("sweeps/cartpole-ppo", "8 seeds", "return at the best lr", None, _keep),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Train and judge every case, and write the scores.

    Returns:
        Exit code.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.outcomes", description=__doc__)
    parser.add_argument("--cases", default=",".join(CASES), help="names, separated by commas")
    parser.add_argument("--out", type=Path, help="folder for the results")
    options = parser.parse_args(sys.argv[1:] if argv is None else list(argv))
    names = parse_names(parser, "--cases", options.cases, list(CASES))
    folder = options.out or machine.choose_results_folder(is_complete=True) / "scores" / SUITE
    for name in names:
        run_case(CASES[name], folder / FILE)
    return 0


def run_case(case: Case, path: Path) -> None:
    """Train and judge the missing seeds of a case, and add their scores to a file."""
    if case.judge is None:
        summary, cell = _load_cell(case, path)
        if not cell["scores"]:
            _write(path, summary, cell, *run_sweep(load_experiment(case.file)))
        return
    for seed in SEEDS:
        summary, cell = _load_cell(case, path)
        if str(seed) not in cell["scores"]:
            score, seconds = run_seed(case, case.judge, seed)
            _write(path, summary, cell, {str(seed): score}, seconds)


def run_seed(case: Case, judge: Judge, seed: int) -> tuple[float, float]:
    """Return the score of a seed, and the seconds of its training."""
    experiment = load_experiment(case.file)
    config = case.change(experiment.config).debugging(seed=seed, loggers=[])
    with config.build() as algorithm:
        begin = time.perf_counter()
        algorithm.fit(stop=experiment.stop)
        seconds = time.perf_counter() - begin
        return judge(algorithm), seconds


def run_sweep(experiment: Experiment) -> tuple[dict[str, float], float]:
    """Return the greedy returns of the seeds at the learning rate with the highest ones."""
    with experiment.config.debugging(loggers=[]).build() as sweep:
        begin = time.perf_counter()
        assert isinstance(sweep, Population)
        sweep.fit(stop=experiment.stop)
        seconds = time.perf_counter() - begin
        result = sweep.evaluate(num_episodes=100)
        found: dict[float, dict[str, float]] = {}
        for i, lane in enumerate(sweep.lanes):
            played = result["lanes"][i]["env_runners"]
            scores = found.setdefault(lane.values["lr"], {})
            scores[str(lane.config.debugging_settings.seed)] = float(played["episode_return_mean"])
    best = max(found, key=lambda lr: float(interquartile_mean([*found[lr].values()])))
    print(f"best lr: {best}", flush=True)
    return found[best], seconds


def _load_cell(case: Case, path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the summary and the case's cell in it, which is added if it is missing."""
    if path.is_file():
        summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    else:
        summary = {
            "suite": SUITE,
            "about": ABOUT,
            "command": "python -m benchmarks.outcomes",
            "machine": machine.describe(),
            "cells": [],
        }
    for cell in summary["cells"]:
        if (cell["file"], cell["entrant"]) == (case.file, case.label):
            return summary, cell
    cell = {
        "name": f"{case.file}--{case.label}",
        "file": case.file,
        "entrant": case.label,
        "environment": case.measured,
        "budget": int(load_experiment(case.file).stop[BUDGET]),
        "failure": None,
        "lost_seeds": {},
        "reference": None,
        "seconds": 0.0,
        "scores": {},
    }
    summary["cells"].append(cell)
    return summary, cell


def _write(
    path: Path,
    summary: dict[str, Any],
    cell: dict[str, Any],
    scores: Mapping[str, float],
    seconds: float,
) -> None:
    cell["scores"].update(scores)
    cell["seconds"] = round(cell["seconds"] + seconds, 1)
    if len(cell["scores"]) >= len(SEEDS):  # before that, the page has no row
        values = [*cell["scores"].values()]
        cell["return"] = estimate_iqm(values).to_data()
        cell["min"] = min(values)
    summary["date"] = datetime.datetime.now(datetime.UTC).date().isoformat()
    print(f"{cell['name']}: {scores} in {seconds:.0f} s", flush=True)
    write_json(path, summary)


if __name__ == "__main__":
    sys.exit(main())
