"""Rules of leagues of several learners, against the published pseudocode in plain Python."""

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest

from jaxrl import (
    Draw,
    League,
    PopulationBasedTraining,
    PopulationPlay,
    PPOConfig,
    QMIXConfig,
    RandomRLModule,
    loguniform,
)
from jaxrl.config.agent_mapping import Pattern, make_league_patterns
from jaxrl.config.multi_agent import resolve_agents
from jaxrl.config.serialize import deserialize_config, serialize_config
from jaxrl.errors import ConfigError
from jaxrl.training.league import Standing, is_due, want_shares, weigh_draws

AGENTS = ("a", "b")
WEIGHTINGS = {
    "variance": lambda x: x * (1 - x),
    "linear_capped": lambda x: min(0.5, 1 - x),
    "squared": lambda x: (1 - x) ** 2,
}


def pfsp(wins: dict[str, float], players: list[str], weighting: str) -> Counter[str]:
    """`pfsp` of the supplement of Vinyals et al. 2019."""
    found = Counter({name: WEIGHTINGS[weighting](wins[name]) for name in players})
    total = sum(found.values())
    return Counter({name: x / total for name, x in found.items()})


class Reference:
    """`MainPlayer.get_match` and its like, with probabilities in place of draws."""

    def __init__(self, league: League, names: list[str], wins: dict[str, float]) -> None:
        self.league, self.wins = league, wins
        self.past = [name for name in names if name not in league.learners]

    def of(self, parent: str) -> list[str]:
        own = [name for name in self.past if name.rpartition("_v")[0] == parent]
        return sorted(own, key=lambda name: int(name.rpartition("_v")[2]))

    def play_self(self, opponent: str) -> Counter[str]:
        if self.wins[opponent] >= 0.3:
            return Counter({opponent: 1.0})
        return pfsp(self.wins, self.of(opponent), "variance")

    def verify(self, opponent: str) -> Counter[str] | None:
        exploiters = [x for name in self.league.exploiters_of_mains for x in self.of(name)]
        if exploiters and min(self.wins[x] for x in exploiters) < 0.3:
            return pfsp(self.wins, exploiters, "squared")
        versions = self.of(opponent)
        rates = [self.wins[x] for x in versions]
        kept = 0
        for i in range(len(rates) - 1, 0, -1):
            if rates[i - 1] < rates[i]:
                kept = i + 1
                break
        if kept and min(rates[:kept]) < 0.7:
            return pfsp(self.wins, versions[:kept], "squared")
        return None

    def match(self, learner: str) -> Counter[str]:
        mains, found = self.league.mains, Counter[str]()

        def add(share: float, drawn: Counter[str]) -> None:
            for name, chance in drawn.items():
                found[name] += share * chance

        if learner.startswith("league_exploiter"):
            add(1.0, pfsp(self.wins, self.past, "linear_capped"))
        elif learner.startswith("main_exploiter"):
            for main in mains:
                is_hard = self.wins[main] < 0.2
                add((0.5 if is_hard else 1.0) / len(mains), Counter({main: 1.0}))
                if is_hard:
                    add(0.5 / len(mains), pfsp(self.wins, self.of(main), "variance"))
        else:
            add(0.5, pfsp(self.wins, self.past, "squared"))
            for main in mains:
                add(0.15 / len(mains), self.verify(main) or self.play_self(main))
                add(0.35 / len(mains), self.play_self(main))
        return found


