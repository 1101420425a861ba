"""Python's log of what the library does, beside the results of a run."""

import logging
import os
import resource
import sys
from collections.abc import Sequence
from typing import Any

from jaxrl.core.types import Device


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


def system_usage(devices: Sequence[Device]) -> dict[str, Any]:
    """Load of the machine, memory of the process and, where it is known, of each device."""
    unit = 1 if sys.platform == "darwin" else 1024
    usage = resource.getrusage(resource.RUSAGE_SELF)
    result: dict[str, Any] = {
        "load_1min": os.getloadavg()[0],
        "cpu_time_s": usage.ru_utime + usage.ru_stime,
        "peak_memory_bytes": usage.ru_maxrss * unit,
    }
    for device in devices:
        stats = device.memory_stats()
        if stats is not None:
            result[f"device_{device.id}_memory_bytes"] = stats.get("bytes_in_use", 0)
    return result
