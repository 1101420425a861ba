"""MinAtar's Breakout from the shipped file, on jaxrl's own game: five seeds as lanes of one program.

`python -m pytest -m slow tests/learning/test_minatar.py -s` prints every seed.
"""

import jax.numpy as jnp
import pytest

from jaxrl.config.load import load_experiment
from jaxrl.ops import losses
from jaxrl.sweeps.statistics import interquartile_mean
from tests.learning.test_thresholds import CONFIGS, SEEDS

pytestmark = [pytest.mark.slow, pytest.mark.allow_key_reuse]


def greedy_returns(num_seeds: int) -> list[float]:
    experiment = load_experiment(CONFIGS / "minatar" / "breakout-ppo.yaml")
    config = experiment.config.debugging(loggers=[]).sweep(seeds=num_seeds)
    config.checkpointing(checkpoint_at_end=False).evaluation(evaluation_interval=None)
    assert experiment.stop == {"num_env_steps_sampled_lifetime": 2_000_000}
    with config.build() as sweep:
        sweep.fit(experiment.stop)
        found = sweep.evaluate(num_episodes=100)["lanes"]
    scores = [found[i]["env_runners"]["episode_return_mean"] for i in range(num_seeds)]
    print(f"\nbreakout-ppo: {scores}; IQM {interquartile_mean(scores):.1f}")
    return scores


def test_ppo_breakout() -> None:
    assert interquartile_mean(greedy_returns(len(SEEDS))) >= 20


def test_a_lost_sign_of_the_advantages_fails_the_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = losses.clipped_surrogate
    monkeypatch.setattr(
        losses, "clipped_surrogate", lambda ratio, adv, clip: honest(ratio, jnp.abs(adv), clip)
    )
    assert max(greedy_returns(2)) < 15
