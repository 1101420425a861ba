"""One-time setup of a process before JAX starts: variables, devices, compilation cache."""

from typing import TYPE_CHECKING

import jax

from jaxrl.errors import ConfigError
from jaxrl.runtime.compilation_cache import enable_compilation_cache
from jaxrl.runtime.devices import claim_cpu_devices
from jaxrl.runtime.env_vars import set_driver_env_vars

if TYPE_CHECKING:
    from jaxrl.config.config import Config


def prepare_process(config: "Config") -> list[str]:
    """Apply the config's settings that JAX reads only at its start.

    Everything that builds or restores a run calls this first: a process that created or read an
    array before has one CPU device, hence different programs and different bits. May be called
    repeatedly.

    Returns:
        Sentences for `explain()` and the log.

    Raises:
        ConfigError: If JAX has no device of the platform that it is told to use, or is told to
            refuse mixed types.
    """
    set_driver_env_vars(config)
    cache = enable_compilation_cache(config.debugging_settings.compilation_cache_dir)
    notes = claim_cpu_devices()
    _check_platforms()
    if jax.config.values["jax_numpy_dtype_promotion"] == "strict":
        raise ConfigError(
            "jax_numpy_dtype_promotion='strict' refuses sums of different types, of which optax "
            "and jaxrl have some: set it, or JAX_NUMPY_DTYPE_PROMOTION, to 'standard'."
        )
    return [*notes, cache]


def _check_platforms() -> None:
    """Raise if JAX is told to use a platform that it does not have, which it says obscurely."""
    platforms = jax.config.values["jax_platforms"]
    if not platforms:
        return
    try:
        jax.local_devices()
    except (AssertionError, RuntimeError) as error:
        reason = str(error).partition(" (set JAX_PLATFORMS")[0].rstrip(".")
        raise ConfigError(
            f"JAX has no device of JAX_PLATFORMS={platforms!r}: unset it, or install what it "
            f"names, such as pip install 'jaxrl[cuda12]'.{reason and f' JAX says: {reason}.'}"
        ) from error
