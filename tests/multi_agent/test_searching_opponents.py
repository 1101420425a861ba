"""Opponents that search: snapshots of AlphaZero in leagues, and a learner's parameters with a search."""

from typing import Any

import jax
import numpy as np
import pytest
import yaml

from jaxrl import (
    Algorithm,
    AlphaZeroConfig,
    DQNConfig,
    Draw,
    League,
    MultiRLModuleSpec,
    PopulationPlay,
    PPOConfig,
    RandomRLModule,
    RLModuleSpec,
    Seats,
    SelfPlay,
)
from jaxrl.assembly.assemble import assemble
from jaxrl.assembly.opponents import find_kind
from jaxrl.config.batch_plan import MultiAgentPlan
from jaxrl.config.load import experiment_from_dict
from jaxrl.envs.model import with_state
from jaxrl.envs.registry import make_multi
from jaxrl.errors import ConfigError, EnvError, JaxrlError, ModuleError
from jaxrl.modules.planner import Planner, Search
from jaxrl.policy.league import is_snapshot_due
from jaxrl.runs.league_table import LeagueTable, read_league
from jaxrl.training.opponents import encode_name
from tests.helpers import assert_equal

SEARCHER = "main_32"
SEATS = ("player_0", "player_1")


def make_config(config: Any = None, env: Any = "TicTacToe-v0", **training: Any) -> Any:
    config = PPOConfig() if config is None else config
    config.environment(env, observe_state=True)
    config.env_runners(num_envs_per_env_runner=24).debugging(seed=0, loggers=[])
    config.training(train_batch_size=240, minibatch_size=120, num_epochs=1, **training)
    return config.rl_module(model_config={"fcnet_hiddens": [16], "conv_filters": []})


def with_searcher(config: Any, mapping: Any = None, **changes: Any) -> Any:
    """The config with `main`, a module at random, and `main` with a search of 32 steps."""
    spec = {"of": "main", "num_simulations": 32, **changes}
    return config.multi_agent(
        policies={"main": None, SEARCHER: spec, "random": RandomRLModule},
        policies_to_train=["main"],
        mapping=mapping or Seats("main", Draw((SEARCHER, "random"))),
    )


def list_searches(algorithm: Any) -> dict[str, Search | None]:
    """The search of each opponent, None of one that acts by itself."""
    modules = {x: algorithm.get_policy(x).inference.policy_step.module for x in algorithm.opponents}
    return {x: own.search if isinstance(own, Planner) else None for x, own in modules.items()}


# --- leagues ---


@pytest.mark.allow_key_reuse
def test_snapshots_of_a_league_of_several_learners_search_as_they_do() -> None:
    config = make_config(AlphaZeroConfig(), num_simulations=4)
    config.multi_agent(
        policies={"random": RandomRLModule},
        league=League(
            main_exploiters=0, league_exploiters=0, win_rate=0.2, least_games=1, max_steps=200
        ),
    )
    with config.build() as algorithm:
        for _ in range(2):
            algorithm.train()
        table = algorithm.get_league()
        own = algorithm.get_policy("main").inference.policy_step.module.search
        assert list_searches(algorithm) == {
            name: None if name == "random" else own for name in algorithm.opponents
        }
    assert table.snapshots[:2] == ("main_v0", "main_v1")
    assert table.count_games().sum() > 20
    assert set(table.compute_elo()) == set(table.players)


@pytest.mark.allow_key_reuse
def test_a_run_of_alpha_zero_with_its_snapshots_goes_on_to_the_bit(tmp_path: Any) -> None:
    """Beside a module at random, and one with the parameters of the learner and a deeper search."""
    config = with_searcher(make_config(AlphaZeroConfig(), num_simulations=4), Seats("main", Draw()))
    config.multi_agent(league={"win_rate": 0.01, "least_games": 2})
    with config.build() as algorithm:
        for _ in range(2):
            algorithm.train()
        searches = list_searches(algorithm)
        numbers = {name: own and own.num_simulations for name, own in searches.items()}
        assert numbers == {"main_v1": 4, "main_v2": 4, SEARCHER: 32, "random": None}
        table: Any = algorithm.get_league()
        assert table.players == ("random", "main_v1", "main_v2", SEARCHER, "main")
        assert (table.snapshots, table.searchers) == (("main_v1", "main_v2"), (SEARCHER,))
        path = algorithm.save(str(tmp_path / "a"))
        read: Any = read_league(path)
        assert (read.players, read.searchers) == (table.players, table.searchers)
        assert_equal(read.games, table.games)
        wanted = algorithm.train()
        with Algorithm.from_checkpoint(path) as restored:
            found = restored.train()
            assert_equal(restored.get_weights(), algorithm.get_weights())
    assert (found["league"], found["learners"]) == (wanted["league"], wanted["learners"])


