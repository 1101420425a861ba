"""SBX (Stable-Baselines3 with flax networks) as a peer, in its own virtual environment.

One difference from the setting remains: DQN does not clip gradients.
"""

from __future__ import annotations

import jax
from sbx import DQN, SAC  # pyright: ignore

from benchmarks.peers.protocol import serve_peer
from benchmarks.peers.sb3.replay_worker import SB3ReplayPeer


class SBXPeer(SB3ReplayPeer):
    """Peer with one model, whose training continues from run to run."""

    packages = ("sbx-rl", "stable-baselines3", "jax", "flax", "gymnasium")

    def count_devices(self) -> int:
        """Return the number of devices."""
        return jax.local_device_count()


if __name__ == "__main__":
    serve_peer(SBXPeer({"DQN": DQN, "SAC": SAC}))
