"""Hand-written DreamerV3 as a peer: `python -m benchmarks.peers.handwritten_dreamer.worker`."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax

from benchmarks.peers.compiled import CompiledPeer
from benchmarks.peers.handwritten_dreamer import dreamer
from benchmarks.peers.protocol import Request, serve_peer


class HandwrittenDreamerPeer(CompiledPeer):
    """Peer whose training continues from run to run, after the steps before the first update."""

    packages = ("jax", "flax", "optax")
    has_report = True

    def setup(self, request: Request) -> dict[str, Any]:
        """Act until updates may begin, and compile iterations with them."""
        num_iterations = request["env_steps"] // dreamer.NUM_ENVS
        warm_up = partial(dreamer.train, num_iterations=dreamer.WARMUP_ITERATIONS, num_updates=0)
        state, _ = jax.jit(warm_up)(jax.jit(dreamer.init)(jax.random.key(0)))
        program = partial(
            dreamer.train, num_iterations=num_iterations, num_updates=request["updates_per_step"]
        )
        return self.compile(program, state, env_steps=request["env_steps"], is_donated=True)

    def evaluate(self, request: Request) -> dict[str, Any]:
        """Return the mean return of the last run's episodes, which is their length."""
        count = int(self.report.num_episodes.sum())
        return {"return_mean": float(self.report.length_sum.sum()) / count if count else None}


if __name__ == "__main__":
    serve_peer(HandwrittenDreamerPeer())
