"""What one process of a benchmark is asked to do, and what it answers: JSON files.

Standard library only, because peers with an environment of their own import it too.
"""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxrl.bench.metrics import thinned

CURVE_POINTS = 500
"""Of a learning curve in an outcome; a picture shows fewer."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """Runs of one algorithm on one environment that differ in their seeds alone.

    Args:
        entrant: What the report calls the algorithm.
        peer: The system that runs it: "jaxrl", or a folder of peers.
        environment: Its id, as jaxrl writes it.
        algorithm: Its name, as jaxrl writes it.
        settings: jaxrl's whole config as `serializable_dict` writes it; a peer takes over what it
            has of its `settings`. None leaves a peer to what it recommends.
        budget: Environment steps of each run.
        seeds: Of the runs.
        episodes: Of the evaluation at the end of each run.
        folder: Where outcomes go, and what goes on after a kill.
    """

    entrant: str
    peer: str
    environment: str
    algorithm: str
    settings: Mapping[str, Any] | None
    budget: int
    seeds: tuple[int, ...]
    episodes: int
    folder: str

    def described(self) -> dict[str, Any]:
        """What outcomes depend on; one of another description is of no use."""
        values = dataclasses.asdict(self)
        return {name: values[name] for name in values if name not in ("seeds", "folder", "entrant")}

    def outcome_file(self, seed: int) -> Path:
        """Where the outcome of a seed is."""
        return Path(self.folder) / f"seed_{seed}.json"

    def missing(self) -> list[int]:
        """The seeds without an outcome of this very job."""
        return [seed for seed in self.seeds if self.outcome(seed) is None]

    def outcome(self, seed: int) -> dict[str, Any] | None:
        """What a run gave; None if it has not ended, or was of another job."""
        try:
            found = json.loads(self.outcome_file(seed).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        same = isinstance(found, dict) and found.get("job") == self.described()
        return found if same else None

    def write_outcome(self, seed: int, outcome: Mapping[str, Any]) -> None:
        """Leave a run's outcome; whole, or not at all."""
        path = self.outcome_file(seed)
        part = path.with_suffix(".part")
        text = json.dumps({"job": self.described(), "seed": seed, **outcome}, indent=1)
        part.write_text(text + "\n", encoding="utf-8")
        os.replace(part, path)

    @staticmethod
    def read(path: str | os.PathLike[str]) -> Job:
        """A job as its file has it."""
        values: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        values["seeds"] = tuple(values["seeds"])
        return Job(**values)


@dataclasses.dataclass
class Curve:
    """A run's learning curve and what it cost, collected while it goes on."""

    steps: list[int] = dataclasses.field(default_factory=list)
    returns: list[float] = dataclasses.field(default_factory=list)
    seconds: list[float] = dataclasses.field(default_factory=list)
    """Since the start, without compiling."""
    iterations: list[int] = dataclasses.field(default_factory=list)
    """Of jaxrl's runs, by which a run that goes on knows what it has seen."""

    def add(self, steps: int, mean_return: float, seconds: float, iteration: int = 0) -> None:
        """One more point; the mean return of recent training episodes."""
        self.iterations.append(iteration)
        self.steps.append(steps)
        self.returns.append(mean_return)
        self.seconds.append(seconds)

    def until(self, iteration: int) -> Curve:
        """The points up to an iteration."""
        number = sum(i <= iteration for i in self.iterations)
        values = dataclasses.asdict(self)
        return Curve(**{name: points[:number] for name, points in values.items()})

    def to_data(self) -> dict[str, list[Any]]:
        """As outcomes have it: at most so many points, evenly, and the last of them."""
        data = {"steps": self.steps, "returns": self.returns, "seconds": self.seconds}
        return {name: thinned(points, CURVE_POINTS) for name, points in data.items()}


def say(**progress: Any) -> None:
    """Tell the benchmark how far a run is: `steps` of `budget`, and the latest `return_mean`."""
    sys.stdout.write(json.dumps(progress) + "\n")
    sys.stdout.flush()


def peak_memory_gib() -> float:
    """The most memory that this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**30 if sys.platform == "darwin" else 2**20)


class Clock:
    """Seconds since it was made, and those of earlier processes of the same run."""

    def __init__(self, before: float = 0.0) -> None:
        self._begin = time.perf_counter() - before

    def __call__(self) -> float:
        return time.perf_counter() - self._begin
