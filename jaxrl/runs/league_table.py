"""Tables of a league: games of its players, shares won, and Elo ratings.

They are read from a run's state or its checkpoint: that of a learner and its snapshots, or the
pay-off matrix of several learners.
"""

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from jaxrl.config.multi_agent import find_searchers, is_module_id
from jaxrl.errors import CheckpointError
from jaxrl.runs import checkpoint as ckpt
from jaxrl.runs.host_state import check_metadata
from jaxrl.training.league import find_version
from jaxrl.training.opponents import decode_names

NAMES, GAMES, PLAYED = "opponents.names", "opponents.games", "carry.opponents.games"
"""Leaves of a state that the table of one learner is made of."""
PAYOFF, RECENT, SLOTS = (f"opponents.league.{name}" for name in ("games", "recent", "slots"))
"""Leaves of a state that, with `NAMES`, the matrix of several learners is made of."""
ELO_SCALE = 400.0
_NUM_STEPS = 200
_TOLERANCE = 1e-12
_MAIN = re.compile(r"main(_\d+)?")
"""Ids of main agents, which go on after a snapshot; exploiters may return to their first parameters."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GameTable:
    """Games of players against each other.

    Attributes:
        opponents: Ids of the opponents.
        games: Numbers of games won, drawn and lost by each player against each opponent.
    """

    opponents: tuple[str, ...]
    games: Int[np.ndarray, "P O 3"]

    @property
    def players(self) -> tuple[str, ...]:
        """Ids of the players, in the order of the rows; the opponents are the first of them."""
        raise NotImplementedError

    def get_distinct_games(self) -> Int[np.ndarray, "P O 3"]:
        """Return the games of which each is there once, for the players in whose row it is."""
        return self.games

    def count_games(self) -> Int[np.ndarray, "P O"]:
        """Return the number of games of each pair."""
        return self.games.sum(axis=2)

    def compute_shares(self) -> Float[np.ndarray, "P O"]:
        """Return the shares won by each player against each opponent; NaN without a game.

        A draw counts half.
        """
        return compute_shares(self.games)

    def compute_elo(self) -> dict[str, float]:
        """Return the Elo rating of each player, by a fit to all games at once.

        The ratings maximize the likelihood of the Bradley-Terry model (Bradley & Terry 1952), in which
        a draw is half a win, with one more draw of every player against the first opponent, so that
        they are finite. The first opponent has 0. Newton's method, with a search along each step.
        """
        number, met = len(self.players), len(self.opponents)
        if number == 1:
            return {self.players[0]: 0.0}
        games = self.get_distinct_games()
        pairs, points = np.zeros((number, number)), np.zeros((number, number))
        pairs[:, :met] = games.sum(axis=2)
        points[:, :met] = games[..., 0] + 0.5 * games[..., 1]
        pairs[:, 0] += 1.0
        points[:, 0] += 0.5
        pairs[0, 0] = points[0, 0] = 0.0
        strength = _fit_strengths((points + (pairs - points).T).sum(axis=1), pairs + pairs.T)
        ratings = ELO_SCALE / np.log(10.0) * strength
        return {name: float(rating) for name, rating in zip(self.players, ratings, strict=True)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeagueTable(GameTable):
    """Games of a learner and its opponents.

    Attributes:
        learner: Id of the module that is trained.
        opponents: Ids of the opponents: first those that the league did not make, in the order of
            their slots, then its snapshots, the oldest first, and `searchers`.
        games: Numbers of games won, drawn and lost by each player against each opponent: by the
            opponents, which are snapshots with the games that the learner had played when they were
            taken or have none, and in the last row by the learner since the latest snapshot.
        recent: The learner's games of the two latest windows against each opponent.
        searchers: Opponents that search with the parameters that the learner has at present, whose
            games are those since the latest snapshot.
    """

    learner: str
    recent: Int[np.ndarray, "O 3"]
    searchers: tuple[str, ...] = ()

    @staticmethod
    def from_arrays(
        learner: str,
        names: Int[np.ndarray, "S bytes"],
        games: Int[np.ndarray, "S+3 S 3"],
        played: Int[np.ndarray, "S 3"],
        searchers: Collection[str] = (),
    ) -> "LeagueTable":
        """Return the table of a state.

        Args:
            learner: Id of the module that is trained.
            names: `OpponentState.names`.
            games: `OpponentState.games`.
            played: `OpponentCarry.games`, summed over the rows.
            searchers: Opponents that search with the learner's parameters.
        """
        ids = decode_names(names)
        versions = {name: number for number, name in find_versions(learner, ids).items()}
        slots = [slot for slot, name in enumerate(ids) if name]
        slots.sort(key=lambda slot: (ids[slot] in searchers, versions.get(ids[slot], 0)))
        rows = np.concatenate([games[:-3], (played - games[-1])[None]])
        chosen = rows[np.ix_([*slots, len(ids)], slots)]
        return LeagueTable(
            learner=learner,
            opponents=tuple(ids[slot] for slot in slots),
            games=chosen,
            recent=(played - games[-3])[slots],
            searchers=tuple(ids[slot] for slot in slots if ids[slot] in searchers),
        )

    @property
    def players(self) -> tuple[str, ...]:
        """Ids of the opponents and of the learner, in the order of the rows."""
        return (*self.opponents, self.learner)

    @property
    def snapshots(self) -> tuple[str, ...]:
        """Opponents that have played as the learner."""
        return tuple(
            name for name, own in zip(self.opponents, self.games, strict=False) if own.any()
        )

    def compute_elo(self) -> dict[str, float]:
        """Return the Elo rating of each player, by a fit to all games at once.

        A learner that has not played since its latest snapshot has the rating of it.
        """
        ratings = super().compute_elo()
        if self.snapshots and not self.games[-1].any():
            ratings[self.learner] = ratings[self.snapshots[-1]]
        return ratings

    def compute_recent_shares(self) -> Float[np.ndarray, " O"]:
        """Return the shares of its recent games that the learner won; NaN without a game."""
        return compute_shares(self.recent)

    def smooth_shares(self) -> Float[np.ndarray, " O"]:
        """Return the recent shares with one win and one loss more; 1/2 without a game."""
        won, drawn, _ = self.recent.T
        return (won + 0.5 * drawn + 1.0) / (self.recent.sum(axis=1) + 2.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PayoffTable(GameTable):
    """Games of all players of a league of several learners, each of which meets others.

    Attributes:
        opponents: Ids of all players: first those that the league did not make, then the snapshots,
            those of each learner together and the oldest first, then the learners.
        games: Numbers of games won, drawn and lost by each player against each other one; both
            have every game. A snapshot has the games that its learner had played since the one
            before, and those that it was met in.
        learners: Ids of the modules that are trained.
        recent: Games of each learner in the two latest windows.
    """

    learners: tuple[str, ...]
    recent: Int[np.ndarray, "L P 3"]

    @property
    def players(self) -> tuple[str, ...]:
        """Ids of all players, in the order of the rows."""
        return self.opponents

    @property
    def snapshots(self) -> tuple[str, ...]:
        """Past versions of the learners."""
        return tuple(
            name
            for name in self.opponents
            if any(find_version(learner, name) is not None for learner in self.learners)
        )

    def compute_elo(self) -> dict[str, float]:
        """Return the Elo rating of each player, by a fit to all games at once.

        A main agent that has not played since its latest snapshot has the rating of it.
        """
        ratings, played = super().compute_elo(), self.count_games().sum(axis=1)
        for learner, number in zip(self.players, played, strict=True):
            own = [name for name in self.snapshots if find_version(learner, name) is not None]
            if _MAIN.fullmatch(learner) and learner in self.learners and own and not number:
                ratings[learner] = ratings[own[-1]]
        return ratings

    def get_distinct_games(self) -> Int[np.ndarray, "P P 3"]:
        """Return the games of which each is there once, in the row of the later player."""
        return np.where(np.tri(len(self.opponents), k=-1, dtype=bool)[..., None], self.games, 0)

    @staticmethod
    def from_arrays(
        learners: Sequence[str],
        names: Int[np.ndarray, "S bytes"],
        games: Int[np.ndarray, "S S 3"],
        recent: Int[np.ndarray, "L 2 S 3"],
    ) -> "PayoffTable":
        """Return the table of a state.

        Args:
            learners: Ids of the learners.
            names: `OpponentState.names`.
            games: `LeagueTally.games`.
            recent: `LeagueTally.recent`.
        """
        ids = decode_names(names)

        def rank(slot: int) -> tuple[int, int, int]:
            name = ids[slot]
            if name in learners:
                return 2, learners.index(name), 0
            for i, learner in enumerate(learners):
                number = find_version(learner, name)
                if number is not None:
                    return 1, i, number
            return 0, slot, 0

        slots = sorted((slot for slot, name in enumerate(ids) if name), key=rank)
        return PayoffTable(
            learners=tuple(learners),
            opponents=tuple(ids[slot] for slot in slots),
            games=games[np.ix_(slots, slots)],
            recent=recent.sum(axis=1, dtype=np.int32)[:, slots],
        )


def compute_shares(games: Int[np.ndarray, "*n 3"]) -> Float[np.ndarray, "*n"]:
    """Return the shares of games won, draws counting half; NaN without a game."""
    number = games.sum(axis=-1)
    points = games[..., 0] + 0.5 * games[..., 1]
    return np.where(number > 0, points / np.maximum(number, 1), np.nan)


def _fit_strengths(
    wins: Float[np.ndarray, " P"], pairs: Float[np.ndarray, "P P"]
) -> Float[np.ndarray, " P"]:
    """Return the logarithms of the players' strengths that maximize the likelihood, the first 0.

    Args:
        wins: Games won by each player, draws counting half.
        pairs: Numbers of games of each pair, symmetric.
    """

    def compute_likelihood(strength: Float[np.ndarray, " P"]) -> float:
        both = np.logaddexp(strength[:, None], strength[None])
        return float(wins @ strength - 0.5 * (pairs * both).sum())

    strength = np.zeros(len(wins))
    for _ in range(_NUM_STEPS):
        chance = 1.0 / (1.0 + np.exp(strength[None] - strength[:, None]))
        slope = (wins - (pairs * chance).sum(axis=1))[1:]
        spread = pairs * chance * (1.0 - chance)
        curvature = (np.diag(spread.sum(axis=1)) - spread)[1:, 1:]
        step = np.concatenate([[0.0], np.linalg.solve(curvature, slope)])
        size, before = 1.0, compute_likelihood(strength)
        while compute_likelihood(strength + size * step) < before and size > _TOLERANCE:
            size *= 0.5
        strength = strength + size * step
        if np.abs(size * step).max() < _TOLERANCE:
            break
    return strength


def find_versions(learner: str, names: Sequence[str]) -> dict[int, str]:
    """Return the league's snapshots of a module by their number."""
    numbers = {name: find_version(learner, name) for name in names}
    return {number: name for name, number in numbers.items() if number is not None}


