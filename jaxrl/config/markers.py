"""Ray Tune's markers for values to be searched, recognised without importing Ray."""

from collections.abc import Mapping
from typing import Any, cast


def is_marker(value: Any) -> bool:
    """Whether this is what `tune.grid_search([...])` or `tune.uniform(...)` and the like return."""
    if isinstance(value, Mapping):
        entries = cast(Mapping[Any, Any], value)
        return set(entries) == {"grid_search"} and isinstance(entries["grid_search"], list)
    return any(cls.__module__ == "ray.tune.search.sample" for cls in type(value).__mro__)


def holds_marker(value: Any) -> bool:
    """Whether this is a marker, or a dictionary or list with one somewhere in it."""
    if is_marker(value):
        return True
    if isinstance(value, Mapping):
        return any(holds_marker(item) for item in cast(Mapping[Any, Any], value).values())
    if isinstance(value, list | tuple):
        return any(holds_marker(item) for item in cast(list[Any], value))
    return False
