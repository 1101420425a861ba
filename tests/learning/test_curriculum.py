"""A lake that grows is crossed; the largest one alone never is, in as many steps.

`python -m pytest -m slow tests/learning/test_curriculum.py -s` prints every seed.
"""

from typing import Any

import pytest

from jaxrl.config.load import load_experiment
from tests.learning.test_thresholds import CONFIGS

pytestmark = [pytest.mark.slow, pytest.mark.allow_key_reuse]

NUM_SEEDS, NUM_EPISODES = 5, 200


def scores_of(**environment: Any) -> list[float]:
    """Returns of five seeds on the largest lake, with sampled actions, after the steps of the shipped file."""
    experiment = load_experiment(CONFIGS / "curriculum/frozenlake-ppo.yaml")
    config = experiment.config.environment(**environment).debugging(loggers=[])
    config.checkpointing(checkpoint_at_end=False, checkpoint_interval_s=None)
    config.evaluation(evaluation_interval=None).sweep(seeds=NUM_SEEDS)
    with config.build() as sweep:
        sweep.fit(experiment.stop)
        lanes = [sweep.lane(index) for index in range(NUM_SEEDS)]
        stages = [lane.last_result.get("curriculum", {}).get("stage") for lane in lanes]
        results = [lane.evaluate(num_episodes=NUM_EPISODES) for lane in lanes]
    scores = [result["env_runners"]["episode_return_mean"] for result in results]
    print(f"\n{environment or 'as shipped'}: {scores}, stages {stages}")
    return scores


def test_growing_lakes_are_crossed_and_the_largest_alone_is_not() -> None:
    with_curriculum = scores_of()
    without = scores_of(curriculum=None, env_config={"size": 24, "max_size": 24})
    assert min(with_curriculum) >= 0.8
    assert max(without) <= 0.05
