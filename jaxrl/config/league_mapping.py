"""Mapping that a league of several learners makes: who meets whom in which copy.

A copy of the environment has a fixed pair of seats: two learners, which both learn, or a learner and
an opponent that is drawn for it. The weights of the draws make up what the fixed pairs leave of the
shares that the league wants.
"""

import dataclasses
import difflib
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxrl.config.agent_mapping import Pattern
from jaxrl.config.settings.league import League, PopulationPlay, SeveralLearners
from jaxrl.config.settings.multi_agent import Draw
from jaxrl.errors import ConfigError

if TYPE_CHECKING:
    from jaxrl.config.settings.multi_agent import MultiAgentSettings

_PAIRS = 3
"""Number of pairs of copies, with both seats, that a learner has for each main agent."""

_NEARLY = 0.9
"""Similarity from which on an id is taken for a misspelled learner."""

Pair = tuple[str, str | Draw]


@dataclasses.dataclass(frozen=True)
class LeagueDraw(Draw):
    """Draw of the opponents of one learner, by weights of its own.

    Attributes:
        learner: Module in the other seat.
    """

    learner: str = ""


def check_league_settings(settings: "MultiAgentSettings", agents: Sequence[str]) -> None:
    """Raise ConfigError if other settings contradict a league of several learners."""
    league = settings.learners_league
    if league is None:
        return
    name = type(league).__name__
    if len(agents) != 2:
        raise ConfigError(
            f"league={name}(...) needs an environment of two agents, but there are "
            f"{', '.join(agents)}: leave it out."
        )
    if settings.policy_mapping_fn is not None:
        raise ConfigError(
            f"league={name}(...) makes the mapping, so policy_mapping_fn has no effect: leave it out."
        )
    for policy in map(str, settings.policies or ()):
        close = difflib.get_close_matches(policy, league.learners, n=1, cutoff=_NEARLY)
        if policy not in league.learners and close:
            raise ConfigError(
                f"policies has {policy!r}, which is no learner of league={name}(...) but nearly "
                f"{close[0]!r}: name it {close[0]!r}, or give it another id."
            )
    wanted = settings.policies_to_train
    if wanted is not None and (callable(wanted) or set(wanted) != set(league.learners)):
        raise ConfigError(
            f"league={name}(...) trains {', '.join(league.learners)}, and policies_to_train={wanted!r} "
            "says otherwise: leave it out."
        )


def make_league_patterns(league: SeveralLearners, agents: Sequence[str]) -> tuple[Pattern, ...]:
    """Return the patterns of a league, in each of which both seats are taken equally often.

    Args:
        league: The league.
        agents: The two agents of the environment.
    """
    if isinstance(league, League):
        pairs = _pair_roles(league)
    elif league.opponents == "uniform":
        pairs = list[Pair](itertools.permutations(league.learners, 2))
    else:
        pairs = [pair for learner in league.learners for pair in _draw(learner, 1)]
    first, second = agents
    patterns: list[Pattern] = []
    for one, other in pairs:
        patterns.append({first: one, second: other})
        if isinstance(other, Draw):
            patterns.append({first: other, second: one})
    return tuple(patterns)


def _draw(learner: str, number: int) -> list[Pair]:
    return [(learner, LeagueDraw(learner=learner))] * number


def _pair_roles(league: League) -> list[Pair]:
    mains = league.mains
    number = _PAIRS * len(mains)
    alike = _count_pairs(league.self_play)
    found: list[Pair] = []
    for main in mains:
        found += [(main, main)] * (2 * alike)  # another main agent may be too strong for now
        found += _draw(main, number - alike)
    apart = _count_pairs(1.0 - league.curriculum)
    for exploiter in league.exploiters_of_mains:
        for main in mains:
            found += [(exploiter, main), (main, exploiter)] * apart
        found += _draw(exploiter, number - apart * len(mains))
    for exploiter in league.exploiters_of_all:
        found += _draw(exploiter, number)
    return found


