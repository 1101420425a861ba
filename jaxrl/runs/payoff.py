"""Pay-off matrix of a league of several learners, from a run's state or its checkpoint."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int

from jaxrl.errors import CheckpointError
from jaxrl.runs.game_table import GameTable, are_counts, find_ids
from jaxrl.training.league_rules import find_version
from jaxrl.training.opponents import decode_names

NAMES = "opponents.names"
PAYOFF, RECENT, SLOTS = (f"opponents.league.{name}" for name in ("games", "recent", "slots"))
"""Leaves of a state that the matrix is made of."""
_MAIN = re.compile(r"main(_\d+)?")
"""Ids of main agents, which go on after a snapshot; exploiters may return to their first parameters."""


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


def read_payoff(leaves: Mapping[str, np.ndarray], found: Path) -> PayoffTable:
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
    is_valid = find_ids(names) is not None and are_counts(games, recent, slots)
    if not is_valid or (slots >= number).any() or (games != games.swapaxes(0, 1)[..., ::-1]).any():
        raise CheckpointError(f"{found} cannot be loaded: its league has invalid ids or numbers.")
    ids = decode_names(names)
    return PayoffTable.from_arrays([ids[slot] for slot in slots.tolist()], names, games, recent)
