"""`jaxrl estimate`: the command; its implementation is imported when it runs."""

from typing import Annotated

import typer

from jaxrl.cli.errors import get_log_level
from jaxrl.cli.options import Checkpoint, Script, Trust, Verbosity

ESTIMATE_EXAMPLES = (
    "[bold]Examples[/bold]\n\n"
    "jaxrl estimate my_run --input recorded\n\n"
    "jaxrl estimate my_run --input 'recorded/*.parquet' --methods wis,dr --gamma 0.99 --json"
)


def estimate(
    ctx: typer.Context,
    checkpoint: Checkpoint,
    source: Annotated[
        str | None,
        typer.Option(
            "--input",
            metavar="DATA",
            help="Folder, file or pattern of recorded data; by default those of the run.",
            show_default=False,
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="[bold]is[/bold], [bold]pdis[/bold], [bold]wis[/bold], [bold]wpdis[/bold], "
            "[bold]dm[/bold] and [bold]dr[/bold], separated by commas; by default wis and dr, or "
            "dm where probabilities are missing.",
            show_default=False,
        ),
    ] = None,
    gamma: Annotated[
        float | None,
        typer.Option(help="Discount factor; by default that of the run.", show_default=False),
    ] = None,
    explore: Annotated[
        bool | None,
        typer.Option(
            "--explore/--no-explore",
            help="Estimate the policy that samples its actions, or the one that takes the most "
            "likely ones.",
            show_default=False,
        ),
    ] = None,
    confidence: Annotated[
        float, typer.Option(help="Probability that the intervals contain the value.")
    ] = 0.95,
    fqe_updates: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Gradient steps of the value function of dm and dr.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of resampling, actions and fits.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    script: Script = None,
    trust: Trust = None,
    verbose: Verbosity = 0,
) -> None:
    """Estimate the return of a policy from recorded data, without an environment."""
    from jaxrl.cli import estimating

    estimating.estimate(
        checkpoint,
        source,
        get_log_level(ctx),
        methods=methods,
        gamma=gamma,
        explore=explore,
        confidence=confidence,
        fqe_updates=fqe_updates,
        seed=seed,
        as_json=as_json,
        trust=trust,
    )
