"""Environment variables of a run's processes."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxrl.config.config import Config

_NO_ACCELERATOR = {
    "JAX_PLATFORMS": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "",
    "ROCR_VISIBLE_DEVICES": "",
    "TPU_VISIBLE_CHIPS": "",
}
"""Variables that keep JAX from using an accelerator, and from reserving most of its memory."""


def make_actor_env_vars(num_cpus: float, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of an actor that steps environments.

    The actor sees no accelerator, has one JAX device, and computes on as many threads as it has
    CPUs, at least one: more would slow down the other actors.

    Args:
        num_cpus: Number of CPUs that Ray reserves for the actor.
        extra: `extra_python_environs_for_worker`, which override all others.
    """
    threads = str(max(1, int(num_cpus)))
    return {
        **_NO_ACCELERATOR,
        "JAX_NUM_CPU_DEVICES": "1",
        "XLA_FLAGS": "" if threads != "1" else "--xla_cpu_multi_thread_eigen=false",
        "NPROC": threads,  # the size of XLA's thread pool
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        **extra,
    }


def set_driver_env_vars(config: "Config") -> None:
    """Set the config's environment variables in this process."""
    os.environ.update(config.python_environment_settings.extra_python_environs_for_driver)


def make_learner_env_vars(extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of a learner with a GPU that Ray assigns to it."""
    return {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **extra}
