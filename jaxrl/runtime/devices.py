"""Selection of devices. On a CPU, the cores are devices.

When the first Algorithm is built or restored, the CPU is divided into as many devices as there are
usable cores, at most 8, unless `XLA_FLAGS`, `JAX_NUM_CPU_DEVICES` or a started backend determine
the number. `config.plan` then decides how many of them a run uses.
"""

import contextlib
import functools
import logging
import os
from collections.abc import Callable
from pathlib import Path

import jax

from jaxrl.core.types import Device
from jaxrl.runtime.cores import count_usable_cores

logger = logging.getLogger("jaxrl")

MAX_CPU_DEVICES = 8
_UNSET = -1
"""JAX's default of `jax_num_cpu_devices`."""


def claim_cpu_devices() -> list[str]:
    """Divide the CPU into devices, if that is still possible.

    Returns:
        Sentences for `explain()` if the number of devices is determined otherwise.
    """
    disable_async_dispatch()
    wanted = min(MAX_CPU_DEVICES, count_usable_cores())
    override = _find_override(wanted)
    if override is not None:
        return [override]
    try:
        jax.config.update("jax_num_cpu_devices", wanted)
    except RuntimeError:
        found = len(jax.local_devices(backend="cpu"))
        return [] if found == wanted else [_format_too_late(found)]
    return []


def request_devices(platform: str, number: int) -> None:
    """Request the devices that another process had; without effect once JAX has started.

    A CPU is divided into any number of devices. Other devices are there or not, and what the
    environment or JAX's options determine is not changed.

    Args:
        platform: Platform of the devices.
        number: Number of local devices of the other process.
    """
    if platform != "cpu":
        return
    with contextlib.suppress(RuntimeError):
        if not jax.config.values["jax_platforms"]:
            jax.config.update("jax_platforms", platform)
        if _find_override(number) is None:
            jax.config.update("jax_num_cpu_devices", number)


def has_device_per_core() -> bool:
    """Return whether each core is a device, as set by this module alone."""
    wanted = min(MAX_CPU_DEVICES, count_usable_cores())
    if jax.default_backend() != "cpu" or wanted == 1 or _find_override(wanted) is not None:
        return False
    return len(jax.local_devices()) == wanted


def _find_override(wanted: int) -> str | None:
    """Return a sentence if something else determines the number of CPU devices, else None."""
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return "CPU devices: as set by XLA_FLAGS."
    if "JAX_NUM_CPU_DEVICES" in os.environ:
        return "CPU devices: as set by JAX_NUM_CPU_DEVICES."
    number = jax.config.values["jax_num_cpu_devices"]
    if number in (wanted, _UNSET):
        return None
    return f"CPU devices: {number}, as set by jax_num_cpu_devices."


def warn_about_unused_cores(choose_num_devices: Callable[[int], int]) -> None:
    """Warn, once per process, of cores that a run cannot use because JAX was started too early.

    Args:
        choose_num_devices: Function from the number of available devices to the number that the run uses.
    """
    wanted, found = min(MAX_CPU_DEVICES, count_usable_cores()), jax.local_device_count()
    if jax.default_backend() != "cpu" or found >= wanted or _find_override(wanted) is not None:
        return
    if choose_num_devices(wanted) > choose_num_devices(found):
        _warn_once(_format_too_late(found))


def warn_without_gpu(num_gpus: float) -> None:
    """Warn, once per process, of GPUs that a learner in this process asks for and JAX lacks."""
    if num_gpus and jax.default_backend() == "cpu":
        _warn_once(
            f"num_gpus_per_learner={num_gpus:g}, but JAX has no GPU here, so the run uses the CPU: "
            "install the extra 'cuda12', or leave it out."
        )


def _format_too_late(found: int) -> str:
    return (
        f"JAX had started before the first build, so the CPU stays {found} device(s); build "
        "before using JAX, or set JAX_NUM_CPU_DEVICES, to use every core."
    )


@functools.cache
def _warn_once(sentence: str) -> None:
    logger.warning(sentence)


def disable_async_dispatch() -> None:
    """Make the CPU backend compute in the calling thread; without effect once JAX has started.

    A runner on the host calls a small program at every step and waits for it. Handing that to
    another thread and back costs more than the program, and there is nothing to overlap it with.
    Learners under Ray do not set this: their program is a whole train batch that is waited for
    once, which is no slower in another thread and gives the same bits.
    """
    jax.config.update("jax_cpu_enable_async_dispatch", False)


def get_memory_limit(device: Device) -> int | None:
    """Return the memory of a device in bytes, None if unknown."""
    if device.platform == "cpu":
        return get_host_memory_limit()
    stats = device.memory_stats()
    return None if stats is None else stats.get("bytes_limit")


def get_host_memory_limit() -> int | None:
    """Return the memory that this process may use in bytes, None if unknown."""
    limits: list[int] = []
    cgroup = Path("/sys/fs/cgroup/memory.max")
    if cgroup.exists() and (text := cgroup.read_text().strip()) != "max":
        limits.append(int(text))
    if "SC_PHYS_PAGES" in os.sysconf_names:
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(limits) if limits else None
