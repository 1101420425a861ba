"""Starting a small Ray for a peer; imported in several environments, so it needs nothing but Ray."""

from __future__ import annotations

import logging
import os

import ray

NUM_CPUS = 4
"""What Ray believes to have: room for two runners, whatever else a library wants to place."""

OBJECT_STORE_BYTES = 100 * 2**20


def start_ray() -> None:
    """A Ray of this process's own: no dashboard, no usage report, a small object store.

    Ray gives every actor one thread per CPU that it has reserved, in `OMP_NUM_THREADS`.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray.init(
        address="local",
        num_cpus=NUM_CPUS,
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        logging_level=logging.ERROR,
        log_to_driver=False,
    )
