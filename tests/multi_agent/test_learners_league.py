"""Leagues of several learners: games, snapshots, returns to first parameters, copies, resumes."""

import json
import operator
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

from jaxrl import (
    A2CConfig,
    Algorithm,
    League,
    PopulationBasedTraining,
    PopulationPlay,
    PPOConfig,
    RandomRLModule,
    uniform,
)
from jaxrl.assembly.assemble import assemble
from jaxrl.cli.app import app
from jaxrl.config.load import load_experiment
from jaxrl.core.hparams import mark_per_lane
from jaxrl.core.keys import make_key
from jaxrl.errors import CheckpointError, ConfigError
from jaxrl.evaluation.compiled import make_evaluator
from jaxrl.metrics import LEARNER_KEYS, check_key
from jaxrl.policy.league import read_value
from jaxrl.runs import checkpoint
from jaxrl.runs.league_table import read_league
from jaxrl.runs.opponents import make_standing
from jaxrl.training.league import weigh_draws
from jaxrl.training.opponents import decode_names

SMALL = League(league_exploiters=0, max_steps=240, min_steps=120)
"""Main agent and exploiter, snapshots of which are taken after two iterations of `make_config`."""


def make_config(league: Any, num_envs: int, **settings: Any) -> A2CConfig:
    """Environments x 10 steps of two agents that are paid for their own actions, 8 an episode."""
    config = (
        A2CConfig()
        .environment("tests.multi_agent.agent_envs:Targets")
        .env_runners(num_envs_per_env_runner=num_envs)
        .training(train_batch_size=10 * num_envs, lr=0.01)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .debugging(loggers=[], seed=3)
    )
    return config.multi_agent(league=league, **settings)


def take_leaves(algorithm: Algorithm, prefix: str) -> dict[str, np.ndarray]:
    """Return the leaves of a run's state below a path."""
    leaves = checkpoint.fetch_leaves(algorithm.state)
    return {name: leaf for name, leaf in leaves.items() if name.startswith(prefix)}


