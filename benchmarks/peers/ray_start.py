"""Start of a small Ray for a peer. Imports only Ray, because several environments import it."""

from __future__ import annotations

import logging
import os

import ray

NUM_CPUS = 4
"""Number of CPUs reported to Ray: enough for two runners and anything else a library places."""

OBJECT_STORE_BYTES = 100 * 2**20


def start_ray(object_store_bytes: int = OBJECT_STORE_BYTES) -> None:
    """Start a local Ray without dashboard or usage reports, with a small object store.

    Ray sets `OMP_NUM_THREADS` of every actor to the number of CPUs that the actor has reserved.

    Args:
        object_store_bytes: Size of the object store.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray.init(
        address="local",
        num_cpus=NUM_CPUS,
        include_dashboard=False,
        object_store_memory=object_store_bytes,
        logging_level=logging.ERROR,
        log_to_driver=False,
    )
