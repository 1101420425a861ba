"""Record of whether this process is a command of jaxrl's, which runs no other code beforehand."""

_process_state = {"command": False}


def mark_as_command() -> None:
    """Mark this process as a command, whose computations follow from a config alone."""
    _process_state["command"] = True


def is_command() -> bool:
    """Return whether this process was marked as a command."""
    return _process_state["command"]
