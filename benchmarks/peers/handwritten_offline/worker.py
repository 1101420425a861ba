"""Hand-written TD3+BC, IQL and CQL as a peer.

`python -m benchmarks.peers.handwritten_offline.worker`.
"""

from __future__ import annotations

from typing import Any

import jax

from benchmarks.peers.compiled import CompiledPeer
from benchmarks.peers.handwritten_offline.algorithms import Learner, load
from benchmarks.peers.protocol import Request, serve_peer
from benchmarks.settings import ACTION_SIZE, OBS_SIZE, OfflineSetting


class HandwrittenOfflinePeer(CompiledPeer):
    """Peer with one compiled setting, whose training continues from run to run."""

    packages = ("jax", "optax")

    def setup(self, request: Request) -> dict[str, Any]:
        """Load the data, compile for a setting, and train once."""
        setting = OfflineSetting.from_dict(request["setting"])
        rows = load(request["data"], setting.gamma)
        learner = Learner(setting, OBS_SIZE, ACTION_SIZE)
        state = learner.init(jax.random.key(0))
        reply = self.compile(learner.train, state, rows, is_donated=True)
        self.run({})
        return reply


if __name__ == "__main__":
    serve_peer(HandwrittenOfflinePeer())
