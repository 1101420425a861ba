"""Which devices a run uses. On a CPU the cores are devices.

Rule: when the first Algorithm is built or restored, and nothing says otherwise (`XLA_FLAGS`,
`JAX_NUM_CPU_DEVICES`, a backend that has started), the CPU is divided into as many devices as
there are cores to use, at most 8. `config.plan` then decides how many of them a run takes.
"""

import functools
import logging
import os
from collections.abc import Callable
from pathlib import Path

import jax

from jaxrl.core.types import Device

logger = logging.getLogger("jaxrl")

MAX_CPU_DEVICES = 8
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_UNSET = -1
"""JAX's own value of `jax_num_cpu_devices`."""


def usable_cores() -> int:
    """Cores that this process may use: its affinity, and its cgroup's quota where there is one."""
    affinity = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    if CPU_QUOTA.exists():
        limit, period = CPU_QUOTA.read_text().split()
        if limit != "max":
            return max(1, min(affinity, int(limit) // int(period)))
    return affinity


def claim_cpu_devices() -> list[str]:
    """Divide the CPU into devices if that is still possible; sentences for `explain()` if not."""
    compute_where_called()
    wanted = min(MAX_CPU_DEVICES, usable_cores())
    said = _said_by_others(wanted)
    if said is not None:
        return [said]
    try:
        jax.config.update("jax_num_cpu_devices", wanted)
    except RuntimeError:
        found = len(jax.local_devices(backend="cpu"))
        return [] if found == wanted else [_too_late(found)]
    return []


def cores_are_devices() -> bool:
    """Whether each core is a device, by the rule alone."""
    wanted = min(MAX_CPU_DEVICES, usable_cores())
    if jax.default_backend() != "cpu" or wanted == 1 or _said_by_others(wanted) is not None:
        return False
    return len(jax.local_devices()) == wanted


def _said_by_others(wanted: int) -> str | None:
    """Who decided how many devices the CPU is, if not the rule."""
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return "CPU devices: as XLA_FLAGS says."
    if "JAX_NUM_CPU_DEVICES" in os.environ:
        return "CPU devices: as JAX_NUM_CPU_DEVICES says."
    number = jax.config.values["jax_num_cpu_devices"]
    if number in (wanted, _UNSET):
        return None
    return f"CPU devices: {number}, as jax_num_cpu_devices says."


def warn_of_lost_devices(devices_of: Callable[[int], int]) -> None:
    """Warn, once in a process, of cores that a run goes without since JAX had started too early.

    Args:
        devices_of: How many devices the run takes where there are so many.
    """
    wanted, found = min(MAX_CPU_DEVICES, usable_cores()), jax.local_device_count()
    if jax.default_backend() != "cpu" or found >= wanted or _said_by_others(wanted) is not None:
        return
    if devices_of(wanted) > devices_of(found):
        _warn_once(_too_late(found))


def _too_late(found: int) -> str:
    return (
        f"JAX had started before the first build, so the CPU stays {found} device(s); build "
        "before using JAX, or set JAX_NUM_CPU_DEVICES, to use every core."
    )


@functools.cache
def _warn_once(sentence: str) -> None:
    logger.warning(sentence)


def compute_where_called() -> None:
    """Let the CPU compute in the thread that calls; without effect once JAX has started.

    A runner on the host calls a small program at every step and waits for it. Handing that to
    another thread and back costs more than the program, and nothing here overlaps with it. Learners
    under Ray do without: theirs is a program of a whole train batch, waited for once, which is no
    slower in another thread, to the same bits.
    """
    jax.config.update("jax_cpu_enable_async_dispatch", False)


def memory_limit(device: Device) -> int | None:
    """Bytes that a device can hold, None where nothing says."""
    if device.platform == "cpu":
        return _host_memory_limit()
    stats = device.memory_stats()
    return None if stats is None else stats.get("bytes_limit")


def _host_memory_limit() -> int | None:
    limits: list[int] = []
    cgroup = Path("/sys/fs/cgroup/memory.max")
    if cgroup.exists() and (text := cgroup.read_text().strip()) != "max":
        limits.append(int(text))
    if "SC_PHYS_PAGES" in os.sysconf_names:
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(limits) if limits else None
