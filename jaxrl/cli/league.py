"""`jaxrl league`: the table of a league, and its picture."""

from pathlib import Path

import numpy as np
from rich.table import Table
from rich.text import Text

from jaxrl.cli.diff import open_console, print_table
from jaxrl.cli.records import find_run, resolve_checkpoint
from jaxrl.errors import ConfigError
from jaxrl.runs.league_table import GameTable, read_league

NOTHING = "-"
SUFFIXES = (".png", ".svg", ".pdf")
"""Kinds of images that the picture may be."""


def show_league(run: str, picture: Path | None) -> None:
    """Print the shares that players won and their ratings, and draw them if a file is given."""
    if picture is not None:
        check_picture(picture)
    table = read_league(resolve_checkpoint(find_run(run)))
    print_table(open_console(), make_league_table(table))
    if picture is not None:
        from jaxrl.loggers.plots import draw_league

        draw_league(table, picture)


def check_picture(path: Path) -> None:
    """Raise ConfigError if a file has no suffix of an image."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--picture {path} must end with one of {', '.join(SUFFIXES)}.")


def make_league_table(table: GameTable) -> Table:
    """Return a table with a row for each player: Elo, games, and the share won of each opponent.

    Opponents are named by the number of their row.
    """
    numbers = (str(i + 1) for i in range(len(table.opponents)))
    shown = Table("", "player", "Elo", "games", *numbers, box=None, pad_edge=False)
    elo, games, shares = table.compute_elo(), table.count_games(), table.compute_shares()
    for i, name in enumerate(table.players):
        cells = (NOTHING if np.isnan(share) else f"{share:.2f}" for share in shares[i])
        shown.add_row(str(i + 1), Text(name), f"{elo[name]:.0f}", f"{games[i].sum():,}", *cells)
    return shown
