"""What a user did wrong, in one sentence each; the CLI prints it and exits with 2."""

import difflib
import sys
import traceback
from collections.abc import Iterable
from typing import TypeVar


class JaxrlError(Exception):
    """Base of every error that a user can act on.

    Attributes:
        names_checkpoint: Its message says where the run was last saved.
    """

    names_checkpoint = False

    def __str__(self) -> str:  # KeyError would print the repr of its message
        return str(self.args[0]) if self.args else ""


class ConfigError(JaxrlError, ValueError):
    """A setting has a wrong value, or two settings do not fit together."""


class HostLanesError(ConfigError):
    """A sweep's environments are stepped on the host, so its runs cannot share a program."""


class UnknownNameError(JaxrlError, KeyError):
    """No setting, algorithm, environment or module has this name."""


class UnknownSettingError(UnknownNameError, TypeError):
    """No setting of this group has this name."""


class EnvError(JaxrlError, ValueError):
    """An environment cannot be made, or breaks the contract."""


class EnvRunnerError(JaxrlError, RuntimeError):
    """Runners on the host died, hung or cannot start, and the run cannot go on."""


class SpaceError(JaxrlError, ValueError):
    """A space is not supported, or a value lies outside its space."""


class EpisodeError(JaxrlError, ValueError):
    """What is done to an episode does not fit it."""


class EpisodeIndexError(EpisodeError, IndexError):
    """An episode has no data at an index."""


class ModuleError(JaxrlError, ValueError):
    """An RLModule does not fit its spaces."""


class LossError(JaxrlError, ValueError):
    """A Learner's loss or metrics are not what is learned from."""


class CheckpointError(JaxrlError, ValueError):
    """A checkpoint is missing, damaged, foreign or does not fit."""


class RunFolderError(JaxrlError, OSError):
    """A run folder cannot be written or read."""


class DivergenceError(JaxrlError, ArithmeticError):
    """Training met non-finite values and was told to stop."""


class LearnerError(JaxrlError, RuntimeError):
    """A learner process could not start, died or hung."""


class InUseError(JaxrlError, RuntimeError):
    """A run is used by another thread."""


class StoppedError(JaxrlError, RuntimeError):
    """A run that was stopped was to go on."""


class RayError(JaxrlError, RuntimeError):
    """Ray does not start, or cannot be joined."""


class RetraceError(JaxrlError, RuntimeError):
    """A compiled program was about to be compiled again."""


E = TypeVar("E", bound=JaxrlError)


def naming_checkpoint(error: E) -> E:
    """Mark an error whose message says where the run was last saved."""
    error.names_checkpoint = True
    return error


def in_one_line(error: BaseException) -> str:
    """The name of an exception and the first line of its message, without a full stop."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__


TRACING_ERRORS = (
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    NameError,
    ArithmeticError,
    AssertionError,
    NotImplementedError,
)
"""What a function of a user's may raise while it is traced."""

_NO_USERS = frozenset(
    ("jax", "jaxlib", "jaxrl", "flax", "optax", "numpy", "chex", "distrax", "jaxtyping")
)


def where_raised(error: BaseException) -> str:
    """`", in file.py:12 'if x > 0:'"` for the last line of a user's that an exception passed.

    An empty string where there is none. Lines of Python's library, of JAX's and of ours are not a
    user's.
    """
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package in _NO_USERS or package in sys.stdlib_module_names:
            continue
        summary = traceback.FrameSummary(frame.f_code.co_filename, line, frame.f_code.co_name)
        text = f" '{summary.line}'" if summary.line else ""
        place = f", in {summary.filename}:{line}{text}"
    return place


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`" Did you mean 'x'?"` for the closest known name, or an empty string if none is close."""
    name = str(name)
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    if not close:
        return ""
    found = close[0]
    likeness = difflib.SequenceMatcher(None, found, name).ratio()
    enough = 0.7 if len(name) > 4 else 0.6  # one letter of a short name is much of it
    is_cut = found.startswith(name) or name.startswith(found)
    return f" Did you mean '{found}'?" if likeness >= enough or is_cut else ""
