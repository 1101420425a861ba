"""Hand-written PPO as a peer: `python -m benchmarks.peers.handwritten_ppo.worker [--tuned]`."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import flax
import jax
import numpy as np
import optax

from benchmarks.peers.handwritten_ppo import ppo
from benchmarks.peers.protocol import serve_peer
from benchmarks.settings import Setting
from jaxrl.runtime.cores import count_usable_cores

MAX_CPU_DEVICES = 8


class HandwrittenPeer:
    """Peer with one compiled setting, whose training continues from run to run.

    Args:
        tuned: Whether to use the tuned form of `ppo.py`.
    """

    def __init__(self, *, tuned: bool) -> None:
        self._tuned = tuned
        self._setting: Setting | None = None
        self._train: Callable[[ppo.State], tuple[ppo.State, ppo.Metrics]] | None = None
        self._state: ppo.State | None = None
        self._metrics: ppo.Metrics | None = None

    def info(self, request: dict[str, Any]) -> dict[str, Any]:
        versions = {module.__name__: module.__version__ for module in (jax, flax, optax)}
        return {"versions": versions, "devices": len(jax.devices()) if self._tuned else 1}

    def setup(self, request: dict[str, Any]) -> dict[str, Any]:
        """Compile for a setting and initialize new parameters."""
        self._setting = Setting.from_dict(request["setting"])
        mesh = ppo.make_device_mesh(self._setting) if self._tuned else None
        program = ppo.PPO(self._setting, mesh)
        start = time.perf_counter()
        self._train = ppo.compile_train(program)
        compile_s = time.perf_counter() - start
        state = jax.jit(program.init)(jax.random.key(self._setting.seed))
        if mesh is not None:
            shardings = self._train.input_shardings[0][0]  # pyright: ignore
            state = jax.device_put(state, shardings)
        self._state = jax.block_until_ready(state)
        return {"compile_s": compile_s}

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run one measurement."""
        assert self._train is not None
        assert self._state is not None
        assert self._setting is not None
        start = time.perf_counter()
        self._state, self._metrics = jax.block_until_ready(self._train(self._state))
        return {"seconds": time.perf_counter() - start, "env_steps": self._setting.env_steps}

    def evaluate(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the mean return of the episodes that ended in the last quarter of the last run."""
        assert self._metrics is not None
        last = max(1, self._metrics.loss.shape[0] // 4)
        total = float(np.sum(self._metrics.return_sum[-last:]))
        episodes = int(np.sum(self._metrics.num_episodes[-last:]))
        return {"return_mean": total / episodes if episodes else None}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tuned", action="store_true", help="bijective shuffle, cores as devices")
    tuned = parser.parse_args().tuned
    if tuned and "JAX_NUM_CPU_DEVICES" not in os.environ:
        cores = min(count_usable_cores(), MAX_CPU_DEVICES)
        jax.config.update("jax_num_cpu_devices", cores)
    peer = HandwrittenPeer(tuned=tuned)
    serve_peer(peer)


if __name__ == "__main__":
    main()
