"""What a figure was measured on."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Any

from benchmarks.settings import available_cores


def describe() -> dict[str, Any]:
    """The machine and what may change its speed; no names of hosts, users or folders."""
    settings = ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES", "JAX_PLATFORMS", "OMP_NUM_THREADS")
    return {
        "cpu": _cpu_model(),
        "cores": available_cores(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "environment": {name: os.environ[name] for name in settings if name in os.environ},
    }


def load_average() -> float:
    """Jobs that ran or waited, mean of the last minute."""
    return round(os.getloadavg()[0], 2)


def _cpu_model() -> str:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"