# --- checkpoints ---


def read_league(path: str | Path) -> GameTable:
    """Return the table of the newest checkpoint of a run, or of a checkpoint.

    Raises:
        CheckpointError: If the checkpoint is damaged, or its run has no league.
    """
    found = ckpt.find_checkpoint(path)
    metadata = ckpt.read_metadata(found)
    check_metadata(metadata, found)
    leaves = ckpt.read_leaves(found, metadata)
    if PAYOFF in leaves:
        return _read_payoff(leaves, found)
    missing = [name for name in (NAMES, GAMES, PLAYED) if name not in leaves]
    if missing:
        raise CheckpointError(
            f"{found} has no league: it is of a run without multi_agent(league=SelfPlay(...))."
        )
    names, games, played = (np.asarray(leaves[name]) for name in (NAMES, GAMES, PLAYED))
    slots = names.shape[0] if names.ndim == 2 else -1
    ids = _find_ids(names)
    if games.shape != (slots + 3, slots, 3) or played.shape[1:] != (slots, 3):
        raise CheckpointError(
            f"{found} cannot be loaded: its league has names {names.shape}, games {games.shape} and "
            f"played games {played.shape}, which do not fit each other."
        )
    if ids is None or not _are_counts(games, played):
        raise CheckpointError(f"{found} cannot be loaded: its league has invalid ids or numbers.")
    learner, total = _find_learner(metadata, leaves, found), played.sum(axis=0, dtype=np.int32)
    settings = metadata["config"].get("settings")
    policies = settings.get("policies") if isinstance(settings, Mapping) else None
    return LeagueTable.from_arrays(learner, names, games, total, find_searchers(policies))


