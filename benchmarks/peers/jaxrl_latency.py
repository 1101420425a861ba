"""Latency of single actions after a warm-up: `python -m benchmarks.peers.jaxrl_latency CALLS`.

For comparison with `compute_single_action`, it times the minimum that a user of JAX would write:
the module's `forward_inference` under `jax.jit` with given parameters, and the action as a number.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from benchmarks.peers.jaxrl_worker import load_recommended_config
from jaxrl.core.types import Columns


def time_calls(act: Callable[[np.ndarray], Any], calls: int) -> list[float]:
    """Time each call on a new observation, after two calls to warm up, in seconds."""
    observations = np.random.default_rng(0).uniform(-0.1, 0.1, (calls + 2, 4)).astype(np.float32)
    seconds: list[float] = []
    for obs in observations:
        start = time.perf_counter()
        act(obs)
        seconds.append(time.perf_counter() - start)
    return seconds[2:]


def main(calls: int) -> None:
    """Print the seconds of all calls as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        algorithm = load_recommended_config().debugging(results_dir=folder, loggers=[]).build()
        params = algorithm.state.learner.sgd.params
        module = algorithm.get_module()

        @jax.jit
        def compute_action(params: Any, obs: Any) -> Any:
            return module.forward_inference(params, obs[None])[Columns.ACTIONS][0]

        found = {
            "compute_single_action": time_calls(
                lambda obs: algorithm.compute_single_action(obs, explore=False), calls
            ),
            "a jitted call": time_calls(lambda obs: int(compute_action(params, obs)), calls),
        }
        algorithm.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]))
