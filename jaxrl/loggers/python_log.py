"""Python logging of the library's own messages, and resource usage of process and machine."""

import logging
import os
import resource
import socket
import sys
from collections.abc import Sequence
from typing import Any

from jaxrl.core.types import Device


class _FallbackHandler(logging.StreamHandler[Any]):
    """Handler that writes to standard error until the program configures its own logging."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            self.stream = sys.stderr
            super().emit(record)


def set_log_level(level: str) -> None:
    """Set the level of jaxrl's loggers, which use standard error if there is no other handler."""
    logger = logging.getLogger("jaxrl")
    logger.setLevel(level)
    if not logger.hasHandlers():
        handler = _FallbackHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)


def get_system_usage(devices: Sequence[Device]) -> dict[str, Any]:
    """Return machine load, CPU time and memory of the process and, if known, device memory."""
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


def get_machine_usage() -> dict[str, float]:
    """Return the machine's usage in percent, by the keys that RLlib's `perf` has.

    Cores are counted by the processes that wait for one, on average of a minute; memory is left out
    where the operating system does not tell how much is available.
    """
    usage = {"cpu_util_percent": min(100.0, 100.0 * os.getloadavg()[0] / (os.cpu_count() or 1))}
    try:
        with open("/proc/meminfo") as file:
            fields = {
                name: int(rest.split()[0]) for name, _, rest in (x.partition(":") for x in file)
            }
        available = fields["MemAvailable"] / fields["MemTotal"]
    except (OSError, KeyError, ValueError, IndexError):
        return usage
    return {**usage, "ram_util_percent": 100.0 * (1.0 - available)}


def get_node_ip() -> str:
    """Return the address of this machine in its network, "127.0.0.1" without one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # of a datagram socket: nothing is sent
            return probe.getsockname()[0]
        except OSError:
            return "127.0.0.1"
