"""The process that runs a cell of jaxrl's own: `python -m jaxrl.bench.cell JOB`.

All seeds are lanes of one program where the environment is compiled, and one run after another
where it is stepped on the host. A process that is killed goes on where it last saved.
"""

import dataclasses
import json
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from jaxrl.algorithm import Algorithm, Result
from jaxrl.assembly.assemble import assemble
from jaxrl.bench.job import Clock, Curve, Job, peak_memory_gib, say
from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.deserialize import config_from_serializable
from jaxrl.config.imports import Trust
from jaxrl.runs import files, results
from jaxrl.runs.checkpoint import complete_checkpoints
from jaxrl.runs.run_folder import RunFolder
from jaxrl.runtime.process import prepare_process
from jaxrl.sweeps.population import Population
from jaxrl.sweeps.state import SWEEP_FILE

SAVE_EVERY_S = float(os.environ.get("JAXRL_BENCHMARK_SAVE_EVERY_S", "60"))
PACKAGES = ("jaxrl", "jax", "flax", "optax")


def main(argv: Sequence[str] | None = None) -> int:
    """Run what a job's file says; the exit code."""
    job = Job.read((sys.argv[1:] if argv is None else argv)[0])
    config = config_from_serializable(dict(job.settings or {}), trust=Trust(everything=True))
    config.debugging(loggers=[], results_dir=job.folder)
    config.checkpointing(checkpoint_frequency=0, checkpoint_at_end=False, max_to_keep=1)
    config.evaluation(evaluation_interval=None)
    prepare_process(config)
    if assemble(config.copy(copy_frozen=False)).in_graph:
        _run(job, _Lanes(job, config))
    else:
        for seed in job.missing():
            _run(job, _Alone(job, config, seed))
    return 0


class Runs(Protocol):
    """One run, or several as lanes.

    Attributes:
        seeds: Of the runs.
        folder: Where they are saved.
        trained: What trains them.
    """

    seeds: list[int]
    folder: Path
    trained: Any

    def saved(self) -> bool: ...

    def restore(self) -> int: ...

    def start(self) -> None: ...

    def results(self, result: Result) -> Mapping[int, Result]: ...

    def evaluated(self, episodes: int) -> Mapping[int, Result]: ...

    def failures(self) -> Mapping[int, str]: ...


class _Lanes:
    """All seeds of a job as lanes of one program."""

    def __init__(self, job: Job, config: AlgorithmConfig) -> None:
        self.seeds, self.folder = list(job.seeds), Path(job.folder) / "lanes"
        self._config = config.debugging(run_name="lanes").sweep(seeds=list(job.seeds))
        self.trained: Any = None

    def saved(self) -> bool:
        return (self.folder / SWEEP_FILE).is_file()

    def restore(self) -> int:
        folder = RunFolder.open(self.folder)
        self.trained = Population.from_checkpoint(self.folder, run_folder=folder, trust=True)
        return self.trained.iteration

    def start(self) -> None:
        self.trained = Population(self._config)

    def results(self, result: Result) -> Mapping[int, Result]:
        return {self.seeds[i]: one for i, one in result["lanes"].items()}

    def evaluated(self, episodes: int) -> Mapping[int, Result]:
        return self.results(self.trained.evaluate(num_episodes=episodes))

    def failures(self) -> Mapping[int, str]:
        return {self.seeds[i]: why for i, why in self.trained.diverged.items()}


class _Alone:
    """One seed of a job, for an environment on the host."""

    def __init__(self, job: Job, config: AlgorithmConfig, seed: int) -> None:
        self.seeds, self.folder = [seed], Path(job.folder) / f"run_{seed}"
        self._config = config.copy().debugging(run_name=self.folder.name, seed=seed)
        self.trained: Any = None

    def saved(self) -> bool:
        return bool(complete_checkpoints(self.folder / "checkpoints"))

    def restore(self) -> int:
        folder = RunFolder.open(self.folder)
        newest = str(complete_checkpoints(folder.checkpoints)[-1])
        self.trained = Algorithm.from_checkpoint(newest, run_folder=folder, trust=True)
        return self.trained.iteration

    def start(self) -> None:
        self.trained = self._config.build()

    def results(self, result: Result) -> Mapping[int, Result]:
        return {self.seeds[0]: result}

    def evaluated(self, episodes: int) -> Mapping[int, Result]:
        return {self.seeds[0]: self.trained.evaluate(num_episodes=episodes)}

    def failures(self) -> Mapping[int, str]:
        return {}