def make_standing(league: League, seed: int) -> Standing:
    """Players with random games, some slots empty, in no order; nobody has met itself."""
    rng = np.random.default_rng(seed)
    names = ["random", *(f"{main}_v{i}" for main in league.mains for i in range(12))]
    names += [f"main_exploiter_v{i}" for i in (1, 2)] + ["league_exploiter_0_v1", "", ""]
    names = [*rng.permutation(names).tolist(), *league.learners]
    recent = rng.integers(0, 30, (len(league.learners), len(names), 3)).astype(np.int32)
    if seed % 2:  # the latest versions are only harder, and exploiters weak
        for i, name in enumerate(names):
            number = name.rpartition("_v")[2]
            recent[:, i] = (100 - 4 * int(number), 0, 4 * int(number)) if number.isdecimal() else 9
            if "exploiter" in name:
                recent[:, i] = 90, 0, 10
    if seed % 3 == 0:
        recent[1:, names.index(league.mains[0])] = 1, 0, 30
    for i, learner in enumerate(league.learners):
        recent[i, names.index(learner)] = 0
    return Standing(names=tuple(names), learners=league.learners, recent=recent)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("mains", [1, 2])
def test_shares_are_those_of_the_paper(mains: int, seed: int) -> None:
    league = League(main=mains)
    standing = make_standing(league, seed)
    patterns = make_league_patterns(league, AGENTS)
    for i, learner in enumerate(league.learners):
        won, drawn, lost = standing.recent[i].T
        rates = (won + drawn / 2 + 1) / (won + drawn + lost + 2)
        wins = dict(zip(standing.names, rates.tolist(), strict=True))
        expected = Reference(league, [x for x in standing.names if x], wins).match(learner)
        wanted = want_shares(league, standing, learner)
        found = {x: w for x, w in zip(standing.names, wanted.tolist(), strict=True) if w}
        assert found == pytest.approx({x: w for x, w in expected.items() if w}, abs=1e-12)
        played = count_games(patterns, standing, learner, league)
        assert played == pytest.approx({x: w for x, w in expected.items() if w}, abs=1e-9)


def count_games(
    patterns: tuple[Pattern, ...], standing: Standing, learner: str, league: League
) -> dict[str, float]:
    """Shares of a learner's games over the copies of the environment that are its own."""
    weights, found = weigh_draws(league, standing, patterns, learner), Counter[str]()
    number = 0
    for pattern in patterns:
        seats = list(pattern.values())
        if learner not in seats:
            continue
        other = seats[1 - seats.index(learner)]
        if isinstance(other, Draw):
            for name, weight in zip(standing.names, weights.tolist(), strict=True):
                found[name] += weight
        elif other in league.mains:  # that of an exploiter is a copy of the exploiter's
            found[other] += 1
        else:
            continue
        number += 1
    return {name: x / number for name, x in found.items() if x}


@pytest.mark.parametrize(
    "league",
    [
        League(),
        League(main=3, main_exploiters=2),
        League(self_play=0.1, curriculum=1.0),
        PopulationPlay(size=5),
        PopulationPlay(size=4, opponents="pfsp"),
    ],
    ids=lambda league: type(league).__name__,
)
def test_every_learner_has_both_seats_equally_often(league: Any) -> None:
    patterns = make_league_patterns(league, AGENTS)
    for learner in league.learners:
        for other in {own[agent] for own in patterns for agent in AGENTS}:
            first = sum((own["a"], own["b"]) == (learner, other) for own in patterns)
            second = sum((own["b"], own["a"]) == (learner, other) for own in patterns)
            assert first == second
        assert any(learner in own.values() for own in patterns)


def test_a_mapping_of_ones_own_has_the_same_shares() -> None:
    """Draws make up what the pairs of the mapping leave, here all games against oneself."""
    league = League(league_exploiters=0)
    pairs = [("main", Draw()), ("main_exploiter", Draw()), ("main_exploiter", "main")]
    mapping = [{"player_0": one, "player_1": other} for one, other in pairs]
    mapping += [{"player_0": other, "player_1": one} for one, other in pairs]
    config = PPOConfig().environment("TicTacToe-v0").multi_agent(league=league, mapping=mapping)
    patterns = resolve_agents(config.environment_settings, config.multi_agent_settings).patterns
    names = ("main_v0", "main_v1", "main_exploiter_v1", *league.learners)
    recent = np.zeros((2, 5, 3), np.int32)
    recent[0, :3] = (9, 0, 1), (5, 3, 2), (1, 0, 9)
    standing = Standing(names=names, learners=league.learners, recent=recent)
    for learner in league.learners:
        wanted = dict(zip(names, want_shares(league, standing, learner).tolist(), strict=True))
        found = count_games(patterns, standing, learner, league)
        assert found == pytest.approx({name: x for name, x in wanted.items() if x})
    assert wanted["main"] == 1.0


