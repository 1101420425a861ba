"""`jaxrl datasets`: data sets that are made from shipped configs."""

from typing import Annotated, Any

import typer

from jaxrl.cli import terminal
from jaxrl.cli.options import Verbosity

datasets = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="List and make the data sets that the shipped configs for recorded data learn from.",
)

Folder = Annotated[
    str | None,
    typer.Option(
        "--out",
        metavar="FOLDER",
        show_default="$JAXRL_DATASETS_DIR, or ~/.cache/jaxrl/datasets",
        help="Folder of all data sets.",
    ),
]


@datasets.command(name="list", epilog="[bold]Examples[/bold]\n\njaxrl datasets list")
def list_(out: Folder = None, verbose: Verbosity = 0) -> None:
    """List the data sets: name, number of steps, mean return, and folder, if they are made."""
    from jaxrl.config.datasets import QUALITIES, TASKS, is_made, resolve_datasets_dir
    from jaxrl.datasets.record import read_record

    root = resolve_datasets_dir(out)
    for task, recipe in TASKS.items():
        record = read_record(root / task) if is_made(task, root) else None
        for quality, about in QUALITIES.items():
            name = f"{task}-{quality}"
            if record is None:
                terminal.echo(f"{name:18} not made: {about} ({recipe.config})")
                continue
            terminal.echo(
                f"{name:18} {_format(record['datasets'][quality])}  {root / task / quality}"
            )


@datasets.command(
    epilog="[bold]Examples[/bold]\n\n"
    "jaxrl datasets make cartpole-mixed\n\n"
    "jaxrl datasets make pendulum-expert --rows 20000 --out data"
)
def make(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            show_default=False,
            help="As listed by [bold]jaxrl datasets list[/bold].",
        ),
    ],
    out: Folder = None,
    rows: Annotated[
        int, typer.Option(min=1, metavar="N", help="Steps of each data set but replay.")
    ] = 100_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the run and of the recordings.")] = 0,
    verbose: Verbosity = 0,
) -> None:
    """Make a data set, and the others of its task, by training a shipped config and recording it.

    Nothing is downloaded. Data that are complete are kept.
    """
    from jaxrl.config.datasets import QUALITIES, resolve_datasets_dir, split_name
    from jaxrl.datasets.make import make_datasets

    task, _ = split_name(name)
    record = make_datasets(task, out, num_rows=rows, seed=seed, on_progress=typer.echo)
    for quality in QUALITIES:
        described = _format(record["datasets"][quality])
        folder = resolve_datasets_dir(out) / task / quality
        terminal.echo(f"{f'{task}-{quality}':18} {described}  {folder}")


def format_mean_return(mean: float | None) -> str:
    """Format the mean return of recorded episodes; None if no episode is whole."""
    return "no whole episode" if mean is None else f"mean return {mean:.4g}"


def _format(entry: dict[str, Any]) -> str:
    mean = format_mean_return(entry["mean_return"])
    return f"{entry['num_steps']:,} steps, {entry['num_episodes']:,} episodes, {mean}"
