"""PQN from its shipped files: five seeds, greedy evaluation, fixed budgets.

`python -m pytest -m slow tests/learning/test_pqn.py -s` prints every seed.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest

from jaxrl.ops import returns
from tests.learning.test_thresholds import all_seeds, evaluated, interquartile_mean

pytestmark = pytest.mark.slow


@pytest.mark.timeout(1800)
def test_pqn_cartpole() -> None:
    assert interquartile_mean(all_seeds("classic/cartpole-pqn", 500_000)) >= 480


@pytest.mark.timeout(7200)
def test_pqn_breakout() -> None:
    assert interquartile_mean(all_seeds("minatar/breakout-pqn", 5_000_000)) >= 20


def _not_cut(honest: Callable[..., Any]) -> Callable[..., Any]:
    """λ-returns that run on from one episode into the next."""

    def broken(reward: Any, v_t: Any, terminated: Any, truncated: Any, *rest: Any) -> Any:
        del truncated
        nowhere = jnp.zeros_like(terminated)
        return honest(reward, v_t, nowhere, nowhere, *rest)

    return broken


def _lost_sign(honest: Callable[..., Any]) -> Callable[..., Any]:
    """The value of a successor is subtracted from the reward."""

    def broken(reward: Any, v_t: Any, *rest: Any) -> Any:
        return honest(reward, -v_t, *rest)

    return broken


@pytest.mark.parametrize("fault", ["not cut", "sign"])
def test_pqns_threshold_fails_with_broken_targets(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it = _not_cut if fault == "not cut" else _lost_sign
    monkeypatch.setattr(returns, "lambda_returns", break_it(returns.lambda_returns))
    assert evaluated("classic/cartpole-pqn", 500_000, 0) < 480
