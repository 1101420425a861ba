"""jaxrl's DreamerV3 as a peer, the shipped config without its evaluations."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.peers.jaxrl_worker import AlgorithmPeer, serve_jaxrl
from benchmarks.peers.protocol import Request
from jaxrl import load_config
from jaxrl.config.base import AlgorithmConfig

CONFIG = "classic/cartpole-dreamerv3"


class JaxrlDreamerPeer(AlgorithmPeer):
    """Peer that trains DreamerV3, and counts its updates."""

    def make_probe(self) -> AlgorithmConfig:
        """Return the config with the fewest steps."""
        return make_config(env_steps=8, updates_per_step=1)

    def setup(self, request: Request) -> dict[str, Any]:
        """Build, and train until every iteration has all of its updates."""
        self.close()
        self._env_steps, per_step = request["env_steps"], request["updates_per_step"]
        chosen: Any = make_config(self._env_steps, per_step)
        self._expected = self._env_steps // chosen.num_envs_per_env_runner * per_step
        start = time.perf_counter()
        self._algorithm = chosen.build()
        self._num_updates = 0
        self.time_train()
        compiled = time.perf_counter() - start
        while self._count_updates() < self._expected:
            self.time_train()
        return {"compile_s": compiled}

    def run(self, request: Request) -> dict[str, Any]:
        """Run one measurement: one `train()` with its updates.

        Raises:
            RuntimeError: If it made another number of updates.
        """
        reply = super().run(request)
        if (count := self._count_updates()) != self._expected:
            raise RuntimeError(f"train() made {count} updates, expected {self._expected}")
        return reply

    def _count_updates(self) -> int:
        """Return the number of updates since the last call."""
        before = self._num_updates
        self._num_updates = self._result["learners"]["default_policy"]["num_updates_lifetime"]
        return self._num_updates - before


def make_config(env_steps: int, updates_per_step: int) -> AlgorithmConfig:
    """Return the shipped config with a number of updates after a step of all environments."""
    chosen: Any = load_config(CONFIG)
    chosen.training(
        training_intensity=updates_per_step
        * chosen.training_settings.train_batch_size
        / chosen.num_envs_per_env_runner
    )
    chosen.reporting(min_sample_timesteps_per_iteration=env_steps)
    return chosen.evaluation(evaluation_interval=None)


if __name__ == "__main__":
    serve_jaxrl(JaxrlDreamerPeer())
