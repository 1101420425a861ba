"""Limit on the nesting of settings, the same for all versions of Python.

How deep a recursive function may go depends on the version and on its caller, so that no limit is
left to a `RecursionError`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from jaxrl.errors import ConfigError

MAX_DEPTH = 64
"""Maximum nesting of the value of a setting, and of a file of settings."""
MAX_SAVED_DEPTH = 3 * MAX_DEPTH
"""Maximum nesting of a saved config, in which a tuple is a mapping with a list."""


def walk_depths(value: object) -> Iterator[int]:
    """Yield the depth of a value, 0, and of everything inside, depth first."""
    stack: list[tuple[object, int]] = [(value, 0)]
    while stack:
        inner, depth = stack.pop()
        yield depth
        if isinstance(inner, Mapping):
            inner = list(cast(Mapping[Any, Any], inner).values())
        if isinstance(inner, list | tuple):
            stack.extend((part, depth + 1) for part in cast(list[Any], inner))


def is_deeper(value: object, max_depth: int) -> bool:
    """Return whether a value is nested deeper than a limit, as one that contains itself is."""
    return any(depth > max_depth for depth in walk_depths(value))


def check_depth(value: object, name: str) -> None:
    """Check the nesting of a setting's value.

    Raises:
        ConfigError: If it is nested too deeply or contains itself.
    """
    if is_deeper(value, MAX_DEPTH):
        raise ConfigError(
            f"{name} is nested more than {MAX_DEPTH} levels deep, or contains itself; the values "
            "of settings are a few levels deep."
        )
