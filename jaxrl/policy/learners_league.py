"""Leagues of several learners: their snapshots, returns to first parameters, and exploit steps."""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl.assembly.learners_league import get_learner
from jaxrl.config.markers import Marker
from jaxrl.config.pbt import parse_mutations
from jaxrl.config.settings.multi_agent import League, PopulationPlay, SeveralLearners
from jaxrl.core.hparams import Hyperparameter, to_leaf
from jaxrl.core.seeds import make_seed_sequence
from jaxrl.core.struct import replace
from jaxrl.core.types import Counter
from jaxrl.metrics import LEAGUE, lookup
from jaxrl.runners.in_graph_loop import InGraphLoop
from jaxrl.runs import opponents
from jaxrl.runs.exploits import Exploit, PBTScheduler
from jaxrl.runs.league_table import PayoffTable, compute_shares
from jaxrl.training.league_rules import find_version, is_due, weigh_draws
from jaxrl.training.league_tally import get_learned
from jaxrl.training.opponents import OpponentPool
from jaxrl.training.report import to_host
from jaxrl.training.train_state import TrainState

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig
    from jaxrl.config.multi_agent import AgentMapping
    from jaxrl.runners.protocols import Loop

logger = logging.getLogger("jaxrl")

_SEED_DOMAIN = 0x6C6561
"""Constant that separates this module's random draws from others with the same seed."""


class LearnersLeagueMethods:
    """Methods that advance a league of several learners between iterations."""

    if TYPE_CHECKING:
        config: AlgorithmConfig
        _loop: Loop

        @property
        def state(self) -> TrainState: ...
        @state.setter
        def state(self, state: TrainState) -> None: ...
        @property
        def iteration(self) -> int: ...
        @property
        def last_result(self) -> dict[str, Any]: ...
        @property
        def _agents(self) -> AgentMapping: ...

        def snapshot(self, module_id: str, *, as_: str) -> None: ...
        def _list_slots(self, module_id: str) -> tuple[set[int], set[int]]: ...
        def _list_alike(self, module_id: str) -> list[str]: ...
        def _get_pool(self, call: str) -> OpponentPool: ...

    def _advance_learners(self, league: SeveralLearners, result: dict[str, Any]) -> None:
        """Add the league to a result, change learners that are due, and weigh the opponents."""
        result[LEAGUE] = describe_payoff(opponents.make_payoff_table(self.state))
        if isinstance(league, League):
            steps, standing = opponents.count_steps(self.state), opponents.make_standing(self.state)
            for index, learner in enumerate(league.learners):
                if is_due(league, standing, learner, steps[learner]):
                    self._take_learner_snapshot(league, learner, index)
        elif league.pbt is not None:
            mutations = parse_mutations(self.config, league.pbt)
            for learner in league.learners:
                result[LEAGUE][learner] |= self._read_values(learner, mutations)
        state = opponents.advance_learner_windows(self.state, league.least_games)
        self.state = self._weigh_learners(league, state)

    def _weigh_learners(self, league: SeveralLearners, state: TrainState) -> TrainState:
        """Return the state with the weights of each learner's opponents."""
        pool = self._get_pool("league=...")
        if not pool.draws:
            return state
        standing, patterns = opponents.make_standing(state), self._agents.patterns
        rows = [weigh_draws(league, standing, patterns, get_learner(draw)) for draw in pool.draws]
        weights = np.array(rows, np.float32)
        if (np.asarray(to_host(state.opponents.weights)) == weights).all():
            return state
        return opponents.replace_tables(state, weights=weights)

    def _take_learner_snapshot(self, league: League, learner: str, index: int) -> None:
        """Add a learner to the opponents; without room, remove an old snapshot first.

        The slot of a snapshot that still plays an episode is free only later: then this waits for
        the next iteration.
        """
        empty, free = self._list_slots(learner)
        if not empty:
            surplus = self._find_surplus(learner)
            if surplus is None:
                return
            self.state = opponents.remove_opponent(self.state, surplus)
            free = self._list_slots(learner)[1]
        if not free:
            return
        names = opponents.read_names(self.state)
        numbers = [find_version(learner, name) for name in names]
        version = max((number for number in numbers if number is not None), default=0) + 1
        name = f"{learner}_v{version}"
        self.snapshot(learner, as_=name)
        slot = opponents.find_slot(self.state, name)
        self.state = opponents.take_over_games(self.state, learner, slot)
        returns = self._draws_return(league, learner, index)
        if returns:
            self.state = opponents.return_to_first(self.state, learner)
            self.state = opponents.begin_anew(self.state, learner)
        logger.info(
            "league: %s joins%s.",
            name,
            f", and {learner} returns to its first parameters" if returns else "",
        )

    def _find_surplus(self, learner: str) -> str | None:
        """Return the oldest snapshot of the learner of an architecture that has the most.

        The first version of a main agent, its version 0, stays: ratings may be relative to it. None
        if there is no other one, where other opponents take all room.
        """
        found: list[list[str]] = []
        for other in self._list_alike(learner):
            numbers = {find_version(other, name): name for name in opponents.read_names(self.state)}
            found.append([numbers[number] for number in sorted(n for n in numbers if n)])
        most = max(found, key=len)
        return most[0] if most else None

    def _draws_return(self, league: League, learner: str, index: int) -> bool:
        if learner in league.exploiters_of_mains:
            return True
        if learner not in league.exploiters_of_all:
            return False
        seed = self.config.debugging_settings.run_seed
        sequence = make_seed_sequence(seed, _SEED_DOMAIN, self.iteration, index)
        return bool(np.random.default_rng(sequence).random() < league.reset)

    def begin_league_round(self) -> None:
        """Replace the learners of the lowest ratings before an iteration, if a round is due.

        After the iteration before, learners and games are still those of its result.
        """
        league = self.config.multi_agent_settings.learners_league
        if not isinstance(league, PopulationPlay) or league.pbt is None or not self.last_result:
            return
        assert isinstance(self._loop, InGraphLoop)
        if self._loop.is_dispatched:  # a lane, whose round was before the dispatch of all lanes
            return
        mutations = parse_mutations(self.config, league.pbt)
        scheduler = PBTScheduler(league.pbt, mutations, self.config.debugging_settings.run_seed)
        time = float(lookup(self.last_result, league.pbt.time_attr))
        elapsed = (int(time) - opponents.read_last_round(self.state)) % 2**32
        scheduler.last_time = time - elapsed
        if not scheduler.is_due(time):
            return
        table = opponents.make_payoff_table(self.state)
        ratings, played = table.compute_elo(), table.count_games().sum(axis=1)
        scores = {
            i: ratings[learner]
            for i, learner in enumerate(league.learners)
            if played[table.players.index(learner)]
        }
        if not scores:
            return
        values = [self._read_values(learner, mutations) for learner in league.learners]
        exploits = scheduler.pair(scores, values, {}, self.iteration)
        state = self.state
        for exploit in exploits:
            source, target = (league.learners[i] for i in (exploit.source, exploit.lane))
            state = copy_learner(state, self.state, source, target, exploit.new)
            _log_exploit(exploit, source, target)
        self.state = self._weigh_learners(league, opponents.begin_round(state, int(time)))

    def _read_values(self, learner: str, mutations: Mapping[str, Marker]) -> dict[str, float]:
        """Return a learner's numbers that exploit steps change."""
        hparams = self.state.modules[learner].learner.hparams
        return {name: read_value(hparams[name], marker) for name, marker in mutations.items()}


