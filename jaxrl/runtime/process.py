"""One-time setup of a process before JAX starts: variables, devices, compilation cache."""

from typing import TYPE_CHECKING

from jaxrl.runtime.compilation_cache import enable_compilation_cache
from jaxrl.runtime.devices import claim_cpu_devices
from jaxrl.runtime.env_vars import set_driver_env_vars

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


def prepare_process(config: "AlgorithmConfig") -> list[str]:
    """Apply the config's settings that JAX reads only at its start.

    Everything that builds or restores a run calls this first: a process that created or read an
    array before has one CPU device, hence different programs and different bits. May be called
    repeatedly.

    Returns:
        Sentences for `explain()` and the log.
    """
    set_driver_env_vars(config)
    cache = enable_compilation_cache(config.debugging_settings.compilation_cache_dir)
    return [*claim_cpu_devices(), cache]
