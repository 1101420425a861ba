"""What a user did wrong, in one sentence each; the CLI prints it and exits with 2."""

import difflib
from collections.abc import Iterable


class JaxrlError(Exception):
    """Base of every error that a user can act on."""

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


class CheckpointError(JaxrlError, ValueError):
    """A checkpoint is missing, damaged, foreign or does not fit."""


class RunFolderError(JaxrlError, OSError):
    """A run folder cannot be written or read."""


class DivergenceError(JaxrlError, ArithmeticError):
    """Training met non-finite values and was told to stop."""


class LearnerError(JaxrlError, RuntimeError):
    """A learner process could not start, died or hung."""


class RayError(JaxrlError, RuntimeError):
    """Ray does not start, or cannot be joined."""


class RetraceError(JaxrlError, RuntimeError):
    """A compiled program was about to be compiled again."""


def in_one_line(error: BaseException) -> str:
    """The name of an exception and the first line of its message, without a full stop."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`" Did you mean 'x'?"` for the closest known name, or an empty string."""
    close = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.5)
    return f" Did you mean '{close[0]}'?" if close else ""
