"""The environment variables that a runner's process starts with."""

from collections.abc import Mapping

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


def learner_environs(extra: Mapping[str, str]) -> dict[str, str]:
    """The environment variables of a learner that has a GPU: the one that Ray gives it."""
    return {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **extra}
