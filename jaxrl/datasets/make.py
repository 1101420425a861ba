"""Recorded data of five qualities, from shipped configs.

The shipped config of a task is trained, and its folder has the data sets of
`jaxrl.config.datasets.QUALITIES`. Policies are recorded as they explore. Nothing is downloaded: the
same seed makes the same data on the same machine.
"""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from filelock import FileLock

import jaxrl
from jaxrl.algorithm import Algorithm
from jaxrl.config.base import get_algorithm_config
from jaxrl.config.datasets import (
    FOLDER_VARIABLE,
    PREFIX,
    QUALITIES,
    RECORD,
    TASKS,
    DatasetTask,
    is_made,
    iter_sources,
    resolve_datasets_dir,
    split_name,
)
from jaxrl.config.load import load_experiment
from jaxrl.config.registry import find_shipped_config
from jaxrl.core.types import Columns
from jaxrl.datasets.record import read_record
from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import DataError
from jaxrl.offline.manifest import ReferenceReturns, record_reference
from jaxrl.offline.recorded import RecordedData, open_data
from jaxrl.offline.writer import EpisodeWriter
from jaxrl.runtime.files import open_atomic, translate_os_errors

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig
    from jaxrl.config.config import Config

MIXED_SHARE = 0.1
"""Share of the expert's steps in `mixed`."""
NUM_EVALUATED = 50
"""Episodes per evaluation."""
NUM_ENVS = 16
"""Environments that a policy is recorded in, side by side."""
DEFAULT_NUM_ROWS = 100_000

OnProgress = Callable[[str], None]


class _Checkpoint(NamedTuple):
    """Policy of a run, and its mean greedy return."""

    score: float
    num_env_steps: int
    path: str


def make_missing(config: "Config", on_progress: OnProgress) -> None:
    """Make the data sets that a config learns from, each in a process of its own.

    Args:
        config: Config of a run.
        on_progress: Callback for a sentence about each.

    Raises:
        DataError: If a data set cannot be made.
        UnknownNameError: If there is no data set of a name.
    """
    for source in iter_sources(config.offline_data_settings.input_):
        name = source.removeprefix(PREFIX)
        task, _ = split_name(name)
        if is_made(task):
            continue
        on_progress(f"the data set {name} is made first, once, from {TASKS[task].config}")
        root = str(Path(jaxrl.__file__).parent.parent)
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        command = [sys.executable, "-m", "jaxrl", "datasets", "make", name]
        done = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}, check=False
        )
        if done.returncode:
            raise DataError(
                f"The data set {name!r} could not be made: 'jaxrl datasets make {name}' ended with "
                f"exit code {done.returncode}."
            )


def make_datasets(
    task: str,
    folder: str | os.PathLike[str] | None = None,
    *,
    num_rows: int = DEFAULT_NUM_ROWS,
    seed: int = 0,
    recipe: DatasetTask | None = None,
    on_progress: OnProgress = lambda text: None,
) -> dict[str, Any]:
    """Make the data sets of a task, unless they are there, and return what their record says.

    Args:
        task: Name of the task.
        folder: Folder of all data sets; None for the default one.
        num_rows: Steps of each data set but `replay`.
        seed: Seed of the run and of all recordings.
        recipe: What is trained; None for the task's.
        on_progress: Callback for a sentence about each step.

    Raises:
        DataError: If others are there, with another number of rows or another seed.
        RunFolderError: If the folder cannot be written.
    """
    root = resolve_datasets_dir(folder)
    wanted = {"config": (recipe or TASKS[task]).config, "num_rows": num_rows, "seed": seed}
    hint = f"free space there, or choose another place with --out or {FOLDER_VARIABLE}"
    with contextlib.ExitStack() as stack:
        stack.enter_context(translate_os_errors("make data sets in", root, hint))
        root.mkdir(parents=True, exist_ok=True)
        stack.enter_context(FileLock(root / f".{task}.lock"))
        if is_made(task, root):
            record = read_record(root / task)
            found = {name: record[name] for name in wanted}
            if found != wanted:
                raise DataError(
                    f"{root / task} has data of {_describe_recipe(found)}, not of "
                    f"{_describe_recipe(wanted)}: name another folder by --out, or remove that one."
                )
            on_progress(f"{root / task} is complete")
            return record
        if (root / task).exists():
            raise DataError(
                f"{root / task} is not complete, it has no {RECORD}: remove it, or name another folder "
                "by --out."
            )
        with tempfile.TemporaryDirectory(dir=root, prefix=f".{task}-") as temporary:
            made = Path(temporary) / task
            record = wanted | _make(recipe or TASKS[task], made, num_rows, seed, on_progress)
            with open_atomic(made / RECORD) as file:
                file.write(json.dumps(record, indent=2) + "\n")
            os.rename(made, root / task)
    return record


def _describe_recipe(recipe: Mapping[str, Any]) -> str:
    return f"{recipe['num_rows']:,} rows by seed {recipe['seed']} of {recipe['config']}"


