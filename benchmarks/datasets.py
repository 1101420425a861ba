"""Recorded data of five qualities, from shipped configs: `python -m benchmarks.datasets`.

For each task a run of the shipped file is trained, and a folder has

- `random`: steps of uniformly random legal actions;
- `medium`: the policy when it first had half of the expert's score above random;
- `expert`: the policy at the end;
- `replay`: everything that the run sampled before it was medium, its oldest steps first;
- `mixed`: one part of `expert` and nine of `random`.

Policies are recorded as they explore. `scores.json` has the greedy return of each, for normalized
scores, and the digests of the data. Nothing is downloaded, and nothing is committed: the same seed
makes the same data on the same machine.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import machine
from benchmarks.commands import parse_names
from jaxrl import Algorithm, EpisodeWriter, RandomAgentConfig
from jaxrl.config.load import load_experiment
from jaxrl.episodes.packing import EpisodePart
from jaxrl.offline.recorded import RecordedData, open_data

MIXED_SHARE = 0.1
"""Share of the expert's steps in `mixed`."""
NUM_EVALUATED = 50
"""Episodes per evaluation."""


class Task(NamedTuple):
    """Task that data are made of.

    Attributes:
        config: Shipped file.
        num_steps: Environment steps until its policy is the expert.
        interval: Environment steps between two evaluations.
    """

    config: str
    num_steps: int
    interval: int


TASKS: dict[str, Task] = {
    "cartpole": Task("classic/cartpole-ppo", 500_000, 2048),
    "pendulum": Task("classic/pendulum-sac", 20_000, 500),
    "acrobot": Task("classic/acrobot-ppo", 1_000_000, 20_000),
    "breakout": Task("minatar/breakout-ppo", 10_000_000, 200_000),
    "freeway": Task("minatar/freeway-ppo", 10_000_000, 200_000),
}


class Checkpoint(NamedTuple):
    """Policy of a run, and its mean greedy return."""

    score: float
    num_env_steps: int
    path: str


def main(argv: Sequence[str] | None = None) -> int:
    """Make the data of each task, and print their sizes and scores.

    Returns:
        Exit code.
    """
    options = _parse(sys.argv[1:] if argv is None else list(argv))
    for name in options.tasks:
        folder = Path(options.out) / name
        scores = make_datasets(TASKS[name], folder, options.num_rows, options.seed, options.scale)
        print(f"{name}: {folder}")
        for quality, entry in scores.items():
            print(f"  {quality:8} {entry}")
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.datasets", description=__doc__)
    parser.add_argument("--out", default=str(machine.ROOT / ".benchmarks" / "datasets"))
    parser.add_argument("--tasks", default=",".join(TASKS), help="names, separated by commas")
    parser.add_argument("--num-rows", type=int, default=100_000, help="steps of each quality")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--scale", type=float, default=1.0, help="factor of the training's length, to try it out"
    )
    options = parser.parse_args(arguments)
    options.tasks = parse_names(parser, "--tasks", options.tasks, list(TASKS))
    return options


def make_datasets(
    task: Task, folder: Path, num_rows: int, seed: int, scale: float = 1.0
) -> dict[str, Any]:
    """Make the data of one task in a new folder, and return what `scores.json` has.

    Args:
        task: Task.
        folder: Folder of the five folders; an older one is replaced.
        num_rows: Steps of each quality.
        seed: Seed of the run and of all recordings.
        scale: Factor of the training's length.
    """
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="jaxrl-benchmark-") as temporary:
        random_score = _record_random(task, folder / "random", num_rows, seed)
        checkpoints = list(_train(task, Path(temporary), seed, scale))
        expert = checkpoints[-1]
        half = random_score + 0.5 * (expert.score - random_score)
        medium = next(each for each in checkpoints if each.score >= min(half, expert.score))
        for name, checkpoint in (("medium", medium), ("expert", expert)):
            with Algorithm.from_checkpoint(checkpoint.path) as algorithm:
                algorithm.record(str(folder / name), num_steps=num_rows, num_envs=16, seed=seed)
        _record_training(task, folder / "replay", medium.num_env_steps, seed)
    _mix(folder, num_rows)
    greedy = {"random": random_score, "medium": medium.score, "expert": expert.score}
    scores = {name: _describe(open_data(str(folder / name)), greedy.get(name)) for name in (
        "random", "medium", "expert", "replay", "mixed")}  # fmt: skip
    (folder / "scores.json").write_text(json.dumps(scores, indent=2) + "\n")
    return scores


def _make_config(task: Task, seed: int) -> Any:
    config = load_experiment(machine.ROOT / "configs" / f"{task.config}.yaml").config
    config.debugging(seed=seed, loggers=[])
    config.evaluation(evaluation_interval=None, evaluation_config={"explore": False})
    return config.reporting(min_sample_timesteps_per_iteration=task.interval)


def _record_random(task: Task, folder: Path, num_rows: int, seed: int) -> float:
    """Record random actions, and return their mean return."""
    env = _make_config(task, seed).environment_settings
    config = RandomAgentConfig().environment(env.env, env_config=env.env_config)
    with config.debugging(seed=seed, loggers=[]).build() as algorithm:
        data = algorithm.record(str(folder), num_steps=num_rows, num_envs=16)
    assert data.counts is not None
    return data.counts.returns.mean


def _train(task: Task, folder: Path, seed: int, scale: float) -> Iterator[Checkpoint]:
    """Train a run, and yield a checkpoint after each evaluation."""
    config = _make_config(task, seed).debugging(results_dir=str(folder))
    config.checkpointing(max_to_keep=None)
    if "store_buffer_in_checkpoints" in config:
        config.training(store_buffer_in_checkpoints=False)
    with config.build() as algorithm:
        steps = 0
        while steps < scale * task.num_steps:
            algorithm.train()
            steps = int(algorithm.state.progress.env_steps)
            played = algorithm.evaluate(num_episodes=NUM_EVALUATED)["env_runners"]
            path = algorithm.save(folder / str(steps))
            yield Checkpoint(played["episode_return_mean"], steps, str(path))


def _record_training(task: Task, folder: Path, num_env_steps: int, seed: int) -> None:
    """Train the same run again, up to a number of steps, and record what it samples."""
    config = _make_config(task, seed).offline_data(output=str(folder))
    with config.build() as algorithm:
        while int(algorithm.state.progress.env_steps) < num_env_steps:
            algorithm.train()


def _mix(folder: Path, num_rows: int) -> None:
    """Write whole episodes of the expert, and random ones, in their shares."""
    sources = [
        (open_data(str(folder / "expert")), MIXED_SHARE),
        (open_data(str(folder / "random")), 1.0 - MIXED_SHARE),
    ]
    first = sources[0][0]
    with EpisodeWriter(
        folder / "mixed",
        first.observation_space,
        first.action_space,
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
        yield part


def _describe(data: RecordedData, greedy: float | None) -> dict[str, Any]:
    assert data.counts is not None
    return {
        "num_steps": data.counts.num_steps,
        "num_episodes": data.counts.num_episodes,
        "mean_return": data.counts.returns.mean,
        "greedy_return": greedy,
        "fingerprint": data.get_fingerprint(),
    }


if __name__ == "__main__":
    sys.exit(main())
