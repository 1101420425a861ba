"""Games of OpenSpiel: who acts, what is observed, rewards, chance by seed, and errors."""

import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

pyspiel = pytest.importorskip("pyspiel")

from jaxrl.envs import OpenSpielEnv, make_multi_host  # noqa: E402
from jaxrl.envs.registry import is_multi_agent_spec  # noqa: E402
from jaxrl.errors import EnvError, UnknownNameError  # noqa: E402
from jaxrl.testing import check_env  # noqa: E402


def play(name: str, seed: int, **config: Any) -> tuple[Any, list[Any]]:
    """Play an episode with random legal actions; return the game's last state, and the steps."""
    env = make_multi_host(f"openspiel:{name}", config).make_checked()
    rng = np.random.default_rng(seed)
    rows: list[Any] = [env.reset(seed)]
    while True:
        actions = {
            agent: rng.choice(np.flatnonzero(rows[-1].obs[agent]["action_mask"]))
            for agent in env.agents_to_act
        }
        rows.append(env.step(actions))
        if rows[-1].is_over:
            return env.env.game_state, rows


@pytest.mark.parametrize(
    "name", ["tic_tac_toe", "kuhn_poker", "backgammon", "goofspiel", "coop_box_pushing", "hearts"]
)
def test_rewards_add_up_to_the_games_returns(name: str) -> None:
    for seed in range(2):
        state, rows = play(name, seed)
        players = range(state.num_players())
        sums = [sum(row.reward.get(str(p), 0.0) for row in rows[1:]) for p in players]
        np.testing.assert_allclose(sums, state.returns(), rtol=1e-6)
        assert rows[-1].terminated["__all__"]
        assert not rows[-1].truncated["__all__"]


def test_observations_are_the_players_tensors_and_legal_actions() -> None:
    env = OpenSpielEnv(pyspiel.load_game("kuhn_poker"))
    obs, infos = env.reset(seed=3)
    assert infos == {}
    assert list(obs) == [0]
    state = env.game_state
    np.testing.assert_array_equal(obs[0]["observations"], state.information_state_tensor(0))
    np.testing.assert_array_equal(obs[0]["action_mask"], state.legal_actions_mask(0))
    obs, *_ = env.step({0: 1})
    np.testing.assert_array_equal(obs[1]["observations"], state.information_state_tensor(1))


def test_all_players_of_a_simultaneous_node_act() -> None:
    env = OpenSpielEnv(pyspiel.load_game("matrix_rps"))
    obs, _ = env.reset(seed=0)
    assert list(obs) == [0, 1] == env.possible_agents
    obs, rewards, terminateds, _, _ = env.step({0: 1, 1: 0})  # paper wraps rock
    assert (obs, rewards) == ({}, {0: 1.0, 1: -1.0})
    assert terminateds == {0: True, 1: True, "__all__": True}


def test_a_seed_determines_chance() -> None:
    def histories(seed: int) -> Any:
        return play("backgammon", seed)[0].history()

    assert histories(1) == histories(1)
    assert histories(1) != histories(2)
    deals = set()
    env = OpenSpielEnv(pyspiel.load_game("kuhn_poker"))
    for seed in range(60):
        env.reset(seed=seed)
        deals.add(tuple(env.game_state.history()))
    assert len(deals) == 6  # two of three cards, in order


def test_what_is_observed_can_be_chosen() -> None:
    wide = make_multi_host("openspiel:kuhn_poker")
    narrow = make_multi_host("openspiel:kuhn_poker", {"observe": "observation", "players": 3})
    game = pyspiel.load_game("kuhn_poker", {"players": 3})
    assert len(narrow.possible_agents) == 3
    space: Any = narrow.observation_spaces["2"]
    assert space["observations"].shape == (game.observation_tensor_size(),)
    assert space["action_mask"] == spaces.MultiBinary(2)
    first: Any = wide.observation_spaces["0"]
    assert first["observations"].shape == (11,)
    only = make_multi_host("openspiel:tic_tac_toe")  # which has no tensor of the other kind
    assert only.make_checked().env.observe == "observation"


def test_ids_have_parameters_and_creators_are_pickled() -> None:
    made = make_multi_host("openspiel:hex(board_size=4)")
    assert made.action_spaces["0"] == spaces.Discrete(16)
    assert make_multi_host("openspiel:hex", {"board_size": 4}).action_spaces == made.action_spaces
    copy = pickle.loads(pickle.dumps(made.create))
    assert copy({}).possible_agents == [0, 1]
    assert is_multi_agent_spec("openspiel:hex")
    check_env("openspiel:leduc_poker")


def test_an_illegal_action_is_one_sentence() -> None:
    env = OpenSpielEnv(pyspiel.load_game("tic_tac_toe"))
    env.reset(seed=0)
    env.step({0: 4})
    with pytest.raises(
        EnvError, match=r"action 4 of player 1 is illegal; legal are \[0, 1, 2, 3, 5"
    ):
        env.step({1: 4})


@pytest.mark.parametrize(
    ("name", "config", "error", "sentence"),
    [
        ("tic_tac_to", {}, UnknownNameError, "OpenSpiel has no game 'tic_tac_to'. Did you mean"),
        ("kuhn_poker", {"player": 3}, EnvError, "Unknown parameter 'player'"),
        ("tic_tac_toe", {"observe": "information_state"}, EnvError, "not available; 'auto' and"),
        ("mfg_crowd_modelling", {}, EnvError, "is a mean field game"),
    ],
)
def test_games_that_cannot_be(name: str, config: Any, error: Any, sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        make_multi_host(f"openspiel:{name}", config)
