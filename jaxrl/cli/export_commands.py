"""Commands that export policies; implementations are imported when a command runs."""

from typing import Annotated

import typer

from jaxrl.cli.errors import get_log_level
from jaxrl.cli.options import Checkpoint, PolicyId, Script, Trust, Verbosity

EXPORT_EXAMPLES = (
    "[bold]Examples[/bold]\n\n"
    "jaxrl export my_run --out policy\n\n"
    "jaxrl export ~/jaxrl_results/my_run/checkpoints/checkpoint_000010 --out policy "
    "--formats numpy,stablehlo --no-explore\n\n"
    "jaxrl export my_run --policy-id p0 --out policy"
)
PARITY_EXAMPLES = "[bold]Examples[/bold]\n\njaxrl parity policy\n\njaxrl parity policy my_run"


def export(
    ctx: typer.Context,
    checkpoint: Checkpoint,
    out: Annotated[
        str,
        typer.Option(metavar="FOLDER", help="Folder to write, new or empty.", show_default=False),
    ],
    formats: Annotated[
        str,
        typer.Option(
            "--formats",
            "--format",
            metavar="NAMES",
            help="[bold]numpy[/bold] runs anywhere, [bold]stablehlo[/bold] under JAX, "
            "[bold]onnx[/bold] in runtimes of ONNX; several are separated by commas.",
        ),
    ] = "numpy",
    explore: Annotated[
        bool | None,
        typer.Option(
            "--explore/--no-explore",
            show_default=False,
            help="Export only sampled actions, or only the most likely ones; by default both.",
        ),
    ] = None,
    policy_id: PolicyId = None,
    script: Script = None,
    trust: Trust = None,
    verbose: Verbosity = 0,
) -> None:
    """Export the policy of a checkpoint as files that run without jaxrl.

    Filters, masks, memory and the conversion of actions are inside.
    """
    from jaxrl.cli import exporting

    exporting.export(
        checkpoint, out, formats, explore, get_log_level(ctx), policy_id=policy_id, trust=trust
    )


def parity(
    ctx: typer.Context,
    folder: Annotated[
        str, typer.Argument(metavar="EXPORT", help="A folder that jaxrl export wrote.")
    ],
    checkpoint: Annotated[
        str | None,
        typer.Argument(
            metavar="CHECKPOINT",
            show_default=False,
            help="The checkpoint that was exported, or its run: its actions are computed anew.",
        ),
    ] = None,
    policy_id: PolicyId = None,
    script: Script = None,
    trust: Trust = None,
    verbose: Verbosity = 0,
) -> None:
    """Compare an exported policy with the original: observations, episodes, and corner cases.

    Without a checkpoint, the outputs recorded at the export are compared.

    Exit code: 0 equal, 1 different, 2 bad input.
    """
    from jaxrl.cli import exporting

    code = exporting.parity(
        folder, checkpoint, get_log_level(ctx), policy_id=policy_id, trust=trust
    )
    raise typer.Exit(code)