def _make(
    recipe: DatasetTask, folder: Path, num_rows: int, seed: int, on_progress: OnProgress
) -> dict[str, Any]:
    """Make the data sets of a task in a new folder, and return their returns and sizes."""
    on_progress(f"recording {num_rows:,} random steps")
    random_score = _record_random(recipe, folder / "random", num_rows, seed)
    with tempfile.TemporaryDirectory(prefix="jaxrl-datasets-") as temporary:
        on_progress(f"training {recipe.config} for {recipe.num_steps:,} steps")
        checkpoints = list(_train(recipe, Path(temporary), seed))
        expert = checkpoints[-1]
        if not expert.score > random_score:
            raise DataError(
                f"{recipe.config} has a return of {expert.score:.4g} after {recipe.num_steps:,} steps, "
                f"and random actions {random_score:.4g}: train for longer, or with another --seed."
            )
        half = random_score + 0.5 * (expert.score - random_score)
        medium = next(each for each in checkpoints if each.score >= half)
        for name, checkpoint in (("medium", medium), ("expert", expert)):
            on_progress(f"recording {num_rows:,} steps of {name}")
            with Algorithm.from_checkpoint(checkpoint.path) as algorithm:
                algorithm.record(folder / name, num_steps=num_rows, num_envs=NUM_ENVS, seed=seed)
    on_progress(f"recording the first {medium.num_env_steps:,} steps of the training")
    _record_training(recipe, folder / "replay", medium.num_env_steps, seed)
    _mix(folder, num_rows)
    reference = ReferenceReturns(random=random_score, expert=expert.score)
    for name in QUALITIES:
        record_reference(folder / name, reference)
    greedy = {"random": random_score, "medium": medium.score, "expert": expert.score}
    return {
        "reference_returns": dataclasses.asdict(reference),
        "datasets": {
            name: _describe(open_data(folder / name), greedy.get(name)) for name in QUALITIES
        },
    }


def _make_config(recipe: DatasetTask, seed: int) -> "AlgorithmConfig":
    config = load_experiment(find_shipped_config(recipe.config)).config
    config.debugging(seed=seed, loggers=[])
    config.evaluation(evaluation_interval=None, evaluation_config={"explore": False})
    return config.reporting(min_sample_timesteps_per_iteration=recipe.interval)


def _record_random(recipe: DatasetTask, folder: Path, num_rows: int, seed: int) -> float:
    """Record random actions, and return the mean return of whole episodes of them."""
    env = _make_config(recipe, seed).environment_settings
    config = get_algorithm_config("RandomAgent").environment(env.env, env_config=env.env_config)
    with config.debugging(seed=seed, loggers=[]).build() as algorithm:
        algorithm.record(folder, num_steps=num_rows, num_envs=NUM_ENVS)
        played = algorithm.evaluate(num_episodes=NUM_EVALUATED)["env_runners"]
    return played["episode_return_mean"]


def _train(recipe: DatasetTask, folder: Path, seed: int) -> Iterator[_Checkpoint]:
    """Train a run, and yield a checkpoint after each evaluation."""
    config = _make_config(recipe, seed).debugging(results_dir=str(folder))
    config.checkpointing(max_to_keep=None)
    if "store_buffer_in_checkpoints" in config:
        config.update_from_dict({"store_buffer_in_checkpoints": False})
    with config.build() as algorithm:
        steps = 0
        while steps < recipe.num_steps:
            algorithm.train()
            steps = int(algorithm.state.progress.env_steps)
            played = algorithm.evaluate(num_episodes=NUM_EVALUATED)["env_runners"]
            path = algorithm.save(folder / str(steps))
            yield _Checkpoint(played["episode_return_mean"], steps, str(path))


def _record_training(recipe: DatasetTask, folder: Path, num_env_steps: int, seed: int) -> None:
    """Train the same run again, up to a number of steps, and record what it samples."""
    config = _make_config(recipe, seed).offline_data(output=str(folder))
    with (
        tempfile.TemporaryDirectory(prefix="jaxrl-datasets-") as temporary,
        config.debugging(results_dir=temporary).build() as algorithm,
    ):
        while int(algorithm.state.progress.env_steps) < num_env_steps:
            algorithm.train()


def _mix(folder: Path, num_rows: int) -> None:
    """Write episodes of the expert, and random ones, in their shares."""
    sources = [
        (open_data(folder / "expert"), MIXED_SHARE),
        (open_data(folder / "random"), 1.0 - MIXED_SHARE),
    ]
    first = sources[0][0]
    with EpisodeWriter(
        folder / "mixed",
        first.observation_space,
        first.action_space,
        env=first.origin.env,
        actions_are_normalized=first.actions_are_normalized,
        has_density=all(source.has_density for source, _ in sources),
    ) as writer:
        for source, share in sources:
            writer.add_parts(list(_take(source, round(share * num_rows))))


def _take(source: RecordedData, num_rows: int) -> Iterator[EpisodePart]:
    """Yield parts until they have a number of rows; the last one is cut."""
    for part in source.iter_parts():
        if num_rows <= 0:
            return
        if len(part) > num_rows:
            part, _ = part.split(num_rows)
        num_rows -= len(part)
        # Parameters of distributions differ in size between algorithms.
        extras = {name: x for name, x in part.extras.items() if name == Columns.ACTION_LOGP}
        yield dataclasses.replace(part, extras=extras)


def _describe(data: RecordedData, greedy: float | None) -> dict[str, Any]:
    assert data.counts is not None
    returns = data.counts.returns
    return {
        "num_steps": data.counts.num_steps,
        "num_episodes": data.counts.num_episodes,
        "mean_return": returns.mean if returns.num_episodes else None,
        "greedy_return": greedy,
        "fingerprint": data.get_fingerprint(),
    }
