"""Leagues: games that are counted in the program, snapshots that join, ratings, and what is saved."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

from jaxrl import Algorithm, Draw, PPOConfig, RandomRLModule, Seats, SelfPlay
from jaxrl.cli.app import app
from jaxrl.config.load import load_experiment
from jaxrl.config.settings.multi_agent import League
from jaxrl.core.keys import make_key
from jaxrl.core.struct import replace
from jaxrl.errors import CheckpointError, ConfigError, JaxrlError, UnknownNameError
from jaxrl.metrics import LEAGUE, LEAGUE_KEYS, check_key
from jaxrl.policy.league import is_snapshot_due, weigh
from jaxrl.runs import checkpoint
from jaxrl.runs.league_table import LeagueTable, find_versions, read_league
from jaxrl.runs.opponents import read_games
from jaxrl.training.opponents import decode_names

ALWAYS = SelfPlay(every=1)


def make_config(**settings: Any) -> PPOConfig:
    """8 environments x 10 steps of two agents that are paid for their own actions."""
    config = (
        PPOConfig()
        .environment("tests.multi_agent.agent_envs:Targets")
        .env_runners(num_envs_per_env_runner=8)
        .training(train_batch_size=80, minibatch_size=40, num_epochs=1, lr=0.01)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .debugging(loggers=[], seed=3)
    )
    default: dict[str, Any] = {
        "policies": {"main": None, "random": RandomRLModule},
        "policies_to_train": ["main"],
        "mapping": Seats("main", Draw()),
        "policy_map_capacity": 3,
        "league": ALWAYS,
    }
    return config.multi_agent(**{**default, **settings})


def make_table(*rows: tuple[tuple[int, int, int], ...]) -> LeagueTable:
    """Table of opponents o0, o1, ... and the learner "main"."""
    games = np.array(rows, np.int32)
    names = tuple(f"o{i}" for i in range(games.shape[1]))
    return LeagueTable(learner="main", opponents=names, games=games, recent=games[-1])


def test_games_are_those_of_a_walk() -> None:
    """Every episode counts once, for who was drawn in it, by the difference of the returns."""
    with make_config(mapping=Seats("main", Draw(), live=0.5)).build() as algorithm:
        algorithm.snapshot("main", as_="v1")
        runner, params, opponents = (
            algorithm.runner,
            algorithm.env_params,
            algorithm.state.opponents,
        )
    runner: Any
    worker = runner.rollout_worker
    state = replace(jax.jit(runner.init)(make_key(2), params), opponents=opponents)
    acting = runner.make_actor_state(state)
    env, carry = state.env, state.carry
    rows = worker.rows.get_cells(":drawn", 8).tolist()

    @jax.jit
    def step(env: Any, carry: Any) -> Any:
        row = jax.tree.map(lambda x: x[0], worker.sample_inputs(env, 1, params))
        return worker.step(acting, env, carry, row, params, True)

    games, lead = np.zeros((4, 3), np.int32), np.zeros(8)
    for _ in range(50):
        env, carry, out, _ = step(env, carry)
        rewards = np.stack([np.asarray(out.reward[name]) for name in ("a", "b")], axis=1)
        for r, (copy, agent) in enumerate(rows):
            lead[r] += rewards[copy, 1 - agent] - rewards[copy, agent]
            if out.ended[copy]:
                outcome = 0 if lead[r] > 0 else 2 if lead[r] < 0 else 1
                games[int(carry.opponents.slot[r]), outcome] += 1
                lead[r] = 0.0
    counted = np.asarray(carry.opponents.games).sum(axis=0)
    np.testing.assert_array_equal(counted, games)
    assert games.sum() == 4 * 6  # half of the copies, in six episodes of 8 steps
    assert (games.sum(axis=1) > 0).sum() == 2


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], list[LeagueTable], str]:
    """Results and tables of two iterations, and the checkpoint after them."""
    with make_config().build() as algorithm:
        results, tables = [], []
        for _ in range(2):
            results.append(algorithm.train())
            tables.append(algorithm.get_league())
        path = algorithm.save(tmp_path_factory.mktemp("league") / "checkpoint")
    return results, tables, path


def test_a_snapshot_has_the_games_of_the_learner_which_begin_anew(run: Any) -> None:
    results, (first, second), _ = run
    assert first.players == ("random", "main_v1", "main")
    assert first.games[1, 0].sum() == results[0]["league"]["num_games"] == 8
    assert first.games[-1].sum() == 0
    assert second.players == ("random", "main_v1", "main_v2", "main")
    np.testing.assert_array_equal(second.games[1, 0], first.games[1, 0])
    assert second.games[2].sum() == results[1]["league"]["num_games"] > 0
    assert second.snapshots == ("main_v1", "main_v2")


def test_the_oldest_snapshot_makes_room_and_its_slot_forgets() -> None:
    with make_config().build() as algorithm:
        seen = []
        for _ in range(14):
            result = algorithm.train()
            seen.append(algorithm.opponents)
        table = algorithm.get_league()
    assert result["compile"]["train"]["num_compilations"] == 1  # nothing is compiled again
    assert ["main_v1", "main_v2", "main_v3", "random"] in seen
    assert all(len(names) <= 4 for names in seen)
    versions = sorted(find_versions("main", tuple(seen[-1])))
    assert versions[0] > 1
    own = dict(zip(table.opponents, table.games, strict=False))
    assert not own["random"].any()
    newest = f"main_v{versions[-1]}"
    assert own[newest][table.opponents.index(newest)].sum() == 0  # never met itself


@pytest.mark.slow
def test_a_league_goes_on_to_the_bit_in_a_fresh_process(tmp_path: Path) -> None:
    script = (
        "import json, sys, numpy as np\n"
        "from jaxrl import Algorithm\n"
        "with Algorithm.from_checkpoint(sys.argv[1]) as algorithm:\n"
        "    algorithm.train()\n"
        "    table = algorithm.get_league()\n"
        "    print(json.dumps([table.players, table.games.tolist(), table.compute_elo()]))\n"
    )
    with make_config().build() as algorithm:
        algorithm.train()
        path = algorithm.save(tmp_path / "checkpoint")
        algorithm.train()
        table = algorithm.get_league()
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-c", script, path], capture_output=True, text=True, env=env, check=False
    )
    assert done.returncode == 0, done.stderr
    players, games, elo = json.loads(done.stdout.splitlines()[-1])
    assert tuple(players) == table.players
    assert games == table.games.tolist()
    assert elo == table.compute_elo()


def test_stop_criteria_and_scores_name_all_of_it(run: Any) -> None:
    results, _, _ = run
    assert tuple(results[0][LEAGUE]) == LEAGUE_KEYS
    for name in LEAGUE_KEYS:
        check_key(f"{LEAGUE}/{name}", "stop")
    with pytest.raises(UnknownNameError, match="Did you mean 'league/elo'"):
        check_key("league/elos", "stop")


def test_the_command_prints_and_draws(run: Any, tmp_path: Path) -> None:
    _, tables, path = run
    for name in ("league.foo", "league"):
        done = CliRunner().invoke(app, ["league", "nobody", "--picture", str(tmp_path / name)])
        assert done.exit_code == 2
        assert "must end with one of .png, .svg, .pdf" in " ".join(done.output.split())
    assert not list(tmp_path.iterdir())
    picture = tmp_path / "league.png"
    done = CliRunner().invoke(app, ["league", path, "--picture", str(picture)])
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.output.splitlines()]
    assert lines[0] == ["player", "Elo", "games", "1", "2", "3"]
    assert [line[:2] for line in lines[1:4]] == [
        ["1", "random"],
        ["2", "main_v1"],
        ["3", "main_v2"],
    ]
    assert lines[4][1] == "main"
    assert lines[3][2] == f"{tables[-1].compute_elo()['main_v2']:.0f}"
    assert picture.read_bytes().startswith(b"\x89PNG")
    saved = read_league(path)
    assert saved.players == tables[-1].players
    assert saved.games.tobytes() == tables[-1].games.tobytes()


def test_ratings_of_two_players_are_in_closed_form() -> None:
    table = make_table(((0, 0, 0),), ((29, 1, 0),))
    points, games = 29.5 + 0.5, 31  # with one more draw
    expected = 400 * np.log10(points / (games - points))
    assert table.compute_elo() == pytest.approx({"o0": 0.0, "main": expected}, abs=1e-6)


def test_a_learner_without_games_has_the_rating_of_its_latest_snapshot() -> None:
    table = make_table(((0, 0, 0), (0, 0, 0)), ((12, 3, 5), (0, 0, 0)), ((0, 0, 0), (0, 0, 0)))
    elo = table.compute_elo()
    assert elo["main"] == elo["o1"] > 50
    table = make_table(((0, 0, 0),), ((0, 0, 0),))
    assert table.compute_elo()["main"] == 0.0


def test_ratings_maximize_the_likelihood() -> None:
    table = make_table(((0, 0, 0), (0, 0, 0)), ((12, 3, 5), (0, 0, 0)), ((30, 4, 6), (11, 2, 7)))
    elo = table.compute_elo()
    ratings = np.array([elo[name] for name in table.players]) * np.log(10) / 400

    def likelihood(ratings: np.ndarray) -> float:
        gaps = ratings[:, None] - ratings[None, :-1]
        won = table.games[..., 0] + 0.5 * table.games[..., 1]
        lost = table.games[..., 2] + 0.5 * table.games[..., 1]
        won, lost = won.copy(), lost.copy()
        won[1:, 0] += 0.5
        lost[1:, 0] += 0.5
        return float(-(won * np.log1p(np.exp(-gaps)) + lost * np.log1p(np.exp(gaps))).sum())

    best = likelihood(ratings)
    for i in (1, 2):
        for change in (-1e-3, 1e-3):
            moved = ratings.copy()
            moved[i] += change
            assert likelihood(moved) < best


def test_ratings_of_a_long_chain_are_at_the_maximum() -> None:
    number = 18
    games = np.zeros((number, number - 1, 3), np.int32)
    for i in range(1, number):
        games[i, i - 1] = 85_000, 0, 15_000
    names = tuple(f"o{i}" for i in range(number - 1))
    table = LeagueTable(learner="main", opponents=names, games=games, recent=games[-1])
    ratings = np.array(list(table.compute_elo().values())) * np.log(10) / 400
    pairs, points = np.zeros((number, number)), np.zeros((number, number))
    pairs[:, :-1], points[:, :-1] = games.sum(axis=2), games[..., 0]
    pairs[1:, 0] += 1.0
    points[1:, 0] += 0.5
    chance = 1.0 / (1.0 + np.exp(ratings[None] - ratings[:, None]))
    wins = points.sum(axis=1) + (pairs - points).sum(axis=0)
    slope = wins - ((pairs + pairs.T) * chance).sum(axis=1)
    np.testing.assert_allclose(slope, 0.0, atol=1e-6)
    assert ratings[-1] > 10  # 17 links of 1.73 each, less what the draws with the first one take


def test_a_snapshot_is_due_when_every_opponent_is_beaten() -> None:
    settings = SelfPlay(win_rate=0.8, least_games=10)
    beaten, even, few = (9, 0, 1), (5, 2, 5), (8, 0, 1)
    nothing = ((0, 0, 0), (0, 0, 0))
    assert is_snapshot_due(settings, make_table(*[nothing] * 2, (beaten, beaten)), 3)
    assert not is_snapshot_due(settings, make_table(*[nothing] * 2, (beaten, even)), 3)
    assert not is_snapshot_due(settings, make_table(*[nothing] * 2, (beaten, few)), 3)
    always = SelfPlay(win_rate=0.8, least_games=10, every=3)
    assert is_snapshot_due(always, make_table(*[nothing] * 2, (beaten, few)), 3)
    assert not is_snapshot_due(always, make_table(*[nothing] * 2, (beaten, few)), 4)


def test_opponents_that_are_not_drawn_any_more_hold_nothing_up() -> None:
    names = ("random", *(f"main_v{i}" for i in range(1, 5)))
    games = np.zeros((6, 5, 3), np.int32)
    games[-1, [0, 3, 4]] = 100, 0, 0
    table = LeagueTable(learner="main", opponents=names, games=games, recent=games[-1])
    assert not is_snapshot_due(SelfPlay(least_games=50), table, 1)
    latest = SelfPlay(least_games=50, opponents="latest", num_latest=2)
    assert is_snapshot_due(latest, table, 1)


@pytest.mark.slow
def test_a_snapshot_that_waits_is_taken_before_the_next_is_due() -> None:
    """Iterations of 3 steps, episodes of 8: a removed snapshot still plays for some iterations."""
    config = make_config(league=SelfPlay(every=4), policy_map_capacity=2)
    with config.training(train_batch_size=24, minibatch_size=24).build() as algorithm:
        seen: list[list[int]] = [[]]
        for _ in range(14):
            algorithm.train()
            seen.append(sorted(find_versions("main", tuple(algorithm.opponents))))
    assert seen[4] == seen[7] == [1]
    assert seen[8] == seen[11] == [1, 2]
    assert seen[12] == seen[13] == [2]
    assert seen[14] == [2, 3]


def test_weights_follow_the_rule() -> None:
    nothing = ((0, 0, 0), (0, 0, 0))
    table = make_table(*[nothing] * 2, ((8, 0, 0), (1, 2, 5)))
    assert weigh(SelfPlay(), table) == {"o0": 1.0, "o1": 1.0}
    shares = np.array([9 / 10, 3 / 10])
    found = weigh(SelfPlay(opponents="pfsp", power=3.0), table)
    assert found == pytest.approx({"o0": ((1 - shares[0]) / (1 - shares[1])) ** 3, "o1": 1.0})
    beaten = make_table(*[nothing] * 2, ((10**6, 0, 0), (1, 2, 5)))
    assert weigh(SelfPlay(opponents="pfsp", power=9.0), beaten) == {"o0": 1e-6, "o1": 1.0}
    games = np.zeros((5, 4, 3), np.int32)
    names = ("main_v10", "main_v9", "main_v2", "random")
    table = LeagueTable(learner="main", opponents=names, games=games, recent=games[-1])
    found = weigh(SelfPlay(opponents="latest", num_latest=2), table)
    assert found == {"main_v10": 1.0, "main_v9": 1.0, "main_v2": 0.0, "random": 1.0}


def test_pfsp_reaches_the_program() -> None:
    with make_config(league=SelfPlay(every=1, opponents="pfsp")).build() as algorithm:
        for _ in range(3):
            algorithm.train()
        table, opponents = algorithm.get_league(), algorithm.state.opponents
        weights = np.asarray(opponents.weights)[0]
        expected = weigh(SelfPlay(opponents="pfsp"), table)
    names = decode_names(np.asarray(opponents.names))
    found = {name: weight for name, weight in zip(names, weights.tolist(), strict=True) if name}
    assert found == pytest.approx(expected, rel=1e-6)
    assert not weights[[not name for name in names]].any()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"mapping": Seats("main", "random")}, "league=.* has no effect: the mapping draws no opp"),
        ({"mapping": Seats("main", Draw(("random",)))}, r"league=.* one Draw\(\) without ids"),
        ({"mapping": {"a": "main", "b": "two"}, "policies": ["main", "two"]}, "draws no opponents"),
        ({"policy_map_capacity": 1}, "policy_map_capacity above 1"),
        (
            {"policies": ["main", "x", "y"], "policy_map_capacity": 2, "train": ["main"]},
            "policy_map_capacity=2 leaves .* no room for a snapshot of 'main' .* set 3",
        ),
        (
            {"policies": ["main", "main_v1"], "train": ["main"]},
            "policies has 'main_v1', which is the id of a snapshot of the league",
        ),
        (
            {"mapping": [{"a": "main", "b": Draw()}, {"a": Draw(), "b": Draw()}]},
            "let it play opposite every Draw",
        ),
        ({"league": {"win_rates": 0.5}}, "league has no argument 'win_rates'.*win_rate"),
        ({"league": {"win_rate": 2.0}}, "SelfPlay: win_rate=2.0 must be"),
    ],
)
def test_a_league_without_opponents_is_refused(settings: dict[str, Any], sentence: str) -> None:
    if "policies" in settings:
        settings = {**settings, "policies_to_train": settings.get("train")}
        settings.pop("train", None)
    with pytest.raises(ConfigError, match=sentence):
        make_config(**settings).build()


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"win_rate": 0.0}, "SelfPlay: win_rate=0.0 must be above 0 and at most 1"),
        ({"least_games": 0}, "least_games=0 must be a positive integer"),
        ({"every": True}, "every=True must be a positive integer or None"),
        ({"opponents": "best"}, "opponents='best' must be 'uniform', 'pfsp' or 'latest'"),
        ({"power": 3.0}, "power=3.0 has no effect without opponents='pfsp'"),
        ({"num_latest": 2}, "num_latest=2 has no effect without opponents='latest'"),
        ({"win_rate": "0.5"}, "SelfPlay: win_rate='0.5' must be a finite number"),
        ({"opponents": "pfsp", "power": -1.0}, "power=-1.0 must be a finite number above 0"),
    ],
)
def test_bad_values_are_one_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        SelfPlay(**values)


def test_a_run_without_a_league_says_so(tmp_path: Path) -> None:
    with make_config(league=None).build() as algorithm:
        with pytest.raises(
            JaxrlError, match=r"get_league\(\) needs a league: set multi_agent\(lea"
        ):
            algorithm.get_league()
        path = algorithm.save(tmp_path / "checkpoint")
    with pytest.raises(CheckpointError, match=r"has no league: it is of a run without multi_agent"):
        read_league(path)
    with pytest.raises(ConfigError, match=r"league=.* has no effect: the environment has a single"):
        PPOConfig().environment("CartPole-v1").multi_agent(league=ALWAYS).build()


def test_windows_have_the_latest_games() -> None:
    settings = SelfPlay(win_rate=1.0, least_games=12)
    with make_config(league=settings).build() as algorithm:
        for _ in range(8):
            algorithm.train()
        table, (games, played) = algorithm.get_league(), read_games(algorithm.state)
        slot = algorithm.state.opponents.names.any(axis=1).argmax()
    assert table.opponents == ("random",)
    assert table.games[-1].sum() == played.sum() == 8 * 10
    assert 12 <= table.recent.sum() < 24 + 10
    ages = [int((played - row)[slot].sum()) for row in games[-3:]]
    assert ages[0] > ages[1]
    assert ages[2] == 80


@pytest.mark.slow
def test_tic_tac_toe_is_learned_against_a_growing_league() -> None:
    config = (
        PPOConfig()
        .environment("TicTacToe-v0")
        .env_runners(num_envs_per_env_runner=64)
        .training(
            train_batch_size=2048,
            minibatch_size=512,
            num_epochs=4,
            lr=1e-3,
            lambda_=1.0,
            entropy_coeff=0.02,
            use_kl_loss=False,
        )
        .multi_agent(
            policies={"main": None, "random": RandomRLModule},
            policies_to_train=["main"],
            mapping=Seats("main", Draw(), live=0.25),
            league=SelfPlay(win_rate=0.65, least_games=100, opponents="pfsp"),
        )
        .debugging(loggers=[], seed=1)
    )
    with config.build() as algorithm:
        algorithm.fit({"num_env_steps_sampled_lifetime": 600_000})
        table = algorithm.get_league()
        played = algorithm.evaluate(opponents=["random"], num_episodes=400)["opponents"]["random"]
    assert len(table.snapshots) >= 2
    assert table.compute_elo()["main"] > 200
    # Random moves lose about 350 of the 800 games against random moves.
    assert played["player_0"]["losses"] + played["player_1"]["losses"] < 80


def test_a_file_has_the_arguments_and_an_open_draw(tmp_path: Path) -> None:
    file = tmp_path / "league.yaml"
    file.write_text(
        """
        league:
          run: PPO
          env: TicTacToe-v0
          config:
            policies: {main: null, random: jaxrl:RandomRLModule}
            policies_to_train: [main]
            mapping: [{player_0: main, player_1: []}, {player_0: [], player_1: main}]
            league: {least_games: 20, opponents: latest, num_latest: 2}
        """
    )
    config = load_experiment(file).config
    assert config.plan().num_envs % 2 == 0
    settings = config.multi_agent_settings
    assert settings.self_play == SelfPlay(least_games=20, opponents="latest", num_latest=2)


def test_arrays_are_read_as_a_table() -> None:
    """A slot that is empty is left out, and what no longer counts is subtracted."""
    names = np.zeros((3, 4), np.uint8)
    names[0, :2], names[2, :1] = (118, 49), (114,)  # v1, nobody and r
    games = np.arange(54, dtype=np.int32).reshape(6, 3, 3)
    played = games[-1] + jnp.ones((3, 3), jnp.int32)
    table = LeagueTable.from_arrays("main", names, games, np.asarray(played))
    assert table.players == ("v1", "r", "main")
    np.testing.assert_array_equal(table.games[0], games[0][[0, 2]])
    np.testing.assert_array_equal(table.games[-1], np.ones((2, 3)))
    np.testing.assert_array_equal(table.recent, np.full((2, 3), 19))


def test_an_algorithm_is_resumed_with_its_league(run: Any) -> None:
    _, tables, path = run
    with Algorithm.from_checkpoint(path) as algorithm:
        assert algorithm.config.league == ALWAYS
        table = algorithm.get_league()
        with pytest.raises(ConfigError, match=r"set_mapping\(...\) has no effect with league="):
            algorithm.set_mapping(Seats("main", Draw(("random",))))
    assert table.players == tables[-1].players
    np.testing.assert_array_equal(table.games, tables[-1].games)


def test_a_resumed_run_has_the_hyperparameters_that_are_given(run: Any) -> None:
    _, _, path = run
    with Algorithm.from_checkpoint(path, lr=0.5) as algorithm:
        assert float(algorithm.state.modules["main"].learner.hparams["lr"]) == 0.5
    with Algorithm.from_checkpoint(path, policy_ids=["main"], lr=0.25) as algorithm:
        assert float(algorithm.state.modules["main"].learner.hparams["lr"]) == 0.25
    for wanted in ("main", []):
        with pytest.raises(
            ConfigError, match=r"policy_ids=.* must be a list of the modules to rest"
        ):
            Algorithm.from_checkpoint(path, policy_ids=wanted)
    with pytest.raises(ConfigError, match="component='rl_module' has no effect"):
        Algorithm.from_checkpoint(path, policy_ids=["main"], component="rl_module")


def erase_modules(leaves: dict[str, Any]) -> None:
    for name in [name for name in leaves if name.startswith("modules.")]:
        del leaves[name]


def repeat_a_name(leaves: dict[str, Any]) -> None:
    leaves["opponents.names"] = leaves["opponents.names"][[0, 0, *range(2, 4)]]


def cut(name: str) -> Any:
    return lambda leaves: leaves.update({name: leaves[name][..., :2]})


DAMAGES: dict[str, tuple[Any, str]] = {
    "games": (cut("opponents.games"), "do not fit each other"),
    "played games": (cut("carry.opponents.games"), "do not fit each other"),
    "numbers": (
        lambda leaves: leaves.update({"opponents.games": leaves["opponents.games"] * np.nan}),
        "invalid ids or numbers",
    ),
    "negative": (
        lambda leaves: leaves.update({"opponents.games": leaves["opponents.games"] - 1}),
        "invalid ids or numbers",
    ),
    "names": (
        lambda leaves: leaves.update({"opponents.names": leaves["opponents.names"] | 27}),
        "invalid ids or numbers",
    ),
    "equal names": (repeat_a_name, "invalid ids or numbers"),
    "no module": (erase_modules, "no module that is trained"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_league_is_one_sentence(
    damage: str, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, path = run
    metadata = checkpoint.read_metadata(Path(path))
    leaves = dict(checkpoint.read_leaves(Path(path), metadata))
    change, sentence = DAMAGES[damage]
    change(leaves)
    monkeypatch.setattr(checkpoint, "read_leaves", lambda *_: leaves)
    with pytest.raises(CheckpointError, match=sentence) as caught:
        read_league(path)
    assert "\n" not in str(caught.value)


def test_a_run_is_named_as_for_other_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAXRL_RESULTS_DIR", str(tmp_path))
    done = CliRunner().invoke(app, ["league", "nobody"])
    assert done.exit_code == 2
    assert f"There is no run 'nobody', here or in {tmp_path}." in done.output


# --- a league that is added on resume ---


@pytest.fixture(scope="module")
def without_league(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the checkpoint of a run that draws opponents and has no league."""
    with make_config(league=None).build() as algorithm:
        algorithm.train()
        return Path(str(algorithm.save(tmp_path_factory.mktemp("plain") / "checkpoint")))


