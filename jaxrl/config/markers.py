"""Detection of Ray Tune's search markers without importing Ray."""

from collections.abc import Mapping
from typing import Any, cast


def is_tune_marker(value: object) -> bool:
    """Return whether a value is a search marker, as from `tune.grid_search` or `tune.uniform`."""
    if isinstance(value, Mapping):
        entries = cast(Mapping[Any, Any], value)
        return set(entries) == {"grid_search"} and isinstance(entries["grid_search"], list)
    return any(cls.__module__ == "ray.tune.search.sample" for cls in type(value).__mro__)


def contains_tune_marker(value: object) -> bool:
    """Return whether a value is a search marker, or a nested container that holds one."""
    if is_tune_marker(value):
        return True
    if isinstance(value, Mapping):
        return any(contains_tune_marker(item) for item in cast(Mapping[Any, Any], value).values())
    if isinstance(value, list | tuple):
        return any(contains_tune_marker(item) for item in cast(list[Any], value))
    return False
