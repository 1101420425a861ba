"""Picture of a league: the shares that players won against each other, and their ratings."""

from pathlib import Path

import numpy as np

from jaxrl.runs.game_table import GameTable

CELL_INCHES = 0.6
MARGIN_INCHES = 2.2


def draw_league(table: GameTable, path: Path) -> None:
    """Draw the matrix of shares with the Elo of each player to an image file.

    Args:
        table: Games of the league.
        path: Image file, PNG, SVG or PDF by its suffix.
    """
    from matplotlib.figure import Figure

    players, opponents = table.players, table.opponents
    size = (
        MARGIN_INCHES + CELL_INCHES * len(opponents),
        MARGIN_INCHES + CELL_INCHES * len(players),
    )
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    shares, elo = table.compute_shares(), table.compute_elo()
    image = axes.imshow(np.ma.masked_invalid(shares), cmap="RdYlGn", vmin=0.0, vmax=1.0)
    for i, j in np.argwhere(~np.isnan(shares)):
        axes.text(j, i, f"{shares[i, j]:.2f}", ha="center", va="center", fontsize=8)
    axes.set_xticks(range(len(opponents)), opponents, rotation=90)
    axes.set_yticks(range(len(players)), [f"{name} ({elo[name]:.0f})" for name in players])
    axes.set_xlabel("opponent")
    axes.set_ylabel("player (Elo)")
    figure.colorbar(image, ax=axes, shrink=0.7, label="share of games won")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
