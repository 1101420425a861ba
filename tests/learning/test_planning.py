"""AlphaZero from its shipped files: all replies of a solved game, and what self-play without exploring moves loses.

`python -m pytest -m slow tests/learning/test_planning.py -s` prints every number.
"""

from typing import Any

import pytest

from jaxrl.config.load import load_experiment
from jaxrl.testing import play_all_replies
from tests.learning.rollout_search import play_rollout_search
from tests.learning.test_thresholds import all_seeds, interquartile_mean

pytestmark = pytest.mark.slow


def train_tic_tac_toe(seed: int, num_steps: int, **training: Any) -> Any:
    config = load_experiment("multi_agent/tictactoe-alphazero").config
    algorithm = config.training(**training).debugging(seed=seed, loggers=[]).build()
    while algorithm.train()["num_env_steps_sampled_lifetime"] < num_steps:
        pass
    return algorithm


def count_losses(algorithm: Any, num_simulations: int) -> tuple[int, int]:
    """Games lost against every reply of an opponent in both seats, and all of them."""
    policy = algorithm.get_policy(explore=False, planner={"num_simulations": num_simulations})
    seats = [play_all_replies(policy, "TicTacToe-v0", first=first) for first in (True, False)]
    return sum(x.lost for x in seats), sum(x.lines for x in seats)


@pytest.mark.timeout(1800)
@pytest.mark.allow_key_reuse  # JAX's check does not know what vmap does to a key
@pytest.mark.parametrize("seed", range(3))
def test_tic_tac_toe_loses_to_hardly_any_replies(seed: int) -> None:
    with train_tic_tac_toe(seed, 300_000) as algorithm:
        lost, lines = count_losses(algorithm, 0)
        lost_by_search, _ = count_losses(algorithm, 64)
    print(f"seed {seed}: {lost} of {lines} without search, {lost_by_search} with 64 simulations")
    assert lost <= 0.02 * lines
    assert lost_by_search <= min(lost, 0.005 * lines)


@pytest.mark.timeout(1800)
@pytest.mark.allow_key_reuse
def test_without_exploring_moves_self_play_settles_on_one_line() -> None:
    with train_tic_tac_toe(0, 150_000, epsilon=0.0) as algorithm:
        lost, lines = count_losses(algorithm, 0)
    print(f"{lost} of {lines} without exploring moves")
    assert lost > 0.2 * lines  # with them 0.01


@pytest.mark.timeout(3600)
@pytest.mark.allow_key_reuse
def test_connect_four_beats_plain_rollouts() -> None:
    """Without values that are learned, search with 32 steps is far below 200 rollouts."""
    config = load_experiment("multi_agent/connectfour-alphazero").config
    with config.debugging(seed=0, loggers=[]).build() as algorithm:
        while algorithm.train()["num_env_steps_sampled_lifetime"] < 1_000_000:
            pass
        points: dict[int, float] = {}
        for number in (0, 32, 128):
            policy = algorithm.get_policy(explore=False, planner={"num_simulations": number})
            shares = [
                play_rollout_search(
                    policy, "ConnectFour-v0", num_rollouts=200, num_games=200, first=first
                )
                for first in (True, False)
            ]
            points[number] = sum(shares) / 2.0
    print(f"share of points by number of simulations: {points}")
    assert points[0] >= 0.3
    assert points[32] >= 0.6


@pytest.mark.timeout(1800)
@pytest.mark.allow_key_reuse
def test_cart_pole_by_its_own_model() -> None:
    assert interquartile_mean(all_seeds("classic/cartpole-alphazero", 100_000)) >= 475
