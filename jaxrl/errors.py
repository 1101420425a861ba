"""Exceptions for errors that a user can fix; the CLI prints the message and exits with status 2."""

import json
import re
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar


class JaxrlError(Exception):
    """Base class of every error that a user can act on.

    Attributes:
        has_checkpoint_path: Whether the message gives the path of the run's latest checkpoint.
    """

    has_checkpoint_path = False

    def __str__(self) -> str:  # KeyError would print the repr of its message
        return str(self.args[0]) if self.args else ""


class ConfigError(JaxrlError, ValueError):
    """An invalid value of a setting, or an invalid combination of settings."""


class HostLanesError(ConfigError):
    """A sweep whose runs cannot share a program since their environments are on the host."""


class UnknownNameError(JaxrlError, KeyError):
    """An unknown name of a setting, algorithm, environment or module."""


class UnknownSettingError(UnknownNameError, TypeError):
    """An unknown name of a setting in a group."""


class EnvError(JaxrlError, ValueError):
    """An environment that cannot be created, or that violates the contract."""


class EnvRunnerError(JaxrlError, RuntimeError):
    """A failure of runners on the host (crash, hang, failed start) that ends the run."""


class SpaceError(JaxrlError, ValueError):
    """An unsupported space, or a value outside its space."""


class EpisodeError(JaxrlError, ValueError):
    """An operation that is invalid for an episode."""


class EpisodeIndexError(EpisodeError, IndexError):
    """An index at which an episode has no data."""


class ModuleError(JaxrlError, ValueError):
    """An RLModule that does not fit its spaces."""


class LossError(JaxrlError, ValueError):
    """A Learner whose loss or metrics have an invalid form."""


class ReplayBufferError(JaxrlError, RuntimeError):
    """Method of a user's replay buffer that raised, or returned something else than transitions."""


class CheckpointError(JaxrlError, ValueError):
    """A checkpoint that is missing, damaged, untrusted or incompatible."""


class ExportError(JaxrlError, ValueError):
    """A policy that cannot be exported, or an exported policy that is damaged or does not fit."""


class DataError(JaxrlError, ValueError):
    """Recorded data that are missing, damaged, do not fit, or cannot be written."""


class RunFolderError(JaxrlError, OSError):
    """A run folder that cannot be written or read."""


class DivergenceError(JaxrlError, ArithmeticError):
    """Non-finite values in training, with `on_nonfinite="raise"`."""


class LearnerError(JaxrlError, RuntimeError):
    """A learner process that could not start, died or hung."""


class InUseError(JaxrlError, RuntimeError):
    """A call on a run that another thread is using."""


class StoppedError(JaxrlError, RuntimeError):
    """A call that a stopped run no longer supports."""


class RayError(JaxrlError, RuntimeError):
    """A Ray cluster that cannot be started or connected to."""


class RetraceError(JaxrlError, RuntimeError):
    """A recompilation beyond the limit `max_retraces`."""


E = TypeVar("E", bound=JaxrlError)


def mark_has_checkpoint_path(error: E) -> E:
    """Mark an error whose message gives the path of the run's latest checkpoint."""
    error.has_checkpoint_path = True
    return error


def summarize_exception(error: BaseException) -> str:
    """Return an exception's name and the first line of its message, without the final period."""
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
"""Exceptions that a user's function may raise while it is traced."""

_LIBRARY_PACKAGES = frozenset(
    ("jax", "jaxlib", "jaxrl", "flax", "optax", "numpy", "chex", "distrax", "jaxtyping")
)


def locate_in_user_code(error: BaseException) -> str:
    """Return the innermost line of user code in a traceback, as `", in file.py:12 'if x > 0:'"`.

    Frames of the standard library, of jaxrl and of the libraries beneath it are skipped. The result
    is an empty string if no other frame remains.
    """
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package in _LIBRARY_PACKAGES or package in sys.stdlib_module_names:
            continue
        summary = traceback.FrameSummary(frame.f_code.co_filename, line, frame.f_code.co_name)
        text = f" '{summary.line}'" if summary.line else ""
        place = f", in {summary.filename}:{line}{text}"
    return place


def did_you_mean(
    name: object, known: Iterable[str], renamed: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Return `" Did you mean 'x'?"` for the closest known name, or an empty string if none is close.

    Close is a name with few mistyped letters, one whose words are those written, abbreviated or
    with some left out, and one that begins like it. Names that merely share letters are not:
    `num_layers` is no `num_learners`.

    Args:
        name: Name as written by the user.
        known: Names that would work.
        renamed: Current names by former ones, in whose place they are suggested.
    """
    written = str(name)
    rated = ((_rate(written.lower(), each.lower()), each) for each in [*known, *renamed])
    close = [(rate, each) for rate, each in rated if rate is not None]
    if not close:
        return ""
    nearest = min(rate for rate, _ in close)
    found = max(each for rate, each in close if rate == nearest)  # of versions the latest
    return f" Did you mean '{renamed.get(found, found)}'?"


def _rate(written: str, known: str) -> tuple[int, int, bool] | None:
    """Return how far a known name is from what was written, the closest first; None if too far."""
    tolerated = next((weight for most, weight in _TOLERATED if len(written) <= most), 9)
    if abs(len(written) - len(known)) <= tolerated // _REPLACED:
        distance = _weigh_typos(written, known)
        if distance <= min(tolerated, _REPLACED * (len(written) - 1)):
            return 0, distance, False
    if bool(_PLACE.match(written)) != bool(_PLACE.match(known)):
        rate = _rate(_PLACE.sub("", written), _PLACE.sub("", known))
        return rate and (*rate[:2], True)
    shorter, longer = sorted((written, known), key=len)
    if _are_words_of(_WORD.findall(shorter), _WORD.findall(longer)):
        return 1, len(longer) - len(shorter), False
    if len(shorter) >= 3 and longer.startswith(shorter):
        return 2, len(longer) - len(shorter), False
    return None


_PLACE = re.compile(r"[\w./]+[:/](?=.)")
_WORD = re.compile(r"[^\W_]+")


def _are_words_of(words: Sequence[str], longer: Sequence[str]) -> bool:
    """Return whether several words, possibly abbreviated, are most of another name's in order."""
    if len(words) < 2 or 2 * len(words) < len(longer):
        return False
    rest = iter(longer)
    return all(
        any(other.startswith(word) or word == f"{other}s" for other in rest) for word in words
    )


_MISSED, _REPLACED = 2, 3
"""Weights of a letter that is left out, added or swapped with the next, and of another in its place."""

_TOLERATED = ((5, 3), (6, 5), (11, 6))
"""Weight of typos that is tolerated up to a number of letters."""


def _weigh_typos(a: str, b: str) -> int:
    """Return the weight of the typos between two names."""
    before, last = [0] * (len(b) + 1), [_MISSED * j for j in range(len(b) + 1)]
    for i, letter in enumerate(a):
        row = [_MISSED * (i + 1)]
        for j, other in enumerate(b):
            cost = min(last[j + 1], row[j]) + _MISSED
            cost = min(cost, last[j] + _REPLACED * (letter != other))
            if i and j and letter == b[j - 1] and a[i - 1] == other:
                cost = min(cost, before[j - 1] + _MISSED)
            row.append(cost)
        before, last = last, row
    return last[-1]


def escape(text: str) -> str:
    """Return a text, in JSON's notation if it has characters that could command a terminal."""
    return text if text.isprintable() else json.dumps(text)
