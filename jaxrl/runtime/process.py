"""What is settled once in a process, before JAX starts: variables, devices, kept programs."""

from typing import TYPE_CHECKING

from jaxrl.runtime.compilation_cache import enable_compilation_cache
from jaxrl.runtime.devices import claim_cpu_devices
from jaxrl.runtime.env_vars import set_driver_environs

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


def prepare_process(config: "AlgorithmConfig") -> list[str]:
    """Settle what JAX can be told only before it starts, as the config says.

    Everything that builds or restores a run begins with this: a process that made or read a single
    array before has one CPU device, so other programs than the run had, and other bits. May be
    called again.

    Returns:
        Sentences for `explain()` and the log.
    """
    set_driver_environs(config)
    cache = enable_compilation_cache(config.debugging_settings.compilation_cache_dir)
    return [*claim_cpu_devices(), cache]
