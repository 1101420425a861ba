"""What the adapters of learning suites share: `python -m benchmarks.peers.<name>.learn JOB`.

Standard library only: every peer's environment imports it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from jaxrl.bench.job import Clock, Curve, Job, peak_memory_gib, say

POINTS = 100
"""Of a learning curve, at the least."""


class Run:
    """One seed of a job while it goes on.

    Args:
        job: The whole job.
        seed: Of this run.
    """

    def __init__(self, job: Job, seed: int) -> None:
        self.job, self.seed = job, seed
        self.curve, self.compile_s = Curve(), 0.0
        self.clock = Clock()

    @property
    def interval(self) -> int:
        """Environment steps between two points of the curve."""
        return max(1, self.job.budget // POINTS)

    def point(self, steps: int, mean_return: float | None) -> None:
        """How far the run is."""
        if mean_return is not None:
            self.curve.add(steps, float(mean_return), round(self.clock() - self.compile_s, 3))
        told = None if mean_return is None else float(mean_return)
        say(seed=self.seed, steps=steps, budget=self.job.budget, return_mean=told)


def main(
    train: Callable[[Run], Callable[[], float]], packages: tuple[str, ...], devices: list[str]
) -> None:
    """Run the missing seeds of the job that the command line names, one after another.

    Args:
        train: Trains to the budget, and returns what evaluates the policy: the mean return of
            `job.episodes` episodes by the most likely actions.
        packages: Whose versions are told.
        devices: What it computes on.
    """
    job = Job.read(sys.argv[1])
    for seed in job.missing():
        run = Run(job, seed)
        evaluate = train(run)
        seconds = run.clock() - run.compile_s
        shared = told(seconds, run.compile_s, packages, devices)
        steps = run.curve.steps[-1] if run.curve.steps else job.budget
        job.write_outcome(seed, {**shared, **scored(run.curve, float(evaluate()), steps)})


def told(
    seconds: float,
    compile_s: float,
    packages: Sequence[str],
    devices: Sequence[str],
    lanes: int = 1,
) -> dict[str, Any]:
    """What an outcome says of the process."""
    return {
        "seconds": seconds,
        "compile_s": compile_s,
        "memory_gib": peak_memory_gib(),
        "num_lanes": lanes,
        "devices": list(devices),
        "versions": {name: version(name) for name in packages},
    }


def scored(curve: Curve, evaluated: float, env_steps: int) -> dict[str, Any]:
    """What an outcome says of a run."""
    return {"evaluated": evaluated, "env_steps": env_steps, "curve": curve.to_data()}


def gymnasium_id(job: Job) -> str:
    """The environment's id as gymnasium knows it."""
    return job.environment.removeprefix("gymnasium:")


def settings_of(job: Job) -> dict[str, Any]:
    """The settings of jaxrl that a peer is to match, with infinities and tuples as Python has them."""
    assert job.settings is not None
    return {name: _plain(value) for name, value in job.settings["settings"].items()}


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    if "__float__" in value:
        return float(value["__float__"])
    if "__tuple__" in value:
        return tuple(_plain(item) for item in value["__tuple__"])
    return {key: _plain(item) for key, item in value.items()}


def schedule_points(value: Any) -> list[tuple[float, float]]:
    """A setting over environment steps: one point for a constant."""
    if isinstance(value, list):
        return [(float(step), float(y)) for step, y in value]
    return [(0.0, float(value))]


def interpolated(points: list[tuple[float, float]], step: float) -> float:
    """The value at a step; linear between the points."""
    before = points[0]
    for point in points:
        if point[0] > step:
            share = (step - before[0]) / (point[0] - before[0]) if step > before[0] else 0.0
            return before[1] + share * (point[1] - before[1])
        before = point
    return before[1]
