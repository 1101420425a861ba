"""Process that runs a cell with jaxrl: `python -m jaxrl.bench.cell JOB`.

The seeds are lanes of one program if the environment is compiled, and consecutive runs if it is
stepped on the host. A killed process resumes from its last save.
"""

import dataclasses
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from jaxrl.algorithm import Algorithm, Result
from jaxrl.assembly.assemble import assemble
from jaxrl.bench.job import Clock, Curve, Job, describe_process, describe_run, report_progress
from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.imports import Trust
from jaxrl.config.serialize import deserialize_config
from jaxrl.datasets.make import make_missing
from jaxrl.metrics import ENV_RUNNERS
from jaxrl.runs import results
from jaxrl.runs.checkpoint import SWEEP_FILE, list_checkpoints
from jaxrl.runs.run_folder import RunFolder
from jaxrl.runtime import files
from jaxrl.runtime.process import prepare_process
from jaxrl.sweeps.population import Population

SAVE_INTERVAL_S = float(os.environ.get("JAXRL_BENCHMARK_SAVE_EVERY_S", "60"))
PACKAGES = ("jaxrl", "jax", "flax", "optax")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job in a file and return the exit code."""
    job = Job.read((sys.argv[1:] if argv is None else argv)[0])
    settings, trust = dict(job.settings or {}), Trust(everything=True)
    config = cast("AlgorithmConfig", deserialize_config(settings, trust=trust))
    config.debugging(loggers=[], results_dir=job.folder)
    config.checkpointing(checkpoint_frequency=0, checkpoint_at_end=False, max_to_keep=1)
    config.evaluation(evaluation_interval=None, custom_evaluation_function=None)
    make_missing(config, print)
    prepare_process(config)
    if assemble(config.copy(copy_frozen=False)).is_in_graph:
        _run(job, _LaneRuns(job, config))
    else:
        for seed in job.find_missing_seeds():
            _run(job, _SingleRun(job, config, seed))
    return 0


def get_return_key(job: Job) -> str:
    """Return the path of the return that counts, in the result of an iteration or evaluation."""
    if job.module:
        return f"{ENV_RUNNERS}/module_episode_returns_mean/{job.module}"
    return results.RETURN_MEAN


class Runs(Protocol):
    """One run, or several as lanes of a program.

    Attributes:
        seeds: Seeds of the runs.
        folder: Folder in which the runs are saved.
        trainer: Algorithm or population that trains them.
    """

    seeds: list[int]
    folder: Path

    @property
    def trainer(self) -> Algorithm | Population: ...

    def is_saved(self) -> bool: ...

    def restore(self) -> int: ...

    def start(self) -> None: ...

    def split_results(self, result: Result) -> Mapping[int, Result]: ...

    def evaluate(self, episodes: int) -> Mapping[int, Result]: ...

    def get_failures(self) -> Mapping[int, str]: ...


class _LaneRuns:
    """All seeds of a job as lanes of one program."""

    def __init__(self, job: Job, config: AlgorithmConfig) -> None:
        self.seeds, self.folder = list(job.seeds), Path(job.folder) / "lanes"
        self._config = config.debugging(run_name="lanes").sweep(seeds=list(job.seeds))
        self.trainer: Any = None

    def is_saved(self) -> bool:
        return (self.folder / SWEEP_FILE).is_file()

    def restore(self) -> int:
        folder = RunFolder.open(self.folder)
        self.trainer = Population.from_checkpoint(self.folder, run_folder=folder, trust=True)
        return self.trainer.iteration

    def start(self) -> None:
        self.trainer = Population(self._config)

    def split_results(self, result: Result) -> Mapping[int, Result]:
        return {self.seeds[i]: lane for i, lane in result["lanes"].items()}

    def evaluate(self, episodes: int) -> Mapping[int, Result]:
        return self.split_results(self.trainer.evaluate(num_episodes=episodes))

    def get_failures(self) -> Mapping[int, str]:
        return {self.seeds[i]: why for i, why in self.trainer.diverged.items()}


class _SingleRun:
    """One seed of a job, for an environment that is stepped on the host."""

    def __init__(self, job: Job, config: AlgorithmConfig, seed: int) -> None:
        self.seeds, self.folder = [seed], Path(job.folder) / f"run_{seed}"
        self._config = config.copy().debugging(run_name=self.folder.name, seed=seed)
        self.trainer: Any = None

    def is_saved(self) -> bool:
        return bool(list_checkpoints(self.folder / "checkpoints"))

    def restore(self) -> int:
        folder = RunFolder.open(self.folder)
        newest = str(list_checkpoints(folder.checkpoints)[-1])
        self.trainer = Algorithm.from_checkpoint(newest, run_folder=folder, trust=True)
        return self.trainer.iteration

    def start(self) -> None:
        self.trainer = self._config.build()

    def split_results(self, result: Result) -> Mapping[int, Result]:
        return {self.seeds[0]: result}

    def evaluate(self, episodes: int) -> Mapping[int, Result]:
        return {self.seeds[0]: self.trainer.evaluate(num_episodes=episodes)}

    def get_failures(self) -> Mapping[int, str]:
        return {}


class _ProgressTracker:
    """Learning curves and times of the runs, saved beside their checkpoints."""

    def __init__(self, job: Job, runs: Runs) -> None:
        self._job, self._runs = job, runs
        self._file = runs.folder.parent / f"{runs.folder.name}.progress.json"
        self.compile_s = 0.0
        self.resumed_at: list[int] = []
        """Iterations from which the runs were resumed."""
        self.curves = {seed: Curve() for seed in runs.seeds}
        self._clock, self._saved_at = Clock(), 0.0

    def restore(self, iteration: int) -> None:
        """Restore the data up to the iteration at which the runs were saved."""
        data = json.loads(self._file.read_text(encoding="utf-8"))
        self.curves = {
            int(seed): Curve(**curve).truncate(iteration) for seed, curve in data["curves"].items()
        }
        self.compile_s = data["compile_s"]
        self.resumed_at = [*data["resumed_at"], iteration]
        last = max((x for curve in self.curves.values() for x in curve.seconds), default=0.0)
        self._clock = Clock(last + self.compile_s)

    @property
    def seconds(self) -> float:
        """Seconds of training, excluding compilation."""
        return self._clock() - self.compile_s

    def __call__(self, result: Result) -> None:
        by_seed = self._runs.split_results(result)
        self.compile_s += sum(
            results.get_number(run, "timers/compile_s") or 0.0 for run in by_seed.values()
        )
        steps, means = 0, []
        for seed, run in by_seed.items():
            steps = results.get_steps(run)
            mean = results.get_number(run, get_return_key(self._job))
            if mean is not None:
                iteration = int(run[results.ITERATION])
                self.curves[seed].add(steps, mean, round(self.seconds, 3), iteration)
                means.append(mean)
        mean = sum(means) / len(means) if means else None
        report_progress(
            seeds=self._runs.seeds, steps=steps, budget=self._job.budget, return_mean=mean
        )
        if self._clock() - self._saved_at > SAVE_INTERVAL_S:
            self.save()

    def save(self) -> None:
        """Save the curves, then the runs; a resume drops points later than the saved runs."""
        data = {
            "curves": {seed: dataclasses.asdict(curve) for seed, curve in self.curves.items()},
            "compile_s": self.compile_s,
            "resumed_at": self.resumed_at,
        }
        with files.open_atomic(self._file) as file:
            json.dump(data, file)
        self._runs.trainer.save()
        self._saved_at = self._clock()


def _run(job: Job, runs: Runs) -> None:
    """Train for the budget, evaluate, and write an outcome per run."""
    progress = _ProgressTracker(job, runs)
    if runs.is_saved():
        progress.restore(runs.restore())
    else:
        runs.start()
    with runs.trainer as trained:
        unit = results.TRAINED_STEPS if trained.config.is_offline else results.ENV_STEPS
        trained.fit({unit: job.budget}, on_iteration=progress)
        seconds = progress.seconds
        evaluations = runs.evaluate(job.episodes)
    devices = [device.device_kind for device in trained.devices]
    shared = {
        **describe_process(seconds, progress.compile_s, PACKAGES, devices, len(runs.seeds)),
        "resumed_at": progress.resumed_at,
    }
    for seed, why in runs.get_failures().items():
        job.write_outcome(seed, {**shared, "failure": why})
    for seed, evaluation in evaluations.items():
        curve, score = progress.curves[seed], results.get_number(evaluation, get_return_key(job))
        if score is None:
            job.write_outcome(seed, {**shared, "failure": "no episode ended in the evaluation"})
            continue
        steps = curve.steps[-1] if curve.steps else job.budget
        job.write_outcome(seed, {**shared, **describe_run(curve, score, steps)})


if __name__ == "__main__":
    sys.exit(main())
