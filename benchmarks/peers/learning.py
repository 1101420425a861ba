"""Common code of the adapters for learning suites: `python -m benchmarks.peers.<name>.learn JOB`.

Uses the standard library alone, because peers in their own virtual environments import it too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from jaxrl.bench.job import Clock, Curve, Job, describe_process, describe_run, report_progress

MIN_POINTS = 100
"""Minimum number of points of a learning curve."""


class Run:
    """One seed of a job during training.

    Args:
        job: Job with all seeds.
        seed: Seed of this run.
    """

    def __init__(self, job: Job, seed: int) -> None:
        self.job, self.seed = job, seed
        self.curve, self.compile_s = Curve(), 0.0
        self.clock = Clock()

    @property
    def interval(self) -> int:
        """Environment steps between points of the curve."""
        return max(1, self.job.budget // MIN_POINTS)

    def add_point(self, steps: int, mean_return: float | None) -> None:
        """Add a point to the curve, if there is a return, and report the progress."""
        if mean_return is not None:
            mean_return = float(mean_return)
            self.curve.add(steps, mean_return, round(self.clock() - self.compile_s, 3))
        report_progress(
            seed=self.seed, steps=steps, budget=self.job.budget, return_mean=mean_return
        )


def main(
    train: Callable[[Run], Callable[[], float]], packages: tuple[str, ...], devices: list[str]
) -> None:
    """Run the missing seeds of the job given on the command line, one after another.

    Args:
        train: Function that trains to the budget and returns an evaluation function, which returns
            the mean return of `job.episodes` greedy episodes.
        packages: Packages whose versions are recorded.
        devices: Devices that the peer computes on.
    """
    job = Job.read(sys.argv[1])
    for seed in job.find_missing_seeds():
        run = Run(job, seed)
        evaluate = train(run)
        seconds = run.clock() - run.compile_s
        shared = describe_process(seconds, run.compile_s, packages, devices)
        steps = run.curve.steps[-1] if run.curve.steps else job.budget
        job.write_outcome(seed, {**shared, **describe_run(run.curve, float(evaluate()), steps)})


def get_gymnasium_id(job: Job) -> str:
    """Return gymnasium's id of the environment."""
    return job.environment.removeprefix("gymnasium:")


def get_settings(job: Job) -> dict[str, Any]:
    """Return the settings of jaxrl that a peer must match, as Python values."""
    assert job.settings is not None
    return {name: _deserialize(value) for name, value in job.settings["settings"].items()}


def _deserialize(value: Any) -> Any:
    """Restore infinities and tuples from their encodings in JSON."""
    if isinstance(value, list):
        return [_deserialize(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    if "__float__" in value:
        return float(value["__float__"])
    if "__tuple__" in value:
        return tuple(_deserialize(item) for item in value["__tuple__"])
    return {key: _deserialize(item) for key, item in value.items()}


def get_schedule_points(value: Any) -> list[tuple[float, float]]:
    """Return the points `(step, value)` of a schedule; a constant has one point."""
    if isinstance(value, list):
        return [(float(step), float(y)) for step, y in value]
    return [(0.0, float(value))]