def _find_learner(
    metadata: Mapping[str, Any], leaves: Mapping[str, np.ndarray], found: Path
) -> str:
    """Return the id of the module that a run trains."""
    modules = {name.split(".")[1] for name in leaves if name.startswith("modules.")}
    settings = metadata["config"].get("settings")
    named = settings.get("policies_to_train") if isinstance(settings, Mapping) else None
    trained = modules & set(map(str, named)) if isinstance(named, list) else modules
    if not trained:
        raise CheckpointError(
            f"{found} cannot be loaded: its league has no module that is trained."
        )
    return min(trained)


def _read_payoff(leaves: Mapping[str, np.ndarray], found: Path) -> PayoffTable:
    """Return the matrix of a checkpoint.

    Raises:
        CheckpointError: If it is damaged.
    """
    missing = [name for name in (NAMES, RECENT, SLOTS) if name not in leaves]
    if missing:
        raise CheckpointError(f"{found} cannot be loaded: its league has no {missing[0]}.")
    names, games, recent, slots = (np.asarray(leaves[x]) for x in (NAMES, PAYOFF, RECENT, SLOTS))
    number = names.shape[0] if names.ndim == 2 else -1
    if (
        games.shape != (number, number, 3)
        or slots.ndim != 1
        or recent.shape != (len(slots), 2, number, 3)
    ):
        raise CheckpointError(
            f"{found} cannot be loaded: its league has names {names.shape}, games {games.shape}, "
            f"recent games {recent.shape} and {slots.shape} learners, which do not fit each other."
        )
    is_valid = _find_ids(names) is not None and _are_counts(games, recent, slots)
    if not is_valid or (slots >= number).any() or (games != games.swapaxes(0, 1)[..., ::-1]).any():
        raise CheckpointError(f"{found} cannot be loaded: its league has invalid ids or numbers.")
    ids = decode_names(names)
    return PayoffTable.from_arrays([ids[slot] for slot in slots.tolist()], names, games, recent)


def _find_ids(names: np.ndarray) -> list[str] | None:
    """Return the ids of the slots that are not empty, None if they are damaged."""
    ids = [name for name in decode_names(names) if name] if names.dtype == np.uint8 else [""]
    return ids if len(set(ids)) == len(ids) and all(map(is_module_id, ids)) else None


def _are_counts(*arrays: np.ndarray) -> bool:
    """Return whether arrays of a checkpoint are numbers of games."""
    return all(x.dtype == np.int32 and bool((x >= 0).all()) for x in arrays)
