"""Jobs of benchmark processes, their outcomes as JSON files, and what is measured of them.

Uses the standard library alone, because peers in their own virtual environments import it too.
"""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

Outcome: TypeAlias = Mapping[str, Any]
"""Outcome of a run: `curve`, `evaluated`, `seconds`, `compile_s`, `memory_gib`, ..."""


def get_final_return(outcome: Outcome) -> float:
    """Return the mean return of the final evaluation, which acts greedily."""
    return float(outcome["evaluated"])


def get_training_return(outcome: Outcome) -> float | None:
    """Return the last mean return of training episodes; None if none has ended."""
    returns = outcome["curve"]["returns"]
    return returns[-1] if returns else None


def find_threshold_crossing(outcome: Outcome, threshold: float | None, unit: str) -> float | None:
    """Return the steps or seconds at which the training return first reached a threshold."""
    curve = outcome["curve"]
    for value, reached in zip(curve["returns"], curve[unit], strict=True):
        if threshold is not None and value >= threshold:
            return reached
    return None


def compute_steps_per_second(outcome: Outcome) -> float:
    """Compute the throughput of all runs that share the process, excluding compilation."""
    return outcome["num_lanes"] * outcome["env_steps"] / outcome["seconds"]


METRICS: Mapping[str, str] = {
    "return": "return (IQM)",
    "training_return": "training return (IQM)",
    "threshold": "learned (threshold)",
    "reference": "reference",
    "steps_to_threshold": "steps to threshold",
    "seconds_to_threshold": "seconds to threshold",
    "seconds": "seconds",
    "steps_per_second": "steps/s",
    "compile_s": "seconds to compile",
    "memory_gib": "memory GiB",
}
"""Column headings of the metrics that a suite can select, by name."""

PROCESS_METRICS: Mapping[str, Callable[[Outcome], float]] = {
    "seconds": lambda outcome: float(outcome["seconds"]),
    "steps_per_second": compute_steps_per_second,
    "compile_s": lambda outcome: float(outcome["compile_s"]),
    "memory_gib": lambda outcome: float(outcome["memory_gib"]),
}
"""Metrics that are the same for every seed of a process."""


