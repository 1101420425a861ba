"""Learning in an environment with demonstrations: half of the steps that are needed without them.

`python -m pytest -m slow tests/learning/test_demonstrations.py -s` prints every seed. Demonstrations
are 10,000 steps of a trained run of the shipped file, in a quarter or half of the rows.
"""

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from jaxrl import Algorithm
from jaxrl.config.load import load_experiment
from jaxrl.sweeps.statistics import interquartile_mean
from tests.learning.test_thresholds import CONFIGS, SEEDS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]

NUM_DEMONSTRATED = 10_000


class Task(NamedTuple):
    """Task of a shipped file.

    Attributes:
        name: File.
        num_steps: Steps of its budget.
        threshold: Greedy return that it reaches within them.
        interval: Steps between two evaluations.
        share: Share of demonstrations.
        training: Settings with demonstrations.
        stopped: Settings that keep the policy as it is while it demonstrates.
    """

    name: str
    num_steps: int
    threshold: float
    interval: int
    share: float
    training: dict[str, Any]
    stopped: dict[str, Any]


NO_RATES = dict.fromkeys(("actor_lr", "critic_lr", "alpha_lr"), 0.0)
GREEDY_DQN = {"lr": 0.0, "epsilon": 0.0}
TASKS = (
    Task("classic/pendulum-sac", 20_000, -250.0, 250, 0.5, {"training_intensity": 1024}, NO_RATES),
    Task("classic/acrobot-dqn", 100_000, -85.0, 2000, 0.25, {"margin_coeff": 1.0}, GREEDY_DQN),
    Task("classic/mountaincar-dqn", 120_000, -110.0, 2000, 0.25, {"margin_coeff": 1.0}, GREEDY_DQN),
)


def record(task: Task, folder: Path) -> str:
    """Train a run of the file, and record it while it no longer learns."""
    config = load_experiment(CONFIGS / f"{task.name}.yaml").config
    config.debugging(seed=100, loggers=[]).evaluation(evaluation_interval=None)
    with config.build() as algorithm:
        while int(algorithm.state.progress.env_steps) < task.num_steps:
            algorithm.train()
        path = algorithm.save(folder / "checkpoint")
    data = str(folder / "data")
    changes = {**task.stopped, "min_sample_timesteps_per_iteration": NUM_DEMONSTRATED}
    with Algorithm.from_checkpoint(path, output=data, **changes) as trained:
        result = trained.train()
    print(f"\n{task.name}: demonstrations of {result['env_runners']['episode_return_mean']:.1f}")
    return data


def count_steps(task: Task, seed: int, data: str | None) -> int:
    """Return the environment steps until 20 greedy episodes reach the threshold.

    Without data, None has the settings of the file, and "" those of the task.
    """
    config = load_experiment(CONFIGS / f"{task.name}.yaml").config
    config.debugging(seed=seed, loggers=[]).evaluation(
        evaluation_interval=None, evaluation_config={"explore": False}
    )
    config.reporting(min_sample_timesteps_per_iteration=task.interval)
    config.training(**({} if data is None else task.training))
    if data:
        config.offline_data(input_={"sampler": 1.0 - task.share, data: task.share})
    with config.build() as algorithm:
        while (steps := int(algorithm.state.progress.env_steps)) < task.num_steps:
            algorithm.train()
            played = algorithm.evaluate(num_episodes=20)["env_runners"]
            if played["episode_return_mean"] >= task.threshold:
                return int(algorithm.state.progress.env_steps)
    return steps


@pytest.mark.parametrize("task", TASKS, ids=[task.name for task in TASKS])
def test_demonstrations_halve_the_steps(tmp_path: Path, task: Task) -> None:
    data = record(task, tmp_path)
    cases = {"without": None, "with": data}
    if "training_intensity" in task.training:  # RLPD's updates per step, which are a part of it
        cases["settings alone"] = ""
    counts = {
        name: [count_steps(task, seed, source) for seed in SEEDS] for name, source in cases.items()
    }
    means = {name: interquartile_mean(list(map(float, found))) for name, found in counts.items()}
    print(f"{task.name} to {task.threshold}: {counts}; IQM {means}")
    assert means["with"] <= 0.5 * means["without"]
