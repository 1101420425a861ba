"""The command `jaxrl serve` with its options."""

from typing import Annotated

import typer

from jaxrl.cli.errors import get_log_level
from jaxrl.cli.options import PolicyId, Script, Trust, Verbosity

EPILOG = (
    "[bold]Examples[/bold]\n\n"
    "jaxrl serve my_run --follow\n\n"
    "jaxrl serve exported/ --port 9000\n\n"
    "JAXRL_SERVE_TOKEN=... jaxrl serve my_run --host 0.0.0.0 --certfile cert.pem --keyfile key.pem"
)


def serve(
    ctx: typer.Context,
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT | EXPORT",
            help="A checkpoint, a run folder for its newest one, or an exported policy, which is "
            "served without JAX.",
        ),
    ],
    host: Annotated[str, typer.Option(help="Address to bind.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to bind; 0 takes a free one.")] = 8000,
    explore: Annotated[
        bool,
        typer.Option(
            "--explore/--no-explore", help="Sample actions if a request does not say otherwise."
        ),
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Serve newer checkpoints of the run as they are saved.")
    ] = False,
    max_batch: Annotated[
        int, typer.Option(metavar="N", help="Rows of a batch at most, a power of two.")
    ] = 64,
    max_wait_ms: Annotated[
        float, typer.Option(metavar="MS", help="Time to hold a batch back for more rows.")
    ] = 1.0,
    max_sessions: Annotated[
        int, typer.Option(metavar="N", help="Episodes whose memory is kept.")
    ] = 10_000,
    token_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="File (chmod 600) with the token; or set JAXRL_SERVE_TOKEN."
        ),
    ] = None,
    certfile: Annotated[
        str | None, typer.Option(metavar="FILE", help="Certificate, for TLS.")
    ] = None,
    keyfile: Annotated[
        str | None, typer.Option(metavar="FILE", help="Key of the certificate.")
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Allow other machines without TLS, behind a proxy of it."),
    ] = False,
    policy_id: PolicyId = None,
    script: Script = None,
    trust: Trust = None,
    verbose: Verbosity = 0,
) -> None:
    """Serve a trained policy over HTTP: actions for observations, one by one or in batches.

    SIGHUP loads the newest checkpoint of a run, or the export again. Without a token only this machine can connect.
    """
    from jaxrl.cli import serving

    serving.serve(
        checkpoint,
        token_file=token_file,
        follow=follow,
        policy_id=policy_id,
        trust=trust,
        log_level=get_log_level(ctx),
        host=host,
        port=port,
        explore=explore,
        max_batch=max_batch,
        max_wait_ms=max_wait_ms,
        max_sessions=max_sessions,
        certfile=certfile,
        keyfile=keyfile,
        insecure=insecure,
    )
