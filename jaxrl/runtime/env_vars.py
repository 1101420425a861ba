"""The environment variables of a run's processes."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

_NO_ACCELERATOR = {
    "JAX_PLATFORMS": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "",
    "ROCR_VISIBLE_DEVICES": "",
    "TPU_VISIBLE_CHIPS": "",
}
"""What keeps JAX from an accelerator, and from reserving most of its memory."""


def actor_environs(num_cpus: float, extra: Mapping[str, str]) -> dict[str, str]:
    """The environment variables of an actor that steps environments.

    It sees no accelerator, has one JAX device, and computes on as many threads as it has CPUs, at
    least one: more would take the time of the other actors.

    Args:
        num_cpus: What Ray reserves for it.
        extra: `extra_python_environs_for_worker`, which go before all others.
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


def set_driver_environs(config: "AlgorithmConfig") -> None:
    """Give this process the variables that the config has for it."""
    os.environ.update(config.python_environment_settings.extra_python_environs_for_driver)


def learner_environs(extra: Mapping[str, str]) -> dict[str, str]:
    """The environment variables of a learner that has a GPU: the one that Ray gives it."""
    return {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **extra}