# --- an opponent that searches with the parameters of a learner ---


@pytest.mark.allow_key_reuse
def test_an_opponent_searches_with_the_present_parameters_of_a_learner() -> None:
    """It acts as the learner does with such a planner, and wins more than the learner itself."""
    config = with_searcher(make_config())
    with config.build() as algorithm:
        first = algorithm.get_weights(["main"])["main"]
        algorithm.train()
        weights = algorithm.get_weights(["main", SEARCHER])
        own = algorithm.get_policy(SEARCHER, explore=False)
        assert_equal(weights["main"], weights[SEARCHER])
        assert_equal(weights["main"], own.get_weights())
        before, after = (np.asarray(jax.tree.leaves(x)[0]) for x in (first, weights["main"]))
        assert not np.array_equal(before, after)
        searching = algorithm.get_policy("main", explore=False, planner={"num_simulations": 32})
        made = with_state(make_multi("TicTacToe-v0"))
        start = made.env.reset(jax.random.key(0), made.params)[1].obs[SEATS[0]]
        obs = jax.tree.map(np.asarray, start)
        assert own.act(obs) == searching.act(obs)
        played = algorithm.evaluate(opponents=["main", SEARCHER], num_episodes=100)["opponents"]
        lost = {x: sum(seat["losses"] for seat in own.values()) for x, own in played.items()}
        assert lost[SEARCHER] > lost["main"] + 20


@pytest.mark.allow_key_reuse
def test_an_opponent_that_searches_may_be_all_that_is_drawn() -> None:
    config = with_searcher(make_config()).multi_agent(
        policies={"main": None, SEARCHER: {"of": "main", "num_simulations": 4, "search": "puct"}},
        mapping=Seats("main", SEARCHER),
    )
    with config.build() as algorithm:
        algorithm.train()
        assert algorithm.opponents == [SEARCHER]
        sentence = f"weights has '{SEARCHER}', .* set those, set_weights\\(\\{{'main': ...\\}}\\)"
        with pytest.raises(ModuleError, match=sentence):
            algorithm.set_weights({SEARCHER: algorithm.get_weights()["main"]})
        with pytest.raises(EnvError, match=f"and '{SEARCHER}' searches in the environment"):
            algorithm.set_env_params()
        with pytest.raises(ConfigError, match="leaves nothing to draw"):
            algorithm.remove_module(SEARCHER)
        algorithm.snapshot("main", as_="main_v1")
        algorithm.set_mapping(Seats("main", Draw(("main_v1",))))
        algorithm.remove_module(SEARCHER)
        algorithm.train()
        assert algorithm.opponents == ["main_v1"]
        with pytest.raises(ConfigError, match="choose another id"):
            algorithm.snapshot("main", as_=SEARCHER)


@pytest.mark.allow_key_reuse
def test_opponents_that_are_drawn_act_as_before_where_the_learner_searches() -> None:
    """Also where the run's own observations have no state."""
    config = (
        make_config()
        .environment(observe_state=False)
        .multi_agent(
            policies={"main": None, "random": RandomRLModule},
            policies_to_train=["main"],
            mapping={"player_0": "main", "player_1": []},
        )
    )
    with config.build() as algorithm:
        returns = [
            algorithm.evaluate(num_episodes=100, planner={"num_simulations": number})["env_runners"]
            for number in (0, 32)
        ]
        alone, deep = (own["agent_episode_returns_mean"][SEATS[0]] for own in returns)
    assert deep > alone + 0.3


def make_table(recent: Any) -> LeagueTable:
    """The table of random, a snapshot and a searcher, given the learner's games against each."""
    names = np.stack([encode_name(name) for name in (SEARCHER, "main_v1", "random", "")])
    games = np.zeros((7, 4, 3), np.int32)
    games[1, 2] = 5, 0, 0
    return LeagueTable.from_arrays("main", names, games, np.asarray(recent, np.int32), {SEARCHER})


def test_a_snapshot_is_due_without_winning_against_a_search() -> None:
    won, lost, few = (90, 0, 10), (0, 0, 100), (9, 0, 1)
    table = make_table([lost, won, won, (0, 0, 0)])
    assert table.players == ("random", "main_v1", SEARCHER, "main")
    assert is_snapshot_due(SelfPlay(), table, 1)
    assert is_snapshot_due(SelfPlay(), make_table([few, won, won, (0, 0, 0)]), 1)
    assert not is_snapshot_due(SelfPlay(), make_table([won, won, lost, (0, 0, 0)]), 1)
    assert not is_snapshot_due(SelfPlay(), make_table([won, few, won, (0, 0, 0)]), 1)


