"""Leagues of several learners: main agents and exploiters, or a population."""

import dataclasses
import math
from typing import Literal

import numpy as np

from jaxrl.config.pbt import DEFAULT_METRIC, PopulationBasedTraining
from jaxrl.errors import ConfigError

MAX_LEARNERS = 32
"""Maximum number of learners of a league: each is compiled into the program."""


def number_ids(name: str, number: int) -> tuple[str, ...]:
    """Return the ids of learners of one role: its name, numbered if there are several."""
    return (name,) if number == 1 else tuple(f"{name}_{i}" for i in range(number))


@dataclasses.dataclass(frozen=True, kw_only=True)
class League:
    """League of main agents, main exploiters and league exploiters (Vinyals et al. 2019, AlphaStar).

    Every learner is a module: `main`, `main_exploiter`, `league_exploiter`, with a number if there
    are several, such as `league_exploiter_0`. They play each other's snapshots, which join as
    `main_v1`, and each other. The first parameters of a main agent are there from the start, as
    `main_v0`.

    A main agent plays `self_play` of its games against the current main agents, `pfsp` against all
    past players, weighed by `(1 - p) ** power` of the share p that it wins (prioritized fictitious
    self-play), and the rest against past main exploiters if it wins less than `strong` against one
    of them, else against past main agents if it wins less than `win_rate` against one that was
    beaten before, else against the current main agents.
    A main exploiter plays the current main agents, and where it wins less than `curriculum_below`
    against one, `curriculum` of these games are against that one's past, weighed by `p * (1 - p)`.
    A league exploiter plays all past players, weighed by `min(1/2, 1 - p)`.

    A snapshot is taken when a learner has won `win_rate` of its games against all past players, a main
    exploiter against all current main agents, or after `max_steps`. A main exploiter then goes on
    from its first parameters, a league exploiter with the probability `reset`.

    Attributes:
        main: Number of main agents.
        main_exploiters: Number of main exploiters.
        league_exploiters: Number of league exploiters.
        self_play: Share of a main agent's games against current main agents.
        pfsp: Share of a main agent's games against all past players.
        power: Exponent of a main agent's weights.
        strong: Share of games below which a past exploiter, or the current other main agent, is
            too strong.
        curriculum_below: Share of games below which a main exploiter plays past versions, too.
        curriculum: Share of its games that it does.
        win_rate: Share of games (draws count half) that a learner must win for a snapshot.
        least_games: Number of games against each of them before the share counts, which is that
            of the latest so many games to twice as many.
        min_steps: Environment steps of the run between two snapshots of a learner, at least.
        max_steps: Number of steps after which a snapshot is taken in any case; None never does.
        reset: Probability that a league exploiter goes on from its first parameters.
    """

    main: int = 1
    main_exploiters: int = 1
    league_exploiters: int = 2
    self_play: float = 0.35
    pfsp: float = 0.5
    power: float = 2.0
    strong: float = 0.3
    curriculum_below: float = 0.2
    curriculum: float = 0.5
    win_rate: float = 0.7
    least_games: int = 50
    min_steps: int = 0
    max_steps: int | None = 1_000_000
    reset: float = 0.25

    def __post_init__(self) -> None:
        """Raise ConfigError if a value is out of range."""
        problem = _find_wrong_count(self, ("main", "least_games"), 1) or _find_wrong_count(
            self, ("main_exploiters", "league_exploiters", "min_steps"), 0
        )
        shares = ("self_play", "pfsp", "strong", "curriculum_below", "curriculum", "reset")
        problem = problem or find_no_number(self, (*shares, "win_rate", "power"))
        wrong = None
        if problem is None:
            wrong = next((name for name in shares if not 0.0 <= getattr(self, name) <= 1.0), None)
        number = self.main + self.main_exploiters + self.league_exploiters if not problem else 0
        if problem is not None:
            pass
        elif number > MAX_LEARNERS:
            problem = f"{number} learners are too many for one program: have {MAX_LEARNERS} at most"
        elif wrong is not None:
            problem = f"{wrong}={getattr(self, wrong)!r} must be between 0 and 1"
        elif self.self_play + self.pfsp > 1.0 + 1e-9:
            problem = (
                f"self_play={self.self_play!r} and pfsp={self.pfsp!r} are shares of the same games: "
                "their sum must be at most 1"
            )
        elif not 0.0 < self.win_rate <= 1.0:
            problem = f"win_rate={self.win_rate!r} must be above 0 and at most 1"
        elif not 0.0 < self.power < math.inf:
            problem = f"power={self.power!r} must be a finite number above 0"
        elif self.max_steps is not None and not (
            _is_count(self.max_steps, 1) and max(self.min_steps, 1) <= self.max_steps < 2**32
        ):
            problem = (
                f"max_steps={self.max_steps!r} must be None or an integer below 2**32, at least "
                f"min_steps={self.min_steps}"
            )
        if problem is not None:
            raise ConfigError(f"League: {problem}.")

    @property
    def mains(self) -> tuple[str, ...]:
        """Ids of the main agents."""
        return number_ids("main", self.main)

    @property
    def exploiters_of_mains(self) -> tuple[str, ...]:
        """Ids of the main exploiters."""
        return number_ids("main_exploiter", self.main_exploiters)

    @property
    def exploiters_of_all(self) -> tuple[str, ...]:
        """Ids of the league exploiters."""
        return number_ids("league_exploiter", self.league_exploiters)

    @property
    def learners(self) -> tuple[str, ...]:
        """Ids of all learners."""
        return (*self.mains, *self.exploiters_of_mains, *self.exploiters_of_all)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PopulationPlay:
    """Population of learners that play each other.

    Every learner is a module, `player_0`, `player_1`, ... With population based training (Jaderberg
    et al. 2017), the learners of the lowest Elo ratings become copies of those of the highest, and
    continue with other values of hyperparameters. All games begin anew then, so that ratings are
    those of the present learners.

    Attributes:
        size: Number of learners.
        opponents: Who meets whom: "uniform", every pair in copies of the environment of its own, in
            which both learn; "pfsp", drawn in proportion to `(1 - p) ** power` of the share p that
            a learner wins.
        power: Exponent of "pfsp".
        least_games: Number of games after which the share counts without older ones, which is that
            of the latest so many games to twice as many.
        pbt: Population based training, compared by Elo; None trains each on its own.
    """

    size: int = 8
    opponents: Literal["uniform", "pfsp"] = "uniform"
    power: float = 2.0
    least_games: int = 100
    pbt: PopulationBasedTraining | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError if a value is out of range, or has no effect."""
        problem = _find_wrong_count(self, ("size",), 2)
        problem = problem or _find_wrong_count(self, ("least_games",), 1)
        problem = problem or find_no_number(self, ("power",))
        if isinstance(self.pbt, dict):
            object.__setattr__(self, "pbt", PopulationBasedTraining(**self.pbt))
        if problem is not None:
            pass
        elif self.size > MAX_LEARNERS:
            problem = f"size={self.size} is too large for one program: have {MAX_LEARNERS} at most"
        elif self.opponents not in ("uniform", "pfsp"):
            problem = f"opponents={self.opponents!r} must be 'uniform' or 'pfsp'"
        elif not 0.0 < self.power < math.inf:
            problem = f"power={self.power!r} must be a finite number above 0"
        elif self.opponents != "pfsp" and (self.power, self.least_games) != (2.0, 100):
            name = "power" if self.power != 2.0 else "least_games"
            problem = f"{name}={getattr(self, name)!r} has no effect without opponents='pfsp'"
        elif self.pbt is not None and not isinstance(self.pbt, PopulationBasedTraining):
            problem = f"pbt={self.pbt!r} must be a PopulationBasedTraining or None"
        elif self.pbt is not None and (self.pbt.metric, self.pbt.mode) != (DEFAULT_METRIC, "max"):
            problem = (
                f"pbt has metric={self.pbt.metric!r} and mode={self.pbt.mode!r}, but learners are "
                "compared by Elo: leave them out"
            )
        if problem is not None:
            raise ConfigError(f"PopulationPlay: {problem}.")

    @property
    def learners(self) -> tuple[str, ...]:
        """Ids of all learners."""
        return number_ids("player", self.size)


SeveralLearners = League | PopulationPlay


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def find_no_number(settings: object, names: tuple[str, ...]) -> str | None:
    """Return what is wrong with the first field that is no finite number."""
    for name in names:
        value = getattr(settings, name)
        is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
        if not (is_number and math.isfinite(value)):
            hint = " without quotes, with a point before an exponent" * isinstance(value, str)
            return f"{name}={value!r} must be a finite number{hint}"
    return None


def _find_wrong_count(settings: object, names: tuple[str, ...], least: int) -> str | None:
    """Return what is wrong with the first field that is no integer of at least some value."""
    for name in names:
        value = getattr(settings, name)
        if not _is_count(value, least):
            return f"{name}={value!r} must be an integer of at least {least}"
    return None
