"""Options that several commands have."""

import importlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from jaxrl.cli.errors import set_verbosity
from jaxrl.errors import ConfigError


def _import_script(ctx: typer.Context, given: str | None) -> str | None:
    """Import a script in the place of the program that runs, as Python's multiprocessing does."""
    if given is None or ctx.resilient_parsing:
        return given
    path = Path(given).expanduser().resolve()
    if path.suffix != ".py" or not path.is_file():
        raise ConfigError(f"--script must be a Python file, got {given!r}.")
    sys.path.insert(0, str(path.parent))
    try:
        module = importlib.import_module(path.stem)
    except Exception as error:
        raise ConfigError(
            f"--script {given} cannot be imported: {type(error).__name__}: {error}."
        ) from error
    found = getattr(module, "__file__", None)
    if found is None or Path(found).resolve() != path:
        raise ConfigError(
            f"--script {given} has the name of another module, {found}: rename the script."
        )
    sys.modules["__main__"] = module
    return given


Script = Annotated[
    str | None,
    typer.Option(
        "--script",
        metavar="FILE",
        show_default=False,
        callback=_import_script,
        help="Script that the run was trained with, for the classes and functions that it defines. "
        'It is imported: its training must be under if __name__ == "__main__".',
    ),
]
WithoutCallbacks = Annotated[
    bool,
    typer.Option(
        "--without-callbacks", help="Leave out the callbacks of the run, which are not imported."
    ),
]

Verbosity = Annotated[
    int,
    typer.Option(
        "-v",
        count=True,
        show_default=False,
        callback=set_verbosity,
        help="Increase verbosity, -vv further. Also shows the traceback of an error.",
    ),
]
Stop = Annotated[
    str | None,
    typer.Option(
        metavar="JSON",
        help="Stop criterion: result keys and values; the run stops when the first is reached.",
    ),
]
Steps = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help="Stop after N environment steps: --stop '{\"num_env_steps_sampled_lifetime\": N}'.",
    ),
]
ConfigFile = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="file CONFIG",
        show_default=False,
        help="Train a YAML file, given by its path or the id of a shipped one "
        "([bold]jaxrl list configs[/bold]). Options override its settings.",
    ),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        show_default=False,
        help="A setting, [bold]--set lr=3e-4[/bold], or one entry of it, "
        "[bold]--set model_config.fcnet_hiddens=\\[64,64][/bold]. The value is YAML; may be "
        "repeated.",
    ),
]
Seed = Annotated[int | None, typer.Option(help="Seed of all random numbers.")]
Name = Annotated[str | None, typer.Option(help="Name of the run folder.")]
ResultsDir = Annotated[
    str | None, typer.Option(help="Folder of all run folders.", show_default="~/jaxrl_results")
]
Run = Annotated[
    str, typer.Argument(metavar="RUN", help="A run folder, or its name in ~/jaxrl_results.")
]
Checkpoint = Annotated[
    str,
    typer.Argument(metavar="CHECKPOINT", help="A checkpoint, or a run folder for its newest one."),
]
PolicyId = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE",
        show_default=False,
        help="Module of a run of several agents, by its id.",
    ),
]
Trust = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PACKAGE",
        show_default=False,
        help="Package that a checkpoint from another user may import; may be repeated. 'all' also "
        "accepts its folders and environment variables.",
    ),
]
