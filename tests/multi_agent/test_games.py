"""The shipped configs of games learn what their comments say."""

from pathlib import Path

import pytest

from jaxrl.config.load import load_experiment
from tests.multi_agent.games import play_random

CONFIGS = Path(__file__).parents[2] / "configs/multi_agent"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rockpaperscissors-ppo", "rockpaperscissors-lstm-ppo"])
def test_the_opponents_of_rllibs_example_are_beaten(name: str) -> None:
    experiment = load_experiment(CONFIGS / f"{name}.yaml")
    threshold = experiment.stop["env_runners/module_episode_returns_mean/learned"]
    assert threshold == (9.0 if "lstm" in name else 6.0)
    with experiment.config.debugging(loggers=[], seed=5).build() as algorithm:
        result = algorithm.fit(stop=experiment.stop)
    assert result["env_runners"]["module_episode_returns_mean"]["learned"] >= threshold


@pytest.mark.slow
def test_self_play_teaches_not_to_lose_at_tic_tac_toe() -> None:
    experiment = load_experiment(CONFIGS / "tictactoe-ppo.yaml")
    with experiment.config.debugging(loggers=[], seed=5).build() as algorithm:
        algorithm.fit(stop=experiment.stop)
        first, second = (
            play_random(
                algorithm,
                "TicTacToe-v0",
                number=2000,
                begins=begins,
                policy_id="default_policy",
            )
            for begins in (True, False)
        )
    assert first["lost"] < 0.002
    assert first["won"] > 0.85  # 59 % are won by random moves
    assert second["lost"] < 0.02
