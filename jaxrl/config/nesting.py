"""How deep and how large a document of settings may be, which is walked many times."""

from collections.abc import Mapping
from typing import Any, cast

from jaxrl.errors import ConfigError

MAX_DEPTH = 64
MAX_VALUES = 100_000


def check_size(document: Any, source: object) -> None:
    """Refuse a document that holds itself, or that is nested or large beyond any config.

    Args:
        document: What JSON or YAML was read as; aliases of YAML count as often as they are used.
        source: What to name in the error.

    Raises:
        ConfigError: It is.
    """
    waiting: list[tuple[Any, int]] = [(document, 0)]
    seen = 0
    while waiting:
        value, depth = waiting.pop()
        seen += 1
        if depth > MAX_DEPTH:
            raise ConfigError(
                f"{source} is nested more than {MAX_DEPTH} levels deep, or holds itself by an alias; "
                "settings are a few levels deep."
            )
        if seen > MAX_VALUES:
            raise ConfigError(
                f"{source} has more than {MAX_VALUES:,} values, each alias counted as often as it is "
                "used; settings are fewer."
            )
        if isinstance(value, Mapping):
            inside = cast(Mapping[Any, Any], value)
            waiting.extend((part, depth + 1) for part in inside.values())
        elif isinstance(value, list | tuple):
            waiting.extend((part, depth + 1) for part in cast(list[Any], value))
