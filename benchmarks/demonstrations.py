"""Environment steps to a return, with and without demonstrations: `python -m benchmarks.demonstrations`.

A shipped config that mixes recorded rows with its own steps (RLPD, DQfD) is trained beside the config
of the same task without them, with five seeds each, until 20 greedy episodes reach the threshold.
`settings` is the first one without its recorded rows, if it differs from the second in more than these.
Results are written after every run, and runs that are in the file are not repeated.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import machine
from benchmarks.commands import parse_names, write_json
from jaxrl.config.load import load_config
from jaxrl.datasets.make import make_missing
from jaxrl.sweeps.statistics import interquartile_mean

SEEDS = tuple(range(5))
NUM_EVALUATED = 20
FILE = "demonstrations.json"
WITHOUT, SETTINGS, WITH = "without", "settings", "with"


class Task(NamedTuple):
    """Task with and without demonstrations.

    Attributes:
        demonstrated: Shipped config that learns from recorded rows, too.
        plain: Shipped config of the same task that does not.
        num_steps: Steps of its budget.
        threshold: Greedy return that it reaches within them.
        interval: Steps between two evaluations.
        has_own_settings: Whether the first config differs from the second in more than its rows.
    """

    demonstrated: str
    plain: str
    num_steps: int
    threshold: float
    interval: int
    has_own_settings: bool

    @property
    def cases(self) -> tuple[str, ...]:
        """Names of what is compared."""
        return (WITHOUT, SETTINGS, WITH) if self.has_own_settings else (WITHOUT, WITH)


TASKS: dict[str, Task] = {
    "pendulum": Task("offline/pendulum-sac", "classic/pendulum-sac", 20_000, -250.0, 250, True),
    "acrobot": Task("offline/acrobot-dqn", "classic/acrobot-dqn", 100_000, -85.0, 2000, False),
    "mountaincar": Task(
        "offline/mountaincar-dqn", "classic/mountaincar-dqn", 120_000, -110.0, 2000, False
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Count the steps of every case and seed, and write them.

    Returns:
        Exit code.
    """
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.demonstrations", description=__doc__
    )
    parser.add_argument("--tasks", default=",".join(TASKS), help="names, separated by commas")
    parser.add_argument("--out", type=Path, help="folder for the results")
    options = parser.parse_args(sys.argv[1:] if argv is None else list(argv))
    names = parse_names(parser, "--tasks", options.tasks, list(TASKS))
    folder = options.out or machine.choose_results_folder(is_complete=True) / "scores"
    for name in names:
        run_task(name, folder / FILE)
    return 0


def run_task(name: str, path: Path) -> None:
    """Count the steps of every case and seed of a task, and add them to a file."""
    task = TASKS[name]
    make_missing(load_config(task.demonstrated), print)
    for case in task.cases:
        for seed in SEEDS:
            results: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
            entry = results.setdefault(name, {**task._asdict(), "steps": {}})
            found = entry["steps"].setdefault(case, {})
            if str(seed) in found:
                continue
            found[str(seed)] = count_steps(task, case, seed)
            print(f"{name}, {case}, seed {seed}: {found[str(seed)]} steps", flush=True)
            write_json(path, results)


def count_steps(task: Task, case: str, seed: int) -> int:
    """Return the environment steps until greedy episodes reach the threshold, or of the budget."""
    config = load_config(task.plain if case == WITHOUT else task.demonstrated)
    config.debugging(seed=seed, loggers=[])
    config.evaluation(evaluation_interval=None, evaluation_config={"explore": False})
    config.reporting(min_sample_timesteps_per_iteration=task.interval)
    if case == SETTINGS:
        config.offline_data(input_="sampler")
    steps = 0
    with config.build() as algorithm:
        while steps < task.num_steps:
            algorithm.train()
            steps = int(algorithm.state.progress.env_steps)
            played = algorithm.evaluate(num_episodes=NUM_EVALUATED)["env_runners"]
            if played["episode_return_mean"] >= task.threshold:
                break
    return steps


def compute_means(steps: Mapping[str, Mapping[str, int]]) -> dict[str, float]:
    """Return the interquartile mean of the steps of each case."""
    return {
        case: float(interquartile_mean([float(x) for x in found.values()]))
        for case, found in steps.items()
    }


if __name__ == "__main__":
    sys.exit(main())
