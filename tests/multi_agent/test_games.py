"""The shipped configs of games learn what their comments say."""

from pathlib import Path
from typing import Any

import pytest

from jaxrl.config.load import load_experiment
from tests.multi_agent.games import choose_perfectly, play, score

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
        settings: dict[str, Any] = {"name": "TicTacToe-v0", "policy_id": "default_policy"}
        first, second = (
            play(algorithm, number=2000, begins=begins, **settings) for begins in (True, False)
        )
        perfect = play(algorithm, number=1000, begins=True, opponent=choose_perfectly, **settings)
    assert first["lost"] < 0.002
    assert first["won"] > 0.85  # 59 % are won by random moves
    assert second["lost"] < 0.02
    assert perfect == {"won": 0.0, "drawn": 1.0, "lost": 0.0}


@pytest.mark.slow
def test_the_newest_of_eight_versions_wins_against_each_at_connect_four() -> None:
    experiment = load_experiment(CONFIGS / "connectfour-ppo.yaml")
    with experiment.config.debugging(loggers=[]).build() as algorithm:
        algorithm.fit(stop=experiment.stop)
        numbers = sorted(int(name[len("main_v") :]) for name in algorithm.opponents if "_v" in name)
        assert len(numbers) == 8
        newest, *others = (f"main_v{number}" for number in reversed(numbers))
        algorithm.set_weights({"main": algorithm.get_weights([newest])[newest]})
        table = algorithm.evaluate(opponents=[*others, "random"], num_episodes=500)["opponents"]
    shares = {
        name: sum(seat["wins"] + seat["draws"] / 2 for seat in seats.values()) / 1000
        for name, seats in table.items()
    }
    assert shares.keys() == {*others, "random"}
    assert min(shares.values()) >= 0.9, shares


def test_the_perfect_player_draws_with_itself_and_sees_a_threat() -> None:
    nothing: frozenset[int] = frozenset()
    assert score(nothing, nothing) == 0
    assert score(frozenset({0, 1}), frozenset({3, 4})) == 1
    assert score(frozenset({0}), frozenset({3, 4, 8})) == -1  # two threats, 5 and the diagonal
