"""League of a run: opponents are weighed by their games, and the learner's snapshots join them."""

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl.config.settings.multi_agent import SelfPlay
from jaxrl.errors import ConfigError
from jaxrl.metrics import LEAGUE
from jaxrl.policy.learners_league import LearnersLeagueMethods
from jaxrl.runs import opponents
from jaxrl.runs.league_table import LeagueTable, PayoffTable, find_versions
from jaxrl.runs.opponents import make_payoff_table
from jaxrl.training.opponents import OpponentState
from jaxrl.training.report import to_host

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

logger = logging.getLogger("jaxrl")

LEAST_WEIGHT = 1e-6
"""Smallest weight of an opponent beside the largest, 1: smaller ones would be 0 in the program."""


class LeagueMethods(LearnersLeagueMethods):
    """Methods that read a run's league and advance it after an iteration."""

    if TYPE_CHECKING:
        config: AlgorithmConfig

        @property
        def _trained(self) -> frozenset[str]: ...

        def snapshot(self, module_id: str, *, as_: str) -> None: ...
        def _list_slots(self, module_id: str) -> tuple[set[int], set[int]]: ...

    def get_league(self) -> LeagueTable | PayoffTable:
        """Return the games of the learners and their snapshots, with shares and ratings.

        Raises:
            ConfigError: If the run has no league.
        """
        state = self.state.opponents
        if isinstance(state, OpponentState) and state.league is not None:
            return make_payoff_table(self.state)
        return self._get_self_play()

    def _get_self_play(self) -> LeagueTable:
        state = self.state.opponents
        if not isinstance(state, OpponentState) or state.games is None:
            raise ConfigError(
                "get_league() needs a league: set multi_agent(league=SelfPlay(...)) with a mapping "
                "that draws, such as Seats('main', Draw())."
            )
        games, played = opponents.read_games(self.state)
        names = np.asarray(to_host(state.names))
        return LeagueTable.from_arrays(min(self._trained), names, games, played)

    def _advance_league(self, result: dict[str, Any]) -> None:
        """Add the league to a result, take a snapshot that is due, and weigh the opponents."""
        settings = self.config.multi_agent_settings.any_league
        if settings is None:
            return
        if not isinstance(settings, SelfPlay):
            self._advance_learners(settings, result)
            return
        table = self._get_self_play()
        shares = table.compute_recent_shares()
        met = shares[~np.isnan(shares)]
        result[LEAGUE] = {
            "num_opponents": len(table.opponents),
            "num_games": int(table.count_games()[-1].sum()),
            "win_rate_mean": float(met.mean()) if len(met) else float("nan"),
            "win_rate_min": float(met.min()) if len(met) else float("nan"),
            "elo": table.compute_elo()[table.learner],
        }
        waits = bool(to_host(self.state.opponents.waits))
        if waits or is_snapshot_due(settings, table, self.iteration):
            self._take_snapshot(table)
            table = self._get_self_play()
        state = self.state
        after = opponents.advance_windows(state, settings.least_games)
        after = opponents.weigh_slots(after, weigh(settings, table))
        if after is not state:
            self.state = after

    def _take_snapshot(self, table: LeagueTable) -> None:
        """Add the learner to the opponents; without room, remove its oldest snapshot first.

        The slot of a snapshot that still plays an episode is free only later: then this waits for
        the next iteration.
        """
        learner = table.learner
        versions = find_versions(learner, table.opponents)
        empty, free = self._list_slots(learner)
        if not empty and versions:
            self.state = opponents.remove_opponent(self.state, versions[min(versions)])
            empty, free = self._list_slots(learner)
        waits = np.asarray(bool(empty) and not free)
        self.state = opponents.replace_tables(self.state, waits=waits)
        if not free:
            return
        name = f"{learner}_v{max(versions, default=0) + 1}"
        self.snapshot(learner, as_=name)
        slot = opponents.find_slot(self.state, name)
        self.state = opponents.record_snapshot(self.state, slot)
        logger.info("league: %s joins %s.", name, ", ".join(table.opponents))


def is_snapshot_due(settings: SelfPlay, table: LeagueTable, iteration: int) -> bool:
    """Return whether the learner is good enough, or the iteration is one of `every`.

    Args:
        settings: The league.
        table: Its games; opponents that are not drawn any more do not matter.
        iteration: Number of the iteration.
    """
    if settings.every is not None and iteration % settings.every == 0:
        return True
    is_drawn = np.array([weight > 0.0 for weight in weigh(settings, table).values()])
    if (table.recent[is_drawn].sum(axis=1) < settings.least_games).any():
        return False
    return bool((table.compute_recent_shares()[is_drawn] >= settings.win_rate).all())


def weigh(settings: SelfPlay, table: LeagueTable) -> dict[str, float]:
    """Return the weight of each opponent in the next episodes."""
    names = table.opponents
    if settings.opponents == "pfsp":
        lost = 1.0 - table.smooth_shares()
        weights = np.maximum((lost / lost.max()) ** settings.power, LEAST_WEIGHT)
        return dict(zip(names, weights.tolist(), strict=True))
    if settings.opponents == "latest":
        versions = find_versions(table.learner, names)
        old = {versions[number] for number in sorted(versions)[: -settings.num_latest]}
        return {name: 0.0 if name in old else 1.0 for name in names}
    return dict.fromkeys(names, 1.0)
