"""SlateQ from its shipped file: five seeds, 500 greedy sessions each, a fixed budget.

`python -m pytest -m slow tests/learning/test_slate_q.py -s` prints every seed.
"""

from pathlib import Path

import numpy as np
import pytest

from jaxrl.config.load import load_experiment
from jaxrl.envs.recommender import InterestEvolution
from jaxrl.sweeps.statistics import interquartile_mean
from tests.envs.slate_planning import sessions, show_liked, show_random

CONFIG = Path(__file__).parents[2] / "configs/recommender/interestevolution-slateq.yaml"
BUDGET, SESSIONS = 200_000, 500
DEVIATION = 8.0
"""Deviation of the clicks of a session under the best policy that is known, rounded up."""

pytestmark = pytest.mark.slow


@pytest.mark.timeout(1800)
@pytest.mark.allow_key_reuse
def test_every_seed_is_above_random_slates_and_greedy_click_through() -> None:
    env, means, lows = InterestEvolution(), list[float](), list[float]()
    for seed in range(5):
        config = load_experiment(CONFIG).config.debugging(seed=seed, loggers=[])
        config.evaluation(evaluation_interval=None)
        with config.build() as algorithm:
            while int(algorithm.state.progress.env_steps) < BUDGET:
                algorithm.train()
            result = algorithm.evaluate(num_episodes=SESSIONS)["env_runners"]
        assert result["num_episodes"] == SESSIONS
        means.append(result["episode_return_mean"])
        lows.append(means[-1] - 1.96 * DEVIATION / np.sqrt(SESSIONS))
    print(f"\n{', '.join(f'{mean:.2f}' for mean in means)}; IQM {interquartile_mean(means):.2f}")
    for policy in (show_random(env), show_liked(env)):
        clicks = sessions(env, policy, SESSIONS)
        high = clicks.mean() + 1.96 * clicks.std() / np.sqrt(SESSIONS)
        assert min(lows) > high
    assert interquartile_mean(means) > 13.5
