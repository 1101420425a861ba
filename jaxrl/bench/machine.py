"""Description of the machine that a benchmark runs on."""

import os
import platform
from typing import Any

from jaxrl.runtime.cores import count_usable_cores
from jaxrl.runtime.measurements import get_cpu_model

ENVIRONMENT_VARIABLES = ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES", "JAX_PLATFORMS", "OMP_NUM_THREADS")


def describe() -> dict[str, Any]:
    """Return the machine and what affects its speed, without names of hosts, users, or folders."""
    return {
        "cpu": get_cpu_model(),
        "cores": count_usable_cores(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "environment": {
            name: os.environ[name] for name in ENVIRONMENT_VARIABLES if name in os.environ
        },
    }
