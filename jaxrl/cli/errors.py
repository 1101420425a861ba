"""What a user did wrong is one line and exit code 2; what we did wrong is a traceback and 1."""

import logging
import sys
import traceback
from typing import Any

import typer
from typer.core import TyperGroup

from jaxrl.errors import JaxrlError

_UsageError: Any = typer.BadParameter.__base__
"""Of the click that typer uses, its own or the installed one."""
_VERBOSITY = "jaxrl.verbosity"
_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


class ErrorGroup(TyperGroup):
    """Answers a JaxrlError from any command with one sentence."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except JaxrlError as error:
            if verbosity(ctx):
                traceback.print_exc()
            for line in (f"error: {error}", *notes_of(error)):
                typer.echo(line, err=True)
            raise typer.Exit(2) from error
        except _UsageError as error:
            if _is_unknown_option_of(error, "train"):
                error.possibilities = None
                error.message += ". Settings are given like --set lr=3e-4"
            raise
        except SystemExit as error:  # of a callback of the user's
            for line in notes_of(error):
                typer.echo(line, err=True)
            raise
        except KeyboardInterrupt as error:
            typer.echo("interrupted", err=True)
            raise typer.Exit(130) from error


def _is_unknown_option_of(error: Any, command: str) -> bool:
    ctx = getattr(error, "ctx", None)
    return type(error).__name__ == "NoSuchOption" and ctx is not None and ctx.info_name == command


def notes_of(error: BaseException) -> list[str]:
    """What was added to an error on its way, such as where the run is saved."""
    return list(getattr(error, "__notes__", ()))


def verbosity(ctx: typer.Context) -> int:
    """How often -v was given, before the command or after it."""
    return ctx.find_root().meta.get(_VERBOSITY, 0)


def log_level(ctx: typer.Context) -> int | None:
    """What -v asks for, or None if it was not given."""
    count = verbosity(ctx)
    return _LEVELS[min(count, len(_LEVELS) - 1)] if count else None


def set_verbosity(ctx: typer.Context, count: int) -> int:
    """The callback of every -v option."""
    level = max(count, verbosity(ctx))
    ctx.find_root().meta[_VERBOSITY] = level
    if not ctx.resilient_parsing:
        _log_to_stderr(log_level(ctx) or _LEVELS[0])
    return level


def keep_log_to_ourselves() -> None:
    """Print no message twice: packages that are imported later configure logging as well."""
    logging.getLogger("jaxrl").propagate = False


class _StderrHandler(logging.StreamHandler[Any]):
    """Writes to whatever standard error is at that moment: a live display replaces it."""

    @property
    def stream(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return sys.stderr

    @stream.setter
    def stream(self, value: Any) -> None:
        """Only the base class sets it."""


def _log_to_stderr(level: int) -> None:
    """Sends jaxrl's log to standard error."""
    ours = logging.getLogger("jaxrl")
    if not any(isinstance(handler, _StderrHandler) for handler in ours.handlers):
        handler = _StderrHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        ours.addHandler(handler)
    ours.setLevel(level)