def test_an_empty_league_plays_the_first_version_and_itself() -> None:
    config = PPOConfig().environment("TicTacToe-v0").multi_agent(league=League())
    agents = resolve_agents(config.environment_settings, config.multi_agent_settings)
    assert agents.modules == ("league_exploiter_0", "league_exploiter_1", "main", "main_exploiter")
    assert agents.trained == frozenset(agents.modules)
    standing = Standing(
        names=("main_v0", "", *League().learners),
        learners=League().learners,
        recent=np.zeros((4, 6, 3), np.int32),
    )
    assert want_shares(League(), standing, "main").tolist() == [0.5, 0, 0.5, 0, 0, 0]
    assert want_shares(League(), standing, "main_exploiter").tolist() == [0, 0, 1, 0, 0, 0]
    assert want_shares(League(), standing, "league_exploiter_1").tolist() == [1, 0, 0, 0, 0, 0]


def test_a_population_meets_alike_or_by_what_it_loses() -> None:
    recent = np.zeros((3, 3, 3), np.int32)
    recent[0, 1], recent[0, 2] = (8, 0, 0), (1, 2, 5)
    even, drawn = PopulationPlay(size=3), PopulationPlay(size=3, opponents="pfsp", power=3.0)
    standing = Standing(names=even.learners, learners=even.learners, recent=recent)
    assert want_shares(even, standing, "player_0").tolist() == [0.0, 0.5, 0.5]
    lost = np.array([0.1, 0.7]) ** 3
    found = want_shares(drawn, standing, "player_0")
    np.testing.assert_allclose(found, [0.0, *(lost / lost.sum())])


