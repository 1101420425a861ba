"""Hand-written TD3+BC, IQL and CQL as a peer.

`python -m benchmarks.peers.handwritten_offline.worker`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import optax

from benchmarks.offline_settings import ACTION_SIZE, OBS_SIZE, OfflineSetting
from benchmarks.peers.handwritten_offline.algorithms import Learner, Rows, State, load
from benchmarks.peers.protocol import serve_peer


class HandwrittenOfflinePeer:
    """Peer with one compiled setting, whose training continues from run to run."""

    def __init__(self) -> None:
        self._train: Callable[[State, Rows], State] | None = None
        self._state: State | None = None
        self._rows: Rows | None = None

    def info(self, request: dict[str, Any]) -> dict[str, Any]:
        versions = {module.__name__: module.__version__ for module in (jax, optax)}
        return {"versions": versions, "devices": 1}

    def setup(self, request: dict[str, Any]) -> dict[str, Any]:
        """Load the data, compile for a setting, and initialize new parameters."""
        setting = OfflineSetting.from_dict(request["setting"])
        self._rows = load(request["data"], setting.gamma)
        learner = Learner(setting, OBS_SIZE, ACTION_SIZE)
        self._state = learner.init(jax.random.key(0))
        start = time.perf_counter()
        self._train = learner.compile(self._state, self._rows)
        compile_s = time.perf_counter() - start
        self.run({})
        return {"compile_s": compile_s}

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run one measurement."""
        assert self._train is not None
        assert self._state is not None
        assert self._rows is not None
        start = time.perf_counter()
        self._state = jax.block_until_ready(self._train(self._state, self._rows))
        return {"seconds": time.perf_counter() - start}

    def evaluate(self, request: dict[str, Any]) -> dict[str, Any]:
        return {}


def main() -> None:
    serve_peer(HandwrittenOfflinePeer())


if __name__ == "__main__":
    main()
