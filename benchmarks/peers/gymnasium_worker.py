"""Peer that steps gymnasium's synchronous environments without a policy.

It calls `make_vec` with all defaults, as a user does. The random actions are sampled beforehand.
Steps in which an environment is only reset count as steps, which favors gymnasium.
"""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np

from benchmarks.peers.protocol import Peer, Request, serve_peer
from benchmarks.settings import Setting


class GymnasiumPeer(Peer):
    """Peer with one vector of environments, which continue from run to run."""

    packages = ("gymnasium",)

    def __init__(self) -> None:
        self._envs: gymnasium.vector.VectorEnv[Any, Any, Any] | None = None
        self._actions = np.zeros((0, 0), np.int64)

    def count_devices(self) -> int:
        """Return 0: nothing is computed."""
        return 0

    def setup(self, request: Request) -> dict[str, Any]:
        """Make and reset the environments, and sample all actions of a measurement."""
        setting = Setting.from_dict(request["setting"])
        self._envs = gymnasium.make_vec(
            "CartPole-v1", num_envs=setting.num_envs, vectorization_mode="sync"
        )
        self._envs.reset(seed=setting.seed)
        shape = (setting.num_updates * setting.num_steps, setting.num_envs)
        self._actions = np.random.default_rng(setting.seed).integers(2, size=shape)
        return {"compile_s": None}

    def run(self, request: Request) -> dict[str, Any]:
        """Run one measurement."""
        assert self._envs is not None
        step = self._envs.step
        start = time.perf_counter()
        for actions in self._actions:
            step(actions)
        return {"seconds": time.perf_counter() - start, "env_steps": self._actions.size}


if __name__ == "__main__":
    serve_peer(GymnasiumPeer())
