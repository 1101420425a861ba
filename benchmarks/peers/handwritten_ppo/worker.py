"""Hand-written PPO as a peer: `python -m benchmarks.peers.handwritten_ppo.worker [--tuned]`."""

from __future__ import annotations

import argparse
import os
from typing import Any

import jax
import numpy as np

from benchmarks.peers.compiled import CompiledPeer
from benchmarks.peers.handwritten_ppo import ppo
from benchmarks.peers.protocol import Request, serve_peer
from benchmarks.settings import Setting
from jaxrl.runtime.cores import count_usable_cores

MAX_CPU_DEVICES = 8


class HandwrittenPeer(CompiledPeer):
    """Peer with one compiled setting, whose training continues from run to run.

    Args:
        tuned: Whether to use the tuned form of `ppo.py`.
    """

    packages = ("jax", "flax", "optax")
    has_report = True

    def __init__(self, *, tuned: bool) -> None:
        super().__init__()
        self._tuned = tuned

    def count_devices(self) -> int:
        """Return the number of devices that are in use."""
        return len(jax.devices()) if self._tuned else 1

    def setup(self, request: Request) -> dict[str, Any]:
        """Compile for a setting and initialize new parameters."""
        setting = Setting.from_dict(request["setting"])
        mesh = ppo.make_device_mesh(setting) if self._tuned else None
        program = ppo.PPO(setting, mesh)
        state = jax.jit(program.init, out_shardings=program.get_shardings())(
            jax.random.key(setting.seed)
        )
        return self.compile(program.train, state, env_steps=setting.env_steps, is_donated=True)

    def evaluate(self, request: Request) -> dict[str, Any]:
        """Return the mean return of the episodes that ended in the last quarter of the last run."""
        last = max(1, self.report.loss.shape[0] // 4)
        total = float(np.sum(self.report.return_sum[-last:]))
        episodes = int(np.sum(self.report.num_episodes[-last:]))
        return {"return_mean": total / episodes if episodes else None}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--tuned", action="store_true", help="bijective shuffle, cores as devices")
    tuned = parser.parse_args().tuned
    if tuned and "JAX_NUM_CPU_DEVICES" not in os.environ:
        cores = min(count_usable_cores(), MAX_CPU_DEVICES)
        jax.config.update("jax_num_cpu_devices", cores)
    serve_peer(HandwrittenPeer(tuned=tuned))