def test_a_run_goes_on_with_a_league_and_without(without_league: Path, tmp_path: Path) -> None:
    with Algorithm.from_checkpoint(without_league, league=ALWAYS) as algorithm:
        result = algorithm.train()
        assert algorithm.iteration == 2
        assert result[LEAGUE]["num_games"] == 8
        assert algorithm.get_league().players == ("random", "main_v1", "main")
        path = algorithm.save(tmp_path / "checkpoint")
        expected = algorithm.get_weights()
    with Algorithm.from_checkpoint(path, league=None) as algorithm:
        jax.tree.map(np.testing.assert_array_equal, algorithm.get_weights(), expected)
        with pytest.raises(ConfigError, match="needs a league"):
            algorithm.get_league()


def test_a_league_of_other_modules_needs_a_new_run(without_league: Path) -> None:
    with pytest.raises(CheckpointError, match=r"begin a new run.*policy_ids=\['main'\], league="):
        Algorithm.from_checkpoint(without_league, league=League(main=1))


@pytest.mark.slow
def test_a_new_league_begins_with_what_was_learned(without_league: Path) -> None:
    with Algorithm.from_checkpoint(without_league) as algorithm:
        learned = algorithm.get_weights(["main"])["main"]
    fresh = {"mapping": None, "policies": None, "policies_to_train": None}
    league = League(main=1, main_exploiters=1, league_exploiters=0)
    settings = {"num_envs_per_env_runner": 24, "train_batch_size": 240, "policy_map_capacity": 9}
    with Algorithm.from_checkpoint(
        without_league, policy_ids=["main"], league=league, **fresh, **settings
    ) as algorithm:
        own = algorithm.get_weights(["main"])["main"]
        jax.tree.map(np.testing.assert_array_equal, own, learned)
        result = algorithm.train()
        assert "main_v0" in algorithm.get_league().players
    assert result[LEAGUE]["main"]["num_games"] > 0