def assert_equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Raise if leaves differ in one bit, whatever their prefixes are."""
    assert len(found) == len(expected) > 0
    for (name, one), (other, two) in zip(
        sorted(found.items()), sorted(expected.items()), strict=True
    ):
        assert one.tobytes() == two.tobytes(), (name, other)


@pytest.mark.slow
@pytest.mark.parametrize("opponents", ["league", "uniform", "pfsp"])
def test_games_are_those_of_a_walk(opponents: Any) -> None:
    """Every episode of two players counts once for both, by the difference of the returns."""
    league: Any = League(league_exploiters=1)
    if opponents != "league":
        league = PopulationPlay(size=3, opponents=opponents)
    num_envs = 18 if opponents == "league" else 6
    with make_config(league, num_envs).build() as algorithm:
        runner, params = algorithm.runner, algorithm.env_params
    runner: Any
    worker = runner.rollout_worker
    state = jax.jit(runner.init)(make_key(2), params)
    acting, env, carry = runner.make_actor_state(state), state.env, state.carry

    @jax.jit
    def step(env: Any, carry: Any) -> Any:
        row = jax.tree.map(lambda x: x[0], worker.sample_inputs(env, 1, params))
        return worker.step(acting, env, carry, row, params, True)

    names = decode_names(np.asarray(state.opponents.names))
    cells = worker.rows.get_cells(":drawn", num_envs).tolist()
    games = np.zeros((len(names), len(names), 3), np.int32)
    returns = np.zeros((num_envs, 2))
    for _ in range(50):
        env, carry, out, _ = step(env, carry)
        slots = np.asarray(carry.opponents.slot)
        returns += np.stack([np.asarray(out.reward[name]) for name in ("a", "b")], axis=1)
        for copy in range(num_envs):
            pattern = worker.rows.patterns[copy % len(worker.rows.patterns)]
            one, other = (
                slots[cells.index([copy, seat])] if own == ":drawn" else names.index(own)
                for seat, own in enumerate(pattern.values())
            )
            if out.ended[copy]:
                outcome = 1 - int(np.sign(returns[copy, 0] - returns[copy, 1]))
                if one != other:
                    games[one, other, outcome] += 1
                    games[other, one, 2 - outcome] += 1
                returns[copy] = 0.0
    steps = np.uint32(50 * num_envs)
    opponents_, after = worker.pool.add_games(
        state.opponents, carry.opponents, steps, num_envs, None
    )
    np.testing.assert_array_equal(np.asarray(opponents_.league.games), games)
    slots = np.asarray(opponents_.league.slots)
    np.testing.assert_array_equal(np.asarray(opponents_.league.recent)[:, 1], games[slots])
    assert np.asarray(opponents_.league.since).tolist() == [steps] * len(slots)
    assert not np.asarray(after.games).any()
    assert games.sum() > 0
    own = [names.index(name) for name in league.learners]
    assert (games[own].sum(axis=(1, 2)) > 0).all()


def test_learners_are_met_as_they_are() -> None:
    with make_config(SMALL, 12).build() as algorithm:
        runner: Any = algorithm.runner
        state = algorithm.state
        placed = runner.make_actor_state(state)[":drawn"]
    names = decode_names(np.asarray(state.opponents.names))
    (stack,) = placed.actors.values()
    for name, source in (
        ("main", "main"),
        ("main_exploiter", "main_exploiter"),
        ("main_v0", "main"),
    ):
        slot = names.index(name)
        found = jax.tree.map(operator.itemgetter(slot), stack.params)
        expected = state.modules[source].learner.sgd.params
        jax.tree.map(np.testing.assert_array_equal, found, expected)


class Run:
    """League after each of some iterations, and what was done to it."""

    def __init__(self, folder: Path) -> None:
        self.results: list[Any] = []
        self.tables: list[Any] = []
        self.learners: list[Any] = []
        with make_config(SMALL, 12, policies={"random": RandomRLModule}).build() as algorithm:
            self.first = {m: take_leaves(algorithm, f"modules.{m}.learner") for m in SMALL.learners}
            for _ in range(5):
                self.results.append(algorithm.train())
                self.tables.append(algorithm.get_league())
                self.learners.append(
                    {m: take_leaves(algorithm, f"modules.{m}.learner") for m in SMALL.learners}
                )
                if len(self.results) == 2:
                    self.snapshots = algorithm.get_weights()
                    self.snapshots |= algorithm.get_weights(["main_v1", "main_exploiter_v1"])
                    self.middle = algorithm.save(folder / "middle")
            self.path = algorithm.save(folder / "end")
            self.end = algorithm.get_state()["train_state"]
            self.weights = np.asarray(algorithm.state.opponents.weights)
            standing, plan = make_standing(algorithm.state), algorithm.config.plan()
            self.rule = [
                weigh_draws(SMALL, standing, plan.agents.patterns, draw.learner)  # type: ignore
                for draw in plan.agents.draws  # type: ignore
            ]
            algorithm.restore(self.middle)
            for _ in range(3):
                algorithm.train()
            self.again = algorithm.get_state()["train_state"]
            self.programs = {
                name: own["num_compilations"] for name, own in self.results[-1]["compile"].items()
            }


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """League of a main agent, an exploiter and random moves."""
    return Run(tmp_path_factory.mktemp("league"))


def test_an_exploiter_returns_to_its_first_parameters_to_the_bit(run: Run) -> None:
    assert "main_exploiter_v1" in run.tables[1].players
    assert_equal(run.learners[1]["main_exploiter"], run.first["main_exploiter"])
    main, first = run.learners[1]["main"], run.first["main"]
    assert any(main[name].tobytes() != first[name].tobytes() for name in first)
    went, snapshot = run.snapshots["main_exploiter"], run.snapshots["main_exploiter_v1"]
    leaves = zip(jax.tree.leaves(went), jax.tree.leaves(snapshot), strict=True)
    assert any((one != other).any() for one, other in leaves)
    jax.tree.map(np.testing.assert_array_equal, run.snapshots["main"], run.snapshots["main_v1"])


def test_a_snapshot_takes_over_the_games_of_its_learner(run: Run) -> None:
    before, after = run.results[1]["league"], run.tables[1]
    assert after.players == (
        *("random", "main_v0", "main_v1", "main_exploiter_v1"),
        *("main", "main_exploiter"),
    )
    counts = dict(zip(after.players, after.count_games().sum(axis=1).tolist(), strict=True))
    assert counts["main_v1"] == before["main"]["num_games"] > 0
    assert counts["main_exploiter_v1"] == before["main_exploiter"]["num_games"] > 0
    assert counts["main"] == counts["main_exploiter"] == 0
    for table in run.tables:
        np.testing.assert_array_equal(table.games, table.games.swapaxes(0, 1)[..., ::-1])
        assert not table.games[range(len(table.players)), range(len(table.players))].any()
    recent = dict(zip(after.learners, after.recent, strict=True))
    assert recent["main"].any()
    assert not recent["main_exploiter"].any()
    assert not recent["main"][after.players.index("main_exploiter")].any()


def test_nothing_is_compiled_again(run: Run) -> None:
    assert len(run.tables[-1].snapshots) >= 5
    assert set(run.programs.values()) == {1}


def test_weights_in_the_program_are_those_of_the_rule(run: Run) -> None:
    np.testing.assert_array_equal(run.weights, np.array(run.rule, np.float32))
    assert (run.weights > 0).sum(axis=1).min() >= 1


def test_a_league_goes_on_from_a_checkpoint_to_the_bit(run: Run) -> None:
    assert run.again.keys() == run.end.keys()
    for name, leaf in run.end.items():
        assert leaf.tobytes() == run.again[name].tobytes(), name


@pytest.mark.parametrize(("episodes", "copies"), [(5, 12), (10, 10)])
def test_every_learner_is_evaluated(episodes: int, copies: int) -> None:
    """The first 6 of the 12 successive copies leave the exploiter out."""
    config = make_config(SMALL, 12).evaluation(evaluation_duration=episodes)
    assembly: Any = assemble(config)
    worker = assembly.run.rollout_worker
    limit = assembly.made.max_episode_steps
    evaluator = make_evaluator(config.evaluation_settings, worker, limit, explore=False)
    assert (evaluator.num_envs, evaluator.episodes_per_env) == (copies, 1)


def test_results_have_each_learner(run: Run) -> None:
    assert tuple(run.results[0]["league"]["main"]) == LEARNER_KEYS
    for name in LEARNER_KEYS:
        check_key(f"league/main_exploiter/{name}", "stop")
    elo = run.tables[0].compute_elo()
    assert run.results[0]["league"]["main"]["elo"] == elo["main"]
    assert elo["random"] == 0.0


def test_ratings_of_a_matrix_are_those_of_its_games_once(run: Run) -> None:
    table = run.tables[-1]
    elo = np.array(list(table.compute_elo().values())) * np.log(10) / 400
    won = table.games[..., 0] + 0.5 * table.games[..., 1]
    pairs = table.games.sum(axis=2).astype(float)
    won[1:, 0] += 0.5
    won[0, 1:] += 0.5
    pairs[1:, 0] += 1
    pairs[0, 1:] += 1
    chance = 1 / (1 + np.exp(elo[None] - elo[:, None]))
    slope = won.sum(axis=1) - (pairs * chance).sum(axis=1)
    np.testing.assert_allclose(slope, 0.0, atol=1e-6)


def test_the_command_prints_and_draws(run: Run, tmp_path: Path) -> None:
    picture = tmp_path / "league.png"
    done = CliRunner().invoke(app, ["league", run.path, "--picture", str(picture)])
    assert done.exit_code == 0, done.output
    players = [line.split()[1] for line in done.output.splitlines()[1:]]
    assert players == list(run.tables[-1].players)
    assert picture.read_bytes().startswith(b"\x89PNG")
    saved = read_league(run.path)
    assert saved.games.tobytes() == run.tables[-1].games.tobytes()


DAMAGES: dict[str, tuple[Any, str]] = {
    "shape": (lambda x: x[..., :2], "do not fit each other"),
    "type": (lambda x: x * np.nan, "invalid ids or numbers"),
    "one side": (lambda x: x + np.tri(len(x), dtype=x.dtype)[..., None], "invalid ids or numbers"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_matrix_is_one_sentence(
    damage: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, sentence = DAMAGES[damage]
    leaves = dict(run.end)
    leaves["opponents.league.games"] = change(leaves["opponents.league.games"])
    monkeypatch.setattr(checkpoint, "read_leaves", lambda *_: leaves)
    with pytest.raises(CheckpointError, match=sentence) as caught:
        read_league(run.path)
    assert "\n" not in str(caught.value)


def test_first_parameters_may_be_set_before_training() -> None:
    config = make_config(SMALL, 12).fault_tolerance(on_nonfinite="rollback")
    with config.build() as algorithm:
        weights = algorithm.get_weights(["main_exploiter"])
        doubled = jax.tree.map(lambda x: 2 * x + 1, weights)
        algorithm.set_weights(doubled)
        first = algorithm.state.opponents.league.first["main_exploiter"]["learner"].sgd.params
        jax.tree.map(np.testing.assert_array_equal, first, doubled["main_exploiter"])
        algorithm.set_weights({"main": doubled["main_exploiter"]})
        version = algorithm.get_weights(["main_v0"])["main_v0"]
        jax.tree.map(np.testing.assert_array_equal, version, doubled["main_exploiter"])
        # Likewise by a part of a checkpoint, to which a rollback returns, too.
        state = algorithm.get_state()
        algorithm.set_weights(dict.fromkeys(SMALL.learners, weights["main_exploiter"]))
        algorithm.set_state(state, component="rl_module")
        first = algorithm.state.opponents.league.first["main_exploiter"]["learner"].sgd.params
        version = algorithm.get_weights(["main_v0"])["main_v0"]
        guards = [algorithm.state.modules[m].guard.snapshot for m in SMALL.learners]
        for params in (first, version, *(guard.sgd.params for guard in guards)):
            jax.tree.map(np.testing.assert_array_equal, params, doubled["main_exploiter"])
        with pytest.raises(
            ConfigError, match=r"set_mapping\(...\) has no effect with league=League"
        ):
            algorithm.set_mapping({"a": "main", "b": "main_exploiter"})


def test_learners_may_have_hyperparameters_of_their_own() -> None:
    """No grad_clip, and a schedule: snapshots are then of a kind of their own."""
    overrides = {"main_exploiter": {"grad_clip": None, "lr": [[0, 0.1], [100, 0.0]]}}
    config = make_config(SMALL, 12, algorithm_config_overrides_per_module=overrides)
    pool = assemble(config).pool  # type: ignore
    assert [list(kind.learners) for kind in pool.kinds] == [["main"], ["main_exploiter"]]


@pytest.mark.parametrize("sizes", [{}, {"size": 2}])
def test_numbers_of_lanes_are_no_obstacle(sizes: dict[str, Any]) -> None:
    pbt = PopulationBasedTraining(hyperparam_mutations={"lr": uniform(1e-3, 1e-1)})
    league = PopulationPlay(pbt=pbt, **sizes) if sizes else SMALL
    config = make_config(league, 12)
    training = mark_per_lane(config.training_settings, ["gamma"])
    vars(config)["training_settings"] = training
    assert assemble(config).pool.players.learners == league.learners  # type: ignore


@pytest.mark.representatives("uniform")
@pytest.mark.parametrize("opponents", ["uniform", "pfsp"])
def test_a_population_takes_no_other_opponents(opponents: Any) -> None:
    with make_config(PopulationPlay(size=2, opponents=opponents), 4).build() as algorithm:
        for add in (
            lambda: algorithm.snapshot("player_0", as_="copy"),
            lambda: algorithm.add_module("copy"),
        ):
            with pytest.raises(
                ConfigError, match=r"no effect with league=PopulationPlay\(\.\.\.\)"
            ):
                add()


def test_the_oldest_snapshot_of_who_has_most_makes_room() -> None:
    """But not the first version of the main agent."""
    league = League(league_exploiters=0, max_steps=1)
    with make_config(league, 12, policy_map_capacity=5).build() as algorithm:
        for index in range(7):
            for place, learner in enumerate(league.learners):
                algorithm.league._take_learner_snapshot(league, learner, place)
            assert len(algorithm.opponents) == min(2 * index + 3, 5)
        assert sorted(algorithm.opponents) == [
            *("main_exploiter_v5", "main_exploiter_v6", "main_exploiter_v7"),
            *("main_v0", "main_v7"),
        ]
        algorithm.remove_module("main_v7")
        standing, agents = make_standing(algorithm.state), algorithm.league._agents
        rule = [
            weigh_draws(league, standing, agents.patterns, draw.learner)  # type: ignore
            for draw in agents.draws
        ]
        weights = np.asarray(algorithm.state.opponents.weights)
        np.testing.assert_array_equal(weights, np.array(rule, np.float32))


class PopulationRun:
    """Population of two before and after one becomes a copy of the other."""

    def __init__(self, folder: Path) -> None:
        pbt = PopulationBasedTraining(
            hyperparam_mutations={"lr": uniform(1e-3, 1e-1)},
            perturbation_interval=2,
            resample_probability=0.0,
        )
        self.league = PopulationPlay(size=2, pbt=pbt)
        overrides = {"player_1": {"lr": 0.02, "gamma": 0.9}}
        config = make_config(self.league, 2, algorithm_config_overrides_per_module=overrides)
        self.results, self.tables = [], []
        with config.build() as algorithm:
            for _ in range(4):
                self.results.append(algorithm.train())
                self.tables.append(algorithm.get_league())
                if len(self.results) == 2:
                    self.middle = algorithm.save(folder / "middle")
                    algorithm.begin_league_round()
                    self.begun = algorithm.get_league()
                    self.leaves = {
                        m: take_leaves(algorithm, f"modules.{m}.") for m in self.league.learners
                    }
            self.end = algorithm.get_state()["train_state"]
            algorithm.restore(self.middle)
            for _ in range(2):
                algorithm.train()
            self.again = algorithm.get_state()["train_state"]


@pytest.fixture(scope="module")
def population(tmp_path_factory: pytest.TempPathFactory) -> PopulationRun:
    """Population of two learners."""
    return PopulationRun(tmp_path_factory.mktemp("population"))


def test_the_worst_becomes_a_copy_of_the_best(population: PopulationRun) -> None:
    before = population.results[1]["league"]
    ratings = {m: before[m]["elo"] for m in population.league.learners}
    best = max(ratings, key=lambda m: ratings[m])
    (worst,) = set(ratings) - {best}
    copied = {f".{part}" for part in ("learner", "connectors.obs", "connectors.learner")}
    numbers = 0
    for name, leaf in population.leaves[best].items():
        own = population.leaves[worst][name.replace(best, worst)]
        if any(part in name for part in copied) and "hparams" not in name:
            assert own.tobytes() == leaf.tobytes(), name
            numbers += 1
    assert numbers > 8
    old = population.leaves[best][f"modules.{best}.learner.hparams.lr"]
    new = population.leaves[worst][f"modules.{worst}.learner.hparams.lr"]
    assert float(new) == pytest.approx(1.2 * float(old)) or float(new) == pytest.approx(
        0.8 * float(old)
    )
    assert before[best]["lr"] == pytest.approx(float(old))
    for player, gamma in (("player_0", 0.99), ("player_1", 0.9)):  # is not mutated
        own = population.leaves[player][f"modules.{player}.learner.hparams.gamma"]
        assert own == np.float32(gamma)


def test_games_begin_anew_at_a_round_and_nothing_is_compiled(population: PopulationRun) -> None:
    assert population.results[1]["league"]["player_0"]["num_games"] > 0
    assert not population.begun.games.any()
    assert all(table.games.any() for table in population.tables)
    counts = [int(table.games.sum()) for table in population.tables]
    assert counts[2] < counts[1]
    compiled = population.results[-1]["compile"]
    assert {own["num_compilations"] for own in compiled.values()} == {1}


def test_a_population_goes_on_from_a_checkpoint_to_the_bit(population: PopulationRun) -> None:
    for name, leaf in population.end.items():
        assert leaf.tobytes() == population.again[name].tobytes(), name


def test_values_to_choose_from_are_known_again() -> None:
    choices = PopulationBasedTraining(hyperparam_mutations={"lr": [0.001, 0.0003]})
    marker = choices.hyperparam_mutations["lr"]
    assert read_value(jnp.float32(0.0003), marker) == 0.0003
    assert read_value(jnp.float32(0.0004), marker) == float(np.float32(0.0004))
    bounds = PopulationBasedTraining(hyperparam_mutations={"lr": uniform(0.0003, 1)})
    assert read_value(jnp.float32(0.0003), bounds.hyperparam_mutations["lr"]) == float(
        np.float32(0.0003)
    )


def test_a_file_has_the_arguments(tmp_path: Path) -> None:
    file = tmp_path / "league.yaml"
    file.write_text(
        """
        league:
          run: PPO
          env: TicTacToe-v0
          config:
            league: {type: League, league_exploiters: 1, max_steps: 5000}
            num_envs_per_env_runner: 36
        population:
          run: PPO
          env: TicTacToe-v0
          config:
            league:
              type: PopulationPlay
              size: 3
              pbt: {hyperparam_mutations: {lr: [0.001, 0.0001]}}
            num_envs_per_env_runner: 6
        """
    )
    config = load_experiment(file, "league").config
    assert config.multi_agent_settings.any_league == League(league_exploiters=1, max_steps=5000)
    assert len(config.plan().modules) == 3  # type: ignore
    config = load_experiment(file, "population").config
    found = config.multi_agent_settings.any_league
    assert found == PopulationPlay(
        size=3, pbt=PopulationBasedTraining(hyperparam_mutations={"lr": [0.001, 0.0001]})
    )


@pytest.mark.slow
def test_tic_tac_toe_is_learned_in_a_league() -> None:
    config = (
        PPOConfig()
        .environment("TicTacToe-v0")
        .env_runners(num_envs_per_env_runner=144)
        .training(
            train_batch_size=2304,
            minibatch_size=256,
            num_epochs=4,
            lr=1e-3,
            lambda_=1.0,
            entropy_coeff=0.02,
            use_kl_loss=False,
        )
        .multi_agent(
            policies={"random": RandomRLModule},
            league=League(league_exploiters=1, min_steps=20_000, max_steps=150_000),
        )
        .debugging(loggers=[], seed=1)
    )
    with config.build() as algorithm:
        algorithm.fit({"num_env_steps_sampled_lifetime": 600_000})
        table = algorithm.get_league()
        played = algorithm.evaluate(opponents=["random"], module_id="main", num_episodes=400)
    elo = table.compute_elo()
    assert elo["main"] > 150
    assert sum(name.startswith("main_exploiter_v") for name in table.players) >= 2
    # Random moves lose about 350 of the 800 games against random moves.
    losses = sum(own["losses"] for own in played["opponents"]["random"].values())
    assert losses < 150


@pytest.mark.slow
def test_a_league_goes_on_to_the_bit_in_a_fresh_process(tmp_path: Path) -> None:
    script = (
        "import json, sys\n"
        "from jaxrl import Algorithm\n"
        "with Algorithm.from_checkpoint(sys.argv[1]) as algorithm:\n"
        "    algorithm.train()\n"
        "    algorithm.train()\n"
        "    table = algorithm.get_league()\n"
        "    print(json.dumps([table.players, table.games.tolist(), table.compute_elo()]))\n"
    )
    with make_config(SMALL, 12).build() as algorithm:
        algorithm.train()
        path = algorithm.save(tmp_path / "checkpoint")
        algorithm.train()
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