def test_a_file_may_name_an_opponent_that_searches() -> None:
    text = f"""
    run: PPO
    env: TicTacToe-v0
    config:
      observe_state: true
      policies:
        main: null
        {SEARCHER}: {{of: main, num_simulations: 32}}
        visits: {{of: main, num_simulations: 32, search: {{type: puct, temperature: 1.0}}}}
      mapping: [{{player_0: main, player_1: {SEARCHER}}}, {{player_0: visits, player_1: main}}]
    """
    config = experiment_from_dict("x", yaml.safe_load(text)).config
    plan = config.plan()
    assert isinstance(plan, MultiAgentPlan)
    agents = plan.agents
    assert (agents.drawn, agents.trained) == ((SEARCHER, "visits"), {"main"})
    pool = assemble(config).pool
    assert pool is not None
    versions, *kinds = pool.kinds
    assert [kind.learners for kind in kinds] == [{SEARCHER: "main"}, {"visits": "main"}]
    # Evaluation and snapshots exchange parameters within an architecture, of which search is a part.
    assert all(find_kind([kind], kind.policy) is kind for kind in kinds)
    assert find_kind([versions, kinds[0]], kinds[1].policy) is None


# --- refusals ---


REFUSALS: list[tuple[Any, str]] = [
    (lambda: make_searcher(of="maim"), r"such as \{'of': 'main', .*'maim'.* mean 'main'\?"),
    (lambda: make_searcher(of="random"), "of a module that is trained, such as"),
    (lambda: make_searcher(of=["main"]), "of a module that is trained, such as"),
    (
        lambda: make_searcher().multi_agent(policies={"main": {"config": {"lr": 1e-3}}}),
        r"policies\['main'\]=\{'config': .* must be None, a PolicySpec or a module",
    ),
    (lambda: make_searcher(num_simulations=0), "'main' without search: set 1 or more"),
    (lambda: make_searcher(num_simulations=-1), "-1 must be a whole number below 65536"),
    (lambda: make_searcher(simulations=3), "has no key 'simulations'"),
    (lambda: make_searcher(search="gumble"), "'gumble'; known are 'gumbel', 'puct'"),
    (
        lambda: make_searcher().environment(observe_state=False),
        r"from the state of the environment: set environment\(observe_state=True\)",
    ),
    (
        lambda: make_searcher().rl_module(model_config={"use_lstm": True}),
        f"'{SEARCHER}': .* has a memory, .*leave use_lstm and use_attention out",
    ),
    (lambda: with_searcher(make_small_dqn()), f"'{SEARCHER}': QModule.* no 'vf_preds'"),
    (
        lambda: make_searcher().environment("RockPaperScissors-v0"),
        "act in turns, which search needs: set max_acting=1",
    ),
    (
        lambda: (
            make_searcher()
            .environment("tests.multi_agent.host_envs:Duel")
            .environment(observe_state=False)
        ),
        "is stepped in Python: name one in JAX",
    ),
    (
        lambda: make_searcher().multi_agent(
            algorithm_config_overrides_per_module={SEARCHER: {"lr": 1e-3}}
        ),
        f"'{SEARCHER}' is 'main' with a search, .* have no effect",
    ),
    (
        lambda: make_searcher().rl_module(
            rl_module_spec=MultiRLModuleSpec(rl_module_specs={SEARCHER: RLModuleSpec()})
        ),
        f"'{SEARCHER}' is 'main' with a search, .* have no effect",
    ),
    (
        lambda: make_searcher().multi_agent(policies_to_train=["main", SEARCHER]),
        "modules that are drawn are not trained",
    ),
    (
        lambda: make_searcher().multi_agent(mapping=None, policies_to_train=None, league=League()),
        r"league=League\(...\) weighs past players alone: use SelfPlay\(...\)",
    ),
    (
        lambda: make_searcher().multi_agent(
            mapping=None, policies_to_train=None, league=PopulationPlay(size=2)
        ),
        r"league=PopulationPlay\(...\) weighs past",
    ),
    (
        lambda: make_searcher().environment("CartPole-v1"),
        "CartPole-v1.* a single agent",
    ),
]


def make_searcher(**changes: Any) -> Any:
    return with_searcher(make_config(), **changes)


def make_small_dqn() -> Any:
    config = DQNConfig().environment("TicTacToe-v0", observe_state=True).debugging(loggers=[])
    return config.env_runners(num_envs_per_env_runner=2)


@pytest.mark.parametrize(("make", "sentence"), REFUSALS)
def test_an_opponent_that_cannot_search_is_refused(make: Any, sentence: str) -> None:
    with pytest.raises(JaxrlError, match=sentence):
        make().build()
