"""`jaxrl league` with its options."""

from pathlib import Path
from typing import Annotated

import typer

from jaxrl.cli.options import Checkpoint, Verbosity

LEAGUE_EXAMPLES = (
    "[bold]Examples[/bold]\n\njaxrl league my_run\n\njaxrl league my_run --picture league.png"
)


def league(
    checkpoint: Checkpoint,
    picture: Annotated[
        Path | None,
        typer.Option(
            "--picture", metavar="FILE", show_default=False, help="Image to draw the table to."
        ),
    ] = None,
    verbose: Verbosity = 0,
) -> None:
    """Print who won how often against whom in a run with multi_agent(league=...), and Elo ratings.

    Each row has the share of games that a player won, draws counting half, when it was the learner.
    """
    from jaxrl.cli.league import show_league

    show_league(checkpoint, picture)
