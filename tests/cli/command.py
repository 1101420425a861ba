"""The command `jaxrl` in this process."""

from typer.testing import CliRunner

from jaxrl.cli.app import app


def jaxrl(*args: object) -> tuple[int, str, str]:
    """Return exit code, standard output and standard error."""
    done = CliRunner().invoke(app, [*map(str, args)], prog_name="jaxrl", catch_exceptions=False)
    return done.exit_code, done.stdout, done.stderr
