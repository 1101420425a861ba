"""Training on JaxMARL's environments, in their own virtual environment (see requirements.txt)."""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

import jax
import numpy as np

from benchmarks.multi_settings import IPPO, QMIX, SPREAD, TeamQ, TrainSetting
from benchmarks.peers.protocol import serve_peer


class JaxmarlTrainPeer:
    """Peer with one compiled setting, whose training continues from run to run."""

    def __init__(self) -> None:
        self._env_steps = 0
        self._train: Any = None
        self._state: Any = None
        self._returns: Any = None

    def info(self, request: dict[str, Any]) -> dict[str, Any]:
        packages = ("jaxmarl", "flashbax", "jax", "flax", "optax")
        return {"versions": {name: version(name) for name in packages}, "devices": 1}

    def setup(self, request: dict[str, Any]) -> dict[str, Any]:
        """Compile for a setting and initialize new parameters."""
        # They print while they are imported, which must not come before the protocol has begun.
        from jaxmarl import make  # pyright: ignore
        from jaxmarl.wrappers.baselines import MPELogWrapper  # pyright: ignore

        from benchmarks.peers.jaxmarl import ippo, team_q

        setting = TrainSetting.from_dict(request["setting"])
        env = MPELogWrapper(make(SPREAD[1]))
        training: Any
        if setting.algorithm == IPPO:
            training = ippo.IndependentTraining(
                env, setting.num_envs, setting.num_steps, setting.num_updates
            )
        else:
            assert setting.num_steps == TeamQ.num_steps
            training = team_q.TeamTraining(
                env, setting.num_envs, setting.num_updates, mixes=setting.algorithm == QMIX
            )
        self._state = jax.block_until_ready(
            jax.jit(training.init)(jax.random.PRNGKey(setting.seed))
        )
        self._env_steps = setting.env_steps
        start = time.perf_counter()
        self._train = jax.jit(training.train, donate_argnums=0).lower(self._state).compile()
        return {"compile_s": time.perf_counter() - start}

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run one measurement."""
        start = time.perf_counter()
        self._state, self._returns = jax.block_until_ready(self._train(self._state))
        return {"seconds": time.perf_counter() - start, "env_steps": self._env_steps}

    def evaluate(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the mean of what each update reports over the last quarter of the last run."""
        returns = np.asarray(self._returns)
        return {"return_mean": float(returns[-max(1, len(returns) // 4) :].mean())}


def main() -> None:
    serve_peer(JaxmarlTrainPeer())


if __name__ == "__main__":
    main()
