"""Training on JaxMARL's environments, in their own virtual environment (see requirements.txt)."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from benchmarks.peers.compiled import CompiledPeer
from benchmarks.peers.protocol import Request, serve_peer
from benchmarks.settings import IPPO, QMIX, SPREAD, TeamQ, TrainSetting


class JaxmarlTrainPeer(CompiledPeer):
    """Peer with one compiled setting, whose training continues from run to run."""

    packages = ("jaxmarl", "flashbax", "jax", "flax", "optax")
    has_report = True

    def setup(self, request: Request) -> dict[str, Any]:
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
        state = jax.block_until_ready(jax.jit(training.init)(jax.random.PRNGKey(setting.seed)))
        steps = setting.env_steps
        return self.compile(training.train, state, env_steps=steps, is_donated=True)

    def evaluate(self, request: Request) -> dict[str, Any]:
        """Return the mean of what each update reports over the last quarter of the last run."""
        returns = np.asarray(self.report)
        return {"return_mean": float(returns[-max(1, len(returns) // 4) :].mean())}


if __name__ == "__main__":
    serve_peer(JaxmarlTrainPeer())