def thin(values: Sequence[Any], number: int) -> list[Any]:
    """Return at most `number` evenly spaced values, including the last one."""
    stride = -(-len(values) // number)
    return [*values[::-1][::stride]][::-1] if stride > 1 else list(values)


MAX_CURVE_POINTS = 500
"""Maximum number of points of a learning curve in an outcome; a figure shows fewer."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """Runs of one algorithm on one environment that differ only in their seeds.

    Args:
        entrant: Name of the algorithm in the report.
        peer: System that runs it: "jaxrl", or the name of a peer's folder.
        environment: Id of the environment in jaxrl.
        algorithm: Name of the algorithm in jaxrl.
        settings: Complete jaxrl config as written by `serialize_config`; a peer applies those of
            its `settings` that it supports. None makes a peer use its recommended settings.
        budget: Environment steps per run.
        seeds: Seeds of the runs.
        episodes: Episodes of the evaluation at the end of each run.
        module: Module whose returns count, of several agents; "" for the sum of all agents.
        folder: Folder for outcomes and for the state from which killed runs resume.
    """

    entrant: str
    peer: str
    environment: str
    algorithm: str
    settings: Mapping[str, Any] | None
    budget: int
    seeds: tuple[int, ...]
    episodes: int
    module: str = ""
    folder: str

    def describe(self) -> dict[str, Any]:
        """Return what outcomes depend on; an outcome with another description is not reused."""
        values = dataclasses.asdict(self)
        left_out = {"seeds", "folder", "entrant", *(() if self.module else ("module",))}
        return {name: values[name] for name in values if name not in left_out}

    def get_outcome_path(self, seed: int) -> Path:
        """Return the path of the outcome of a seed."""
        return Path(self.folder) / f"seed_{seed}.json"

    def find_missing_seeds(self) -> list[int]:
        """Return the seeds without an outcome of this job."""
        return [seed for seed in self.seeds if self.read_outcome(seed) is None]

    def read_outcome(self, seed: int) -> dict[str, Any] | None:
        """Return the outcome of a seed; None if it has not ended or belongs to another job."""
        try:
            outcome = json.loads(self.get_outcome_path(seed).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        is_match = isinstance(outcome, dict) and outcome.get("job") == self.describe()
        return outcome if is_match else None

    def write_outcome(self, seed: int, outcome: Mapping[str, Any]) -> None:
        """Write the outcome of a run atomically."""
        path = self.get_outcome_path(seed)
        part = path.with_suffix(".part")
        text = json.dumps({"job": self.describe(), "seed": seed, **outcome}, indent=1)
        part.write_text(text + "\n", encoding="utf-8")
        os.replace(part, path)

    @staticmethod
    def read(path: str | os.PathLike[str]) -> Job:
        """Read a job from its file."""
        values: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        values["seeds"] = tuple(values["seeds"])
        return Job(**values)


@dataclasses.dataclass
class Curve:
    """Learning curve of a run and its cost in seconds, collected during the run."""

    steps: list[int] = dataclasses.field(default_factory=list)
    returns: list[float] = dataclasses.field(default_factory=list)
    seconds: list[float] = dataclasses.field(default_factory=list)
    """Seconds since the start, excluding compilation."""
    iterations: list[int] = dataclasses.field(default_factory=list)
    """Iterations of jaxrl's runs, at which the curve of a resumed run is cut."""

    def add(self, steps: int, mean_return: float, seconds: float, iteration: int = 0) -> None:
        """Add a point: the mean return of recent training episodes."""
        self.iterations.append(iteration)
        self.steps.append(steps)
        self.returns.append(mean_return)
        self.seconds.append(seconds)

    def truncate(self, iteration: int) -> Curve:
        """Return the points up to an iteration."""
        count = sum(i <= iteration for i in self.iterations)
        values = dataclasses.asdict(self)
        return Curve(**{name: points[:count] for name, points in values.items()})

    def to_data(self) -> dict[str, list[Any]]:
        """Return the data for an outcome: a limited number of points, including the last."""
        data = {"steps": self.steps, "returns": self.returns, "seconds": self.seconds}
        return {name: thin(points, MAX_CURVE_POINTS) for name, points in data.items()}


def report_progress(**progress: object) -> None:
    """Report progress to the benchmark: `steps` of `budget`, and the latest `return_mean`."""
    sys.stdout.write(json.dumps(progress) + "\n")
    sys.stdout.flush()


def get_peak_memory_gib() -> float:
    """Return the peak memory of this process in GiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**30 if sys.platform == "darwin" else 2**20)


def describe_process(
    seconds: float,
    compile_s: float,
    packages: Sequence[str],
    devices: Sequence[str],
    num_lanes: int = 1,
) -> dict[str, Any]:
    """Return the fields of an outcome that describe the process.

    Args:
        seconds: Seconds of training, without compilation.
        compile_s: Seconds of compilation.
        packages: Packages whose versions are recorded.
        devices: Devices that the peer computes on.
        num_lanes: Number of runs in the process.
    """
    return {
        "seconds": seconds,
        "compile_s": compile_s,
        "memory_gib": get_peak_memory_gib(),
        "num_lanes": num_lanes,
        "devices": list(devices),
        "versions": {name: version(name) for name in packages},
    }


def describe_run(curve: Curve, evaluated: float, env_steps: int) -> dict[str, Any]:
    """Return the fields of an outcome that describe one run."""
    return {"evaluated": evaluated, "env_steps": env_steps, "curve": curve.to_data()}


class Clock:
    """Clock of the seconds since its creation plus those of earlier processes of the same run."""

    def __init__(self, before: float = 0.0) -> None:
        self._start = time.perf_counter() - before

    def __call__(self) -> float:
        return time.perf_counter() - self._start
