"""Python's log of what the library does, beside the results of a run."""

import logging
import sys
from typing import Any


class _OnlyIfNobodyListens(logging.StreamHandler[Any]):
    """Writes to standard error until the program configures logging of its own."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            self.stream = sys.stderr
            super().emit(record)


def set_log_level(level: str) -> None:
    """Let jaxrl's loggers speak from this level on, on standard error if nobody else listens."""
    ours = logging.getLogger("jaxrl")
    ours.setLevel(level)
    if not ours.hasHandlers():
        handler = _OnlyIfNobodyListens()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        ours.addHandler(handler)
