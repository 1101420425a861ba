"""Number of cores. Uses the standard library alone, for processes that must not import JAX."""

import os
from pathlib import Path

CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def count_usable_cores() -> int:
    """Return the number of cores this process may use, from its affinity and its cgroup's quota."""
    affinity = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    if CPU_QUOTA.exists():
        limit, period = CPU_QUOTA.read_text().split()
        if limit != "max":
            return max(1, min(affinity, int(limit) // int(period)))
    return affinity
