"""Whether this process is one of jaxrl's commands, in which nobody else's code ran before."""

_begun = {"command": False}


def begin_command() -> None:
    """Say that this process is a command: what it computes follows from a config alone."""
    _begun["command"] = True


def is_command() -> bool:
    """Whether it was said."""
    return _begun["command"]
