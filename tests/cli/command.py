"""The command `jaxrl` in this process."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from jaxrl.cli.app import app


def jaxrl(*args: object) -> tuple[int, str, str]:
    """Return exit code, standard output and standard error."""
    done = CliRunner().invoke(app, [*map(str, args)], prog_name="jaxrl", catch_exceptions=False)
    return done.exit_code, done.stdout, done.stderr


def edit(path: Path, change: Callable[[Any], object]) -> None:
    """Change a document of JSON."""
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