class _Progress:
    """What has been seen of the runs, kept beside their checkpoints."""

    def __init__(self, job: Job, runs: Runs) -> None:
        self._job, self._runs = job, runs
        self._file = runs.folder.parent / f"{runs.folder.name}.progress.json"
        self.compile_s = 0.0
        self.resumed_at: list[int] = []
        """The iterations from which the runs went on after a kill."""
        self.curves = {seed: Curve() for seed in runs.seeds}
        self._clock, self._saved_at = Clock(), 0.0

    def restore(self, iteration: int) -> None:
        """What had been seen until the iteration at which the runs were saved."""
        data = json.loads(self._file.read_text(encoding="utf-8"))
        self.curves = {
            int(seed): Curve(**curve).until(iteration) for seed, curve in data["curves"].items()
        }
        self.compile_s = data["compile_s"]
        self.resumed_at = [*data["resumed_at"], iteration]
        last = max((x for curve in self.curves.values() for x in curve.seconds), default=0.0)
        self._clock = Clock(last + self.compile_s)

    @property
    def seconds(self) -> float:
        """Training, without compiling."""
        return self._clock() - self.compile_s

    def __call__(self, result: Result) -> None:
        found = self._runs.results(result)
        self.compile_s += sum(results.number(r, "timers/compile_s") or 0.0 for r in found.values())
        steps, means = 0, []
        for seed, one in found.items():
            steps = results.env_steps(one)
            mean = results.number(one, results.RETURN_MEAN)
            if mean is not None:
                iteration = int(one[results.ITERATION])
                self.curves[seed].add(steps, mean, round(self.seconds, 3), iteration)
                means.append(mean)
        mean = sum(means) / len(means) if means else None
        say(seeds=self._runs.seeds, steps=steps, budget=self._job.budget, return_mean=mean)
        if self._clock() - self._saved_at > SAVE_EVERY_S:
            self.save()

    def save(self) -> None:
        """Save what was seen of the runs, then the runs: what they do not reach is forgotten."""
        data = {
            "curves": {seed: dataclasses.asdict(curve) for seed, curve in self.curves.items()},
            "compile_s": self.compile_s,
            "resumed_at": self.resumed_at,
        }
        with files.replacing(self._file) as file:
            json.dump(data, file)
        self._runs.trained.save()
        self._saved_at = self._clock()


def _run(job: Job, runs: Runs) -> None:
    """Train to the budget, evaluate, and leave an outcome of every run."""
    progress = _Progress(job, runs)
    if runs.saved():
        progress.restore(runs.restore())
    else:
        runs.start()
    with runs.trained as trained:
        trained.fit({results.ENV_STEPS: job.budget}, on_iteration=progress)
        seconds = progress.seconds
        evaluated = runs.evaluated(job.episodes)
    shared = {
        "seconds": seconds,
        "compile_s": progress.compile_s,
        "memory_gib": peak_memory_gib(),
        "num_lanes": len(runs.seeds),
        "resumed_at": progress.resumed_at,
        "devices": [device.device_kind for device in trained.devices],
        "versions": {name: version(name) for name in PACKAGES},
    }
    for seed, why in runs.failures().items():
        job.write_outcome(seed, {**shared, "failure": why})
    for seed, found in evaluated.items():
        curve, score = progress.curves[seed], results.number(found, results.RETURN_MEAN)
        if score is None:
            job.write_outcome(seed, {**shared, "failure": "no episode ended in its evaluation"})
            continue
        job.write_outcome(
            seed,
            {
                **shared,
                "evaluated": score,
                "env_steps": curve.steps[-1] if curve.steps else job.budget,
                "curve": curve.to_data(),
            },
        )


if __name__ == "__main__":
    sys.exit(main())
