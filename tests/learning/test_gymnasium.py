"""Replay fed by environments on the host, in the learning process and by two Ray actors.

The learner is the one whose five seeds `test_values.py` and `test_actor_critics.py` ask for, so
here is one seed each. `python -m pytest -m slow tests/learning/test_gymnasium.py -s` prints it.
"""

from typing import Any

import pytest

from tests.learning.test_thresholds import evaluated

pytestmark = pytest.mark.slow

THRESHOLDS = {
    "gymnasium/cartpole-dqn": (200_000, 450.0),
    "gymnasium/pendulum-sac": (20_000, -250.0),
}


def check(name: str, num_env_runners: int) -> None:
    def change(config: Any) -> None:
        config.env_runners(num_env_runners=num_env_runners)

    steps, least = THRESHOLDS[name]
    score = evaluated(name, steps, 0, change)
    print(f"\n{name} with num_env_runners={num_env_runners} at {steps}: {score:.1f}")
    assert score >= least


@pytest.mark.parametrize("name", THRESHOLDS)
def test_replay_learns_from_gymnasium(name: str) -> None:
    check(name, 0)


@pytest.mark.ray
@pytest.mark.parametrize("name", THRESHOLDS)
def test_replay_learns_from_two_ray_actors(name: str) -> None:
    check(name, 2)