def test_a_snapshot_is_due_by_games_or_steps() -> None:
    league = League(least_games=10, min_steps=100, max_steps=1000)
    names = ("main_v0", "main_exploiter_v1", *league.learners)

    def due(learner: str, games: dict[str, tuple[int, int, int]], steps: int) -> bool:
        recent = np.zeros((len(league.learners), len(names), 3), np.int32)
        for name, own in games.items():
            recent[league.learners.index(learner), names.index(name)] = own
        standing = Standing(names=names, learners=league.learners, recent=recent)
        return is_due(league, standing, learner, steps)

    both = {"main_v0": (7, 0, 3), "main_exploiter_v1": (6, 2, 2)}
    assert due("main", both, 100)
    assert not due("main", both, 99)
    assert not due("main", {**both, "main_v0": (6, 1, 3)}, 999)
    assert due("main", {}, 1000)
    assert not due("league_exploiter_0", {"main_v0": (9, 0, 1)}, 500)
    assert due("main_exploiter", {"main": (7, 0, 3)}, 500)
    assert not due("main_exploiter", {"main": (9, 0, 0)}, 500)
    assert not is_due(League(max_steps=None), make_standing(League(), 0), "main", 2**31)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: League(main=0), "League: main=0 must be an integer of at least 1"),
        (lambda: League(main_exploiters=-1), "main_exploiters=-1 must be an integer of at least 0"),
        (lambda: League(least_games=True), "least_games=True must be an integer of at least 1"),
        (lambda: League(main=20, league_exploiters=20), "41 learners are too many"),
        (lambda: League(reset=1.5), "reset=1.5 must be between 0 and 1"),
        (lambda: League(self_play=0.6), "their sum must be at most 1"),
        (lambda: League(win_rate=0.0), "win_rate=0.0 must be above 0"),
        (lambda: League(self_play="1e-1"), "self_play='1e-1' must be a finite number without quo"),  # type: ignore
        (lambda: League(win_rate=None), "League: win_rate=None must be a finite number"),  # type: ignore
        (
            lambda: PopulationPlay(opponents="pfsp", power="2"),  # type: ignore
            "PopulationPlay: power='2' must be a finite number",
        ),
        (lambda: League(power=0.0), "power=0.0 must be a finite number above 0"),
        (lambda: League(min_steps=10, max_steps=5), "max_steps=5 must be None or .* min_steps=10"),
        (lambda: PopulationPlay(size=1), "PopulationPlay: size=1 must be an integer of at least 2"),
        (lambda: PopulationPlay(size=33), "size=33 is too large"),
        (lambda: PopulationPlay(opponents="best"), "opponents='best' must be 'uniform' or 'pfsp'"),  # type: ignore
        (lambda: PopulationPlay(power=3.0), "power=3.0 has no effect without opponents='pfsp'"),
        (lambda: PopulationPlay(least_games=9), "least_games=9 has no effect without"),
        (lambda: PopulationPlay(pbt=3), "pbt=3 must be a PopulationBasedTraining or None"),  # type: ignore
        (
            lambda: PopulationPlay(
                pbt=PopulationBasedTraining(hyperparam_mutations={"lr": [1, 2]}, mode="min")
            ),
            "compared by Elo: leave them out",
        ),
    ],
)
def test_bad_values_are_one_sentence(make: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make()


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (
            QMIXConfig().environment("TwoStepAnd-v0"),
            "no effect on QMIX, which trains all agents as one",
        ),
        (
            PPOConfig()
            .environment("tests.multi_agent.host_envs:Duel")
            .multi_agent(policies={"random": RandomRLModule}),
            r"league=League\(...\) is part of the compiled program, and .*Duel is written in Python",
        ),
    ],
    ids=["team", "host"],
)
def test_what_cannot_have_a_league_says_why(config: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        config.multi_agent(league=League()).build()
    assert "\n" not in str(caught.value)


LEARNED = {"policies": {"random": RandomRLModule}}


@pytest.mark.parametrize(
    ("env", "settings", "sentence"),
    [
        ("SimpleSpread-v0", {}, r"needs an environment of two agents, but there are agent_0, "),
        ("CartPole-v1", {}, "league=.* has no effect: the environment has a single agent"),
        (
            "TicTacToe-v0",
            {"policy_mapping_fn": lambda a, e: "main"},
            "makes the mapping, so policy_m",
        ),
        ("TicTacToe-v0", {"policies_to_train": ["main"]}, r"trains main, .* says otherwise"),
        (
            "TicTacToe-v0",
            {"mapping": {"player_0": "main", "player_1": "maine"}},
            r"mapping names 'maine', but the learners of league=League\(...\) are main, ",
        ),
        (
            "TicTacToe-v0",
            {"mapping": {"player_0": "main", "player_1": Draw(("random",))}, **LEARNED},
            r"weighs opponents itself: give one seat Draw\(\) without ids",
        ),
        (
            "TicTacToe-v0",
            {"mapping": {"player_0": "main", "player_1": "league_exploiter_0"}},
            "'main' against 'league_exploiter_0', who do not meet",
        ),
        (
            "TicTacToe-v0",
            {"mapping": {"player_0": "main", "player_1": Draw()}},
            "no copy in which 'main_exploiter' meets the opponents",
        ),
        (
            "TicTacToe-v0",
            {
                "league": League(league_exploiters=0),
                "mapping": [
                    {"player_0": "main", "player_1": Draw()},
                    {"player_0": "main", "player_1": "main_exploiter"},
                ],
            },
            "mapping draws no opponents for 'main_exploiter'",
        ),
        (
            "TicTacToe-v0",
            {"evaluation_num_envs": 5},
            "evaluation_num_envs=5 leaves no environment to 'league_exploiter_0', .* set 24, or leave",
        ),
        (
            "TicTacToe-v0",
            {"league": {"type": "League"}, "policies": {"league_exploiter": None}},
            "policies has 'league_exploiter', .* nearly 'league_exploiter_[01]'",
        ),
        ("TicTacToe-v0", {"league": {"type": "Leagues"}}, "type 'Leagues'.*Did you mean 'League'"),
        (
            "TicTacToe-v0",
            {"league": {"type": ["League"]}},
            r"type \['League'\], which must be one of",
        ),
        ("TicTacToe-v0", {"league": {"type": "League", "mains": 1}}, "no argument 'mains'"),
        (
            "TicTacToe-v0",
            {
                "league": League(main_exploiters=0, league_exploiters=0),
                "mapping": [{"player_0": "main", "player_1": "main"}] * 9
                + [{"player_0": "main", "player_1": Draw()}],
            },
            "'main' opposite 'main' in 90% of the copies of 'main', .* may want only 35% with self_play=0.35",
        ),
        (
            "TicTacToe-v0",
            {
                "league": League(league_exploiters=0),
                "mapping": [
                    {"player_0": "main", "player_1": Draw()},
                    *[{"player_0": "main", "player_1": "main_exploiter"}] * 2,
                    {"player_0": "main_exploiter", "player_1": Draw()},
                ],
            },
            "'main' opposite 'main_exploiter' in 67% .* may want only 50% with curriculum=0.5",
        ),
        ("TicTacToe-v0", {"policy_map_capacity": 8}, "policy_map_capacity=8 is too small .* set 9"),
        (
            "TicTacToe-v0",
            {"policies": {"main_v3": RandomRLModule}},
            "'main_v3', which is the id of a snapshot of the league",
        ),
        (
            "TicTacToe-v0",
            {"league": PopulationPlay(size=2), **LEARNED},
            "policies has 'random', which plays n",
        ),
        (
            "TicTacToe-v0",
            {"league": PopulationPlay(size=2, opponents="pfsp"), "policy_map_capacity": 8},
            "policy_map_capacity=8 has no effect: learners of PopulationPlay",
        ),
    ],
)
def test_what_contradicts_a_league_is_one_sentence(
    env: str, settings: dict[str, Any], sentence: str
) -> None:
    config = PPOConfig().environment(env).env_runners(num_envs_per_env_runner=24)
    config.training(train_batch_size=240, minibatch_size=20)
    number = settings.get("evaluation_num_envs", "auto")
    config.evaluation(evaluation_num_envs=number)
    settings = {name: x for name, x in settings.items() if name != "evaluation_num_envs"}
    with pytest.raises(ConfigError, match=sentence) as caught:
        config.multi_agent(**{"league": League(), **settings}).build()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"hyperparam_mutations": {"lrs": [1e-3, 1e-4]}}, "names 'lrs', which is not a setting"),
        ({"hyperparam_mutations": {"num_epochs": [1, 2]}}, "cannot change num_epochs"),
    ],
)
def test_what_cannot_be_mutated_is_one_sentence(settings: dict[str, Any], sentence: str) -> None:
    config = PPOConfig().environment("TicTacToe-v0").env_runners(num_envs_per_env_runner=2)
    config.training(train_batch_size=20, minibatch_size=20)
    pbt = PopulationBasedTraining(**settings)
    with pytest.raises(Exception, match=sentence):
        config.multi_agent(league=PopulationPlay(size=2, pbt=pbt)).build()


@pytest.mark.parametrize(
    "league",
    [
        League(main=2, max_steps=None),
        PopulationPlay(
            pbt=PopulationBasedTraining(
                hyperparam_mutations={"lr": loguniform(1e-5, 1e-2), "gamma": [0.9, 0.99]}
            )
        ),
    ],
    ids=["roles", "population"],
)
def test_a_league_is_saved_and_loaded(league: Any) -> None:
    config = PPOConfig().environment("TicTacToe-v0").multi_agent(league=league)
    data = json.loads(json.dumps(serialize_config(config)))
    assert deserialize_config(data).league == league
