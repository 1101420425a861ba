"""Table of games between players: shares won, and Elo ratings."""

import dataclasses

import numpy as np
from jaxtyping import Float, Int

from jaxrl.config.multi_agent import is_module_id
from jaxrl.training.opponents import decode_names

ELO_SCALE = 400.0
_NUM_STEPS = 200
_TOLERANCE = 1e-12


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


def find_ids(names: np.ndarray) -> list[str] | None:
    """Return the ids of the slots that are not empty, None if they are damaged."""
    ids = [name for name in decode_names(names) if name] if names.dtype == np.uint8 else [""]
    return ids if len(set(ids)) == len(ids) and all(map(is_module_id, ids)) else None


def are_counts(*arrays: np.ndarray) -> bool:
    """Return whether arrays of a checkpoint are numbers of games."""
    return all(x.dtype == np.int32 and bool((x >= 0).all()) for x in arrays)
