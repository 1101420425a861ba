"""DreamerV3 from its shipped file: five seeds, inference of 100 episodes each, a fixed budget.

`python -m pytest -m slow tests/learning/test_dreamer.py -s` prints every seed.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import pytest

from jaxrl.algorithms.dreamer import DreamerV3Learner
from tests.learning.test_thresholds import all_seeds, evaluated, interquartile_mean

STEPS = 20_000

pytestmark = pytest.mark.slow


@pytest.mark.timeout(3600)
def test_dreamerv3_cartpole() -> None:
    assert interquartile_mean(all_seeds("classic/cartpole-dreamerv3", STEPS)) >= 300


def test_a_model_that_never_ends_fails_the_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    """With continuations alone, all actions are worth the same."""
    honest = DreamerV3Learner.compute_world_model_loss

    def broken(self: Any, params: Any, batch: Any, uniform: Any) -> Any:
        endless = replace(batch, discount=jnp.ones_like(batch.discount))
        return honest(self, params, endless, uniform)

    monkeypatch.setattr(DreamerV3Learner, "compute_world_model_loss", broken)
    assert evaluated("classic/cartpole-dreamerv3", 10_000, 0) < 150