def _count_pairs(share: float) -> int:
    """Return the number of a learner's pairs with one main agent that are always within a share."""
    return min(int(share * _PAIRS + 1e-9), _PAIRS - 1)


def name_draws(league: SeveralLearners, patterns: Sequence[Pattern]) -> tuple[Pattern, ...]:
    """Return the patterns of a user's mapping with the Draw of each learner.

    Raises:
        ConfigError: If the mapping contradicts the league.
    """
    named = tuple(_name_pattern(league, pattern) for pattern in patterns)
    name = type(league).__name__
    missing = [learner for learner in league.learners if not list_own_pairs(league, named, learner)]
    if missing:
        raise ConfigError(
            f"mapping has no copy in which {missing[0]!r} meets the opponents that "
            f"league={name}(...) wants for it: add one, or leave mapping out."
        )
    for learner in league.learners:
        is_drawn = any(isinstance(x, Draw) for x in list_own_pairs(league, named, learner))
        if not is_drawn and (isinstance(league, League) or league.opponents == "pfsp"):
            raise ConfigError(
                f"mapping draws no opponents for {learner!r}, by which league={name}(...) chooses who "
                f"it meets: give Draw() the seat opposite it, or leave mapping out."
            )
        if isinstance(league, League):
            _check_fixed_pairs(league, named, learner)
    return named


def _check_fixed_pairs(league: League, patterns: Sequence[Pattern], learner: str) -> None:
    """Raise ConfigError if fixed pairs take a larger share than the league ever wants."""
    pairs = list_own_pairs(league, patterns, learner)
    is_main = learner in league.mains
    most = (league.self_play if is_main else 1.0 - league.curriculum) / len(league.mains)
    for main in league.mains:
        share = pairs.count(main) / len(pairs)
        if share > most + 1e-9:
            field = "self_play" if is_main else "curriculum"
            raise ConfigError(
                f"mapping has {main!r} opposite {learner!r} in {share:.0%} of the copies of {learner!r}, "
                f"but league=League(...) may want only {most:.0%} with {field}="
                f"{getattr(league, field)}: give Draw() more seats, or leave mapping out."
            )


def _name_pattern(league: SeveralLearners, pattern: Pattern) -> Pattern:
    one, other = pattern.values()
    name = type(league).__name__
    learners = [own for own in (one, other) if not isinstance(own, Draw)]
    unknown = next((own for own in learners if own not in league.learners), None)
    if unknown is not None:
        raise ConfigError(
            f"mapping names {unknown!r}, but the learners of league={name}(...) are "
            f"{', '.join(league.learners)}: name those, or leave mapping out."
        )
    draws = [own for own in (one, other) if isinstance(own, Draw)]
    if len(draws) == 2 or any(draw.ids for draw in draws):
        raise ConfigError(
            f"mapping has {pattern}, but league={name}(...) weighs opponents itself: give one seat "
            "Draw() without ids and the other one a learner, or leave mapping out."
        )
    if not draws and not (wants(league, one, other) or wants(league, other, one)):
        raise ConfigError(
            f"mapping has {one!r} against {other!r}, who do not meet in league={name}(...): give one "
            "seat Draw(), or leave mapping out."
        )
    return {
        agent: LeagueDraw(learner=learners[0]) if isinstance(own, Draw) else own
        for agent, own in pattern.items()
    }


def wants(league: SeveralLearners, learner: str | Draw, other: str | Draw) -> bool:
    """Return whether a learner's games are to be against another one as it is now."""
    if isinstance(league, PopulationPlay):
        return learner != other
    return other in league.mains and learner not in league.exploiters_of_all


def list_own_pairs(
    league: SeveralLearners, patterns: Sequence[Pattern], learner: str
) -> list[str | Draw]:
    """Return the other seat of each copy that counts towards a learner's shares.

    A copy of two learners counts for those that want to meet the other one.
    """
    found: list[str | Draw] = []
    for pattern in patterns:
        one, other = pattern.values()
        if learner in (one, other):
            rival = other if one == learner else one
            if isinstance(rival, Draw) or wants(league, learner, rival):
                found.append(rival)
    return found