def read_value(leaf: Hyperparameter, marker: Marker) -> float:
    """Return a number of a learner's hyperparameters; of those to choose from, the one it is."""
    if isinstance(leaf, Counter):
        return int(leaf)
    value = np.float32(to_host(leaf))
    alike = (x for x in marker.values if np.float32(x) == value) if marker.kind == "choice" else ()
    return next(iter(alike), float(value))


def copy_learner(
    state: TrainState, before: TrainState, source: str, target: str, values: Mapping[str, float]
) -> TrainState:
    """Return the state in which a learner is a copy of another one, with other hyperparameters.

    What it has learned is copied: parameters, optimizer state and connectors' statistics. Replay
    buffers and other hyperparameters stay its own. Nothing is compiled.

    Args:
        state: State to change.
        before: State of the learner that is copied.
        source: Learner that is copied.
        target: Learner that becomes the copy.
        values: New values of the hyperparameters that change.
    """
    learned = get_learned(before.modules[source])
    hparams = before.modules[target].learner.hparams
    changed = {name: to_leaf(value, hparams[name]) for name, value in values.items()}
    learned["learner"] = replace(learned["learner"], hparams={**hparams, **changed})
    return opponents.put_learned(state, target, learned)


def describe_payoff(table: PayoffTable) -> dict[str, Any]:
    """Return a league's part of a result: for each learner, its latest games and its rating."""
    elo, numbers = table.compute_elo(), table.count_games().sum(axis=1)
    found: dict[str, Any] = {"num_opponents": len(table.opponents) - len(table.learners)}
    for i, learner in enumerate(table.learners):
        shares = compute_shares(table.recent[i])
        met = shares[~np.isnan(shares)]
        found[learner] = {
            "num_games": int(numbers[table.players.index(learner)]),
            "num_snapshots": sum(find_version(learner, x) is not None for x in table.opponents),
            "win_rate_mean": float(met.mean()) if len(met) else float("nan"),
            "win_rate_min": float(met.min()) if len(met) else float("nan"),
            "elo": elo[learner],
        }
    return found


def _log_exploit(exploit: Exploit, source: str, target: str) -> None:
    changes = ", ".join(f"{name}={value:g}" for name, value in exploit.new.items())
    logger.info("league: %s becomes a copy of %s with %s.", target, source, changes)
