"""`jaxrl example`: the shipped configs as examples to list, copy and train."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jaxrl.cli import terminal
from jaxrl.cli.errors import get_log_level
from jaxrl.cli.options import Assignments, Name, ResultsDir, Seed, Steps, Stop, Verbosity

if TYPE_CHECKING:
    from jaxrl.config.load import Experiment

example = typer.Typer(
    no_args_is_help=True, rich_markup_mode="rich", help="List, copy and train the shipped configs."
)

ExampleId = Annotated[
    str,
    typer.Argument(
        metavar="ID", show_default=False, help="As listed by [bold]jaxrl example list[/bold]."
    ),
]


@example.command(
    name="list",
    epilog="[bold]Examples[/bold]\n\njaxrl example list\n\njaxrl example list --filter pendulum",
)
def list_(
    filter_: Annotated[
        str | None,
        typer.Option("--filter", "-f", metavar="TEXT", help="Show only lines with this text."),
    ] = None,
    verbose: Verbosity = 0,
) -> None:
    """List the examples: id, algorithm, environment, and number of steps."""
    from jaxrl.cli import listing

    for line in listing.format_listing("configs"):
        if filter_ is None or filter_.lower() in line.lower():
            terminal.echo(line)


@example.command(epilog="[bold]Examples[/bold]\n\njaxrl example get classic/cartpole-ppo")
def get(example_id: ExampleId, verbose: Verbosity = 0) -> None:
    """Copy an example to the current folder, as a start for a config of your own."""
    from jaxrl.cli.command import format_command
    from jaxrl.config.registry import find_shipped_config
    from jaxrl.errors import RunFolderError

    source = find_shipped_config(example_id)
    target = Path(source.name)
    try:
        with source.open("rb") as content, target.open("xb") as copy:
            shutil.copyfileobj(content, copy)
    except FileExistsError:
        raise RunFolderError(
            f"{target} exists in this folder: move it, or call this in another folder."
        ) from None
    except OSError as error:
        raise RunFolderError(f"Cannot write {target} in {Path.cwd()}: {error.strerror}.") from error
    terminal.echo(f"copied to     {target}")
    terminal.echo(f"train it with {format_command('train', 'file', target)}")


@example.command(
    epilog="[bold]Examples[/bold]\n\n"
    "jaxrl example run classic/cartpole-ppo\n\n"
    "jaxrl example run classic/cartpole-ppo --steps 100000 --seed 1 --set lr=3e-4"
)
def run(
    ctx: typer.Context,
    example_id: ExampleId,
    stop: Stop = None,
    steps: Steps = None,
    set_: Assignments = None,
    seed: Seed = None,
    name: Name = None,
    results_dir: ResultsDir = None,
    verbose: Verbosity = 0,
) -> None:
    """Train an example; [bold]jaxrl train file ID[/bold] has further options."""
    from jaxrl.cli import runs

    experiment = _build(
        example_id,
        stop=stop,
        steps=steps,
        assignments=set_ or [],
        overrides={"seed": seed, "run_name": name, "results_dir": results_dir},
    )
    raise typer.Exit(runs.train(experiment, get_log_level(ctx)))


def _build(
    example_id: str,
    *,
    stop: str | None,
    steps: str | None,
    assignments: list[str],
    overrides: dict[str, object],
) -> "Experiment":
    from jaxrl.cli.experiments import build_experiment, check_steps_option, parse_stop_options
    from jaxrl.config.registry import find_shipped_config

    experiment = build_experiment(
        ["file", str(find_shipped_config(example_id))],
        algo=None,
        env=None,
        stop=parse_stop_options(stop, steps),
        settings={},
        assignments=assignments,
        overrides=overrides,
    )
    check_steps_option(steps, is_offline=experiment.config.is_offline)
    return experiment
