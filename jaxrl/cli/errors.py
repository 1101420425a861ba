"""Error reporting: one line and exit code 2 for user errors, a traceback and 1 for bugs."""

import logging
import sys
import traceback
from typing import Any, TextIO

import typer
from typer.core import TyperGroup

from jaxrl.cli import terminal
from jaxrl.errors import JaxrlError

_UsageError: Any = typer.BadParameter.__base__
"""Base class of usage errors in the click that typer uses, vendored or installed."""
_VERBOSITY = "jaxrl.verbosity"
_TRAIN_DEFAULT = "Pass settings as in --set lr=3e-4"
_TRAIN_ADVICE = dict.fromkeys(
    ("--framework", "--torch", "--eager", "--trace"), "JAX computes here, as always: leave it out"
)
"""Answers to unknown options of `jaxrl train`, by the option."""
_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


class ErrorGroup(TyperGroup):
    """Command group that reports a JaxrlError from any command in one line."""

    def invoke(self, ctx: Any) -> object:
        try:
            return super().invoke(ctx)
        except JaxrlError as error:
            if get_verbosity(ctx):
                traceback.print_exc()
            for line in (f"error: {error}", *get_notes(error)):
                terminal.echo(line, err=True)
            raise typer.Exit(2) from error
        except _UsageError as error:
            if _is_unknown_option(error, "train"):
                error.possibilities = None
                error.message += f". {_TRAIN_ADVICE.get(error.option_name, _TRAIN_DEFAULT)}"
            raise
        except SystemExit as error:  # raised by a user callback
            for line in get_notes(error):
                terminal.echo(line, err=True)
            raise
        except KeyboardInterrupt as error:
            terminal.echo("interrupted", err=True)
            raise typer.Exit(130) from error


def _is_unknown_option(error: object, command: str) -> bool:
    ctx = getattr(error, "ctx", None)
    return type(error).__name__ == "NoSuchOption" and ctx is not None and ctx.info_name == command


def get_notes(error: BaseException) -> list[str]:
    """Return the notes added to an error, such as where the run is saved."""
    return list(getattr(error, "__notes__", ()))


def get_verbosity(ctx: typer.Context) -> int:
    """Return how often -v was given, before or after the command."""
    return ctx.find_root().meta.get(_VERBOSITY, 0)


def get_log_level(ctx: typer.Context) -> int | None:
    """Return the log level selected by -v, or None if it was not given."""
    count = get_verbosity(ctx)
    return _LEVELS[min(count, len(_LEVELS) - 1)] if count else None


def make_log_level_override(log_level: int | None) -> dict[str, Any]:
    """Return the setting for -v, which overrides the config."""
    return {} if log_level is None else {"log_level": logging.getLevelName(log_level)}


def set_verbosity(ctx: typer.Context, count: int) -> int:
    """Set verbosity and log level; the callback of every -v option."""
    level = max(count, get_verbosity(ctx))
    ctx.find_root().meta[_VERBOSITY] = level
    if not ctx.resilient_parsing:
        _log_to_stderr(get_log_level(ctx) or _LEVELS[0])
    return level


def disable_log_propagation() -> None:
    """Disable propagation, since packages imported later configure logging as well."""
    logging.getLogger("jaxrl").propagate = False


class _StderrHandler(logging.StreamHandler[Any]):
    """Handler that writes to the current standard error, which a live display replaces."""

    @property
    def stream(self) -> TextIO:  # pyright: ignore[reportIncompatibleVariableOverride]
        return sys.stderr

    @stream.setter
    def stream(self, value: object) -> None:
        """Ignore assignments, which only the base class makes."""


def _log_to_stderr(level: int) -> None:
    """Send jaxrl's log to standard error."""
    logger = logging.getLogger("jaxrl")
    if not any(isinstance(handler, _StderrHandler) for handler in logger.handlers):
        handler = _StderrHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
    logger.setLevel(level)
