"""Table of a league: games of the learner and of its snapshots, shares won, and Elo ratings."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from jaxrl.errors import CheckpointError
from jaxrl.runs import checkpoint as ckpt
from jaxrl.runs.game_table import GameTable, are_counts, compute_shares, find_ids
from jaxrl.runs.host_state import check_metadata
from jaxrl.runs.payoff import PAYOFF, read_payoff
from jaxrl.training.opponents import decode_names

NAMES, GAMES, PLAYED = "opponents.names", "opponents.games", "carry.opponents.games"
"""Leaves of a state that the table is made of."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeagueTable(GameTable):
    """Games of a learner and its opponents.

    Attributes:
        learner: Id of the module that is trained.
        opponents: Ids of the opponents: first those that the league did not make, in the order of
            their slots, then its snapshots, the oldest first.
        games: Numbers of games won, drawn and lost by each player against each opponent: by the
            opponents, which are snapshots with the games that the learner had played when they were
            taken or have none, and in the last row by the learner since the latest snapshot.
        recent: The learner's games of the two latest windows against each opponent.
    """

    learner: str
    recent: Int[np.ndarray, "O 3"]

    @staticmethod
    def from_arrays(
        learner: str,
        names: Int[np.ndarray, "S bytes"],
        games: Int[np.ndarray, "S+3 S 3"],
        played: Int[np.ndarray, "S 3"],
    ) -> "LeagueTable":
        """Return the table of a state.

        Args:
            learner: Id of the module that is trained.
            names: `OpponentState.names`.
            games: `OpponentState.games`.
            played: `OpponentCarry.games`, summed over the rows.
        """
        ids = decode_names(names)
        versions = {name: number for number, name in find_versions(learner, ids).items()}
        slots = [slot for slot, name in enumerate(ids) if name]
        slots.sort(key=lambda slot: versions.get(ids[slot], 0))
        rows = np.concatenate([games[:-3], (played - games[-1])[None]])
        chosen = rows[np.ix_([*slots, len(ids)], slots)]
        return LeagueTable(
            learner=learner,
            opponents=tuple(ids[slot] for slot in slots),
            games=chosen,
            recent=(played - games[-3])[slots],
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


def find_versions(learner: str, names: Sequence[str]) -> dict[int, str]:
    """Return the league's snapshots of a module by their number."""
    prefix = f"{learner}_v"
    return {
        int(name.removeprefix(prefix)): name
        for name in names
        if name.startswith(prefix) and name.removeprefix(prefix).isdecimal()
    }


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
        return read_payoff(leaves, found)
    missing = [name for name in (NAMES, GAMES, PLAYED) if name not in leaves]
    if missing:
        raise CheckpointError(
            f"{found} has no league: it is of a run without multi_agent(league=SelfPlay(...))."
        )
    names, games, played = (np.asarray(leaves[name]) for name in (NAMES, GAMES, PLAYED))
    slots = names.shape[0] if names.ndim == 2 else -1
    ids = find_ids(names)
    if games.shape != (slots + 3, slots, 3) or played.shape[1:] != (slots, 3):
        raise CheckpointError(
            f"{found} cannot be loaded: its league has names {names.shape}, games {games.shape} and "
            f"played games {played.shape}, which do not fit each other."
        )
    if ids is None or not are_counts(games, played):
        raise CheckpointError(f"{found} cannot be loaded: its league has invalid ids or numbers.")
    learner = _find_learner(metadata, leaves, found)
    return LeagueTable.from_arrays(learner, names, games, played.sum(axis=0, dtype=np.int32))


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
