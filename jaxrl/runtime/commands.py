"""Whether this process is one of jaxrl's commands, which run no other code beforehand."""

_process_state = {"command": False}


def mark_as_command() -> None:
    """Mark this process as a command, whose computations follow from a config alone."""
    _process_state["command"] = True


def is_command() -> bool:
    """Return whether this process was marked as a command."""
    return _process_state["command"]
