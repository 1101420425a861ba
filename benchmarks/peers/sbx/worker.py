"""SBX (Stable-Baselines3 with flax networks) as a peer, in its own virtual environment.

One difference from the setting remains: DQN does not clip gradients.
"""

from __future__ import annotations

from typing import Any

import jax
from sbx import DQN, SAC  # pyright: ignore

from benchmarks.peers.protocol import serve_peer
from benchmarks.peers.sb3.replay_worker import SB3ReplayPeer


class SBXPeer(SB3ReplayPeer):
    """Peer with one model, whose training continues from run to run."""

    packages = ("sbx-rl", "stable-baselines3", "jax", "flax", "gymnasium")

    def info(self, request: dict[str, Any]) -> dict[str, Any]:
        return {**super().info(request), "devices": jax.local_device_count()}


if __name__ == "__main__":
    serve_peer(SBXPeer({"DQN": DQN, "SAC": SAC}))
