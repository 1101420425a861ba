"""Learning to reach goals by those that were reached, where the wanted ones are hardly ever.

`python -m pytest -m slow tests/learning/test_hindsight.py -s` prints every seed.
"""

from dataclasses import replace
from typing import Any

import pytest

from jaxrl.buffers.hindsight import Hindsight
from jaxrl.runtime import kept_programs
from tests.learning.test_thresholds import all_seeds, evaluated

pytestmark = pytest.mark.slow

BITS, POINT = ("goals/bitflip-dqn", 12_000), ("goals/pointreach-sac", 20_000)


def alone(config: Any) -> None:
    """Replay the goals of the episodes alone."""
    kept = {"capacity": config.replay_buffer_config["capacity"]}
    config.training(replay_buffer_config={"type": "uniform", **kept})


def test_bits_are_flipped_with_hindsight_alone() -> None:
    assert min(all_seeds(*BITS)) >= -5.0  # the best policy earns -4 on average
    assert max(all_seeds(*BITS, alone)) <= -9.5


def test_a_point_reaches_goals_with_hindsight_alone() -> None:
    assert min(all_seeds(*POINT)) >= -15.0
    assert max(all_seeds(*POINT, alone)) <= -45.0


def test_goals_without_their_rewards_and_ends_fail_the_threshold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of both is enough to tell the bits that are right, and the least steps to them."""
    honest = Hindsight.relabel

    def relabel(self: Any, rows: Any, transition: Any, *rest: Any) -> Any:
        kept = {"reward": transition.reward, "discount": transition.discount}
        return replace(honest(self, rows, transition, *rest), **kept)

    monkeypatch.setattr(Hindsight, "relabel", relabel)
    monkeypatch.setattr(kept_programs, "SHARED_PROGRAMS", kept_programs.SharedPrograms())
    assert evaluated(*BITS, 0) <= -9.0
