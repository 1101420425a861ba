"""Implementation of `jaxrl serve`: a policy behind HTTP."""

import dataclasses
import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrl.cli import terminal
from jaxrl.errors import ConfigError

if TYPE_CHECKING:
    from jaxrl.serve.backend import Load
    from jaxrl.serve.settings import ServeSettings


@dataclasses.dataclass(frozen=True)
class _Source:
    """Path of policies, and functions that load the newest one and return its name."""

    path: Path
    load: "Load"
    get_newest: Callable[[], str]


def serve(
    given: str,
    *,
    token_file: str | None,
    follow: bool,
    policy_id: str | None,
    trust: Sequence[str] | None,
    log_level: int | None,
    **settings: Any,
) -> None:
    """Serve a policy until Ctrl-C or SIGTERM.

    Args:
        given: Checkpoint, a run for its newest one, or an exported policy.
        token_file: File with the token; None for the environment variable.
        follow: Whether to serve newer checkpoints of the run as they are saved.
        policy_id: Module of a run of several agents.
        trust: Packages that may be imported; see `--trust`.
        log_level: Level of jaxrl's Python loggers; None for reloads alone.
        **settings: Fields of ServeSettings.

    Raises:
        JaxrlError: If an option is wrong, or the policy cannot be loaded.
    """
    try:
        from jaxrl.serve.server import PolicyServer
        from jaxrl.serve.settings import ServeSettings, read_token
    except ImportError as error:
        raise ConfigError(f"jaxrl serve needs {error.name}: pip install 'jaxrl[serve]'.") from error
    chosen = ServeSettings(token=read_token(token_file), **settings)
    logging.getLogger("jaxrl").setLevel(logging.INFO if log_level is None else log_level)
    source = _open_source(given, chosen, follow=follow, policy_id=policy_id, trust=trust)
    backend = source.load(None)
    server = PolicyServer(
        backend,
        chosen,
        load=source.load,
        get_newest=source.get_newest if follow else None,
    )
    bound = server.bind()
    terminal.echo(f"policy            {backend.version} of {source.path}")
    terminal.echo(f"serving at        {_format_address(chosen, bound.getsockname()[1])}")
    server.run(bound)


def _open_source(
    given: str,
    settings: "ServeSettings",
    *,
    follow: bool,
    policy_id: str | None,
    trust: Sequence[str] | None,
) -> _Source:
    """Return where policies come from: an export, which needs no JAX, or else checkpoints."""
    from jaxrl.serve import numpy_backend

    folder = Path(given).expanduser()
    if numpy_backend.is_export(folder):
        if trust:
            raise ConfigError("--trust is for checkpoints; an export imports nothing.")
        if policy_id is not None:
            raise ConfigError("--policy-id is for checkpoints; an export has one module.")
        return _Source(
            folder,
            partial(numpy_backend.load_export, folder),
            partial(numpy_backend.get_version, folder),
        )
    from jaxrl.cli.records import find_run, resolve_checkpoint
    from jaxrl.runs.run_folder import is_run_folder

    path = find_run(given)
    resolve_checkpoint(path)  # raises before JAX is imported
    if follow and not is_run_folder(path):
        raise ConfigError(f"--follow serves the checkpoints of a run, and {path} is none.")
    from jaxrl.serve.jax_backend import load_backend

    return _Source(
        path,
        lambda replaced: load_backend(
            path, replaced, max_batch=settings.max_batch, policy_id=policy_id, trust=trust
        ),
        lambda: resolve_checkpoint(path).name,
    )


def _format_address(settings: "ServeSettings", port: int) -> str:
    scheme = "http" if settings.certfile is None else "https"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{scheme}://{host}:{port}"
