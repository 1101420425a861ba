"""`jaxrl record`: the command; its implementation is imported when it runs."""

from typing import Annotated

import typer

from jaxrl.cli.errors import get_log_level
from jaxrl.cli.options import Checkpoint, Script, Trust, Verbosity

RECORD_EXAMPLES = (
    "[bold]Examples[/bold]\n\n"
    "jaxrl record my_run --output data/cartpole\n\n"
    "jaxrl record my_run --output data/expert --num-steps 100000 --no-explore --seed 1"
)


def record(
    ctx: typer.Context,
    checkpoint: Checkpoint,
    output: Annotated[
        str,
        typer.Option(
            metavar="FOLDER",
            help="Folder of recorded data; one with data of the same spaces is appended to.",
        ),
    ],
    num_steps: Annotated[
        int, typer.Option(metavar="N", help="Least number of environment steps.")
    ] = 10_000,
    num_envs: Annotated[
        int, typer.Option(metavar="N", help="Environments that are stepped side by side.")
    ] = 8,
    explore: Annotated[
        bool | None,
        typer.Option(
            "--explore/--no-explore",
            help="Explore, or take the most likely actions; by default as the run does.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed; by default that of the run.", show_default=False),
    ] = None,
    script: Script = None,
    trust: Trust = None,
    verbose: Verbosity = 0,
) -> None:
    """Record the policy of a checkpoint as data to learn from, without training it."""
    from jaxrl.cli import record_data

    record_data.record(
        checkpoint,
        output,
        get_log_level(ctx),
        num_steps=num_steps,
        num_envs=num_envs,
        explore=explore,
        seed=seed,
        trust=trust,
    )
