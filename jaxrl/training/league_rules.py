"""Rules of leagues of several learners: who is met how often, and when a snapshot is taken.

They are functions of the learners' games alone, so that a resumed run does the same.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from jaxtyping import Float, Int

from jaxrl.config.agent_mapping import Pattern, list_own_pairs
from jaxrl.config.settings.multi_agent import Draw, League, PopulationPlay, SeveralLearners

Shares = Float[np.ndarray, " S"]
_LEAST_SUM = 1e-10
"""Sum of weights below which all are taken as equal."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Standing:
    """Learners of a league with their latest games.

    Attributes:
        names: Id in each slot, "" in an empty one.
        learners: Ids of the learners, which have slots of their own.
        recent: Latest games of each learner against each slot: won, drawn, lost.
    """

    names: tuple[str, ...]
    learners: tuple[str, ...]
    recent: Int[np.ndarray, "L S 3"]

    def smooth_shares(self, learner: str) -> Shares:
        """Return the shares won, with one win and one loss more; 1/2 without a game."""
        won, drawn, lost = self.recent[self.learners.index(learner)].T
        return (won + 0.5 * drawn + 1.0) / (won + drawn + lost + 2.0)

    def find(self, names: Iterable[str]) -> Int[np.ndarray, " n"]:
        """Return the slots of players."""
        return np.array([self.names.index(name) for name in names], int)

    def list_past(self) -> Int[np.ndarray, " n"]:
        """Return the slots of all players that do not learn."""
        found = [s for s, name in enumerate(self.names) if name and name not in self.learners]
        return np.array(found, int)

    def list_versions(self, learners: Iterable[str]) -> Int[np.ndarray, " n"]:
        """Return the slots of the snapshots of learners, the oldest of each first."""
        found: list[int] = []
        for learner in learners:
            own = [(find_version(learner, name), s) for s, name in enumerate(self.names)]
            found += [s for _, s in sorted((n, s) for n, s in own if n is not None)]
        return np.array(found, int)


def find_version(learner: str, name: str) -> int | None:
    """Return the number of a learner's snapshot, None if it is none of it."""
    number = name.removeprefix(f"{learner}_v")
    return int(number) if number != name and number.isdecimal() else None


def prioritize(
    shares: Shares, chosen: Int[np.ndarray, " n"], weigh: Callable[[Shares], Shares]
) -> Shares:
    """Return the probabilities of prioritized fictitious self-play, over all slots.

    Args:
        shares: Share of games won against each slot.
        chosen: Slots to draw from.
        weigh: Weight of a share (Vinyals et al. 2019, Methods, "Prioritized fictitious self-play").
    """
    found = np.zeros_like(shares)
    if len(chosen):
        weights = weigh(shares[chosen])
        total = weights.sum()
        found[chosen] = weights / total if total >= _LEAST_SUM else 1.0 / len(chosen)
    return found


def weigh_by_variance(share: Shares) -> Shares:
    """Return `p * (1 - p)`, which prefers opponents of the same level."""
    return share * (1.0 - share)


def weigh_capped(share: Shares) -> Shares:
    """Return `min(1/2, 1 - p)`."""
    return np.minimum(0.5, 1.0 - share)


def want_shares(league: SeveralLearners, standing: Standing, learner: str) -> Shares:
    """Return the share of a learner's games that are to be against each slot."""
    p = standing.smooth_shares(learner)
    if isinstance(league, PopulationPlay):
        others = standing.find(name for name in league.learners if name != learner)
        power = league.power if league.opponents == "pfsp" else 0.0
        return prioritize(p, others, lambda share: (1.0 - share) ** power)
    if learner in league.mains:
        return _want_of_main(league, standing, p, learner)
    past = standing.list_past()
    if learner in league.exploiters_of_all:
        return prioritize(p, past, weigh_capped)
    found = np.zeros_like(p)
    for main in league.mains:
        current, versions = _choose(p, standing, main), standing.list_versions([main])
        if p[standing.find([main])[0]] < league.curriculum_below and len(versions):
            easier = prioritize(p, versions, weigh_by_variance)
            current = (1.0 - league.curriculum) * current + league.curriculum * easier
        found += current / len(league.mains)
    return found


def _want_of_main(league: League, standing: Standing, p: Shares, learner: str) -> Shares:
    def weigh(share: Shares) -> Shares:
        return (1.0 - share) ** league.power

    found = league.pfsp * prioritize(p, standing.list_past(), weigh)
    omitted = 1.0 - league.pfsp - league.self_play
    exploiters = standing.list_versions(league.exploiters_of_mains)
    is_exploited = len(exploiters) > 0 and p[exploiters].min() < league.strong
    for main in league.mains:
        alike = _choose(p, standing, main)
        versions = standing.list_versions([main])
        is_other = main != learner
        if is_other and p[standing.find([main])[0]] < league.strong and len(versions):
            alike = prioritize(p, versions, weigh_by_variance)
        lost = exploiters if is_exploited else _find_forgotten(p, versions, league.win_rate)
        verified = prioritize(p, lost, weigh) if len(lost) else alike
        found += (league.self_play * alike + omitted * verified) / len(league.mains)
    return found


def _choose(p: Shares, standing: Standing, name: str) -> Shares:
    found = np.zeros_like(p)
    found[standing.find([name])] = 1.0
    return found


def _find_forgotten(
    p: Shares, versions: Int[np.ndarray, " n"], win_rate: float
) -> Int[np.ndarray, " n"]:
    """Return the past versions to meet again, if one of them is no longer beaten.

    The latest versions, among which the shares only fall, are not yet beaten rather than forgotten.
    """
    rises = np.flatnonzero(p[versions][:-1] < p[versions][1:])
    known = versions[: rises[-1] + 2] if len(rises) else versions[:0]
    return known if len(known) and p[known].min() < win_rate else known[:0]


def weigh_draws(
    league: SeveralLearners, standing: Standing, patterns: Sequence[Pattern], learner: str
) -> Shares:
    """Return the weights of a learner's Draw: what its fixed pairs leave of the shares it wants.

    Args:
        league: The league.
        standing: Its players.
        patterns: Mapping of the run.
        learner: Id of the learner.
    """
    wanted = want_shares(league, standing, learner)
    pairs = list_own_pairs(league, patterns, learner)
    fixed = np.zeros_like(wanted)
    for name in pairs:
        if not isinstance(name, Draw):
            fixed[standing.find([name])] += 1.0
    left = np.maximum(wanted * len(pairs) - fixed, 0.0)
    return left / left.sum() if left.sum() >= _LEAST_SUM else wanted


def is_due(league: League, standing: Standing, learner: str, steps: int) -> bool:
    """Return whether a learner's snapshot is to be taken.

    Args:
        league: The league.
        standing: Its players.
        learner: Id of the learner.
        steps: Environment steps since its latest one.
    """
    if league.max_steps is not None and steps >= league.max_steps:
        return True
    if steps < league.min_steps:
        return False
    is_of_main = learner in league.exploiters_of_mains
    others = standing.find(league.mains) if is_of_main else standing.list_past()
    won, drawn, lost = standing.recent[standing.learners.index(learner)][others].T
    number = won + drawn + lost
    if not len(others) or (number < league.least_games).any():
        return False
    return bool(((won + 0.5 * drawn) / number >= league.win_rate).all())
