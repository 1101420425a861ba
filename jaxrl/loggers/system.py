"""What the process and its devices use, from the standard library and JAX alone."""

import os
import resource
import sys
from collections.abc import Sequence
from typing import Any

from jaxrl.core.types import Device


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
